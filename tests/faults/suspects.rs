//! Tasks that hosts died with: such a task runs alone in its host, and only a crash while it does makes it
//! dead.

use crate::support::{Bench, Held, Host};

const QUEUES: &str =
    "concurrency = 10\n[defaults]\nplugin = \"sleeps\"\nlease = \"1500ms\"\n[queues.work]\n[queues.other]\n";

const OTHER: &str = "[queues.other]\nplugin = \"sleeps\"";

fn bench() -> Bench {
    let bench = Bench::new(QUEUES);
    bench.install("sleeps", "sleeps");
    bench
}

/// Tasks that two hosts have died with, and the next host.
fn suspects(bench: &mut Bench, task: (&str, &str)) -> (Vec<String>, Host) {
    let ids = [task; 3].map(|task| bench.xadd("work", &[task]));
    for _ in 0..2 {
        let host = bench.host();
        host.until_count("tqhost_task_wait_seconds_count", "work", 3);
        host.kill();
    }
    (ids.to_vec(), bench.host())
}

/// A period in milliseconds during which the task certainly ran. Redis gets the end a moment later.
fn time(bench: &mut Bench, queue: &str, id: &str, ms: u64) -> (u64, u64) {
    let finished: u64 = bench.status(queue, id, "finished_at").parse().expect("a time");
    (finished - ms, finished)
}

#[test]
fn tasks_that_two_hosts_died_with_run_alone_and_are_not_dead() {
    let mut bench = bench();
    let (ids, host) = suspects(&mut bench, ("ms", "2000"));
    let others: Vec<String> = (0..5).map(|_| bench.xadd("other", &[("ms", "2000")])).collect();
    bench.all_done("work", &ids);
    bench.all_done("other", &others);
    assert_eq!(host.ended_as("work", "crashed"), 0);
    let alone: Vec<(u64, u64)> = ids.iter().map(|id| time(&mut bench, "work", id, 2000)).collect();
    let others: Vec<(u64, u64)> = others.iter().map(|id| time(&mut bench, "other", id, 2000)).collect();
    for (n, (began, ended)) in alone.iter().enumerate() {
        let together = |other: &(u64, u64)| ended.min(&other.1).saturating_sub(*began.max(&other.0));
        let longest = alone[n + 1..].iter().chain(&others).map(together).max();
        assert!(longest.is_none_or(|ms| ms < 1000), "{alone:?} {others:?}");
    }
    host.stop();
}

#[test]
fn only_the_task_that_ran_alone_is_dead_after_the_crash() {
    let held = Held::new();
    let mut bench = held.bench(&QUEUES.replace("sleeps", "fetches"));
    let (ids, host) = suspects(&mut bench, held.task()[0]);
    host.until_count("tqhost_task_wait_seconds_count", "work", 1);
    host.kill();
    held.end();
    let host = bench.host();
    host.until_ended_as("work", "crashed", 1);
    host.until_ended_as("work", "completed", 2);
    let dead = bench.dead("work");
    assert_eq!((dead.len(), dead[0]["tq-reason"].as_str()), (1, "crashed"));
    let failed = ids.iter().filter(|id| bench.status("work", id, "status") == "FAILED").count();
    assert_eq!(failed, 1);
    host.stop();
}

#[test]
fn a_suspect_that_runs_for_long_holds_the_host_up_for_two_leases() {
    let held = Held::new();
    let mut bench = held.bench(&QUEUES.replace("sleeps", "fetches").replace("[queues.other]", OTHER));
    bench.install("sleeps", "sleeps");
    let long = bench.xadd("work", &held.task());
    for _ in 0..2 {
        let host = bench.host();
        host.until_count("tqhost_task_wait_seconds_count", "work", 1);
        host.kill();
    }
    let host = bench.host();
    host.until_count("tqhost_task_wait_seconds_count", "work", 1);
    let other = bench.xadd("other", &[("ms", "0")]);
    bench.all_done("other", std::slice::from_ref(&other));
    let mut at = |queue, id: &str, field| -> u64 { bench.status(queue, id, field).parse().expect("a time") };
    let (began, ended) = (at("work", &long, "started_at"), at("other", &other, "finished_at"));
    assert!(ended >= began + 3000, "{ended} is too soon after {began}");
    // It may have been another task that crashed the host this time.
    host.kill();
    let host = bench.host();
    host.until_count("tqhost_task_wait_seconds_count", "work", 1);
    assert_eq!(host.ended_as("work", "crashed"), 0);
    held.end();
    bench.all_done("work", &[long]);
    host.stop();
}
