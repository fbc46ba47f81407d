//! The verdicts of hosts about a version that was put in place.
//!
//! In: the announcements of the hosts, before the file was there and after. Out: the verdict of each host
//! that runs now.
//!
//! Not here: putting the file in place (`cli::deploy`), how a host judges a version (`plugins`).

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::error::{OperationError, OperationResult};
use super::plugins::{PluginView, plugin_rows};
use crate::builds::{BuildNote, Builds};
use crate::clock::now_ms;
use crate::config::units::show_duration;
use crate::queue::hosts::{HostChange, HostInfo};
use crate::queue::{Link, orders};

/// Refuses a file whose handler is that of a version that an operator has withdrawn: no host would run it.
/// `is_version` tells whether the file has the handler of the version with this digest and build. `builds`
/// has the builds that are known.
pub(crate) async fn check_deployable(
    link: &Link,
    plugin: &str,
    builds: &Builds,
    is_version: impl Fn(&str, Option<&BuildNote>) -> bool,
) -> OperationResult {
    let orders = orders::list(link).await?;
    let mut withdrawn = orders.withdrawn.get(plugin).into_iter().flatten();
    let Some((digest, order)) = withdrawn.find(|(digest, _)| is_version(digest, builds.of(digest))) else {
        return Ok(());
    };
    let ago = show_duration(Duration::from_secs(now_ms().saturating_sub(order.at) / 1000));
    let by = if order.by.is_empty() { "an operator" } else { &order.by };
    Err(OperationError::NotRunning(format!(
        "version {} of {plugin} was rolled back {ago} ago by {by} ({}), and this file has the same handler: \
         deploy another one, or lift it first (`tqhost lift {plugin} --version {digest}`)",
        builds.words(digest),
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
    /// It was in place already, so that a quarantine before the deploy is about it as well.
    was_in_place: bool,
}

impl DeployWatch {
    /// `hosts` are as they were before the file was put in place.
    pub(crate) fn new(hosts: &[HostInfo], plugin: &str, digest: &str, was_in_place: bool) -> DeployWatch {
        let (plugin, digest) = (plugin.to_owned(), digest.to_owned());
        let mut watch = DeployWatch { plugin, digest, refused: BTreeMap::new(), was_in_place };
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
        // An older refusal is not about this attempt.
        let is_new = |at: u64| self.refused.get(&host).copied().flatten() != Some(at);
        let state = match (plugin.state.as_str(), &refusal) {
            ("failed", Some((at, _))) if is_new(*at) => Taken::Failed,
            ("quarantined", Some((at, _))) if is_new(*at) => Taken::Quarantined,
            // A content in quarantine is not tried again, so there is no other refusal to wait for.
            ("quarantined", Some(_)) if self.was_in_place && self.is_last_refused(row) => Taken::Quarantined,
            _ => Taken::NoAnswer,
        };
        let refusal = refusal.filter(|_| state != Taken::NoAnswer);
        let why = refusal.and_then(|(_, reason)| plugin.error.clone().or(reason));
        HostVerdict { host, state, on_probation: false, why }
    }

    /// When and why the host has refused the version last. None: its last change of the version is no
    /// refusal.
    fn refusal(&self, row: &PluginView) -> Option<(u64, Option<String>)> {
        let last = row.plugin.history.iter().rev().find(|change| self.is_about(change))?;
        is_refusal(last).then(|| (last.at, last.reason.clone()))
    }

    /// Whether the host has refused no other version since it refused this one.
    fn is_last_refused(&self, row: &PluginView) -> bool {
        let last = row.plugin.history.iter().rev().find(|change| is_refusal(change));
        last.is_some_and(|change| self.is_about(change))
    }

    fn is_about(&self, change: &HostChange) -> bool {
        change.version.as_ref() == Some(&self.digest)
    }
}

fn is_refusal(change: &HostChange) -> bool {
    ["failed", "self-check-failed", "rolled-back", "quarantined"].contains(&&*change.what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::hosts::HostPlugin;

    const NEW: &str = "39a2c07d51e4";

    fn host(id: &str, version: &str, state: &str, history: &[(&str, u64, &str)]) -> HostInfo {
        let change = |(what, at, of): &(&str, u64, &str)| {
            let (version, reason) = (Some((*of).to_owned()), Some("because".to_owned()));
            HostChange { at: *at, what: (*what).to_owned(), version, reason, ..HostChange::default() }
        };
        let (name, state, version) = ("p".to_owned(), state.to_owned(), Some(version.to_owned()));
        let history = history.iter().map(change).collect();
        let plugins = vec![HostPlugin { name, state, version, history, ..HostPlugin::default() }];
        HostInfo { id: id.to_owned(), plugins, ..HostInfo::default() }
    }

    #[test]
    fn a_host_has_a_verdict_once_it_has_looked_at_the_new_file() {
        let before = [
            host("a", "old", "active", &[]),
            host("b", "old", "failed", &[("failed", 5, NEW)]),
            host("c", "old", "failed", &[("failed", 5, "other")]),
        ];
        let watch = DeployWatch::new(&before, "p", NEW, false);
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

    #[test]
    fn a_quarantine_is_a_verdict_only_about_the_new_file() {
        let other = [("quarantined", 2_u64, NEW), ("quarantined", 5, "other")];
        let same = [("quarantined", 5_u64, "other"), ("quarantined", 7, NEW)];
        let before = [host("a", "old", "quarantined", &other), host("b", "old", "quarantined", &same)];
        let states = |was_in_place: bool, hosts: &[HostInfo]| -> Vec<Taken> {
            let watch = DeployWatch::new(&before, "p", NEW, was_in_place);
            watch.verdicts(hosts).iter().map(|verdict| verdict.state).collect()
        };
        assert_eq!(states(false, &before), [Taken::NoAnswer; 2]);
        assert_eq!(DeployWatch::new(&before, "p", NEW, false).verdicts(&before)[0].why, None);
        // The host whose file it is does not judge it again.
        assert_eq!(states(true, &before), [Taken::NoAnswer, Taken::Quarantined]);
        let again = [("quarantined", 5_u64, "other"), ("quarantined", 9, NEW)];
        let after = ["a", "b"].map(|id| host(id, "old", "quarantined", &again));
        assert_eq!(states(false, &after), [Taken::Quarantined; 2]);
    }
}
