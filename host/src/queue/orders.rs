//! Orders of operators to all hosts: which version of a plugin is withdrawn, or may run again, and which
//! plugin's file is to be looked at anew.
//!
//! In Redis, a plugin has at most one order of each kind, the last one. Hosts read all orders when they start
//! and then every few seconds (`announcer`); what follows from one is the life of the plugin (`plugins`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::error::QueueError;
use super::keys;
use super::link::Link;
use super::reply;

/// The most plugins that have an order of one kind.
pub(crate) const MAX_ORDERS: usize = 1000;
/// The end of a field that says when a plugin was to be reloaded. Names of plugins have no slash.
const RELOAD: &str = "/reload";

/// The orders that stand, by the names of plugins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Orders {
    pub versions: BTreeMap<String, VersionOrder>,
    /// When each plugin was last to be reloaded, in milliseconds since the Unix epoch. A host looks at the
    /// file when this is another time than before, and not because of what it finds when it starts.
    pub reloads: BTreeMap<String, u64>,
}

/// An order about one version of a plugin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct VersionOrder {
    /// SHA-256 of the version, in hexadecimal.
    pub version: String,
    /// It is withdrawn: no host runs it. Otherwise it may run again.
    pub withdrawn: bool,
    /// The operator's reason.
    pub why: String,
    /// Milliseconds since the Unix epoch, by the clock of who gave the order.
    pub at: u64,
}

/// Gives an order about a version. It replaces the last one for this plugin. The caller sees to
/// [`MAX_ORDERS`].
pub(crate) async fn give(link: &Link, plugin: &str, order: &VersionOrder) -> Result<(), QueueError> {
    let json = serde_json::to_string(order).unwrap_or_default();
    link.write("give an order", redis::cmd("HSET").arg(keys::ORDERS).arg(plugin).arg(json)).await.map(drop)
}

/// Lets all hosts look at the plugin's file, if `at` is another time than that of the last such order. The
/// caller sees to that, and to [`MAX_ORDERS`].
pub(crate) async fn give_reload(link: &Link, plugin: &str, at: u64) -> Result<(), QueueError> {
    let field = format!("{plugin}{RELOAD}");
    link.write("order a reload", redis::cmd("HSET").arg(keys::ORDERS).arg(field).arg(at)).await.map(drop)
}

/// The last orders for each plugin. One that another version of tqhost wrote in another form is left out.
pub(crate) async fn list(link: &Link) -> Result<Orders, QueueError> {
    const WHAT: &str = "list orders";
    let found = link.command(WHAT, redis::cmd("HGETALL").arg(keys::ORDERS)).await?;
    let pairs = reply::pairs(found).map_err(|_| QueueError::unexpected(WHAT, link.address()))?;
    Ok(read(pairs))
}

fn read(pairs: Vec<(Vec<u8>, Vec<u8>)>) -> Orders {
    let mut orders = Orders::default();
    for (field, json) in pairs {
        let Ok(field) = String::from_utf8(field) else { continue };
        match field.strip_suffix(RELOAD) {
            Some(plugin) => {
                if let Ok(at) = serde_json::from_slice(&json) {
                    orders.reloads.insert(plugin.to_owned(), at);
                }
            }
            None => {
                if let Ok(order) = serde_json::from_slice(&json) {
                    orders.versions.insert(field, order);
                }
            }
        }
    }
    orders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_another_form_is_left_out() {
        let order = VersionOrder { version: "3f".to_owned(), withdrawn: true, why: "slow".to_owned(), at: 7 };
        let json = serde_json::to_string(&order).expect("JSON");
        let pairs = [
            ("p", json.as_str()),
            ("p/reload", "12"),
            // A host that knows no reloads takes one for this, and leaves it out.
            ("q", "12"),
            ("q/reload", json.as_str()),
            ("r", "{}"),
            ("r/reload", "soon"),
        ];
        let pairs = pairs.map(|(field, value)| (field.as_bytes().to_vec(), value.as_bytes().to_vec()));
        let orders = Orders {
            versions: BTreeMap::from([("p".to_owned(), order)]),
            reloads: BTreeMap::from([("p".to_owned(), 12)]),
        };
        assert_eq!(read(pairs.to_vec()), orders);
    }
}
