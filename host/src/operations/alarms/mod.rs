//! Alarms in words: what is wrong, since when, and what to do about it.
//!
//! In: the queues as they are counted, what became of their tasks in the last minutes, the hosts as they
//! announce themselves, and the dangers of Redis. Out: [`Alarm`]s. Nothing is read here but the clock.
//!
//! Not here: which of them have one cause (`incidents`), how they are shown (`dashboard`), alerts from
//! metrics (docs/incidents.md).

mod alarm;
mod hosts;
mod plugins;
mod queues;

use std::collections::BTreeMap;

use super::history::Lately;
use super::queues::{QueueView, UncountedQueue};
use crate::queue::hosts::{HostInfo, LostHost};
use crate::queue::upkeep::Danger;
pub(super) use alarm::alarm;
pub(crate) use alarm::{Alarm, AlarmSubject};
pub(crate) use hosts::different_versions;

/// The facts in which alarms are found.
#[derive(Default)]
pub(crate) struct AlarmSources<'s> {
    pub queues: &'s [QueueView],
    pub hosts: &'s [HostInfo],
    /// The hosts that ended without a word.
    pub lost: &'s [LostHost],
    pub failed: &'s [UncountedQueue],
    /// The last minutes of the queues, by name.
    pub lately: Option<&'s BTreeMap<String, Lately>>,
    pub dangers: &'s [Danger],
    /// The present time, in milliseconds since the Unix epoch.
    pub now_ms: u64,
}

/// Finds all alarms.
pub(crate) fn alarms(sources: &AlarmSources<'_>) -> Vec<Alarm> {
    let AlarmSources { queues, hosts, lost, failed, dangers, now_ms, .. } = *sources;
    let none = BTreeMap::new();
    let lately = sources.lately.unwrap_or(&none);
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
        let since = lost.iter().map(|host| host.seen_ms).max();
        alarms.push(alarm("no-host", true, AlarmSubject::Hosts, what, way_out).since(since));
    }
    for UncountedQueue { queue, error } in failed {
        let way_out = "Repair the key in Redis, or name another stream in the configuration.";
        let (what, about) = (format!("It cannot be counted: {error}."), AlarmSubject::Queue(queue.clone()));
        alarms.push(alarm("queue-unfit", true, about, what, way_out));
    }
    for queue in queues {
        queues::about_queue(queue, lately.get(&queue.queue), hosts, &mut alarms);
    }
    plugins::about_plugins(hosts, &mut alarms);
    plugins::about_versions(hosts, lately, &mut alarms);
    hosts::about_hosts(hosts, &mut alarms);
    hosts::about_lost(lost, now_ms, &mut alarms);
    alarms
}

#[cfg(test)]
mod tests {
    use super::hosts::about_lost;
    use super::*;
    use crate::operations::history::SpanView;
    use crate::operations::queues::{NO_HOST, QueueOnHost};
    use crate::queue::census::Consumer;
    use crate::queue::hold::QueueHold;
    use crate::queue::hosts::{HostChange, HostPlugin, HostQueue, HostVersion, LastMinute, STOPPING};

    fn queue() -> QueueView {
        QueueView {
            queue: "mail".into(),
            plugin: "send".into(),
            state: "reading".into(),
            queued: 3,
            running: 1,
            oldest_ms: Some(10),
            ..QueueView::default()
        }
    }

    fn host() -> HostInfo {
        let (name, state, version) = ("send".into(), "active".into(), Some("ab".into()));
        let plugins = vec![HostPlugin { name, state, version, ..HostPlugin::default() }];
        let (id, version) = ("box-1-0123456789ab".into(), "0.1.0".into());
        HostInfo { id, version, plugins, ..HostInfo::default() }
    }

    fn found(queues: &[QueueView], hosts: &[HostInfo]) -> Vec<Alarm> {
        alarms(&AlarmSources { queues, hosts, ..AlarmSources::default() })
    }

    /// The alarms of a queue on one host, with its last minutes.
    fn found_lately(view: QueueView, lately: Option<Lately>) -> Vec<Alarm> {
        let lately = lately.map(|lately| BTreeMap::from([("mail".to_owned(), lately)]));
        let (queues, hosts, lately) = (&[view], &[host()], lately.as_ref());
        alarms(&AlarmSources { queues, hosts, lately, ..AlarmSources::default() })
    }

    /// Checks that there is one alarm with this urgency and text, or without them that there is none.
    fn check(told: &[Alarm], expected: Option<(bool, &str)>) {
        match (told, expected) {
            ([], None) => {}
            ([alarm], Some((is_urgent, part)))
                if alarm.is_urgent == is_urgent && alarm.what.contains(part) => {}
            _ => panic!("{expected:?}: {told:?}"),
        }
    }

    #[test]
    fn a_quiet_system_has_no_alarm_and_neither_has_one_that_stops_in_order() {
        assert_eq!(found(&[queue()], &[host()]), []);
        let waits = QueueView { running: 0, oldest_ms: Some(400_000), ..queue() };
        assert_eq!(found(&[QueueView { state: STOPPING.into(), ..waits }], &[host()]), []);
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
            check(&found(&[queue()], &[host]), expected.map(|part| (true, part)));
        }
        let both = [judged(true, (3, 3), Some((3, 0))), judged(true, (2, 2), Some((3, 0)))];
        check(&found(&[queue()], &both), Some((true, "5 of 5 attempts")));
    }

    #[test]
    fn hosts_that_ended_without_a_word_are_told_of() {
        let told = |lost: &[(&str, u64)], now_ms| {
            let lost = lost.iter().map(|(id, seen_ms)| LostHost {
                id: (*id).into(),
                seen_ms: *seen_ms,
                lost_attempts: 0,
            });
            let mut told = Vec::new();
            about_lost(&lost.collect::<Vec<_>>(), now_ms, &mut told);
            told.pop().map(|alarm| (alarm.is_urgent, alarm.what, alarm.since_ms))
        };
        assert_eq!(told(&[], 65_000), None);
        let one = "1 host ended without stopping in the last hour: it was a, 1m ago.";
        assert_eq!(told(&[("a", 5_000)], 65_000), Some((false, one.into(), Some(5_000))));
        let three = "3 hosts ended without stopping in the last 10 minutes: the last was b, 5s ago.";
        let lost = [("a", 5_000), ("b", 60_000), ("c", 7_000)];
        assert_eq!(told(&lost, 65_000), Some((true, three.into(), Some(5_000))));
        // They did not die at once.
        let later = "3 hosts ended without stopping in the last hour: the last was b, 10m ago.";
        assert_eq!(told(&lost, 660_000), Some((false, later.into(), Some(60_000))));
    }

    #[test]
    fn the_last_minute_is_judged_beside_the_last_ten() {
        let told = |completed, failed, lately: Option<Lately>| {
            let last_minute = LastMinute { completed, failed };
            let queue_on = HostQueue { name: "mail".into(), last_minute, ..HostQueue::default() };
            let on = QueueOnHost { queue: queue_on, ..QueueOnHost::default() };
            found_lately(QueueView { hosts: vec![on], ..queue() }, lately)
        };
        let lately = Lately {
            counted: SpanView { completed: 9000, failed: 20, error_rate: Some(0.002), ..SpanView::default() },
            finished: 9000,
            failing_since_ms: Some(7),
            ..Lately::default()
        };
        // Ten minutes hide it.
        let fast = Some((true, "18 of 20 attempts (90 %) failed in the last minute."));
        check(&told(2, 18, Some(lately.clone())), fast);
        check(&told(2, 18, None), fast);
        // A few failures within a minute are no alarm, and neither are few attempts.
        check(&told(15, 5, Some(lately.clone())), None);
        check(&told(0, 9, Some(lately)), None);
    }

    #[test]
    fn hosts_with_the_same_trouble_are_one_alarm() {
        let refused = |id: &str, at| {
            let mut host = host();
            (host.id, host.config_error) = (id.into(), Some("line 3".into()));
            host.plugins[0].state = "failed".into();
            host.plugins[0].error = Some("no exports".into());
            let change = |at| HostChange { at, what: "failed".into(), ..HostChange::default() };
            host.plugins[0].history = vec![change(3), change(at)];
            host
        };
        let told = found(&[queue()], &[refused("a", 9), refused("b", 8)]);
        let told: Vec<_> = told.iter().map(|alarm| (alarm.what.as_str(), alarm.since_ms)).collect();
        let expected = [
            ("It is failed on 2 hosts (a, b): no exports.", Some(8)),
            ("2 hosts (a, b) run with an earlier configuration: line 3.", None),
        ];
        assert_eq!(told, expected);
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
            check(&found(&[view], &[host()]), Some((is_urgent, part)));
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
            check(&found(&[queue()], &hosts), Some((is_urgent, part)));
        }
        let failed = [UncountedQueue { queue: "bad".into(), error: "type".into() }];
        let danger = |is_urgent| Danger { kind: "redis", is_urgent, what: "Redis.".into(), way_out: "" };
        let dangers = [danger(false), danger(true)];
        let queues = [QueueView { dead: 1, ..queue() }];
        let hosts = [host()];
        let sources = AlarmSources {
            queues: &queues,
            hosts: &hosts,
            failed: &failed,
            dangers: &dangers,
            ..AlarmSources::default()
        };
        let told = alarms(&sources);
        assert_eq!(told.iter().filter(|alarm| alarm.is_urgent).count(), 2, "{told:?}");
        assert_eq!(told.len(), 4, "{told:?}");
    }

    #[test]
    fn failures_of_the_last_minutes_are_alarms() {
        let lately = |completed: u64, failed: u64, dead, finished| {
            let all = completed + failed;
            let error_rate = (all > 0).then(|| failed as f64 / all as f64);
            Lately {
                counted: SpanView { completed, failed, dead, error_rate, ..SpanView::default() },
                finished,
                ..Lately::default()
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
            check(&found_lately(view, Some(lately)), expected);
        }
    }
}
