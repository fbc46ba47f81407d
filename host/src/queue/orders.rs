//! Orders of operators to all hosts: which versions of a plugin are withdrawn, which version may run again,
//! and which plugin is to be loaded again from its file.
//!
//! They are the fields of one hash in Redis:
//! - `PLUGIN/VERSION`: the order that withdrew this version. It is deleted when the version may run again.
//! - `PLUGIN`: the last order about any version of the plugin. Older versions of tqhost know this field only.
//! - `PLUGIN/reload`: when the plugin was last to be reloaded.
//! - `PLUGIN/good`: no order, but a list of the good versions that are kept for all hosts.
//! - `/job/ID`: a job (`jobs`).
//!
//! Hosts read all of them when they start, and then every few seconds (`announcer`). Not here: what a host
//! does then (`plugins`).

use std::collections::BTreeMap;

use redis::Cmd;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::error::QueueResult;
use super::jobs;
use super::keys;
use super::link::Link;
use super::reply;
use crate::builds::BuildNote;

/// The most plugins that have an order of one kind.
pub(crate) const MAX_ORDERS: usize = 1000;
/// The most versions of a plugin that are withdrawn.
pub(crate) const MAX_WITHDRAWN: usize = 16;
/// The end of the field `PLUGIN/reload`. Names of plugins have no slash.
const RELOAD: &str = "reload";
/// The end of the field `PLUGIN/good`.
const GOOD: &str = "good";

/// The withdrawn versions of a plugin, by their digests.
pub(crate) type Withdrawn = BTreeMap<String, VersionOrder>;

/// The orders that stand, by the names of plugins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Orders {
    pub withdrawn: BTreeMap<String, Withdrawn>,
    /// The last order about a version of each plugin.
    pub last: BTreeMap<String, VersionOrder>,
    /// When each plugin was last to be reloaded, in milliseconds since the Unix epoch. A host looks at the
    /// file when this time changes while it runs. The time that it reads at its start is no order.
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
    /// Proves to hosts that one of them wrote this. `plugins::shelf` makes and checks it.
    pub mark: String,
    /// For display only: the mark does not cover it.
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
    /// Whether the version is withdrawn: no host runs it. Otherwise it may run again.
    pub withdrawn: bool,
    /// The operator's reason.
    pub why: String,
    /// When the order was given, in milliseconds since the Unix epoch, by the clock of the operator's
    /// machine.
    pub at: u64,
    /// The operator: a user of a machine, the name of a token, or a user of the proxy. Empty: not known.
    #[serde(default)]
    pub by: String,
}

/// Writes an order about a version. The caller keeps to [`MAX_ORDERS`] and [`MAX_WITHDRAWN`].
pub(crate) async fn give(link: &Link, plugin: &str, order: &VersionOrder) -> QueueResult {
    const WHAT: &str = "give an order";
    let json = serde_json::to_string(order).unwrap_or_default();
    let field = format!("{plugin}/{}", order.version);
    let mut set = command("HSET").arg(plugin).arg(&json).to_owned();
    if order.withdrawn {
        set.arg(&field).arg(&json);
    }
    link.write(WHAT, &set).await?;
    if !order.withdrawn {
        link.write(WHAT, command("HDEL").arg(field)).await?;
    }
    Ok(())
}

/// A command about the hash of orders.
fn command(name: &'static str) -> Cmd {
    redis::cmd(name).arg(keys::ORDERS).to_owned()
}

/// Makes all hosts look at the plugin's file. `at` must differ from the time of the last such order. The
/// caller keeps to that, and to [`MAX_ORDERS`].
pub(crate) async fn give_reload(link: &Link, plugin: &str, at: u64) -> QueueResult {
    let field = format!("{plugin}/{RELOAD}");
    link.write("order a reload", command("HSET").arg(field).arg(at)).await.map(drop)
}

/// Writes the list of the good versions of a plugin.
pub(crate) async fn list_good(link: &Link, plugin: &str, versions: &[GoodVersion]) -> QueueResult {
    let field = format!("{plugin}/{GOOD}");
    let list = match versions {
        [] => command("HDEL").arg(field).to_owned(),
        _ => command("HSET").arg(field).arg(serde_json::to_string(versions).unwrap_or_default()).to_owned(),
    };
    link.command("list good versions", &list).await.map(drop)
}

/// The orders that stand. A field in another form, from another version of tqhost, is left out.
pub(crate) async fn list(link: &Link) -> QueueResult<Orders> {
    link.read("list orders", &command("HGETALL"), reply::pairs).await.map(read)
}

fn read(pairs: Vec<(Vec<u8>, Vec<u8>)>) -> Orders {
    let mut orders = Orders::default();
    for (field, json) in pairs {
        let Ok(field) = String::from_utf8(field) else { continue };
        if let Some(id) = jobs::id_of(&field) {
            orders.jobs.insert(id.to_owned(), String::from_utf8_lossy(&json).into_owned());
            continue;
        }
        let (plugin, end) = field.split_once('/').map_or((field.as_str(), None), |(a, b)| (a, Some(b)));
        match end {
            Some(RELOAD) => add(&mut orders.reloads, plugin, &json),
            Some(GOOD) => add(&mut orders.good, plugin, &json),
            Some(version) => {
                let withdrawn = orders.withdrawn.entry(plugin.to_owned()).or_default();
                add(withdrawn, version, &json);
                withdrawn.retain(|version, order| order.version == *version);
            }
            None => add(&mut orders.last, plugin, &json),
        }
    }
    // A command of an older tqhost changes the field `PLUGIN` only.
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

/// Adds a value, if it has the form of this version of tqhost.
fn add<T: DeserializeOwned>(values: &mut BTreeMap<String, T>, name: &str, json: &[u8]) {
    if let Ok(value) = serde_json::from_slice(json) {
        values.insert(name.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(version: &str, withdrawn: bool, at: u64) -> VersionOrder {
        let (version, why, by) = (version.to_owned(), "slow".to_owned(), String::new());
        VersionOrder { version, withdrawn, why, at, by }
    }

    fn read_texts(pairs: &[(&str, &str)]) -> Orders {
        let bytes = |(field, json): &(&str, &str)| (field.as_bytes().to_vec(), json.as_bytes().to_vec());
        read(pairs.iter().map(bytes).collect())
    }

    #[test]
    fn orders_of_another_form_are_left_out() {
        let json = serde_json::to_string(&order("3f", true, 7)).expect("JSON");
        let orders = read_texts(&[
            ("p/3f", &json),
            ("p/reload", "12"),
            // An older host takes the time of a reload for an order, which it cannot read.
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
