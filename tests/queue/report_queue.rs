//! A queue that is fed from a list, in place of a consumer that takes one item at a time with BRPOP: the
//! guarantees of such a consumer, as properties.
//!
//! Each test has one Redis and one host for all of its random cases. Delays are short here; a test of its own
//! checks the documented ones. `TQHOST_REPORT_CASES` sets the number of cases.
//!
//! Not here: how items get from the list to the stream (`lists`).

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Debug;

use nix::sys::signal::Signal;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseResult, TestRunner};
use serde_json::{Value, json};

use crate::support::{Bench, Host, Places, eventually};

/// Tries random cases, one after the other, on one host.
fn check<T: Debug>(
    host: Reports,
    cases: u32,
    strategy: impl Strategy<Value = T>,
    test: impl Fn(&mut Reports, T) -> TestCaseResult,
) {
    let cases = std::env::var("TQHOST_REPORT_CASES")
        .map_or(cases, |text| text.parse().expect("TQHOST_REPORT_CASES is a number"));
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 20,
        max_shrink_time: 60_000,
        ..Config::default()
    };
    let host = RefCell::new(host);
    let checked = TestRunner::new(config).run(&strategy, |case| test(&mut host.borrow_mut(), case));
    // Redis is stopped after the host.
    let Reports { host, bench: _redis, .. } = host.into_inner();
    match checked {
        Ok(()) => host.stop(),
        Err(failed) => panic!("{failed}"),
    }
}

struct Reports {
    bench: Bench,
    host: Host,
    /// Attempts in the host's log that the test has already read.
    seen: usize,
}

/// One attempt, from the line that the host logs at its end.
type Attempt = (String, u64);

impl Reports {
    fn start(queues: &str, guests: &[&str]) -> Reports {
        let bench = Bench::new(queues);
        for guest in guests {
            bench.install(guest, guest);
        }
        let host = bench.host();
        Reports { bench, host, seen: 0 }
    }

    /// Pushes items one by one, as a producer does.
    fn push(&mut self, list: &str, items: &[impl AsRef<[u8]>]) {
        if items.is_empty() {
            return;
        }
        let mut pipe = redis::pipe();
        for item in items {
            pipe.cmd("LPUSH").arg(list).arg(item.as_ref()).ignore();
        }
        pipe.query::<()>(&mut self.bench.db).expect("LPUSH");
    }

    /// Waits until `count` more attempts have ended, and returns them in this order.
    fn attempts(&mut self, count: usize) -> Vec<Attempt> {
        let from = self.seen;
        self.seen += count;
        let lines = eventually(&format!("{count} attempts end"), || {
            Some(self.host.logged("attempt ended")).filter(|lines| lines.len() >= from + count)
        });
        let attempt = |line: &Value| {
            (line["task"].as_str().expect("an id").to_owned(), line["attempt"].as_u64().expect("a number"))
        };
        lines[from..from + count].iter().map(attempt).collect()
    }

    /// Waits until `count` tasks are completed, and removes their statuses. Returns id and result, in the
    /// order of the ids.
    fn results(&mut self, queue: &str, count: usize) -> Vec<(String, Value)> {
        let prefix = format!("tq:{{{queue}}}:task:");
        let mut done: BTreeMap<(u64, u64), (String, Value)> = BTreeMap::new();
        eventually(&format!("{count} tasks of {queue} are completed"), || {
            let keys: Vec<String> = self.bench.redis("KEYS", format!("{prefix}*"));
            for key in keys {
                let (status, result): (String, Option<String>) =
                    self.bench.redis("HMGET", (&key, "status", "result"));
                let ("COMPLETED", Some(result)) = (status.as_str(), result) else { continue };
                let id = key.strip_prefix(&prefix).expect("the prefix");
                done.insert(order(id), (id.to_owned(), serde_json::from_str(&result).expect("JSON")));
                let _: u64 = self.bench.redis("DEL", &key);
            }
            (done.len() >= count).then_some(())
        });
        self.bench.until_drained(queue);
        done.into_values().collect()
    }

    fn dead(&mut self, queue: &str) -> Vec<HashMap<String, String>> {
        self.bench.dead(queue)
    }
}

/// Sorts ids in the order in which entries were added.
fn order(id: &str) -> (u64, u64) {
    let (ms, sequence) = id.split_once('-').expect("an entry's id");
    (ms.parse().expect("milliseconds"), sequence.parse().expect("a number"))
}

/// The time at which an entry was added.
fn added_at(id: &str) -> String {
    order(id).0.to_string()
}

/// The item that the producer sends.
fn record(number: usize) -> String {
    json!({"RecordId": number, "RetryCount": 0, "EnqueueTime": "2026-01-01T00:00:00Z"}).to_string()
}

/// Any JSON value, with or without spaces around it.
fn any_json() -> impl Strategy<Value = Vec<u8>> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    let value = leaf.prop_recursive(4, 24, 5, |inner| {
        let map = prop::collection::btree_map(any::<String>(), inner.clone(), 0..5);
        prop_oneof![
            prop::collection::vec(inner, 0..5).prop_map(Value::from),
            map.prop_map(|map| map.into_iter().collect())
        ]
    });
    (value, any::<bool>(), "[ \t\r\n]{0,3}").prop_map(|(value, pretty, space)| {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
        format!("{space}{}{space}", text.expect("JSON")).into_bytes()
    })
}

/// Bytes in the form in which the guest `echo` returns them.
fn shown(bytes: &[u8]) -> Value {
    let hex = || bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    std::str::from_utf8(bytes).map_or_else(|_| json!({ "hex": hex() }), |text| json!(text))
}

const ECHO: &str = r#"
[defaults]
plugin = "echo"
concurrency = 1
[queues.reports]
list = { key = "report:queue", items = "json" }
[queues.blobs]
list = "blob:queue"
"#;

#[test]
fn an_item_arrives_byte_for_byte() {
    let items = (
        prop::collection::vec(any_json(), 0..8),
        prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..8),
    );
    check(Reports::start(ECHO, &["echo"]), 60, items, |reports, (texts, blobs)| {
        for (queue, list, items) in [("reports", "report:queue", texts), ("blobs", "blob:queue", blobs)] {
            reports.push(list, &items);
            let results = reports.results(queue, items.len());
            let arrived: Vec<&Value> = results.iter().map(|(_, result)| &result["fields"]["data"]).collect();
            let sent: Vec<Value> = items.iter().map(|item| shown(item)).collect();
            prop_assert_eq!(arrived, sent.iter().collect::<Vec<_>>());
            for (id, result) in &results {
                prop_assert_eq!((&result["id"], &result["names"]), (&json!(id), &json!(["data"])));
            }
            prop_assert_eq!(reports.bench.places(queue), Places::default());
        }
        Ok(())
    });
}

#[test]
fn the_item_pushed_first_runs_first_and_one_runs_at_a_time() {
    // Bursts of several producers. The test waits for the end of some of them.
    let bursts = prop::collection::vec((1..15usize, any::<bool>()), 1..6);
    check(Reports::start(ECHO, &["echo"]), 40, bursts, |reports, bursts| {
        let mut sent: Vec<String> = Vec::new();
        for (count, wait) in bursts {
            let items: Vec<String> = (sent.len()..sent.len() + count).map(record).collect();
            reports.push("report:queue", &items);
            sent.extend(items);
            if wait {
                reports.bench.until_drained("reports");
            }
        }
        let results: HashMap<String, Value> = reports.results("reports", sent.len()).into_iter().collect();
        let ran = reports.attempts(sent.len());
        let data = |(id, _): &Attempt| results[id]["fields"]["data"].as_str().unwrap_or_default().to_owned();
        prop_assert_eq!(ran.iter().map(data).collect::<Vec<_>>(), sent);
        prop_assert!(ran.iter().all(|(_, attempt)| *attempt == 1));
        Ok(())
    });
}

const FAILING: &str = r#"
[queues.reports]
list = { key = "report:queue", items = "json" }
plugin = "always-fails"
concurrency = 1
max_retries = 2
backoff = { delays = ["20ms", "40ms"] }
"#;

/// The fields of all tasks that wait for their next attempt.
const PARKED: &str = "local all = {} \
    for _, packed in ipairs(redis.call('HVALS', KEYS[1])) do all[#all + 1] = cmsgpack.unpack(packed) end \
    return all";

#[test]
fn a_failed_attempt_adds_one_to_the_count_and_keeps_id_and_enqueue_time() {
    check(Reports::start(FAILING, &["always-fails"]), 20, 1..8usize, |reports, count| {
        let items: Vec<String> = (0..count).map(record).collect();
        reports.push("report:queue", &items);
        let mut delayed: Vec<HashMap<String, String>> = Vec::new();
        eventually("all are dead", || {
            let parked: Vec<Vec<String>> = reports.bench.redis("EVAL", (PARKED, 1, "tq:{reports}:parked"));
            let named = |fields: &Vec<String>| {
                fields.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
            };
            delayed.extend(parked.iter().map(named));
            (reports.bench.places("reports") == Places { dead: count as u64, ..Places::default() })
                .then_some(())
        });
        let mut counts: HashMap<String, Vec<u64>> = HashMap::new();
        for (id, attempt) in reports.attempts(3 * count) {
            counts.entry(id).or_default().push(attempt);
        }
        let dead = reports.dead("reports");
        let mut order_of_items: Vec<(&str, &str)> =
            dead.iter().map(|dead| (dead["tq-id"].as_str(), dead["data"].as_str())).collect();
        order_of_items.sort_by_key(|(id, _)| order(id));
        prop_assert_eq!(
            order_of_items.iter().map(|(_, data)| *data).collect::<Vec<_>>(),
            items.iter().collect::<Vec<_>>()
        );
        let data: HashMap<&str, &str> = order_of_items.into_iter().collect();
        for letter in &dead {
            let id = &letter["tq-id"];
            prop_assert_eq!(counts.get(id), Some(&vec![1, 2, 3]));
            prop_assert_eq!(
                (&letter["tq-attempts"], &letter["tq-reason"]),
                (&"3".to_owned(), &"retries-exhausted".to_owned())
            );
            prop_assert_eq!(&letter["tq-enqueued-at"], &added_at(id));
            let mut status = |field| reports.bench.status("reports", id, field);
            prop_assert_eq!(
                (status("status"), status("attempt"), status("enqueued_at")),
                ("FAILED".into(), "3".into(), added_at(id))
            );
        }
        for fields in &delayed {
            let id = &fields["tq-id"];
            prop_assert_eq!(
                (data.get(id.as_str()), &fields["tq-enqueued-at"]),
                (Some(&fields["data"].as_str()), &added_at(id))
            );
            prop_assert!(matches!(fields["tq-attempt"].as_str(), "2" | "3"), "{:?}", fields);
        }
        let _: u64 = reports.bench.redis("DEL", "tq:{reports}:dead");
        Ok(())
    });
}

/// Like the configuration in docs/configuration-queues.md, with short delays. Each item says how it ends.
const STRICT: &str = r#"
[queues.reports]
list = { key = "report:queue", items = "json" }
plugin = "as-told"
max_running = 1
order = "strict"
backoff = { delays = ["5ms", "10ms"] }
"#;

#[test]
fn each_report_has_all_its_attempts_before_the_next_one_begins() {
    // How many attempts fail, and whether the next one completes.
    let ends = prop::collection::vec((0..6u64, any::<bool>()), 1..8);
    check(Reports::start(STRICT, &["as-told"]), 20, ends, |reports, ends| {
        let item = |(n, (retries, is_good)): (usize, &(u64, bool))| {
            let end = if *is_good { "ok" } else { "reject" };
            json!({ "n": n.to_string(), "retries": retries, "end": end }).to_string()
        };
        reports.push("report:queue", &ends.iter().enumerate().map(item).collect::<Vec<_>>());
        let completed = ends.iter().filter(|(retries, is_good)| *retries <= 3 && *is_good).count();
        let dead = (ends.len() - completed) as u64;
        eventually("the others are dead", || (reports.bench.places("reports").dead == dead).then_some(()));
        let number = |value: &Value| value["n"].as_str().and_then(|n| n.parse().ok()).expect("a number");
        let results = reports.results("reports", completed);
        let mut numbers: HashMap<String, usize> =
            results.into_iter().map(|(id, result)| (id, number(&result))).collect();
        for letter in reports.dead("reports") {
            let data: Value = serde_json::from_str(&letter["data"]).expect("JSON");
            numbers.insert(letter["tq-id"].clone(), number(&data));
        }
        let attempts = |(n, (retries, _)): (usize, &(u64, bool))| {
            (1..=(*retries).min(3) + 1).map(move |attempt| (n, attempt)).collect::<Vec<_>>()
        };
        let expected: Vec<(usize, u64)> = ends.iter().enumerate().flat_map(attempts).collect();
        let ran = reports.attempts(expected.len()).into_iter();
        prop_assert_eq!(ran.map(|(id, attempt)| (numbers[&id], attempt)).collect::<Vec<_>>(), expected);
        let _: u64 = reports.bench.redis("DEL", "tq:{reports}:dead");
        Ok(())
    });
}

/// The task says how it ends. One of two places is taken by a task that never ends.
const MANY_ENDS: &str = r#"
shutdown_grace = "0s"
[queues.reports]
list = { key = "report:queue", items = "json" }
plugin = "reports"
concurrency = 2
max_retries = 3
backoff = { delays = ["1h"] }
timeout = "1h"
"#;

/// The state of a record when an administrator asks for it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Rejected,
    Exhausted,
    Completed,
    Delayed,
    Running,
    Unknown,
}

#[derive(Debug, Clone)]
enum Ask {
    /// By id: positions among the records; a record may be named twice.
    Ids(Vec<usize>),
    All,
    Reason(&'static str),
}

fn states() -> impl Strategy<Value = Vec<State>> {
    let state = prop_oneof![
        3 => Just(State::Rejected),
        2 => Just(State::Exhausted),
        2 => Just(State::Completed),
        2 => Just(State::Delayed),
        1 => Just(State::Running),
        1 => Just(State::Unknown),
    ];
    prop::collection::vec(state, 1..10)
}

fn ask() -> impl Strategy<Value = Ask> {
    prop_oneof![
        4 => prop::collection::vec(0..10usize, 1..12).prop_map(Ask::Ids),
        1 => Just(Ask::All),
        1 => prop_oneof![Just("rejected"), Just("retries-exhausted"), Just("crashed")].prop_map(Ask::Reason),
    ]
}

/// Everything that Redis knows of tasks, except for some of them.
#[derive(Debug, PartialEq)]
struct Picture {
    statuses: Vec<BTreeMap<String, String>>,
    dead: Vec<HashMap<String, String>>,
    delayed: Vec<(String, u64)>,
    parked: BTreeMap<String, Vec<u8>>,
    pending: Vec<(String, String, u64)>,
}

fn picture(bench: &mut Bench, ids: &[String], without: &HashSet<String>, pending: &[String]) -> Picture {
    let kept: Vec<&String> = ids.iter().filter(|id| !without.contains(*id)).collect();
    let mut dead = bench.dead("reports");
    dead.retain(|letter| !without.contains(&letter["tq-id"]));
    let all: Vec<(String, String, u64, u64)> = bench.redis("XPENDING", ("reports", "tqhost", "-", "+", 1000));
    Picture {
        statuses: kept
            .into_iter()
            .map(|id| bench.redis("HGETALL", format!("tq:{{reports}}:task:{id}")))
            .collect(),
        dead,
        delayed: bench.redis("ZRANGE", ("tq:{reports}:delayed", 0, -1, "WITHSCORES")),
        parked: bench.redis("HGETALL", "tq:{reports}:parked"),
        pending: all
            .into_iter()
            .filter(|row| pending.contains(&row.0))
            .map(|(entry, owner, _, count)| (entry, owner, count))
            .collect(),
    }
}

#[test]
fn only_dead_tasks_are_requeued_from_the_beginning_and_the_counts_add_up() {
    let mut reports = Reports::start(MANY_ENDS, &[]);
    reports.bench.install("sleeps", "reports");
    let running = reports.bench.xadd("reports", &[("ms", "3000000")]);
    reports.bench.until("reports", &running, "PROCESSING");
    // `flaky` rejects a task that does not say when to succeed, as an item of the list does not.
    reports.bench.install("flaky", "reports");
    eventually("the other plugin is there", || {
        (reports.host.logged("plugin loaded").len() == 2).then_some(())
    });
    let case_running = running.clone();
    check(reports, 50, (states(), ask()), move |reports, (states, ask)| {
        one_requeue(reports, &states, &ask, &case_running)
    });
}

fn one_requeue(reports: &mut Reports, states: &[State], ask: &Ask, running: &str) -> TestCaseResult {
    // A case that failed may have left the host suspended.
    reports.host.signal(Signal::SIGCONT);
    let bench = &mut reports.bench;
    eventually("nothing else is left", || {
        let left = bench.places("reports").length + bench.redis::<u64>("LLEN", "report:queue");
        (left == 1).then_some(())
    });
    let _: u64 = bench.redis("DEL", ("tq:{reports}:delayed", "tq:{reports}:parked", "tq:{reports}:dead"));
    let item = |n: usize| record(n);
    let mut ids: Vec<String> = Vec::new();
    for (n, state) in states.iter().enumerate() {
        let data = item(n);
        let xadd = |bench: &mut Bench, until: &str| {
            bench.xadd("reports", &[("data", data.as_str()), ("failUntil", until)])
        };
        ids.push(match state {
            State::Rejected => {
                let _: u64 = bench.redis("LPUSH", ("report:queue", &data));
                // Its id is known once it is dead.
                String::new()
            }
            // It is on its last attempt.
            State::Exhausted => {
                // A host has tried it, as its status says from the first moment on.
                let script = "local id = redis.call('XADD', KEYS[1], '*', unpack(ARGV)) \
                    redis.call('HSET', 'tq:{reports}:task:' .. id, 'status', 'PENDING') return id";
                let fields = ["data", &data, "failUntil", "9", "tq-attempt", "4"];
                bench.redis("EVAL", (script, 1, "reports", &fields[..]))
            }
            State::Completed => xadd(bench, "1"),
            State::Delayed => xadd(bench, "9"),
            State::Running => running.to_owned(),
            State::Unknown => format!("unknown-{n}"),
        });
    }
    let count = |of: &[State]| states.iter().filter(|state| of.contains(state)).count() as u64;
    let (dead, delayed) = (count(&[State::Rejected, State::Exhausted]), count(&[State::Delayed]));
    eventually("all are in their states", || {
        let expected = Places { length: 1, pending: 1, delayed, parked: delayed, dead };
        (bench.places("reports") == expected && !bench.redis::<bool>("EXISTS", "report:queue")).then_some(())
    });
    let letters = bench.dead("reports");
    for (n, state) in states.iter().enumerate() {
        if *state == State::Rejected {
            let letter =
                letters.iter().find(|letter| letter["data"] == item(n) && letter["tq-reason"] == "rejected");
            ids[n] = letter.expect("its dead letter")["tq-id"].clone();
        }
    }

    // The host is suspended, so that the test can look at what the command leaves.
    reports.host.signal(Signal::SIGSTOP);
    let of = |state| -> HashSet<String> {
        (0..states.len()).filter(|n| states[*n] == state).map(|n| ids[n].clone()).collect()
    };
    let all_dead = || of(State::Rejected).union(&of(State::Exhausted)).cloned().collect::<HashSet<_>>();
    let (args, asked, requeued): (Vec<String>, u64, HashSet<String>) = match ask {
        Ask::Ids(chosen) => {
            let chosen: Vec<String> = chosen
                .iter()
                .map(|n| ids.get(*n).cloned().unwrap_or_else(|| format!("unknown-{n}")))
                .collect();
            let requeued = all_dead().into_iter().filter(|id| chosen.contains(id)).collect();
            (chosen.clone(), chosen.len() as u64, requeued)
        }
        Ask::All => (vec!["--all".into()], dead, all_dead()),
        Ask::Reason(reason) => {
            let requeued = match *reason {
                "rejected" => of(State::Rejected),
                "retries-exhausted" => of(State::Exhausted),
                _ => HashSet::new(),
            };
            (vec!["--all".into(), "--reason".into(), (*reason).into()], requeued.len() as u64, requeued)
        }
    };
    let pending: Vec<(String, String, u64, u64)> =
        bench.redis("XPENDING", ("reports", "tqhost", "-", "+", 10));
    let pending: Vec<String> = pending.into_iter().map(|row| row.0).collect();
    let before = picture(bench, &ids, &requeued, &pending);
    let mut command = vec!["dead", "requeue", "reports", "--json"];
    command.extend(args.iter().map(String::as_str));
    let (succeeded, skipped) = (requeued.len() as u64, asked - requeued.len() as u64);
    let told = bench.tqhost(&command).ends_with(i32::from(skipped > 0)).json();
    let after = picture(bench, &ids, &requeued, &pending);
    prop_assert_eq!(told, json!({"succeeded": succeeded, "skipped": skipped}));
    prop_assert_eq!(before, after, "what was not dead, or not asked for, is as it was");
    let entries: Vec<(String, Vec<String>)> = bench.redis("XRANGE", ("reports", "-", "+"));
    let entries: Vec<HashMap<String, String>> = entries
        .into_iter()
        .map(|(_, fields)| fields.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect())
        .collect();
    for id in &requeued {
        let mut status: BTreeMap<String, String> =
            bench.redis("HGETALL", format!("tq:{{reports}}:task:{id}"));
        status.retain(|name, _| !["entry", "plugin", "consumer", "attempts"].contains(&name.as_str()));
        let anew =
            [("attempt", "1".to_owned()), ("enqueued_at", added_at(id)), ("status", "PENDING".to_owned())];
        prop_assert_eq!(status, anew.into_iter().map(|(name, value)| (name.to_owned(), value)).collect());
        let back: Vec<_> = entries.iter().filter(|fields| fields.get("tq-id") == Some(id)).collect();
        prop_assert_eq!(back.len(), 1);
        prop_assert_eq!((back[0].get("tq-attempt"), &back[0]["tq-enqueued-at"]), (None, &added_at(id)));
        let n = ids.iter().position(|known| known == id).expect("an id");
        prop_assert_eq!(&back[0]["data"], &item(n));
    }

    // They run from the first attempt on: a task that was on its last attempt has all its attempts again.
    reports.host.signal(Signal::SIGCONT);
    let again = requeued.iter().filter(|id| of(State::Exhausted).contains(*id)).count() as u64;
    let bench = &mut reports.bench;
    eventually("what was requeued has run", || {
        let delayed = delayed + again;
        let expected = Places { length: 1, pending: 1, delayed, parked: delayed, dead: dead - again };
        (bench.places("reports") == expected).then_some(())
    });
    for id in &requeued {
        let (status, attempt) =
            (bench.status("reports", id, "status"), bench.status("reports", id, "attempt"));
        let expected = if of(State::Exhausted).contains(id) { ("PENDING", "2") } else { ("FAILED", "1") };
        prop_assert_eq!((status.as_str(), attempt.as_str()), expected);
    }
    Ok(())
}

/// The configuration in docs/configuration-queues.md.
const DOCUMENTED: &str = r#"
[queues.reports]
list = { key = "report:queue", items = "json" }
max_running = 1
order = "strict"
backoff = { delays = ["10s", "30s", "60s"] }
dead_letter = "report:queue:dead"
plugin = "always-fails"
"#;

#[test]
fn a_failed_report_waits_10_30_and_60_seconds_and_is_then_in_the_named_list_of_the_dead() {
    let document = include_str!("../../docs/configuration-queues.md");
    let shown = DOCUMENTED.trim_start().strip_suffix("plugin = \"always-fails\"\n").expect("the plugin");
    assert!(document.contains(shown), "the document shows this configuration");
    let mut reports = Reports::start(DOCUMENTED, &["always-fails"]);
    let now = |bench: &mut Bench| {
        let (seconds, micros): (u64, u64) = bench.redis("TIME", &[""; 0]);
        seconds * 1000 + micros / 1000
    };
    let mut before = now(&mut reports.bench);
    reports.push("report:queue", &[record(7)]);
    let mut id = String::new();
    for (failed, delay) in [(1, 10_000), (2, 30_000), (3, 60_000)] {
        let bench = &mut reports.bench;
        let (member, due): (String, u64) = eventually("it waits", || {
            let delayed: Vec<(String, u64)> =
                bench.redis("ZRANGE", ("tq:{reports}:delayed", 0, -1, "WITHSCORES"));
            delayed.into_iter().next().filter(|(_, due)| *due > before)
        });
        assert!(
            (before + delay..=now(bench) + delay).contains(&due),
            "attempt {failed}: due at {due}, after {before}"
        );
        (id, _) = reports.attempts(1).remove(0);
        let bench = &mut reports.bench;
        assert_eq!(
            (bench.status("reports", &id, "attempt"), bench.status("reports", &id, "due_at")),
            ((failed + 1).to_string(), due.to_string())
        );
        // The delay has ended.
        before = now(bench);
        let _: i64 = bench.redis("ZADD", ("tq:{reports}:delayed", "XX", 1, member));
    }
    let bench = &mut reports.bench;
    bench.until("reports", &id, "FAILED");
    let letters: Vec<(String, HashMap<String, String>)> =
        bench.redis("XRANGE", ("report:queue:dead", "-", "+"));
    let [(_, letter)] = &letters[..] else { panic!("one dead letter: {letters:?}") };
    assert_eq!(
        (letter["data"].clone(), letter["tq-attempts"].as_str(), letter["tq-id"].as_str()),
        (record(7), "4", id.as_str())
    );
    assert_eq!(bench.places("reports"), Places::default());
    reports.host.stop();
}

#[test]
fn at_shutdown_the_report_that_runs_is_finished_and_no_other_is_begun() {
    let mut reports = Reports::start(
        &ECHO.replace("\"echo\"", "\"work\"").replace("[queues.blobs]\nlist = \"blob:queue\"\n", ""),
        &[],
    );
    reports.bench.install("sleeps", "work");
    let current = reports.bench.xadd("reports", &[("ms", "1000")]);
    reports.bench.until("reports", &current, "PROCESSING");
    let items: Vec<String> = (0..5).map(record).collect();
    reports.push("report:queue", &items);
    let Reports { mut bench, host, .. } = reports;
    host.stop();
    assert_eq!(
        (
            bench.status("reports", &current, "status").as_str(),
            bench.status("reports", &current, "attempt").as_str()
        ),
        ("COMPLETED", "1")
    );
    let Places { length, pending, dead, delayed, .. } = bench.places("reports");
    assert_eq!((length + bench.redis::<u64>("LLEN", "report:queue"), pending, dead, delayed), (5, 0, 0, 0));
    assert_eq!(bench.redis::<u64>("DEL", format!("tq:{{reports}}:task:{current}")), 1);
    assert_eq!(
        bench.redis::<Vec<String>>("KEYS", "tq:{reports}:task:*"),
        Vec::<String>::new(),
        "nothing else was begun"
    );
    bench.install("echo", "work");
    let host = bench.host();
    let mut reports = Reports { bench, host, seen: 0 };
    let results = reports.results("reports", 5);
    assert_eq!(
        results
            .iter()
            .map(|(_, result)| result["fields"]["data"].as_str().expect("text"))
            .collect::<Vec<_>>(),
        items
    );
    reports.host.stop();
}

#[derive(Debug, Clone, Copy)]
enum Trouble {
    Disconnect,
    Unblock,
    Restart,
}

#[test]
fn after_an_error_of_redis_it_listens_again_and_the_order_stays() {
    let trouble =
        prop_oneof![3 => Just(Trouble::Disconnect), 2 => Just(Trouble::Unblock), 1 => Just(Trouble::Restart)];
    let troubles = prop::collection::vec((trouble, 1..15usize), 1..4);
    check(Reports::start(ECHO, &["echo"]), 5, troubles, |reports, troubles| {
        let mut sent: Vec<String> = Vec::new();
        for (trouble, count) in troubles {
            let items: Vec<String> = (sent.len()..sent.len() + count).map(record).collect();
            reports.push("report:queue", &items);
            sent.extend(items);
            let bench = &mut reports.bench;
            match trouble {
                Trouble::Disconnect => drop(bench.redis::<u64>("CLIENT", ("KILL", "TYPE", "normal"))),
                Trouble::Unblock => {
                    let clients: String = bench.redis("CLIENT", "LIST");
                    for id in clients.lines().filter_map(|line| line.strip_prefix("id=")?.split(' ').next()) {
                        let _: redis::Value = bench.redis("CLIENT", ("UNBLOCK", id, "ERROR"));
                    }
                }
                Trouble::Restart => {
                    bench.redis.stop();
                    bench.redis.start_again();
                    bench.db = bench.redis.connection();
                }
            }
        }
        let results = reports.results("reports", sent.len());
        let data: Vec<&str> =
            results.iter().map(|(_, result)| result["fields"]["data"].as_str().unwrap_or_default()).collect();
        prop_assert_eq!(data, sent.iter().collect::<Vec<_>>(), "each became one task, in order");
        // A task that was cut off before its end was known may have run twice. The order of the first runs
        // does not change.
        let (all, ran) = eventually("the log has them all", || {
            let mut ran: Vec<String> = Vec::new();
            let all = reports.host.logged("attempt ended");
            for line in &all[reports.seen..] {
                let id = line["task"].as_str().expect("an id").to_owned();
                if !ran.contains(&id) {
                    ran.push(id);
                }
            }
            (ran.len() >= results.len()).then_some((all.len(), ran))
        });
        reports.seen = all;
        prop_assert_eq!(ran, results.into_iter().map(|(id, _)| id).collect::<Vec<_>>());
        Ok(())
    });
}
