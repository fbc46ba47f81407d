//! Orders of operators to all hosts: which versions of a plugin are withdrawn, which one may run again, and
//! which plugin's file is to be looked at anew.
//!
//! In Redis, each version that is withdrawn has a field of its own, `PLUGIN/VERSION`, so that another
//! withdrawal does not let it run again. The field `PLUGIN` has the last order about any version: a lift, or
//! a withdrawal once more, which is all that hosts and commands knew before there was a set. Hosts read all
//! orders when they start and then every few seconds (`announcer`); what follows from one is the life of the
//! plugin (`plugins`). `PLUGIN/good` is no order: it lists the good versions that are kept for all hosts.
//! `/job/ID` is a job (`jobs`).

use std::collections::BTreeMap;

use redis::Cmd;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::error::{QueueError, QueueResult};
use super::jobs;
use super::keys;
use super::link::Link;
use super::reply;
use crate::builds::BuildNote;

/// The most plugins that have an order of one kind.
pub(crate) const MAX_ORDERS: usize = 1000;
/// The most versions of a plugin that are withdrawn.
pub(crate) const MAX_WITHDRAWN: usize = 16;
/// The end of a field that says when a plugin was to be reloaded. Names of plugins have no slash.
const RELOAD: &str = "reload";
/// The end of a field with the good versions of a plugin.
const GOOD: &str = "good";

/// The versions of a plugin that are withdrawn, by their digests.
pub(crate) type Withdrawn = BTreeMap<String, VersionOrder>;

/// The orders that stand, by the names of plugins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Orders {
    pub withdrawn: BTreeMap<String, Withdrawn>,
    /// The last order about a version of each plugin.
    pub last: BTreeMap<String, VersionOrder>,
    /// When each plugin was last to be reloaded, in milliseconds since the Unix epoch. A host looks at the
    /// file when this is another time than before, and not because of what it finds when it starts.
    pub reloads: BTreeMap<String, u64>,
    /// The last good versions of each plugin, whose files are kept for all hosts.
    pub good: BTreeMap<String, Vec<GoodVersion>>,
    /// The text of each job, by its id.
    pub jobs: BTreeMap<String, String>,
}

/// A good version of a plugin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GoodVersion {
    /// SHA-256 of its file, in hexadecimal.
    pub digest: String,
    /// Size of the file.
    pub bytes: u64,
    /// When it was kept, in milliseconds since the Unix epoch.
    pub at: u64,
    pub place: KeptAt,
    /// By which hosts know that one of them wrote this.
    pub mark: String,
    /// Only shown to people: the mark does not vouch for it.
    #[serde(default)]
    pub build: BuildNote,
}

/// Where the file of a good version is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum KeptAt {
    Redis,
    Blobs,
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
    /// The operator: a user of a machine, the name of a token, or a user of the proxy. Empty: not known.
    #[serde(default)]
    pub by: String,
}

/// Writes an order about a version. The caller sees to [`MAX_ORDERS`] and [`MAX_WITHDRAWN`].
pub(crate) async fn give(link: &Link, plugin: &str, order: &VersionOrder) -> QueueResult {
    const WHAT: &str = "give an order";
    let json = serde_json::to_string(order).unwrap_or_default();
    let field = format!("{plugin}/{}", order.version);
    let mut commands = vec![command("HSET").arg(plugin).arg(&json).to_owned()];
    if order.withdrawn {
        // Both in one step.
        commands[0].arg(field).arg(&json);
    } else {
        commands.push(command("HDEL").arg(field).to_owned());
    }
    for command in &commands {
        link.write(WHAT, command).await?;
    }
    Ok(())
}

fn command(name: &'static str) -> Cmd {
    redis::cmd(name).arg(keys::ORDERS).to_owned()
}

/// Lets all hosts look at the plugin's file, if `at` is another time than that of the last such order. The
/// caller sees to that, and to [`MAX_ORDERS`].
pub(crate) async fn give_reload(link: &Link, plugin: &str, at: u64) -> QueueResult {
    let field = format!("{plugin}/{RELOAD}");
    link.write("order a reload", redis::cmd("HSET").arg(keys::ORDERS).arg(field).arg(at)).await.map(drop)
}

/// Lists the good versions of a plugin.
pub(crate) async fn list_good(link: &Link, plugin: &str, versions: &[GoodVersion]) -> QueueResult {
    let field = format!("{plugin}/{GOOD}");
    let command = match versions {
        [] => command("HDEL").arg(field).to_owned(),
        versions => {
            let json = serde_json::to_string(versions).unwrap_or_default();
            command("HSET").arg(field).arg(json).to_owned()
        }
    };
    link.command("list good versions", &command).await.map(drop)
}

/// The orders that stand. One that another version of tqhost wrote in another form is left out.
pub(crate) async fn list(link: &Link) -> QueueResult<Orders> {
    const WHAT: &str = "list orders";
    let found = link.command(WHAT, redis::cmd("HGETALL").arg(keys::ORDERS)).await?;
    let pairs = reply::pairs(found).map_err(|_| QueueError::unexpected(WHAT, link.address()))?;
    Ok(read(pairs))
}

fn read(pairs: Vec<(Vec<u8>, Vec<u8>)>) -> Orders {
    let mut orders = Orders::default();
    for (field, json) in pairs {
        let Ok(field) = String::from_utf8(field) else { continue };
        if let Some(id) = jobs::id_of(&field) {
            orders.jobs.insert(id.to_owned(), String::from_utf8_lossy(&json).into_owned());
            continue;
        }
        match field.split_once('/') {
            Some((plugin, RELOAD)) => {
                if let Ok(at) = serde_json::from_slice(&json) {
                    orders.reloads.insert(plugin.to_owned(), at);
                }
            }
            Some((plugin, GOOD)) => {
                if let Ok(versions) = serde_json::from_slice(&json) {
                    orders.good.insert(plugin.to_owned(), versions);
                }
            }
            Some((plugin, version)) => {
                let order = serde_json::from_slice(&json).ok();
                if let Some(order) = order.filter(|order: &VersionOrder| order.version == version) {
                    let withdrawn = orders.withdrawn.entry(plugin.to_owned()).or_default();
                    withdrawn.insert(version.to_owned(), order);
                }
            }
            None => {
                if let Ok(order) = serde_json::from_slice(&json) {
                    orders.last.insert(field, order);
                }
            }
        }
    }
    // A command of an older tqhost changes the last order only.
    for (plugin, last) in &orders.last {
        let withdrawn = orders.withdrawn.entry(plugin.clone()).or_default();
        if last.withdrawn {
            withdrawn.entry(last.version.clone()).or_insert_with(|| last.clone());
        } else if withdrawn.get(&last.version).is_some_and(|order| order.at <= last.at) {
            withdrawn.remove(&last.version);
        }
    }
    orders.withdrawn.retain(|_, withdrawn| !withdrawn.is_empty());
    orders
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(version: &str, withdrawn: bool, at: u64) -> VersionOrder {
        let (version, why, by) = (version.to_owned(), "slow".to_owned(), String::new());
        VersionOrder { version, withdrawn, why, at, by }
    }

    fn read_texts(pairs: &[(&str, &str)]) -> Orders {
        read(
            pairs
                .iter()
                .map(|(field, value)| (field.as_bytes().to_vec(), value.as_bytes().to_vec()))
                .collect(),
        )
    }

    #[test]
    fn orders_of_another_form_are_left_out() {
        let json = serde_json::to_string(&order("3f", true, 7)).expect("JSON");
        let orders = read_texts(&[
            ("p/3f", &json),
            ("p/reload", "12"),
            // A host that knows no reloads takes one for this, and leaves it out.
            ("q", "12"),
            ("q/reload", &json),
            ("q/4a", &json),
            ("r", "{}"),
            ("r/reload", "soon"),
        ]);
        let withdrawn = BTreeMap::from([("3f".to_owned(), order("3f", true, 7))]);
        let expected = Orders {
            withdrawn: BTreeMap::from([("p".to_owned(), withdrawn)]),
            last: BTreeMap::new(),
            reloads: BTreeMap::from([("p".to_owned(), 12)]),
            ..Orders::default()
        };
        assert_eq!(orders, expected);
    }

    #[test]
    fn orders_of_an_older_tqhost_add_to_the_set_and_lift_from_it() {
        let json =
            |version, withdrawn, at| serde_json::to_string(&order(version, withdrawn, at)).expect("JSON");
        let set = json("3f", true, 7);
        let withdrawn = |last: &str| -> Vec<String> {
            let orders = read_texts(&[("p/3f", &set), ("p", last)]);
            orders.withdrawn.get("p").into_iter().flat_map(|set| set.keys().cloned()).collect()
        };
        assert_eq!(withdrawn(&json("3f", true, 7)), ["3f"]);
        assert_eq!(withdrawn(&json("4a", true, 9)), ["3f", "4a"]);
        assert!(withdrawn(&json("3f", false, 9)).is_empty());
        // The withdrawal came after this lift.
        assert_eq!(withdrawn(&json("3f", false, 5)), ["3f"]);
        // An order of an older tqhost does not say who gave it.
        let old = r#"{"version":"3f","withdrawn":true,"why":"slow","at":7}"#;
        assert_eq!(read_texts(&[("p", old)]).last["p"], order("3f", true, 7));
    }
}
