//! Alarms in words: what is wrong, and what to do about it.
//!
//! In: the queues as they are counted, what became of their tasks in the last minutes, the hosts as they
//! announce themselves, and what is dangerous about Redis. Out: [`Alarm`]s, the urgent ones first. A pure
//! function: it looks at nothing by itself.
//!
//! Not here: how alarms are shown (`dashboard`), alerts from metrics (docs/operations.md).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::history::{LATELY, Lately, SILENT, SpanView};
use super::queues::{NO_HOST, QueueView};
use crate::clock;
use crate::config::units::{plural, show_duration};
use crate::queue::hosts::{HostInfo, HostPlugin, HostVersion, LostHost, STOPPING};
use crate::queue::upkeep::Danger;

/// A task that has waited for longer is an alarm.
const LONG_WAIT_MS: u64 = 5 * 60_000;
/// A backlog where nothing has run for as long as its oldest task waits is an alarm after this time.
const IDLE_BACKLOG_MS: u64 = 60_000;
/// A consumer that is silent for longer, and has tasks, is an alarm: it is longer than most leases.
const SILENT_MS: u64 = 60_000;
/// So many hosts that were lost within an hour are an urgent alarm.
const MANY_LOST: u64 = 3;
/// A queue is judged by so many attempts of the last minutes. More failures than the first part are an alarm,
/// and more than the second one an urgent one.
const JUDGED_LATELY: u64 = 10;
const FAILED_PART: (f64, f64) = (0.1, 0.5);
/// A new version of a plugin is judged by so many attempts in a queue. This part of failures is an alarm, if
/// it is larger by [`WORSE`] than that of the version before.
const JUDGED_ATTEMPTS: u64 = 20;
const FAILED_VERSION: f64 = 0.5;
const WORSE: f64 = 0.25;
/// A version on which no attempt succeeds is judged by so many attempts. A queue with few tasks might not
/// have more for hours.
const JUDGED_ALL_FAILED: u64 = 5;

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Alarm {
    /// Its kind, for programs. It does not change.
    pub kind: &'static str,
    /// Tasks are not done because of it.
    pub is_urgent: bool,
    pub about: AlarmSubject,
    /// A sentence that says what is wrong.
    pub what: String,
    /// A sentence that says what to do.
    pub way_out: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AlarmSubject {
    Queue(String),
    /// The dead letters of a queue.
    Dead(String),
    Plugin(String),
    Hosts,
    Redis,
}

/// Says what is wrong. `failed` are the queues that cannot be counted, each with the error; `lately` has the
/// last minutes of the queues, by name.
pub(crate) fn alarms(
    queues: &[QueueView],
    hosts: &[HostInfo],
    failed: &[(String, String)],
    lately: &BTreeMap<String, Lately>,
    dangers: &[Danger],
) -> Vec<Alarm> {
    let about_redis = |danger: &Danger| {
        let (what, way_out) = (danger.what.as_str(), danger.way_out);
        alarm(danger.kind, danger.is_urgent, AlarmSubject::Redis, what, way_out)
    };
    let mut alarms: Vec<Alarm> = dangers.iter().map(about_redis).collect();
    if hosts.is_empty() {
        let (what, way_out) = (
            "No host has announced itself for 15 seconds.",
            "Start a host, or look whether Redis refuses writes.",
        );
        alarms.push(alarm("no-host", true, AlarmSubject::Hosts, what, way_out));
    }
    for (queue, error) in failed {
        let way_out = "Repair the key in Redis, or name another stream in the configuration.";
        let what = format!("It cannot be counted: {error}.");
        alarms.push(alarm("queue-unfit", true, of(queue), what, way_out));
    }
    for queue in queues {
        about_queue(queue, lately.get(&queue.queue), hosts, &mut alarms);
    }
    about_plugins(hosts, &mut alarms);
    about_versions(hosts, &mut alarms);
    about_hosts(hosts, &mut alarms);
    alarms.sort_by_key(|alarm| !alarm.is_urgent);
    alarms
}

fn alarm(
    kind: &'static str,
    is_urgent: bool,
    about: AlarmSubject,
    what: impl Into<String>,
    way_out: impl Into<String>,
) -> Alarm {
    Alarm { kind, is_urgent, about, what: what.into(), way_out: way_out.into() }
}

fn of(queue: &str) -> AlarmSubject {
    AlarmSubject::Queue(queue.to_owned())
}

fn about_queue(view: &QueueView, lately: Option<&Lately>, hosts: &[HostInfo], alarms: &mut Vec<Alarm>) {
    let mut add = |kind, is_urgent, what: String, way_out: &str| {
        alarms.push(alarm(kind, is_urgent, of(&view.queue), what, way_out));
    };
    let (waiting, oldest) = (view.queued + view.held_tasks, view.oldest_ms.unwrap_or(0));
    let has_finished_nothing = lately.is_some_and(|lately| lately.finished == 0);
    let mut is_explained = true;
    if view.state == NO_HOST && !hosts.is_empty() {
        let what = format!("No running host has this queue; {}.", wait(waiting));
        add("queue-without-host", waiting > 0, what, "Start a host with a configuration that has it.");
    } else if view.state == "stalled" {
        let way_out = "See the log of the host and /readyz; restart the host if it does not recover.";
        let reason = view.hosts.iter().find_map(|on| on.queue.reason.as_deref());
        let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        add("stalled", true, format!("A host does not get on with it (stalled){reason}."), way_out);
    } else if view.paused {
        let what = format!("It is paused; {}.", wait(waiting));
        add("paused", false, what, "Resume it when its tasks may run.");
    } else if let Some(held) = &view.held {
        let what = format!("It is on hold {}.", held.told(clock::now_ms()));
        let way_out = "Repair that; the queue tries one task at a time. Resume ends the hold at once.";
        add("held", true, what, way_out);
    } else if view.state == "waiting-for-plugin" {
        let what =
            format!("It waits for a working version of its plugin {}; {}.", view.plugin, wait(waiting));
        add(
            "waits-for-plugin",
            waiting > 0,
            what,
            "See the plugins: put a working file in place, or reload it.",
        );
    } else if view.state == STOPPING {
        // Every host of the queue stops in order. Once none is left, that is an alarm.
    } else {
        is_explained = false;
    }
    if !is_explained && waiting > 0 && view.running == 0 && view.rate == 0.0 && oldest > IDLE_BACKLOG_MS {
        let what = format!("{} and none runs; the oldest has waited for {}.", wait(waiting), time(oldest));
        add("none-runs", true, what, "See the state of its hosts below the queue, and the log of a host.");
    } else if !is_explained && oldest > LONG_WAIT_MS && has_finished_nothing && view.rate == 0.0 {
        let runs = if view.running == 1 { "runs" } else { "run" };
        let what = format!(
            "Nothing has finished for {SILENT} minutes: {}, the oldest for {}, and {} {runs}.",
            wait(waiting),
            time(oldest),
            view.running
        );
        add(
            "nothing-finishes",
            true,
            what,
            "See what its running tasks do, and what they wait for; cancel those that hang.",
        );
    } else if !is_explained && oldest > LONG_WAIT_MS {
        let what = format!("Its oldest task has waited for {}.", time(oldest));
        add(
            "long-wait",
            true,
            what,
            "See what its running tasks do; start another host, or raise concurrency.",
        );
    }
    let known: BTreeSet<&str> = hosts.iter().map(|host| host.id.as_str()).collect();
    let is_known = |name: &str| {
        known.contains(name) || name.rsplit_once('.').is_some_and(|(host, _)| known.contains(host))
    };
    let lost = view
        .consumers
        .iter()
        .filter(|one| one.pending > 0 && one.idle_ms > SILENT_MS && !is_known(&one.name));
    for consumer in lost {
        let (name, silent) = (&consumer.name, time(consumer.idle_ms));
        let what = format!("{name} has {}, and is silent for {silent}.", plural(consumer.pending, "task"));
        add(
            "silent-consumer",
            true,
            what,
            "A host takes them over when their lease ends; if none does, see the log of a host.",
        );
    }
    if let Some(SpanView { completed, failed, error_rate: Some(rate), .. }) =
        lately.map(|lately| &lately.counted)
        && completed + failed >= JUDGED_LATELY
        && *rate > FAILED_PART.0
    {
        let (all, percent) = (completed + failed, rate * 100.0);
        let what =
            format!("{failed} of {all} attempts ({percent:.0} %) failed in the last {LATELY} minutes.");
        let way_out = "See the errors of its tasks, and the outcomes by version on the page of the queue.";
        add("attempts-fail", *rate > FAILED_PART.1, what, way_out);
    }
    let rules: BTreeSet<&str> = hosts
        .iter()
        .flat_map(|host| &host.queues)
        .filter(|queue| queue.name == view.queue)
        .map(|queue| queue.rules.as_str())
        .collect();
    // Another version of tqhost may write the same rules in another way, and is an alarm of its own.
    if rules.len() > 1 && different_versions(hosts).is_none() {
        let what = "Hosts have different rules for it.".to_owned();
        add(
            "rules-differ",
            false,
            what,
            "Give all hosts the same configuration, unless this is a rollout that goes on.",
        );
    }
    if view.dead > 0 {
        let mut what = format!("There {} {}.", if view.dead == 1 { "is" } else { "are" }, view.dead);
        let new = lately.map_or(0, |lately| lately.counted.dead);
        if new > 0 {
            what += &format!(" {new} new ones came in the last {LATELY} minutes.");
        }
        let way_out = "Find their causes; then requeue or purge them.";
        alarms.push(alarm("dead-letters", false, AlarmSubject::Dead(view.queue.clone()), what, way_out));
    }
}

fn about_plugins(hosts: &[HostInfo], alarms: &mut Vec<Alarm>) {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (host, plugin) in hosts.iter().flat_map(|host| host.plugins.iter().map(move |plugin| (host, plugin)))
    {
        if let Some(version) = &plugin.version {
            versions.entry(&plugin.name).or_default().insert(version);
        }
        if plugin.state != "active" {
            let (state, id) = (&plugin.state, &host.id);
            let why = plugin.error.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
            let (what, about) =
                (format!("It is {state} on {id}{why}."), AlarmSubject::Plugin(plugin.name.clone()));
            let kind = if state == "missing" { "plugin-missing" } else { "plugin-refused" };
            alarms.push(alarm(kind, plugin.version.is_none(), about, what, way_out_of(plugin)));
        }
    }
    for (plugin, versions) in versions.iter().filter(|(_, versions)| versions.len() > 1) {
        let what = format!("Hosts run {} different versions of it.", versions.len());
        let way_out = "Put the same file in place on each host, unless this is a rollout that goes on.";
        let about = AlarmSubject::Plugin((*plugin).to_owned());
        alarms.push(alarm("versions-differ", false, about, what, way_out));
    }
}

/// Attempts on a version at the tasks of one queue, on all hosts together.
#[derive(Default)]
struct JudgedVersion {
    attempts: u64,
    failures: u64,
    /// The attempts and failures on the versions before it, in the last minutes in which they ran.
    before: (u64, u64),
    /// The version as people are shown it.
    words: String,
}

/// Accuses a version that took the place of another one lately, if its attempts fail and those before did
/// not. Where nothing was replaced, it is the tasks that have changed, or what their handlers ask: failing
/// attempts are an alarm about the queue then.
fn about_versions(hosts: &[HostInfo], alarms: &mut Vec<Alarm>) {
    let mut judged: BTreeMap<(&str, &str, &str), JudgedVersion> = BTreeMap::new();
    for host in hosts {
        for plugin in host.plugins.iter().filter(|plugin| plugin.is_new) {
            let Some(version) = &plugin.version else { continue };
            for queue in &host.queues {
                let own = |known: &&HostVersion| known.is_of(&plugin.name, version);
                let Some(serving) = queue.versions.iter().find(own) else { continue };
                let sum = judged.entry((&plugin.name, version, &queue.name)).or_default();
                sum.words = plugin.builds.words(version);
                sum.attempts = sum.attempts.saturating_add(serving.attempts);
                sum.failures = sum.failures.saturating_add(serving.failures);
                if let Some(before) = queue.versions.iter().rfind(|known| !own(known)) {
                    sum.before.0 = sum.before.0.saturating_add(before.attempts);
                    sum.before.1 = sum.before.1.saturating_add(before.failures);
                }
            }
        }
    }
    for ((plugin, _, queue), JudgedVersion { attempts, failures, before, words }) in judged {
        let part = |(attempts, failures): (u64, u64)| failures as f64 / attempts.max(1) as f64;
        let fails = attempts >= JUDGED_ATTEMPTS && part((attempts, failures)) >= FAILED_VERSION;
        let all_fail = attempts >= JUDGED_ALL_FAILED && failures == attempts;
        let is_known = before.0 >= JUDGED_ALL_FAILED;
        let is_worse = !is_known || part((attempts, failures)) >= part(before) + WORSE;
        if !(fails || all_fail) || !is_worse {
            continue;
        }
        let before = match before {
            (0, _) => String::new(),
            (attempts, failures) => format!("; before it came, {failures} of {attempts} did"),
        };
        let what = format!(
            "{failures} of {attempts} attempts on its version {words} failed in queue {queue} in the last \
             {LATELY} minutes{before}."
        );
        let way_out = "See the errors of its tasks; put another version in place, or roll it back.";
        let about = AlarmSubject::Plugin(plugin.to_owned());
        alarms.push(alarm("bad-version", true, about, what, way_out));
    }
}

fn way_out_of(plugin: &HostPlugin) -> &'static str {
    match plugin.state.as_str() {
        "missing" => "Put its file into the folder of the plugins.",
        "quarantined" => "This content is not run again: put another version in place.",
        _ => "Repair the file, or what it needs, and reload it.",
    }
}

fn about_hosts(hosts: &[HostInfo], alarms: &mut Vec<Alarm>) {
    for host in hosts {
        let Some(error) = &host.config_error else { continue };
        let what = format!("{} runs with an earlier configuration: {error}.", host.id);
        let way_out = "Repair the file; `tqhost check` tells all problems.";
        alarms.push(alarm("config-refused", false, AlarmSubject::Hosts, what, way_out));
    }
    if let Some(what) = different_versions(hosts) {
        alarms.push(alarm("builds-differ", false, AlarmSubject::Hosts, what, "Finish the upgrade."));
    }
}

/// Says that hosts ended without a word, if any did.
pub(crate) fn about_lost(lost: &[LostHost], now_ms: u64, alarms: &mut Vec<Alarm>) {
    let Some(latest) = lost.iter().max_by_key(|host| host.seen_ms) else { return };
    let ago = time(now_ms.saturating_sub(latest.seen_ms));
    let (count, is_or_was) = (lost.len() as u64, if lost.len() == 1 { "it was" } else { "the last was" });
    let what = format!(
        "{} ended without stopping in the last hour: {is_or_was} {}, {ago} ago.",
        plural(count, "host"),
        latest.id
    );
    let way_out = "See its log and its machine: memory, a crash, the network. Others take its tasks over.";
    alarms.push(alarm("host-lost", count >= MANY_LOST, AlarmSubject::Hosts, what, way_out));
}

/// Tells that hosts run different versions of tqhost, and which. None: all run the same.
pub(crate) fn different_versions(hosts: &[HostInfo]) -> Option<String> {
    let versions: BTreeSet<&str> = hosts.iter().map(|host| host.version.as_str()).collect();
    let all = || versions.iter().copied().collect::<Vec<_>>().join(", ");
    (versions.len() > 1).then(|| format!("Hosts run different versions of tqhost: {}.", all()))
}

fn wait(count: u64) -> String {
    format!("{} {}", plural(count, "task"), if count == 1 { "waits" } else { "wait" })
}

/// A time in whole seconds, or whole minutes if it is long.
fn time(ms: u64) -> String {
    let unit = if ms < 120_000 { 1_000 } else { 60_000 };
    show_duration(Duration::from_millis(ms / unit * unit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::census::Consumer;
    use crate::queue::hold::QueueHold;
    use crate::queue::hosts::HostQueue;

    fn queue() -> QueueView {
        QueueView {
            queue: "mail".into(),
            stream: "mail".into(),
            group: "tqhost".into(),
            node: None,
            plugin: "send".into(),
            state: "reading".into(),
            paused: false,
            pause: None,
            held: None,
            limits: None,
            queued: 3,
            running: 1,
            delayed: 0,
            held_tasks: 0,
            dead: 0,
            outgoing: None,
            oldest_ms: Some(10),
            rate: 0.0,
            schedule: None,
            hosts: Vec::new(),
            versions_differ: false,
            consumers: Vec::new(),
        }
    }

    fn host() -> HostInfo {
        let json = serde_json::json!({
            "id": "box-1-0123456789ab", "version": "0.1.0", "pid": 1, "started_at": 0, "queues": [],
            "plugins": [{
                "name": "send", "state": "active", "version": "ab", "error": null, "loaded_at": null,
                "compile_ms": null, "from_cache": false, "bytes": null, "attempts": 30, "failures": 3,
                "peak_memory": 0, "reloads": 0, "failed_reloads": 0
            }]
        });
        serde_json::from_value(json).expect("a host")
    }

    #[test]
    fn a_quiet_system_has_no_alarm() {
        assert_eq!(alarms(&[queue()], &[host()], &[], &BTreeMap::new(), &[]), []);
    }

    /// A host with these attempts and failures in the queue, on the version that runs and on the one before.
    fn judged(is_new: bool, serving: (u64, u64), before: Option<(u64, u64)>) -> HostInfo {
        let mut host = host();
        host.plugins[0].is_new = is_new;
        let of = |version: &str, (attempts, failures)| HostVersion {
            version: format!("send@{version}"),
            attempts,
            failures,
        };
        let versions = before.map(|before| of("aa", before)).into_iter().chain([of("ab", serving)]).collect();
        host.queues = vec![HostQueue { name: "mail".into(), versions, ..HostQueue::default() }];
        host
    }

    #[test]
    fn a_new_version_is_accused_if_it_fails_where_the_one_before_did_not() {
        let table = [
            // Bad inputs: nothing was replaced lately.
            (judged(false, (3000, 3000), Some((3000, 0))), None),
            (
                judged(true, (3000, 2134), Some((1000, 4))),
                Some(
                    "2134 of 3000 attempts on its version ab failed in queue mail in the last 10 minutes; \
                     before it came, 4 of 1000 did.",
                ),
            ),
            // They failed before it came, too.
            (judged(true, (3000, 3000), Some((1000, 990))), None),
            (judged(true, (100, 60), Some((1000, 400))), None),
            // Nobody knows how it was before.
            (judged(true, (5, 5), Some((1, 0))), Some("5 of 5 attempts")),
            (
                judged(true, (20, 10), None),
                Some("10 of 20 attempts on its version ab failed in queue mail in the last 10 minutes."),
            ),
            (judged(true, (19, 18), None), None),
            (judged(true, (4, 4), None), None),
        ];
        for (host, expected) in table {
            let told = alarms(&[queue()], std::slice::from_ref(&host), &[], &BTreeMap::new(), &[]);
            match (&told[..], expected) {
                ([], None) => {}
                ([alarm], Some(part)) => {
                    assert!(alarm.is_urgent && alarm.what.starts_with(part), "{alarm:?}");
                }
                _ => panic!("{expected:?}: {told:?}"),
            }
        }
        let both = [judged(true, (3, 3), Some((3, 0))), judged(true, (2, 2), Some((3, 0)))];
        let [alarm] = &alarms(&[queue()], &both, &[], &BTreeMap::new(), &[])[..] else { panic!("one alarm") };
        assert!(alarm.what.starts_with("5 of 5 attempts"), "{alarm:?}");
    }

    #[test]
    fn hosts_that_ended_without_a_word_are_told_of() {
        let told = |lost: &[(&str, u64)]| {
            let lost = lost.iter().map(|(id, seen_ms)| LostHost { id: (*id).into(), seen_ms: *seen_ms });
            let mut told = Vec::new();
            about_lost(&lost.collect::<Vec<_>>(), 65_000, &mut told);
            told.pop().map(|alarm| (alarm.is_urgent, alarm.what))
        };
        assert_eq!(told(&[]), None);
        let one = "1 host ended without stopping in the last hour: it was a, 1m ago.";
        assert_eq!(told(&[("a", 5_000)]), Some((false, one.into())));
        let three = "3 hosts ended without stopping in the last hour: the last was b, 5s ago.";
        assert_eq!(told(&[("a", 5_000), ("b", 60_000), ("c", 7_000)]), Some((true, three.into())));
    }

    #[test]
    fn a_queue_whose_hosts_stop_in_order_has_no_alarm() {
        let waits = QueueView { running: 0, oldest_ms: Some(400_000), ..queue() };
        assert_eq!(
            alarms(&[QueueView { state: STOPPING.into(), ..waits }], &[host()], &[], &BTreeMap::new(), &[]),
            []
        );
    }

    #[test]
    fn each_trouble_is_told() {
        let lost = Consumer { name: "box-2-0123456789ab".into(), pending: 2, idle_ms: 90_000 };
        let held = QueueHold { since_ms: 0, until_ms: 0, cause: "no route".into() };
        let table: [(QueueView, bool, &str); 9] = [
            (QueueView { state: NO_HOST.into(), ..queue() }, true, "No running host has this queue; 3 tasks"),
            (QueueView { state: "stalled".into(), ..queue() }, true, "(stalled)"),
            (QueueView { paused: true, ..queue() }, false, "It is paused; 3 tasks wait"),
            (QueueView { held: Some(held), ..queue() }, true, "no route"),
            (QueueView { state: "waiting-for-plugin".into(), ..queue() }, true, "plugin send; 3 tasks"),
            (
                QueueView { running: 0, oldest_ms: Some(61_000), ..queue() },
                true,
                "3 tasks wait and none runs",
            ),
            (QueueView { oldest_ms: Some(301_000), ..queue() }, true, "has waited for 5m"),
            (QueueView { consumers: vec![lost], ..queue() }, true, "box-2-0123456789ab has 2 tasks"),
            (QueueView { dead: 1, ..queue() }, false, "There is 1."),
        ];
        for (view, is_urgent, part) in table {
            let told = alarms(&[view], &[host()], &[], &BTreeMap::new(), &[]);
            let [alarm] = &told[..] else { panic!("{part}: {told:?}") };
            assert!(alarm.what.contains(part) && alarm.is_urgent == is_urgent, "{part}: {alarm:?}");
        }
        let edited = |edit: fn(&mut HostInfo)| {
            let mut host = host();
            edit(&mut host);
            host
        };
        let with_rules = |rules: &str| {
            let mut host = host();
            host.queues =
                vec![HostQueue { name: "mail".into(), rules: rules.into(), ..HostQueue::default() }];
            host
        };
        let hosts: [(Vec<HostInfo>, bool, &str); 6] = [
            (vec![with_rules("a"), with_rules("b")], false, "different rules"),
            (vec![], true, "No host"),
            (vec![host(), edited(|host| host.version = "0.2.0".into())], false, "0.1.0, 0.2.0"),
            (vec![edited(|host| host.config_error = Some("line 3".into()))], false, "line 3"),
            (vec![host(), edited(|host| host.plugins[0].version = Some("cd".into()))], false, "2 different"),
            (
                vec![edited(|host| {
                    host.plugins[0].state = "missing".into();
                    host.plugins[0].version = None;
                })],
                true,
                "It is missing on",
            ),
        ];
        for (hosts, is_urgent, part) in hosts {
            let told = alarms(&[queue()], &hosts, &[], &BTreeMap::new(), &[]);
            let [alarm] = &told[..] else { panic!("{part}: {told:?}") };
            assert!(alarm.what.contains(part) && alarm.is_urgent == is_urgent, "{part}: {alarm:?}");
        }
        let failed = [("bad".into(), "type".into())];
        let danger = |is_urgent| Danger { kind: "redis", is_urgent, what: "Redis.".into(), way_out: "" };
        let dangers = [danger(false), danger(true)];
        let told =
            alarms(&[QueueView { dead: 1, ..queue() }], &[host()], &failed, &BTreeMap::new(), &dangers);
        assert_eq!(told.iter().map(|alarm| alarm.is_urgent).collect::<Vec<_>>(), [true, true, false, false]);
    }

    #[test]
    fn what_the_last_minutes_tell_is_told() {
        let lately = |completed: u64, failed: u64, dead, finished| {
            let all = completed + failed;
            let error_rate = (all > 0).then(|| failed as f64 / all as f64);
            Lately {
                counted: SpanView { completed, failed, dead, error_rate, ..SpanView::default() },
                finished,
            }
        };
        let old = || QueueView { oldest_ms: Some(301_000), ..queue() };
        let table = [
            (queue(), lately(90, 10, 0, 90), None),
            (queue(), lately(89, 11, 0, 89), Some((false, "11 of 100 attempts (11 %) failed"))),
            (queue(), lately(4, 6, 0, 4), Some((true, "6 of 10 attempts (60 %) failed"))),
            (queue(), lately(0, 9, 0, 0), None),
            (
                QueueView { dead: 4, ..queue() },
                lately(99, 1, 3, 99),
                Some((false, "There are 4. 3 new ones came in the last 10 minutes.")),
            ),
            (old(), lately(0, 0, 0, 0), Some((true, "Nothing has finished for 5 minutes: 3 tasks wait"))),
            (old(), lately(1, 0, 0, 1), Some((true, "Its oldest task has waited for 5m"))),
            // The host has completed something in the present minute.
            (QueueView { rate: 0.1, ..old() }, lately(0, 0, 0, 0), Some((true, "Its oldest task"))),
        ];
        for (view, lately, expected) in table {
            let lately = BTreeMap::from([("mail".to_owned(), lately)]);
            let told = alarms(&[view], &[host()], &[], &lately, &[]);
            match expected {
                None => assert_eq!(told, []),
                Some((is_urgent, part)) => {
                    let [alarm] = &told[..] else { panic!("{part}: {told:?}") };
                    assert!(alarm.what.contains(part) && alarm.is_urgent == is_urgent, "{part}: {alarm:?}");
                }
            }
        }
    }
}
