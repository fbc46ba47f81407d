//! Batches: several tasks in one call. Each task has its own result, also when the call fails.
//!
//! The guest `batches` returns, for each task, how many tasks came with it.
//!
//! Not here: which handlers are loaded (unit tests of the sandbox).

use std::collections::BTreeSet;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{Bench, Host, Places, eventually};

/// The queue `work`. Tasks that wait together form one batch of up to ten. An incomplete batch waits long
/// enough for a test to see it.
const RULES: &str = "plugin = \"batches\"\nconcurrency = 10\nmax_retries = 1\nbackoff = \"none\"\n\
    batch = { max_wait = \"300ms\" }";
type Fields<'f> = &'f [(&'f str, &'f str)];

const EMPTY: Places = Places { length: 0, pending: 0, delayed: 0, parked: 0, dead: 0 };

fn bench_with(rules: &str, grants: &str) -> Bench {
    let bench = Bench::new(&format!(
        "[queues.work]\n{RULES}\n{rules}\n[plugins.batches]\nmemory = \"16MiB\"\n{grants}\n"
    ));
    bench.install("batches", "batches");
    bench
}

fn bench() -> Bench {
    bench_with("", "")
}

/// Adds tasks with these fields before the host starts, so that they arrive together, and starts the host.
fn together<'f>(bench: &mut Bench, tasks: impl IntoIterator<Item = Fields<'f>>) -> (Host, Vec<String>) {
    let ids = tasks.into_iter().map(|fields| bench.xadd("work", fields)).collect();
    (bench.host(), ids)
}

/// A task's result: the size of its batch, its place there, and its attempt.
#[track_caller]
fn result(bench: &mut Bench, id: &str) -> (u64, u64, u64) {
    bench.until("work", id, "COMPLETED");
    let result: Value = serde_json::from_str(&bench.status("work", id, "result")).expect("a result in JSON");
    assert_eq!(result["id"], id, "the result is the task's own");
    let number = |name: &str| result[name].as_u64().expect("a number");
    (number("batch"), number("place"), number("attempt"))
}

fn batches(host: &Host, result: &str) -> f64 {
    host.metric(&format!("tqhost_batches_total{{queue=\"work\",result=\"{result}\"}}"))
}

#[test]
fn tasks_that_wait_are_run_together_and_each_has_its_own_result() {
    let mut bench = bench();
    let (host, ids) = together(&mut bench, [&[("a", "1")] as Fields; 10]);
    for (place, id) in ids.iter().enumerate() {
        assert_eq!(result(&mut bench, id), (10, place as u64, 1));
    }
    // A task that comes alone runs alone.
    let id = bench.xadd("work", &[("a", "1")]);
    assert_eq!(result(&mut bench, &id), (1, 0, 1));
    assert_eq!((batches(&host, "whole"), batches(&host, "apart")), (1.0, 0.0));
    host.until_ended_as("work", "completed", 11);
    assert_eq!(bench.places("work"), EMPTY);
    host.stop();
}

#[test]
fn a_batch_is_no_larger_than_its_rules_and_a_full_one_does_not_wait() {
    let mut bench = bench();
    // The wait is longer than the test may take, so a test that reaches its end fails.
    let queue = "[queues.work]\nplugin = \"batches\"\nconcurrency = 12\n\
        batch = { max_tasks = 4, max_wait = \"1m\" }\n";
    bench.configure_for(queue, bench.redis.port);
    let (host, ids) = together(&mut bench, [&[("a", "1")] as Fields; 12]);
    let mut places = BTreeSet::new();
    for id in &ids {
        let (batch, place, attempt) = result(&mut bench, id);
        assert_eq!((batch, attempt), (4, 1));
        places.insert(place);
    }
    assert_eq!(places, BTreeSet::from([0, 1, 2, 3]));
    assert_eq!(batches(&host, "whole"), 3.0);
    // An incomplete batch waits, and runs when the host stops.
    let id = bench.xadd("work", &[("a", "1")]);
    bench.until("work", &id, "PROCESSING");
    host.stop();
    assert_eq!(result(&mut bench, &id), (1, 0, 1));
}

#[test]
fn one_task_a_call_where_the_rules_say_so() {
    let mut bench = bench();
    bench.configure_for("[queues.work]\nplugin = \"batches\"\nbatch = { max_tasks = 1 }\n", bench.redis.port);
    let (host, ids) = together(&mut bench, [&[("a", "1")] as Fields; 5]);
    for id in &ids {
        assert_eq!(result(&mut bench, id), (1, 0, 1));
    }
    assert_eq!(batches(&host, "whole"), 0.0);
    host.stop();
}

#[test]
fn each_task_of_a_batch_ends_in_its_own_way() {
    let mut bench = bench_with("max_deferrals = 0", "max_output = \"2KiB\"");
    let (host, ids) = together(
        &mut bench,
        [
            &[("do", "ok")] as Fields,
            &[("do", "reject")],
            &[("do", "retry")],
            &[("do", "defer")],
            &[("do", "big"), ("bytes", "4000")],
            &[("do", "ok")],
        ],
    );
    let [first, rejected, retried, deferred, big, last] = &ids[..] else { panic!("six tasks") };
    assert_eq!((result(&mut bench, first), result(&mut bench, last)), ((6, 0, 1), (6, 5, 1)));
    for id in [rejected, retried, deferred, big] {
        bench.until("work", id, "FAILED");
    }
    let mut dead: Vec<(String, String, String)> = bench
        .dead("work")
        .into_iter()
        .map(|letter| {
            (
                letter["tq-id"].clone(),
                letter["tq-reason"].clone(),
                format!("{} {}", letter["tq-attempts"], letter["tq-error"]),
            )
        })
        .collect();
    dead.sort();
    let told: Vec<(&str, &str, &str)> =
        dead.iter().map(|(id, reason, error)| (id.as_str(), reason.as_str(), error.as_str())).collect();
    assert_eq!(
        told,
        [
            (rejected.as_str(), "rejected", "1 as told"),
            (retried, "retries-exhausted", "2 retry: as told"),
            (deferred, "deferrals-exhausted", "1 as told"),
            (
                big,
                "retries-exhausted",
                "2 output-too-large: the handler returned 4000 bytes, max_output is 2048"
            ),
        ]
    );
    assert_eq!(batches(&host, "apart"), 0.0, "the call itself was well each time");
    host.stop();
}

/// Runs a batch in which one task makes the whole call fail. All other tasks must complete in their first
/// attempt, and this one must end as it would alone.
#[track_caller]
fn the_guilty_is_found(guilty: &[(&str, &str)], rules: &str, error: &str) {
    let mut bench = bench_with(rules, "");
    let well: &[(&str, &str)] = &[("do", "ok")];
    let (host, ids) = together(&mut bench, [well, well, guilty, well, well]);
    for id in [0, 1, 3, 4].map(|n: usize| &ids[n]) {
        assert_eq!(result(&mut bench, id), (1, 0, 1), "run again alone, in the same attempt");
    }
    bench.until("work", &ids[2], "FAILED");
    let [letter] = &bench.dead("work")[..] else { panic!("one dead letter") };
    assert!(letter["tq-error"].starts_with(error), "{letter:?}");
    assert_eq!(
        (letter["tq-id"].as_str(), letter["tq-attempts"].as_str()),
        (ids[2].as_str(), "2"),
        "{letter:?}"
    );
    assert_eq!(batches(&host, "apart"), 1.0);
    let said = host.log("a batch failed; its tasks run again one by one");
    assert_eq!((said["tasks"].as_u64(), said["queue"].as_str()), (Some(5), Some("work")), "{said}");
    host.until_ended_as("work", "completed", 4);
    assert_eq!(host.ended_as("work", "retried"), 1, "the innocent were not charged");
    host.stop();
}

#[test]
fn a_task_that_traps_is_found() {
    the_guilty_is_found(&[("do", "trap")], "", "trap: ");
}

#[test]
fn a_task_that_hoards_memory_is_found() {
    the_guilty_is_found(&[("do", "hoard")], "", "out-of-memory: ");
}

#[test]
fn a_task_that_never_ends_is_found() {
    the_guilty_is_found(&[("do", "loop")], "timeout = \"500ms\"", "timeout: ");
}

#[test]
fn another_number_of_results_than_tasks_counts_for_none() {
    let mut bench = bench();
    let (host, ids) = together(&mut bench, [&[("do", "miscount")] as Fields, &[("a", "1")], &[("a", "1")]]);
    for id in &ids {
        assert_eq!(result(&mut bench, id), (1, 0, 1));
    }
    let said = host.log("a batch failed; its tasks run again one by one");
    assert_eq!(said["error"], "the handler gave 2 results for 3 tasks");
    host.stop();
}

#[test]
fn a_batch_of_which_every_call_fails_still_gets_its_tasks_done() {
    // Each task fails the call if other tasks are in it, and succeeds alone.
    let mut bench = bench();
    let (host, ids) = together(&mut bench, [&[("do", "trap"), ("alone", "1")] as Fields; 10]);
    for id in &ids {
        assert_eq!(result(&mut bench, id), (1, 0, 1));
    }
    assert_eq!(bench.places("work"), EMPTY);
    host.stop();
}

#[test]
fn a_task_that_is_cancelled_does_not_stop_its_batch() {
    let mut bench = bench_with("timeout = \"60s\"", "");
    let (host, ids) =
        together(&mut bench, [&[("ms", "4000")] as Fields, &[("ms", "4000")], &[("ms", "4000")]]);
    // The handler shows its progress on each of its tasks.
    for id in &ids {
        eventually("progress is shown", || (bench.status("work", id, "progress") == "50").then_some(()));
    }
    bench.tqhost(&["cancel", "work", &ids[1]]).ok();
    bench.until("work", &ids[1], "CANCELLED");
    assert_eq!((result(&mut bench, &ids[0]), result(&mut bench, &ids[2])), ((3, 0, 1), (3, 2, 1)));
    assert_eq!(bench.status("work", &ids[1], "status"), "CANCELLED", "its result is dropped");
    assert_eq!(bench.status("work", &ids[1], "result"), "");
    host.stop();
}

#[test]
fn a_batch_of_which_nothing_is_left_is_stopped() {
    let mut bench = bench();
    bench.configure_for(
        "[queues.work]\nplugin = \"batches\"\nconcurrency = 2\ntimeout = \"1h\"\n",
        bench.redis.port,
    );
    let (host, ids) = together(&mut bench, [&[("ms", "3600000")] as Fields; 2]);
    bench.until_running("work", 2);
    for id in &ids {
        bench.tqhost(&["cancel", "work", id]).ok();
    }
    // There is room for two tasks. This one runs when the cancelled ones have ended.
    let id = bench.xadd("work", &[("a", "1")]);
    assert_eq!(result(&mut bench, &id), (1, 0, 1));
    host.stop();
}

#[test]
fn a_task_cancelled_while_it_waits_for_others_is_not_run() {
    let mut bench = bench();
    let queue = "[queues.work]\nplugin = \"batches\"\nbatch = { max_tasks = 2, max_wait = \"1m\" }\n";
    bench.configure_for(queue, bench.redis.port);
    let host = bench.host();
    let cancelled = bench.xadd("work", &[("say", "never said")]);
    bench.until_running("work", 1);
    bench.tqhost(&["cancel", "work", &cancelled]).ok();
    host.log("cancelled while it ran");
    // This task fills the batch, and runs alone because the other one was cancelled.
    let id = bench.xadd("work", &[("say", "said")]);
    assert_eq!(result(&mut bench, &id), (1, 0, 1));
    let log = host.stop_for_log();
    assert_eq!((log.logged("said").len(), log.logged("never said").len()), (1, 0));
}

#[test]
fn a_task_cancelled_while_it_waits_is_not_run_where_few_may_run_either() {
    let mut bench = bench();
    let queue = "[queues.work]\nplugin = \"batches\"\nconcurrency = 5\nmax_running = 5\n\
        batch = { max_tasks = 3, max_wait = \"1m\" }\n";
    bench.configure_for(queue, bench.redis.port);
    let host = bench.host();
    let cancelled = bench.xadd("work", &[("say", "never said")]);
    let kept = bench.xadd("work", &[("say", "said")]);
    bench.until_running("work", 2);
    bench.tqhost(&["cancel", "work", &cancelled]).ok();
    // The host learns of that in a heartbeat, and knows it when a later one renews the other lease.
    let mut last = 0;
    for _ in 0..3 {
        eventually("a heartbeat renews the lease", || {
            let pending: Vec<(String, String, u64, u64)> =
                bench.redis("XPENDING", ("work", "tqhost", &kept, &kept, 1));
            let idle = pending[0].2;
            (idle < std::mem::replace(&mut last, idle)).then_some(())
        });
    }
    // This task fills the batch.
    let id = bench.xadd("work", &[("say", "said")]);
    assert_eq!((result(&mut bench, &kept), result(&mut bench, &id)), ((2, 0, 1), (2, 1, 1)));
    bench.until("work", &cancelled, "CANCELLED");
    host.until_ended_as("work", "cancelled", 1);
    assert_eq!(bench.places("work"), EMPTY);
    let log = host.stop_for_log();
    assert_eq!((log.logged("said").len(), log.logged("never said").len()), (2, 0));
}

#[test]
fn nothing_waits_for_tasks_that_cannot_come() {
    let mut bench = bench();
    // The queue's rules allow ten tasks in a batch, the host's capacity four. The wait is longer than the
    // test may take.
    let queue = "concurrency = 4\n[queues.work]\nplugin = \"batches\"\nbatch = { max_wait = \"1m\" }\n\
        [queues.other]\nplugin = \"batches\"\n";
    bench.configure_for(queue, bench.redis.port);
    let (host, ids) = together(&mut bench, [&[("a", "1")] as Fields; 4]);
    let sizes: BTreeSet<u64> = ids.iter().map(|id| result(&mut bench, id).0).collect();
    assert_eq!(sizes, BTreeSet::from([4]));
    host.stop();
}

#[test]
fn a_host_that_dies_with_a_batch_takes_no_task_with_it() {
    let mut bench = bench_with("lease = \"1s\"\nmax_crashes = 2", "");
    let (host, ids) = together(&mut bench, [&[("ms", "2000")] as Fields; 5]);
    bench.until_running("work", 5);
    host.kill();
    let host = bench.host();
    for id in &ids {
        assert_eq!(result(&mut bench, id), (1, 0, 1), "what a host died with is run alone");
    }
    host.until_count("tqhost_reclaimed_total", "work", 5);
    assert_eq!(bench.places("work"), EMPTY);
    host.stop();
}

#[test]
fn a_host_that_stops_gives_a_batch_back() {
    let mut bench = bench();
    let queues = format!("shutdown_grace = \"0s\"\n[queues.work]\n{RULES}\n");
    bench.configure_for(&queues, bench.redis.port);
    let (mut host, ids) =
        together(&mut bench, [&[("ms", "3600000"), ("do", "ok")] as Fields, &[("a", "1")], &[("a", "1")]]);
    bench.until_running("work", 3);
    host.signal(Signal::SIGTERM);
    assert_eq!(host.ended(), 0);
    for id in &ids {
        assert_eq!(
            (bench.status("work", id, "status"), bench.status("work", id, "attempt")),
            ("PENDING".into(), "1".into())
        );
    }
    assert_eq!(bench.places("work").pending, 0);
}

#[test]
fn lines_of_a_batch_say_whose_they_are() {
    let mut bench = bench();
    let (host, ids) = together(&mut bench, [&[("say", "one")] as Fields, &[("say", "two")]]);
    for id in &ids {
        result(&mut bench, id);
    }
    let named = host.log("a batch of the tasks");
    assert_eq!(named["message"], format!("a batch of the tasks {} {}", ids[0], ids[1]));
    let line = host.log("two");
    assert_eq!((line["task"].as_str(), line["batch"].as_u64()), (Some(ids[0].as_str()), Some(2)), "{line}");
    host.stop();
}

#[test]
fn a_batch_can_be_tried() {
    let bench = bench();
    let tasks = bench.dir.path().join("tasks.json");
    let try_with = |text: &str| {
        std::fs::write(&tasks, text).expect("write the tasks");
        let guest = bench.plugin_path("batches");
        bench.tqhost(&["try", guest.to_str().expect("a path"), tasks.to_str().expect("a path"), "--json"])
    };
    let ran = try_with("[{\"a\": 1}, {\"do\": \"reject\"}]");
    let view = ran.json();
    assert_eq!(
        (view["outcome"].as_str(), view["tasks"][0]["outcome"].as_str()),
        (Some("mixed"), Some("completed")),
        "{view}"
    );
    assert_eq!(view["tasks"][1]["outcome"], "reject");
    assert_eq!(view["tasks"][1]["id"], "try-2");
    let view = try_with("[{\"do\": \"reject\"}, {\"do\": \"reject\"}]").json();
    assert_eq!(
        (view["outcome"].as_str(), view["tasks"].as_array().map(Vec::len)),
        (Some("reject"), Some(2)),
        "{view}"
    );
    let view = try_with("[{\"a\": 1}, {\"do\": \"trap\"}]").json();
    assert_eq!((view["outcome"].as_str(), view["kind"].as_str()), (Some("failed"), Some("trap")), "{view}");
    let view = try_with("[{\"a\": 1}, {\"a\": 2}]").ok().json();
    assert_eq!(
        (view["outcome"].as_str(), view["tasks"].as_array().map(Vec::len)),
        (Some("completed"), Some(2)),
        "{view}"
    );
    let view = try_with("{\"a\": 1}").ok().json();
    assert_eq!((view["outcome"].as_str(), &view["tasks"]), (Some("completed"), &Value::Null));
}
