//! The changes that may be the cause of an incident.
//!
//! In: what hosts announce, and the log of changes. Out: the latest change before an incident that may have
//! to do with it. Not here: the log of changes (`changes`), marks in charts (`marks`).

use serde::Serialize;
use utoipa::ToSchema;

use super::alarms::{Alarm, AlarmSources};
use super::changes::{ChangeKind, ChangeView};
use crate::queue::hosts::{HostChange, HostPlugin, LostHost};

/// A change within this time before an incident may be its cause. Counts are by the minute, so the change may
/// also come up to a minute after the first failures.
pub(super) const BEFORE_MS: u64 = 15 * 60_000;
const AFTER_MS: u64 = 60_000;

/// Something that has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct ChangeBefore {
    pub at_ms: u64,
    /// A part of a sentence, like "the load of version 3f1c of plugin mail".
    pub what: String,
    /// The plugin or queue that it changed. Without both, it may have changed everything.
    #[serde(skip)]
    plugin: Option<String>,
    #[serde(skip)]
    queue: Option<String>,
}

/// The latest change before an incident that may have to do with it. `plugin` is the plugin of its queue, or
/// the one that its alarm is about.
pub(super) fn last_before(
    alarm: &Alarm,
    since_ms: u64,
    plugin: Option<&str>,
    changes: &[ChangeBefore],
) -> Option<ChangeBefore> {
    // The alarm itself says which hosts ended, and when.
    if alarm.kind == "host-lost" {
        return None;
    }
    let span = since_ms.saturating_sub(BEFORE_MS)..=since_ms.saturating_add(AFTER_MS);
    let is_meant = |change: &&ChangeBefore| {
        change.plugin.as_deref().is_none_or(|of| Some(of) == plugin)
            && change.queue.as_deref().is_none_or(|of| Some(of) == alarm.queue.as_deref())
            && span.contains(&change.at_ms)
    };
    changes.iter().filter(is_meant).max_by_key(|change| change.at_ms).cloned()
}

/// The changes of versions of plugins, of configurations, hosts that ended without a word, and the changes of
/// operators.
pub(super) fn recent_changes(sources: &AlarmSources<'_>, of_operators: &[ChangeView]) -> Vec<ChangeBefore> {
    let of_all = |at_ms, what| ChangeBefore { at_ms, what, plugin: None, queue: None };
    let plugins = sources.hosts.iter().flat_map(|host| &host.plugins);
    let mut changes: Vec<ChangeBefore> = plugins.flat_map(of_plugin).collect();
    for host in sources.hosts {
        let configured = |at_ms| of_all(at_ms, format!("another configuration of host {}", host.id));
        changes.extend(host.configured_at.map(configured));
    }
    for LostHost { id, seen_ms, .. } in sources.lost {
        changes.push(of_all(*seen_ms, format!("the end of host {id}, which did not stop")));
    }
    let acknowledges: &str = ChangeKind::Acknowledge.into();
    for ChangeView { at, who, what, queue, plugin, why, .. } in of_operators {
        if what == acknowledges {
            continue;
        }
        let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
        let what = format!("a change by {who}: {what}{why}");
        changes.push(ChangeBefore { at_ms: *at, what, plugin: plugin.clone(), queue: queue.clone() });
    }
    changes
}

fn of_plugin(plugin: &HostPlugin) -> impl Iterator<Item = ChangeBefore> {
    plugin.history.iter().enumerate().filter_map(|(at, change)| {
        // The first version that a host loads is the one that it ran before its start.
        let is_other = |known: &HostChange| known.version.is_some() && known.version != change.version;
        let did = match change.what.as_str() {
            "loaded" if plugin.history[..at].iter().any(is_other) => "the load",
            "restored" => "the return",
            "regranted" => "other grants",
            "rolled-back" => "the rollback",
            _ => return None,
        };
        let version = change.version.as_deref().map(|version| plugin.builds.words(version));
        let version = version.unwrap_or_default();
        let what = format!("{did} of version {version} of plugin {}", plugin.name);
        Some(ChangeBefore { at_ms: change.at, what, plugin: Some(plugin.name.clone()), queue: None })
    })
}
