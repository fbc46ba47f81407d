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
        "[queues.work]\nplugin = \"many-at-once\"\nconcurrency = 100\nmax_retries = 0\ntimeout = \"2s\"\n\
         enqueue_to = [\"reports\"]\n[queues.reports]\nplugin = \"none\"\n\
         [plugins.many-at-once]\nmemory = \"16MiB\"\ninstance = {instance}\n"
    ));
    bench.install("many-at-once", "many-at-once");
    bench
}

/// Adds tasks in one step before the host starts, so that they run at the same time.
fn together(bench: &mut Bench, tasks: &[(&str, &str)]) -> (Host, Vec<String>) {
    let mut pipe = redis::pipe();
    pipe.atomic();
    for (what, ms) in tasks {
        pipe.cmd("XADD").arg(&["work", "*", "do", what, "ms", ms]);
    }
    let ids = pipe.query(&mut bench.db).expect("XADD");
    (bench.host(), ids)
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

/// Each way to fail, and what the error of the task says; none for a task that has ended before the instance
/// fails. The others of the instance complete, uncharged.
const WAYS: [(&str, &str); 10] = [
    ("trap", "trap: "),
    ("loop", "timeout: "),
    ("hoard", "out-of-memory: "),
    ("return", "trap: "),
    ("sleep", "timeout: "),
    ("stray", "timeout: "),
    ("twice", ""),
    ("late", "timeout: "),
    ("deaf", "timeout: "),
    ("throw", "trap: boom of "),
];

#[test]
fn a_task_that_makes_its_instance_fail_costs_no_other_task_an_attempt() {
    for (what, error) in WAYS {
        let mut bench = bench("{ concurrent = 100 }");
        let mut tasks = vec![("ok", "400"); 100];
        tasks[7] = (what, "50");
        let (host, ids) = together(&mut bench, &tasks);
        for (place, id) in ids.iter().enumerate() {
            if place == 7 && !error.is_empty() {
                bench.until("work", id, "FAILED");
                let said = bench.status("work", id, "error");
                assert!(said.starts_with(error), "{what}: {said}");
            } else {
                bench.until("work", id, "COMPLETED");
                // No attempt was charged, or `max_retries = 0` would have ended it.
                assert_eq!(bench.status("work", id, "attempt"), "1", "{what}");
            }
        }
        assert_eq!(bench.places_but_dead("work"), EMPTY, "{what}");
        // The host goes on with new instances.
        let after = bench.xadd("work", &[("ms", "1")]);
        result(&mut bench, &after);
        assert_eq!(host.ended_as("work", "given-back"), 0, "{what}");
        host.stop();
    }
}

#[test]
fn effects_and_log_lines_stay_with_their_task() {
    let mut bench = bench("{ concurrent = 100 }");
    let mut tasks = vec![("effects", "300"); 60];
    tasks.extend([("throw", "300"), ("nobody", "100")]);
    let (host, ids) = together(&mut bench, &tasks);
    let mut reports: BTreeMap<String, usize> = BTreeMap::new();
    let (alone, effects) = (&ids[60..], &ids[..60]);
    for id in effects {
        result(&mut bench, id);
    }
    // A task that failed leaves nothing, and a call that belongs to no task is refused.
    bench.until("work", &alone[0], "FAILED");
    bench.until("work", &alone[1], "COMPLETED");
    let said = bench.status("work", &alone[1], "result");
    assert!(said.contains("belongs to no task"), "{said}");
    let entries: Vec<(String, Vec<(String, String)>)> = bench.redis("XRANGE", &["reports", "-", "+"]);
    for (_, fields) in entries {
        let of = fields.iter().find(|(name, _)| name == "of").expect("the field");
        *reports.entry(of.1.clone()).or_default() += 1;
    }
    assert_eq!(reports, effects.iter().map(|id| (id.clone(), 2)).collect());
    for id in effects {
        for note in ["before", "after"] {
            let said = format!("{note} of {id}");
            let own = |line: &Value| line["message"] == *said;
            let line = eventually("it is logged", || host.logged(&said).into_iter().find(own));
            assert_eq!(line["task"], **id, "{line}");
        }
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
    assert!(checked.stdout.contains("concurrent = 100 has no effect"), "{}", checked.stdout);
    host.stop();
}
