//! Many tasks at once in one instance (`concurrent`): each has what is its own, and a task that makes the
//! instance fail costs no other task an attempt.
//!
//! The guest `many-at-once` ends each task as its field `do` says.
//!
//! Not here: handlers in Python and JavaScript (`languages`), how instances are kept (`instances`).

use std::collections::BTreeMap;

use serde_json::Value;

use crate::support::{Bench, Host, Places, eventually};

const EMPTY: Places = Places { length: 0, pending: 0, delayed: 0, parked: 0, dead: 0 };

fn bench(instance: &str) -> Bench {
    let bench = Bench::new(&format!(
        "[defaults]\nplugin = \"many-at-once\"\nconcurrency = 100\nmax_retries = 0\n\
         enqueue_to = [\"reports\"]\n[queues.work]\ntimeout = \"3s\"\n[queues.patient]\ntimeout = \"90s\"\n\
         [queues.again]\nmax_retries = 2\nbackoff = {{ delays = [\"1ms\"] }}\n\
         [queues.reports]\nplugin = \"none\"\n\
         [plugins.many-at-once]\nmemory = \"16MiB\"\ninstance = {instance}\n"
    ));
    bench.install("many-at-once", "many-at-once");
    bench
}

/// Adds tasks in one step, so that they run at the same time.
fn add(bench: &mut Bench, tasks: &[(&str, &str)]) -> Vec<String> {
    let mut pipe = redis::pipe();
    pipe.atomic();
    for (what, ms) in tasks {
        let bytes = if *what == "ok" { "2000000" } else { "0" };
        pipe.cmd("XADD").arg(&["work", "*", "do", what, "ms", ms, "bytes", bytes]);
    }
    pipe.query(&mut bench.db).expect("XADD")
}

/// Adds tasks before the host starts.
fn together(bench: &mut Bench, tasks: &[(&str, &str)]) -> (Host, Vec<String>) {
    let ids = add(bench, tasks);
    (bench.host(), ids)
}

/// The tasks that handlers have enqueued to `reports`, for each task that they name.
fn reports(bench: &mut Bench) -> BTreeMap<String, usize> {
    let entries: Vec<(String, Vec<(String, String)>)> = bench.redis("XRANGE", &["reports", "-", "+"]);
    let mut reports = BTreeMap::new();
    for (_, fields) in entries {
        let of = fields.into_iter().find(|(name, _)| name == "of").expect("the field");
        *reports.entry(of.1).or_default() += 1;
    }
    reports
}

#[track_caller]
fn result(bench: &mut Bench, id: &str) -> Value {
    bench.until("work", id, "COMPLETED");
    let result: Value = serde_json::from_str(&bench.status("work", id, "result")).expect("a result in JSON");
    assert_eq!(result["id"], id, "the result is the task's own");
    result
}

#[test]
fn a_hundred_tasks_wait_in_one_instance_and_it_is_kept_for_more() {
    let mut bench = bench("{ concurrent = 100 }");
    let (host, ids) = together(&mut bench, &[("ok", "500"); 100]);
    let seen: Vec<Value> = ids.iter().map(|id| result(&mut bench, id)).collect();
    assert!(seen.iter().all(|seen| seen["most"] == 100 && seen["in"] == 100), "{seen:?}");
    host.until_ended_as("work", "completed", 100);
    assert_eq!(bench.places("work"), EMPTY);
    // A failure of a task by itself costs the instance nothing.
    let rejected = bench.xadd("work", &[("do", "reject")]);
    bench.until("work", &rejected, "FAILED");
    let thrown = bench.xadd("work", &[("do", "throw")]);
    bench.until("work", &thrown, "FAILED");
    assert_eq!(bench.status("work", &thrown, "error"), format!("trap: boom of {thrown}"));
    host.stop();
}

#[test]
fn an_instance_takes_as_many_tasks_as_it_may_at_once_and_in_all() {
    let mut bench = bench("{ concurrent = 10, max_tasks = 25 }");
    let (host, ids) = together(&mut bench, &[("ok", "100"); 100]);
    for id in &ids {
        let seen = result(&mut bench, id);
        assert!((1..=10).contains(&seen["most"].as_u64().expect("a number")), "{seen}");
        assert!((1..=25).contains(&seen["in"].as_u64().expect("a number")), "{seen}");
    }
    host.stop();
}

/// Each way to misbehave, and what the error of the task says; none for a task that ends well, or before the
/// instance fails. The others of the instance complete, uncharged.
const WAYS: [(&str, &str); 26] = [
    // It comes first, so that no allocator has kept what an earlier task has freed.
    ("leak", ""),
    ("trap", "trap: wasm `unreachable`"),
    ("panic", "trap: "),
    ("loop", "timeout: "),
    ("calls", "timeout: "),
    ("hoard", "out-of-memory: "),
    ("handles", "trap: "),
    ("hoards handles", ""),
    ("big", "output-too-large: the handler returned 3145728 bytes"),
    ("floods", ""),
    ("return", "trap: "),
    ("sleep", "timeout: "),
    ("late", "timeout: "),
    ("deaf", "timeout: "),
    ("stubborn", "timeout: "),
    ("throw", "trap: boom of "),
    ("reject", "as told"),
    // It says something else than the truth of who computes, or ends what is not there.
    ("stray", "timeout: "),
    ("sleep between", "timeout: "),
    ("trap between", "trap: "),
    ("twice", ""),
    ("unknown", "trap: `tasks`: there is no task 1000000"),
    ("ends unknown", "trap: `tasks`: "),
    ("ends another", "trap: `tasks`: "),
    ("enters", "timeout: "),
    ("silent", ""),
];

#[test]
fn a_task_that_misbehaves_in_its_instance_costs_no_other_task_an_attempt() {
    let mut bench = bench("{ concurrent = 100 }");
    let host = bench.host();
    let mut unfair = Vec::new();
    for (what, error) in WAYS {
        let mut tasks = vec![("effects", "400"); 60];
        tasks.resize(100, ("ok", "450"));
        tasks[7] = (what, "50");
        let ids = add(&mut bench, &tasks);
        bench.until_drained("work");
        for (place, id) in ids.iter().enumerate() {
            let [status, said, attempt, result] =
                ["status", "error", "attempt", "result"].map(|field| bench.status("work", id, field));
            let is_right = match (place, error) {
                (7, "") => status == "COMPLETED",
                (7, error) => status == "FAILED" && said.starts_with(error),
                // No attempt was charged, or `max_retries = 0` would have ended it.
                _ => status == "COMPLETED" && attempt == "1" && result.contains(&format!("\"{id}\"")),
            };
            if !is_right {
                unfair.push(format!("{what}: task {place}: {status} {said} {result}"));
            }
        }
        let reports = reports(&mut bench);
        let own = |place: usize| reports.get(&ids[place]).copied().unwrap_or_default();
        if (0..60).any(|place| own(place) != if place == 7 { 0 } else { 2 }) {
            unfair.push(format!("{what}: effects of others, or none"));
        }
    }
    for line in host.logged(" of ") {
        let message = line["message"].as_str().expect("a message");
        let of = message.strip_prefix("before of ").or(message.strip_prefix("after of "));
        if of.is_some_and(|id| line["task"] != *id) {
            unfair.push(line.to_string());
        }
    }
    assert!(unfair.is_empty(), "{}", unfair.join("\n"));
    assert_eq!(bench.places_but_dead("work"), EMPTY);
    assert_eq!(host.ended_as("work", "given-back"), 0);
    let told = host.stop_for_log();
    assert_eq!(told.logged("tasks of one instance hold each other up").len(), 1, "once for each version");
}

#[test]
fn effects_and_log_lines_stay_with_their_task() {
    let mut bench = bench("{ concurrent = 100 }");
    let mut tasks = vec![("effects", "1500"); 60];
    tasks.extend([("throw", "1500"), ("nobody", "100")]);
    // Another queue of the same plugin shares the instance, but nothing else.
    let patient = bench.xadd("patient", &[("do", "effects"), ("ms", "1500"), ("as", "the patient")]);
    let (host, ids) = together(&mut bench, &tasks);
    let (alone, effects) = (&ids[60..], &ids[..60]);
    bench.until("patient", &patient, "COMPLETED");
    let seen: Value = serde_json::from_str(&bench.status("patient", &patient, "result")).expect("JSON");
    assert!(seen["left"].as_u64().is_some_and(|left| left > 60_000), "its own deadline: {seen}");
    for id in effects {
        let seen = result(&mut bench, id);
        assert!(seen["left"].as_u64().is_some_and(|left| left < 3000), "its own deadline: {seen}");
        assert_eq!(seen["in"], 63, "one instance");
    }
    // A task that failed leaves nothing, and a call that belongs to no task is refused.
    bench.until("work", &alone[0], "FAILED");
    bench.until("work", &alone[1], "COMPLETED");
    insta::assert_snapshot!(bench.status("work", &alone[1], "result"), @"
    Error::NotPermitted(\"the call belongs to no task that runs, so it reads no data and has no effects\") \
    Error::Unavailable(\"the call belongs to no task that runs, so it reads no data and has no effects\")
    ");
    // Tasks of two queues may have the same id.
    let effects = effects.iter().map(|id| (id, id.as_str(), "work"));
    let all = effects.chain([(&patient, "the patient", "patient")]);
    assert_eq!(reports(&mut bench), all.clone().map(|(_, name, _)| (name.to_owned(), 2)).collect());
    for (id, name, queue) in all {
        for note in ["before", "after"] {
            let said = format!("{note} of {name}");
            let own = |line: &Value| line["message"] == *said;
            let line = eventually("it is logged", || host.logged(&said).into_iter().find(own));
            assert_eq!(line["task"], **id, "{line}");
            assert_eq!(line["queue"], queue, "{line}");
        }
    }
    host.stop();
}

#[test]
fn a_task_that_ended_its_instance_is_tried_again_apart_from_the_others() {
    let mut bench = bench("{ concurrent = 100 }");
    let host = bench.host();
    let mut pipe = redis::pipe();
    pipe.atomic();
    for (what, ms) in [[("effects", "1000"); 9].as_slice(), &[("trap", "50")]].concat() {
        pipe.cmd("XADD").arg(&["again", "*", "do", what, "ms", ms]);
    }
    let ids: Vec<String> = pipe.query(&mut bench.db).expect("XADD");
    bench.until("again", &ids[9], "FAILED");
    assert_eq!(bench.status("again", &ids[9], "attempt"), "3");
    for id in &ids[..9] {
        bench.until("again", id, "COMPLETED");
        assert_eq!(host.logged(&format!("before of {id}")).len(), 2, "it was disturbed once");
    }
    host.stop();
}

#[test]
fn a_task_that_is_cancelled_ends_alone() {
    let mut bench = bench("{ concurrent = 100 }");
    let mut tasks = vec![("ok", "1500"); 20];
    tasks.push(("late", "0"));
    let (host, ids) = together(&mut bench, &tasks);
    bench.until_running("work", 21);
    bench.tqhost(&["cancel", "work", &ids[20]]).ok();
    bench.until("work", &ids[20], "CANCELLED");
    for id in &ids[..20] {
        assert_eq!(result(&mut bench, id)["in"], 21);
    }
    host.stop();
}

#[test]
fn a_handler_that_runs_one_task_at_a_time_works_as_before_and_the_host_says_so() {
    let mut bench = bench("{ concurrent = 100 }");
    bench.install("remembers", "many-at-once");
    let host = bench.host();
    let id = bench.xadd("work", &[("a", "1")]);
    bench.until("work", &id, "COMPLETED");
    host.log("`concurrent` has no effect");
    let checked = bench.tqhost(&["check"]).ok();
    for part in ["concurrent = 100 has no effect", "such as Rust and Go, write `warm` in its place"] {
        assert!(checked.stdout.contains(part), "{}", checked.stdout);
    }
    host.stop();
}
