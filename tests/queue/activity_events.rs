//! User activity on a stream, processed by tqhost in place of a consumer that marks an event as done before
//! it processes it.
//!
//! Duplicates do no harm, and a crash loses nothing. The stream, its group and its dead-letter stream have
//! the names that such a system already uses. `TQHOST_ACTIVITY_CASES` sets the number of random cases.
//!
//! Not here: idempotency keys one by one (`idempotency`).

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};

use nix::sys::signal::Signal;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseResult, TestRunner};
use serde_json::json;

use crate::support::{Bench, Host, eventually};

const STREAM: &str = "events:user_activity";
const DEAD: &str = "dlq:user_activity";
const CASES: u32 = 5;

/// `sleeps` rejects an event that does not say for how long.
const QUEUES: &str = r#"
[queues.activity]
stream = "events:user_activity"
group = "activity_processors"
dead_letter = "dlq:user_activity"
plugin = "sleeps"
concurrency = 5
lease = "1s"
max_crashes = 1000
idempotency = { field = "eventId", window = "24h" }
"#;

#[derive(Debug, Clone, Copy)]
enum Op {
    /// A new entry for one of a few events, so many entries are duplicates.
    Event(usize),
    /// Waits until this many more tasks have ended.
    Await(usize),
    /// Waits this many milliseconds, kills one of the two hosts, and starts another.
    Kill(usize, u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        20 => (0..15usize).prop_map(Op::Event),
        2 => (1..10usize).prop_map(Op::Await),
        1 => (0..2usize, 0..40u64).prop_map(|(host, after)| Op::Kill(host, after)),
    ];
    prop::collection::vec(op, 20..100)
}

struct Activity {
    bench: Bench,
    hosts: [Host; 2],
    cases: usize,
}

impl Activity {
    fn start() -> Activity {
        let bench = Bench::new(QUEUES);
        bench.install("sleeps", "sleeps");
        let hosts = [bench.host(), bench.host()];
        Activity { bench, hosts, cases: 0 }
    }

    /// Adds an entry. Every seventh event cannot be processed.
    fn event(&mut self, event: &str, n: usize) -> String {
        let data = data(event);
        let ms = (n * 7 % 50).to_string();
        let fields = [("eventId", event), ("data", data.as_str()), ("ms", ms.as_str())];
        self.bench.xadd(STREAM, &fields[..if is_bad(n) { 2 } else { 3 }])
    }

    fn status(&mut self, id: &str, field: &str) -> String {
        self.bench.status(STREAM, id, field)
    }

    fn ended(&mut self, ids: &[String]) -> usize {
        ids.iter()
            .filter(|id| !matches!(self.status(id, "status").as_str(), "" | "PENDING" | "PROCESSING"))
            .count()
    }

    fn dead(&mut self) -> Vec<HashMap<String, String>> {
        let letters: Vec<(String, HashMap<String, String>)> = self.bench.redis("XRANGE", (DEAD, "-", "+"));
        letters.into_iter().map(|(_, fields)| fields).collect()
    }

    fn case(&mut self, ops: &[Op]) -> TestCaseResult {
        self.cases += 1;
        let mut entries: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        let mut ids: Vec<String> = Vec::new();
        let name = |case: usize, n: usize| format!("event-{case}-{n}");
        for op in ops {
            match *op {
                Op::Event(n) => {
                    let id = self.event(&name(self.cases, n), n);
                    entries.entry(n).or_default().push(id.clone());
                    ids.push(id);
                }
                Op::Await(more) => {
                    let before = self.ended(&ids);
                    let expected = (before + more).min(ids.len());
                    eventually("some more have ended", || (self.ended(&ids) >= expected).then_some(()));
                }
                Op::Kill(host, after) => {
                    // Any moment will do.
                    std::thread::sleep(std::time::Duration::from_millis(after));
                    self.hosts[host].signal(Signal::SIGKILL);
                    self.hosts[host].ended();
                    self.hosts[host] = self.bench.host();
                }
            }
        }
        eventually("every entry has ended", || (self.ended(&ids) == ids.len()).then_some(()));
        prop_assert_eq!(self.bench.redis::<u64>("XLEN", STREAM), 0, "nothing is left");
        prop_assert_eq!(self.bench.redis::<u64>("ZCARD", "tq:{events:user_activity}:delayed"), 0);
        let dead = self.dead();
        for (n, ids) in &entries {
            let event = name(self.cases, *n);
            let end = if is_bad(*n) { "FAILED" } else { "COMPLETED" };
            let committed: Vec<&String> = ids.iter().filter(|id| self.status(id, "status") == end).collect();
            prop_assert_eq!(committed.len(), 1, "{} is committed once: {:?}", event, ids);
            let first = committed[0];
            for id in ids.iter().filter(|id| *id != first) {
                let (status, of) = (self.status(id, "status"), self.status(id, "duplicate_of"));
                prop_assert_eq!((status.as_str(), &of), ("CANCELLED", first));
            }
            prop_assert_eq!(
                &self.bench.redis::<String>("GET", format!("tq:{{{STREAM}}}:key:{event}")),
                first
            );
            let letters: Vec<_> = dead.iter().filter(|letter| letter["eventId"] == event).collect();
            prop_assert_eq!(letters.len(), usize::from(is_bad(*n)), "{}", event);
            prop_assert!(
                letters.iter().all(|letter| letter["tq-id"] == *first && letter["data"] == data(&event))
            );
        }
        Ok(())
    }
}

fn data(event: &str) -> String {
    json!({"eventId": event, "user": 7, "action": "click"}).to_string()
}

fn is_bad(n: usize) -> bool {
    n % 7 == 3
}

#[test]
fn every_event_is_committed_once_whatever_is_sent_twice_and_killed() {
    let cases = std::env::var("TQHOST_ACTIVITY_CASES")
        .map_or(CASES, |text| text.parse().expect("TQHOST_ACTIVITY_CASES is a number"));
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 10,
        max_shrink_time: 60_000,
        ..Config::default()
    };
    let activity = RefCell::new(Activity::start());
    let checked = TestRunner::new(config).run(&ops(), |ops| activity.borrow_mut().case(&ops));
    let Activity { hosts, bench: _redis, .. } = activity.into_inner();
    match checked {
        Ok(()) => Host::stop_all(hosts),
        Err(failed) => panic!("{failed}"),
    }
}

#[test]
fn a_dead_event_says_what_is_needed_to_replay_it_and_is_replayed_once() {
    let mut activity = Activity::start();
    let id = activity.event("e", 3);
    eventually("it is dead", || (activity.dead().len() == 1).then_some(()));
    let letter = activity.dead().remove(0);
    let names: HashSet<&str> = letter.keys().map(String::as_str).collect();
    for name in [
        "tq-id",
        "tq-queue",
        "tq-reason",
        "tq-error",
        "tq-attempts",
        "tq-enqueued-at",
        "tq-failed-at",
        "tq-consumer",
        "tq-plugin",
    ] {
        assert!(names.contains(name), "{name} is missing in {letter:?}");
    }
    assert_eq!(
        (&letter["tq-id"], &letter["data"], letter["tq-reason"].as_str()),
        (&id, &data("e"), "rejected")
    );
    // Its duplicates belong to a task that has ended, so they do nothing.
    let again = activity.event("e", 3);
    activity.bench.until(STREAM, &again, "CANCELLED");
    let told =
        activity.bench.tqhost(&["dead", "requeue", "activity", &id, &again, "--json"]).ends_with(1).json();
    assert_eq!(told, json!({"succeeded": 1, "skipped": 1}));
    eventually("it is dead again", || {
        let dead = activity.dead();
        (dead.len() == 1 && dead[0]["tq-failed-at"] > letter["tq-failed-at"]).then_some(())
    });
    assert_eq!(activity.dead()[0]["tq-id"], id);
    Host::stop_all(activity.hosts);
}
