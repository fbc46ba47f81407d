//! Alarms in words: what is wrong, and what to do about it.
//!
//! In: the queues as they are counted, and the hosts as they announce themselves. Out: [`Alarm`]s, the urgent
//! ones first. A pure function: it looks at nothing by itself.
//!
//! Not here: how alarms are shown (`dashboard`), alerts from metrics (docs/operations.md).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::queues::{NO_HOST, QueueView};
use crate::config::units::{plural, show_duration};
use crate::queue::hosts::{HostInfo, HostPlugin};

/// A task that has waited for longer is an alarm.
const LONG_WAIT_MS: u64 = 5 * 60_000;
/// A backlog where nothing has run for as long as its oldest task waits is an alarm after this time.
const IDLE_BACKLOG_MS: u64 = 60_000;
/// A consumer that is silent for longer, and has tasks, is an alarm: it is longer than most leases.
const SILENT_MS: u64 = 60_000;
/// A plugin is judged by so many attempts, of which it spoiled this part.
const JUDGED_ATTEMPTS: u64 = 20;
const SPOILED_PART: f64 = 0.5;

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Alarm {
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
}

/// Says what is wrong. `failed` are the queues that cannot be counted, each with the error.
pub(crate) fn alarms(queues: &[QueueView], hosts: &[HostInfo], failed: &[(String, String)]) -> Vec<Alarm> {
    let mut alarms = Vec::new();
    if hosts.is_empty() {
        let (what, way_out) = (
            "No host has announced itself for 15 seconds.",
            "Start a host, or look whether Redis refuses writes.",
        );
        alarms.push(alarm(true, AlarmSubject::Hosts, what, way_out));
    }
    for (queue, error) in failed {
        let way_out = "Repair the key in Redis, or name another stream in the configuration.";
        alarms.push(alarm(true, of(queue), format!("It cannot be counted: {error}."), way_out));
    }
    for queue in queues {
        about_queue(queue, hosts, &mut alarms);
    }
    about_plugins(hosts, &mut alarms);
    about_hosts(hosts, &mut alarms);
    alarms.sort_by_key(|alarm| !alarm.is_urgent);
    alarms
}

fn alarm(is_urgent: bool, about: AlarmSubject, what: impl Into<String>, way_out: impl Into<String>) -> Alarm {
    Alarm { is_urgent, about, what: what.into(), way_out: way_out.into() }
}

fn of(queue: &str) -> AlarmSubject {
    AlarmSubject::Queue(queue.to_owned())
}

fn about_queue(view: &QueueView, hosts: &[HostInfo], alarms: &mut Vec<Alarm>) {
    let mut add = |is_urgent, what: String, way_out: &str| {
        alarms.push(alarm(is_urgent, of(&view.queue), what, way_out));
    };
    let (waiting, oldest) = (view.queued + view.held_tasks, view.oldest_ms.unwrap_or(0));
    let mut is_explained = true;
    if view.state == NO_HOST && !hosts.is_empty() {
        let what = format!("No running host has this queue; {}.", wait(waiting));
        add(waiting > 0, what, "Start a host with a configuration that has it.");
    } else if view.state == "stalled" {
        let way_out = "See the log of the host and /readyz; restart the host if it does not recover.";
        add(true, "A host does not get on with reading it (stalled).".into(), way_out);
    } else if view.paused {
        add(false, format!("It is paused; {}.", wait(waiting)), "Resume it when its tasks may run.");
    } else if let Some(held) = &view.held {
        let what = format!("It is held, since its tasks failed for a cause outside: {}.", held.cause);
        add(true, what, "Repair that; the queue tries one task at a time. Resume ends the hold at once.");
    } else if view.state == "waiting-for-plugin" {
        let what =
            format!("It waits for a working version of its plugin {}; {}.", view.plugin, wait(waiting));
        add(waiting > 0, what, "See the plugins: put a working file in place, or reload it.");
    } else {
        is_explained = false;
    }
    if !is_explained && waiting > 0 && view.running == 0 && view.rate == 0.0 && oldest > IDLE_BACKLOG_MS {
        let what = format!("{} and none runs; the oldest has waited for {}.", wait(waiting), time(oldest));
        add(true, what, "See the state of its hosts below the queue, and the log of a host.");
    } else if !is_explained && oldest > LONG_WAIT_MS {
        let what = format!("Its oldest task has waited for {}.", time(oldest));
        add(true, what, "See what its running tasks do; start another host, or raise concurrency.");
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
        add(true, what, "A host takes them over when their lease ends; if none does, see the log of a host.");
    }
    if view.dead > 0 {
        let what = format!("There {} {}.", if view.dead == 1 { "is" } else { "are" }, view.dead);
        let way_out = "Find their causes; then requeue or purge them.";
        alarms.push(alarm(false, AlarmSubject::Dead(view.queue.clone()), what, way_out));
    }
}

fn about_plugins(hosts: &[HostInfo], alarms: &mut Vec<Alarm>) {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (host, plugin) in hosts.iter().flat_map(|host| host.plugins.iter().map(move |plugin| (host, plugin)))
    {
        if let Some(version) = &plugin.version {
            versions.entry(&plugin.name).or_default().insert(version);
        }
        let about = || AlarmSubject::Plugin(plugin.name.clone());
        if plugin.state != "active" {
            let (state, id) = (&plugin.state, &host.id);
            let why = plugin.error.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
            let what = format!("It is {state} on {id}{why}.");
            alarms.push(alarm(plugin.version.is_none(), about(), what, way_out_of(plugin)));
        }
        let (attempts, failures) = (plugin.attempts, plugin.failures);
        if attempts >= JUDGED_ATTEMPTS && failures as f64 >= attempts as f64 * SPOILED_PART {
            let what = format!("It spoiled {failures} of {attempts} attempts on {}.", host.id);
            alarms.push(alarm(
                true,
                about(),
                what,
                "See the errors of its tasks; put another version in place.",
            ));
        }
    }
    for (plugin, versions) in versions.iter().filter(|(_, versions)| versions.len() > 1) {
        let what = format!("Hosts run {} different versions of it.", versions.len());
        let way_out = "Put the same file in place on each host, unless this is a rollout that goes on.";
        alarms.push(alarm(false, AlarmSubject::Plugin((*plugin).to_owned()), what, way_out));
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
        alarms.push(alarm(
            false,
            AlarmSubject::Hosts,
            what,
            "Repair the file; `tqhost check` tells all problems.",
        ));
    }
    let versions: BTreeSet<&str> = hosts.iter().map(|host| host.version.as_str()).collect();
    if versions.len() > 1 {
        let all = versions.into_iter().collect::<Vec<_>>().join(", ");
        let what = format!("Hosts run different versions of tqhost: {all}.");
        alarms.push(alarm(false, AlarmSubject::Hosts, what, "Finish the upgrade."));
    }
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

    fn queue() -> QueueView {
        QueueView {
            queue: "mail".into(),
            stream: "mail".into(),
            group: "tqhost".into(),
            plugin: "send".into(),
            state: "reading".into(),
            paused: false,
            held: None,
            queued: 3,
            running: 1,
            delayed: 0,
            held_tasks: 0,
            dead: 0,
            oldest_ms: Some(10),
            rate: 0.0,
            schedule: None,
            hosts: Vec::new(),
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
        assert_eq!(alarms(&[queue()], &[host()], &[]), []);
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
            let told = alarms(&[view], &[host()], &[]);
            let [alarm] = &told[..] else { panic!("{part}: {told:?}") };
            assert!(alarm.what.contains(part) && alarm.is_urgent == is_urgent, "{part}: {alarm:?}");
        }
        let edited = |edit: fn(&mut HostInfo)| {
            let mut host = host();
            edit(&mut host);
            host
        };
        let hosts: [(Vec<HostInfo>, bool, &str); 6] = [
            (vec![], true, "No host"),
            (vec![host(), edited(|host| host.version = "0.2.0".into())], false, "0.1.0, 0.2.0"),
            (vec![edited(|host| host.config_error = Some("line 3".into()))], false, "line 3"),
            (vec![edited(|host| host.plugins[0].failures = 15)], true, "15 of 30 attempts"),
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
            let told = alarms(&[queue()], &hosts, &[]);
            let [alarm] = &told[..] else { panic!("{part}: {told:?}") };
            assert!(alarm.what.contains(part) && alarm.is_urgent == is_urgent, "{part}: {alarm:?}");
        }
        let told = alarms(&[QueueView { dead: 1, ..queue() }], &[host()], &[("bad".into(), "type".into())]);
        assert_eq!(told.iter().map(|alarm| alarm.is_urgent).collect::<Vec<_>>(), [true, false]);
    }
}
