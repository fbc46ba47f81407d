//! The verdicts of hosts about a version that was put in place.
//!
//! In: the announcements of the hosts, before the file was there and after. Out: the verdict of each host
//! that runs now.
//!
//! Not here: putting the file in place (`cli::deploy`), how a host judges a version (`plugins`).

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::error::OperationError;
use super::plugins::{PluginView, plugin_rows};
use crate::builds::BuildNote;
use crate::clock::now_ms;
use crate::config::units::show_duration;
use crate::queue::hosts::HostInfo;
use crate::queue::{Link, orders};

/// Refuses a version that an operator has withdrawn: no host would run it.
pub(crate) async fn check_deployable(
    link: &Link,
    plugin: &str,
    digest: &str,
    build: &BuildNote,
) -> Result<(), OperationError> {
    let orders = orders::list(link).await?;
    let Some(order) = orders.withdrawn.get(plugin).and_then(|withdrawn| withdrawn.get(digest)) else {
        return Ok(());
    };
    let ago = show_duration(Duration::from_secs(now_ms().saturating_sub(order.at) / 1000));
    let by = if order.by.is_empty() { "an operator" } else { &order.by };
    Err(OperationError::NotRunning(format!(
        "version {} of {plugin} was rolled back {ago} ago by {by} ({}), and no host runs it: deploy another \
         one, or lift it first (`tqhost lift {plugin} --version {digest}`)",
        build.words(digest),
        order.why
    )))
}

/// Whether a host has taken a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Taken {
    /// It runs.
    Active,
    /// It cannot be used, or its own check refused it.
    Failed,
    /// It was rolled back.
    Quarantined,
    /// The host has not told yet.
    NoAnswer,
}

/// The verdict of one host. The names are stable.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct HostVerdict {
    pub host: String,
    pub state: Taken,
    /// The version took the place of a good one, and its first tasks decide.
    pub on_probation: bool,
    pub why: Option<String>,
}

/// A version that hosts are to take.
#[derive(Debug)]
pub(crate) struct DeployWatch {
    plugin: String,
    digest: String,
    /// When each host had refused it last, before it was put in place.
    refused: BTreeMap<String, Option<u64>>,
}

impl DeployWatch {
    /// `hosts` are as they were before the file was put in place.
    pub(crate) fn new(hosts: &[HostInfo], plugin: &str, digest: &str) -> DeployWatch {
        let (plugin, digest) = (plugin.to_owned(), digest.to_owned());
        let mut watch = DeployWatch { plugin, digest, refused: BTreeMap::new() };
        let refused = watch.rows(hosts).map(|row| (row.host.clone(), watch.refusal(&row).map(|(at, _)| at)));
        watch.refused = refused.collect();
        watch
    }

    /// The verdicts of the hosts that use the plugin now, in their order.
    pub(crate) fn verdicts(&self, hosts: &[HostInfo]) -> Vec<HostVerdict> {
        self.rows(hosts).map(|row| self.verdict(&row)).collect()
    }

    fn rows(&self, hosts: &[HostInfo]) -> impl Iterator<Item = PluginView> {
        plugin_rows(hosts).into_iter().filter(|row| row.plugin.name == self.plugin)
    }

    fn verdict(&self, row: &PluginView) -> HostVerdict {
        let (host, plugin) = (row.host.clone(), &row.plugin);
        if plugin.version.as_ref() == Some(&self.digest) {
            let on_probation = plugin.on_probation;
            return HostVerdict { host, state: Taken::Active, on_probation, why: None };
        }
        let refusal = self.refusal(row);
        let state = match (plugin.state.as_str(), &refusal) {
            // A content in quarantine is not tried again.
            ("quarantined", Some(_)) => Taken::Quarantined,
            // An older refusal is not about this attempt.
            ("failed", Some((at, _))) if self.refused.get(&host).copied().flatten() != Some(*at) => {
                Taken::Failed
            }
            _ => Taken::NoAnswer,
        };
        let why = refusal.and_then(|(_, reason)| plugin.error.clone().or(reason));
        HostVerdict { host, state, on_probation: false, why }
    }

    /// When and why the host has refused the version last, if that is the last thing it says of it.
    fn refusal(&self, row: &PluginView) -> Option<(u64, Option<String>)> {
        let of_version = |version: &Option<String>| version.as_ref() == Some(&self.digest);
        let last = row.plugin.history.iter().rev().find(|change| of_version(&change.version))?;
        let is_refusal = ["failed", "self-check-failed", "rolled-back", "quarantined"].contains(&&*last.what);
        is_refusal.then(|| (last.at, last.reason.clone()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NEW: &str = "39a2c07d51e4";

    fn host(id: &str, version: &str, state: &str, history: &[(&str, u64, &str)]) -> HostInfo {
        let change = |(what, at, of): &(&str, u64, &str)| {
            let reason = "because";
            json!({ "at": at, "what": what, "version": of, "took_ms": null, "reason": reason })
        };
        let history: Vec<Value> = history.iter().map(change).collect();
        let announced = json!({
            "id": id, "version": "0", "pid": 1, "started_at": 0, "queues": [],
            "plugins": [{
                "name": "p", "state": state, "version": version, "error": null, "loaded_at": null,
                "compile_ms": null, "from_cache": false, "bytes": null, "attempts": 0, "failures": 0,
                "peak_memory": 0, "reloads": 0, "failed_reloads": 0, "history": history
            }]
        });
        serde_json::from_value(announced).expect("an announcement")
    }

    #[test]
    fn a_host_has_a_verdict_once_it_has_looked_at_the_new_file() {
        let before = [
            host("a", "old", "active", &[]),
            host("b", "old", "failed", &[("failed", 5, NEW)]),
            host("c", "old", "failed", &[("failed", 5, "other")]),
        ];
        let watch = DeployWatch::new(&before, "p", NEW);
        let states = |hosts: &[HostInfo]| -> Vec<Taken> {
            watch.verdicts(hosts).iter().map(|verdict| verdict.state).collect()
        };
        assert_eq!(states(&before), [Taken::NoAnswer; 3]);
        let after = [
            host("a", NEW, "active", &[("loaded", 9, NEW)]),
            // It has tried again.
            host("b", "old", "failed", &[("self-check-failed", 9, NEW)]),
            host("c", "old", "quarantined", &[("quarantined", 2, NEW)]),
            // It has come meanwhile, and was lifted.
            host("d", "old", "quarantined", &[("rolled-back", 2, NEW), ("lifted", 3, NEW)]),
        ];
        assert_eq!(states(&after), [Taken::Active, Taken::Failed, Taken::Quarantined, Taken::NoAnswer]);
        assert_eq!(watch.verdicts(&after)[1].why.as_deref(), Some("because"));
        assert_eq!(watch.verdicts(&[]), []);
    }
}
