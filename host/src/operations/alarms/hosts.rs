//! Alarms about hosts: refused configurations, different builds, hosts that ended without a word.

use std::collections::{BTreeMap, BTreeSet};

use super::alarm::{Alarm, AlarmSubject, alarm, named, time};
use crate::config::units::plural;
use crate::queue::hosts::{HostInfo, LostHost};

/// This number of hosts that were lost within [`MANY_WITHIN_MS`] is an urgent alarm.
const MANY_LOST: usize = 3;
const MANY_WITHIN_MS: u64 = 10 * 60_000;

pub(super) fn about_hosts(hosts: &[HostInfo], alarms: &mut Vec<Alarm>) {
    let mut refused: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for host in hosts {
        if let Some(error) = &host.config_error {
            refused.entry(error).or_default().push(&host.id);
        }
    }
    for (error, ids) in refused {
        let runs = if ids.len() == 1 { "runs" } else { "run" };
        let what = format!("{} {runs} with an earlier configuration: {error}.", named(ids));
        let way_out = "Repair the file; `tqhost check` tells all problems.";
        alarms.push(alarm("config-refused", false, AlarmSubject::Hosts, what, way_out));
    }
    if let Some(what) = different_versions(hosts) {
        alarms.push(alarm("builds-differ", false, AlarmSubject::Hosts, what, "Finish the upgrade."));
    }
}

/// Says that hosts ended without a word, if any did.
pub(super) fn about_lost(lost: &[LostHost], now_ms: u64, alarms: &mut Vec<Alarm>) {
    let Some(latest) = lost.iter().max_by_key(|host| host.seen_ms) else { return };
    let ago = time(now_ms.saturating_sub(latest.seen_ms));
    let lately = || lost.iter().filter(|host| host.seen_ms.saturating_add(MANY_WITHIN_MS) > now_ms);
    let are_many = lately().count() >= MANY_LOST;
    let (count, span) = if are_many { (lately().count(), "10 minutes") } else { (lost.len(), "hour") };
    let since = if are_many { lately().map(|host| host.seen_ms).min() } else { Some(latest.seen_ms) };
    let is_or_was = if count == 1 { "it was" } else { "the last was" };
    let what = format!(
        "{} ended without stopping in the last {span}: {is_or_was} {}, {ago} ago.",
        plural(count as u64, "host"),
        latest.id
    );
    let way_out = "See its log and its machine: memory, a crash, the network. Others take its tasks over.";
    alarms.push(alarm("host-lost", are_many, AlarmSubject::Hosts, what, way_out).since(since));
}

/// Tells that hosts run different versions of tqhost, and which. None: all run the same.
pub(crate) fn different_versions(hosts: &[HostInfo]) -> Option<String> {
    let versions: BTreeSet<&str> = hosts.iter().map(|host| host.version.as_str()).collect();
    let all = || versions.iter().copied().collect::<Vec<_>>().join(", ");
    (versions.len() > 1).then(|| format!("Hosts run different versions of tqhost: {}.", all()))
}
