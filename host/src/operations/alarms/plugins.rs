//! Alarms about plugins: files that cannot be used, versions that differ, and versions that fail.

use std::collections::{BTreeMap, BTreeSet};

use super::alarm::{Alarm, AlarmSubject, alarm, named};
use crate::operations::history::{LATELY, Lately};
use crate::operations::plugins::known_builds;
use crate::queue::hosts::{HostInfo, HostPlugin, HostVersion};

/// A new version of a plugin is judged by this number of attempts in a queue. This part of failures is an
/// alarm, if it is larger by [`WORSE`] than that of the version before.
const JUDGED_ATTEMPTS: u64 = 20;
const FAILED_VERSION: f64 = 0.5;
const WORSE: f64 = 0.25;
/// A version on which no attempt succeeds is judged by this number of attempts. A queue with few tasks might
/// not have more for hours.
const JUDGED_ALL_FAILED: u64 = 5;
/// The queues of a version that are named.
const NAMED_QUEUES: usize = 3;

/// The changes after which a file is not used.
const REFUSALS: [&str; 5] = ["failed", "self-check-failed", "rolled-back", "quarantined", "removed"];

/// A plugin, its state, and the error.
type RefusalCause<'h> = (&'h str, &'h str, Option<&'h str>);

pub(super) fn about_plugins(hosts: &[HostInfo], alarms: &mut Vec<Alarm>) {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    // Hosts where the same is wrong with a plugin.
    let mut refused: BTreeMap<RefusalCause, Vec<(&str, &HostPlugin)>> = BTreeMap::new();
    for (host, plugin) in hosts.iter().flat_map(|host| host.plugins.iter().map(move |plugin| (host, plugin)))
    {
        if let Some(version) = &plugin.version {
            versions.entry(&plugin.name).or_default().insert(version);
        }
        if plugin.state != "active" {
            let cause = (plugin.name.as_str(), plugin.state.as_str(), plugin.error.as_deref());
            refused.entry(cause).or_default().push((&host.id, plugin));
        }
    }
    for ((name, state, error), on) in refused {
        let ids: Vec<&str> = on.iter().map(|(id, _)| *id).collect();
        let why = error.map(|why| format!(": {why}")).unwrap_or_default();
        let what = format!("It is {state} on {}{why}.", named(ids));
        let kind = if state == "missing" { "plugin-missing" } else { "plugin-refused" };
        let is_urgent = on.iter().any(|(_, plugin)| plugin.version.is_none());
        let since = on.iter().filter_map(|(_, plugin)| refused_at(plugin)).min();
        let about = AlarmSubject::Plugin(name.to_owned());
        alarms.push(alarm(kind, is_urgent, about, what, way_out_of(state, error)).since(since));
    }
    for (plugin, versions) in versions.iter().filter(|(_, versions)| versions.len() > 1) {
        let what = format!("Hosts run {} different versions of it.", versions.len());
        let way_out = "Put the same file in place on each host, unless this is a rollout that goes on.";
        let about = AlarmSubject::Plugin((*plugin).to_owned());
        let running = hosts.iter().flat_map(|host| &host.plugins).filter(|known| known.name == **plugin);
        let since = running.filter_map(|known| known.loaded_at).max();
        alarms.push(alarm("versions-differ", false, about, what, way_out).since(since));
    }
}

/// When the file of the plugin was refused last.
fn refused_at(plugin: &HostPlugin) -> Option<u64> {
    let last = plugin.history.iter().rev().find(|change| REFUSALS.contains(&change.what.as_str()))?;
    Some(last.at)
}

fn way_out_of(state: &str, error: Option<&str>) -> &'static str {
    match state {
        "missing" | "failed" if error.is_some_and(|error| error.starts_with("oci://")) => {
            "Let the hosts reach its registry, or correct its `source`."
        }
        "missing" => "Put its file into the folder of the plugins.",
        "quarantined" => "This content is not run again: put another version in place.",
        _ => "Repair the file, or what it needs, and reload it.",
    }
}

/// Attempts on a version at the tasks of one queue, on all hosts together.
#[derive(Default)]
struct JudgedVersion {
    attempts: u64,
    failures: u64,
    /// The attempts and failures on the versions before it, in the last minutes in which they ran.
    before: (u64, u64),
}

impl JudgedVersion {
    fn is_bad(&self) -> bool {
        let JudgedVersion { attempts, failures, before } = *self;
        let part = |(attempts, failures): (u64, u64)| failures as f64 / attempts.max(1) as f64;
        let fails = attempts >= JUDGED_ATTEMPTS && part((attempts, failures)) >= FAILED_VERSION;
        let all_fail = attempts >= JUDGED_ALL_FAILED && failures == attempts;
        let is_known = before.0 >= JUDGED_ALL_FAILED;
        let is_worse = !is_known || part((attempts, failures)) >= part(before) + WORSE;
        (fails || all_fail) && is_worse
    }
}

/// Accuses a version that took the place of another one lately, if its attempts fail and those on the other
/// one did not. Where no version was replaced, the cause is in the tasks, or in a service that handlers ask:
/// then failing attempts are an alarm about the queue.
pub(super) fn about_versions(hosts: &[HostInfo], lately: &BTreeMap<String, Lately>, alarms: &mut Vec<Alarm>) {
    let mut judged: BTreeMap<(&str, &str), BTreeMap<&str, JudgedVersion>> = BTreeMap::new();
    for host in hosts {
        for plugin in host.plugins.iter().filter(|plugin| plugin.is_new) {
            let Some(version) = &plugin.version else { continue };
            for queue in &host.queues {
                let own = |known: &&HostVersion| known.is_of(&plugin.name, version);
                let Some(serving) = queue.versions.iter().find(own) else { continue };
                let queues = judged.entry((&plugin.name, version)).or_default();
                let sum = queues.entry(&queue.name).or_default();
                sum.attempts = sum.attempts.saturating_add(serving.attempts);
                sum.failures = sum.failures.saturating_add(serving.failures);
                if let Some(before) = queue.versions.iter().rfind(|known| !own(known)) {
                    sum.before.0 = sum.before.0.saturating_add(before.attempts);
                    sum.before.1 = sum.before.1.saturating_add(before.failures);
                }
            }
        }
    }
    for ((plugin, version), mut queues) in judged {
        queues.retain(|_, judged| judged.is_bad());
        if queues.is_empty() {
            continue;
        }
        let about = AlarmSubject::Plugin(plugin.to_owned());
        let way_out = "See the errors of its tasks; put another version in place, or roll it back.";
        let began = began_to_fail(plugin, version, hosts, queues.keys().filter_map(|name| lately.get(*name)));
        let what = failures_of(&known_builds(hosts).words(version), &queues);
        alarms.push(alarm("bad-version", true, about, what, way_out).since(began).of_version(version));
    }
}

/// The sentence about a version that fails.
fn failures_of(version: &str, queues: &BTreeMap<&str, JudgedVersion>) -> String {
    let sum = |count: fn(&JudgedVersion) -> u64| -> u64 { queues.values().map(count).sum() };
    let (attempts, failures) = (sum(|judged| judged.attempts), sum(|judged| judged.failures));
    let before = match (sum(|judged| judged.before.0), sum(|judged| judged.before.1)) {
        (0, _) => String::new(),
        (attempts, failures) => format!("; before it came, {failures} of {attempts} did"),
    };
    let mut names = queues.keys().take(NAMED_QUEUES).copied().collect::<Vec<_>>().join(", ");
    if queues.len() > NAMED_QUEUES {
        names += &format!(" and {} more", queues.len() - NAMED_QUEUES);
    }
    let s = if queues.len() == 1 { "" } else { "s" };
    format!(
        "{failures} of {attempts} attempts on its version {version} failed in queue{s} {names} in the last \
         {LATELY} minutes{before}."
    )
}

/// When the attempts of a queue began to fail, but not before the version was loaded.
fn began_to_fail<'l>(
    plugin: &str,
    version: &str,
    hosts: &[HostInfo],
    lately: impl Iterator<Item = &'l Lately>,
) -> Option<u64> {
    let of_version = |known: &&HostPlugin| known.name == plugin && known.version.as_deref() == Some(version);
    let loaded = hosts.iter().flat_map(|host| &host.plugins).filter(of_version);
    let loaded = loaded.filter_map(|known| known.loaded_at).min()?;
    let failing = lately.filter_map(|lately| lately.failing_since_ms).min();
    Some(failing.map_or(loaded, |failing| failing.max(loaded)))
}
