//! No fault loses a task: hosts that are killed, suspended or stopped, and a Redis that restarts, stays away,
//! stalls or forgets.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::{Bench, Held, Places, Producer, eventually, within};

const NOTHING: Places = Places { length: 0, pending: 0, delayed: 0, parked: 0, dead: 0 };

/// Tasks whose handler takes a while.
const SLEEPS: &str =
    "[queues.work]\nplugin = \"sleeps\"\nconcurrency = 50\nlease = \"1s\"\nmax_crashes = 100\n";
/// Tasks that the test ends.
const HELD: &str =
    "[queues.work]\nplugin = \"fetches\"\nconcurrency = 50\nlease = \"1s\"\nmax_crashes = 100\n";
/// Tasks whose handler ends at once.
const EMPTY: &str = "[queues.work]\nplugin = \"empty\"\nlease = \"2s\"\n";

/// Every accepted task must be completed, and nothing may be left anywhere.
fn all_done(bench: &mut Bench, ids: &[String]) {
    bench.all_done("work", ids);
}

/// Waits until this many tasks run.
fn until_running(bench: &mut Bench, running: u64) {
    eventually("tasks run", || (bench.places("work").pending == running).then_some(()));
}

#[test]
fn worker_01_kill_9_while_50_tasks_run_another_host_finishes_them() {
    let held = Held::new();
    let mut bench = held.bench(HELD);
    let ids: Vec<String> = (0..50).map(|_| bench.xadd("work", &held.task())).collect();
    let first = bench.host();
    until_running(&mut bench, 50);
    let second = bench.host();
    first.kill();
    held.end();
    all_done(&mut bench, &ids);
    second.until_count("tqhost_reclaimed_total", "work", 50);
    let attempts: HashSet<String> = ids.iter().map(|id| bench.status("work", id, "attempt")).collect();
    assert_eq!(attempts, HashSet::from(["1".to_owned()]), "a crash of the host uses up no attempt");
    second.stop();
}

#[test]
fn worker_01_kill_9_while_50_tasks_run_the_next_start_finishes_them() {
    let held = Held::new();
    let mut bench = held.bench(HELD);
    let ids: Vec<String> = (0..50).map(|_| bench.xadd("work", &held.task())).collect();
    let host = bench.host();
    until_running(&mut bench, 50);
    host.kill();
    held.end();
    assert_eq!(bench.places("work").pending, 50);
    let host = bench.host();
    all_done(&mut bench, &ids);
    host.stop();
}

#[test]
fn worker_04_sigterm_waits_for_running_tasks_and_claims_no_new_ones() {
    let held = Held::new();
    let mut bench = held.bench("[queues.work]\nplugin = \"fetches\"\nconcurrency = 2\n");
    let mut host = bench.host();
    let running: Vec<String> = (0..2).map(|_| bench.xadd("work", &held.task())).collect();
    until_running(&mut bench, 2);
    let queued = bench.xadd("work", &held.task());
    host.signal(Signal::SIGTERM);
    host.log("stopping: no new tasks; waiting for those that run");
    held.end();
    assert_eq!(host.ended(), 0);
    for id in running {
        assert_eq!(bench.status("work", &id, "status"), "COMPLETED");
    }
    assert_eq!(bench.status("work", &queued, "status"), "");
    assert_eq!(bench.places("work"), Places { length: 1, ..NOTHING });
}

#[test]
fn worker_04_sigterm_gives_tasks_back_that_outlast_the_grace_period() {
    let mut bench = Bench::new("shutdown_grace = \"300ms\"\n[queues.work]\nplugin = \"sleeps\"\n");
    bench.install("sleeps", "sleeps");
    let host = bench.host();
    let id = bench.xadd("work", &[("ms", "50000")]);
    until_running(&mut bench, 1);
    host.stop();
    assert_eq!(bench.places("work"), Places { length: 1, ..NOTHING });
    assert_eq!(
        (bench.status("work", &id, "status").as_str(), bench.status("work", &id, "attempt").as_str()),
        ("PENDING", "1")
    );
    let entries: Vec<(String, Vec<String>)> = bench.redis("XRANGE", ("work", "-", "+"));
    assert!(
        entries[0].1.windows(2).any(|pair| pair == ["tq-id", id.as_str()]),
        "it keeps its id: {entries:?}"
    );
    assert!(
        entries[0].1.windows(2).any(|pair| pair == ["tq-attempt", "1"]),
        "no attempt is charged: {entries:?}"
    );
}

#[test]
fn worker_05_sigstop_for_longer_than_the_lease_commits_once() {
    let mut bench = Bench::new(SLEEPS);
    bench.install("sleeps", "sleeps");
    let zombie = bench.host();
    let ids: Vec<String> = (0..10).map(|_| bench.xadd("work", &[("ms", "2000")])).collect();
    until_running(&mut bench, 10);
    zombie.signal(Signal::SIGSTOP);
    let second = bench.host();
    second.log("took over tasks whose host fell silent");
    zombie.signal(Signal::SIGCONT);
    all_done(&mut bench, &ids);
    let completed =
        |host: &crate::support::Host| host.metric("tqhost_tasks_total{queue=\"work\",outcome=\"completed\"}");
    eventually("both hosts are done", || {
        let running = |host: &crate::support::Host| host.get("/readyz").status == 200;
        (running(&zombie) && (completed(&zombie) + completed(&second) - 10.0).abs() < 0.5).then_some(())
    });
    zombie.stop();
    second.stop();
}

#[test]
fn worker_06_a_handler_longer_than_the_lease_runs_once() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"sleeps\"\nlease = \"1s\"\n");
    bench.install("sleeps", "sleeps");
    let hosts = [bench.host(), bench.host()];
    let id = bench.xadd("work", &[("ms", "3500")]);
    bench.until("work", &id, "COMPLETED");
    assert_eq!(
        (bench.status("work", &id, "attempt"), bench.status("work", &id, "result")),
        ("1".into(), "slept".into())
    );
    for host in &hosts {
        for name in ["tqhost_reclaimed_total", "tqhost_lease_lost_total"] {
            assert_eq!(host.count(name, "work"), 0, "{name}");
        }
    }
    let attempts: usize = hosts.map(|host| host.stop_for_log().logged("attempt ended").len()).iter().sum();
    assert_eq!(attempts, 1);
}

#[test]
fn worker_08_a_task_whose_host_dies_each_time_is_dead_after_max_crashes_and_one_alone() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"sleeps\"\nlease = \"1s\"\nmax_crashes = 2\n");
    bench.install("sleeps", "sleeps");
    let id = bench.xadd("work", &[("ms", "30000")]);
    for _ in 0..3 {
        let host = bench.host();
        eventually("the task runs in this host", || {
            let running: f64 = host.metric("tqhost_task_wait_seconds_count{queue=\"work\"}");
            (running > 0.5).then_some(())
        });
        host.kill();
    }
    let host = bench.host();
    bench.until("work", &id, "FAILED");
    let dead: Vec<(String, Vec<String>)> = bench.redis("XRANGE", ("tq:{work}:dead", "-", "+"));
    assert!(dead[0].1.contains(&"crashed".to_owned()), "{dead:?}");
    host.stop();
}

#[test]
fn redis_12_a_restart_while_tasks_flow_loses_nothing() {
    let mut bench = Bench::with_redis(EMPTY, &["--appendfsync", "always"]);
    bench.install("empty", "empty");
    let host = bench.host();
    let producer = Producer::start(&bench.redis.url(), &[]);
    for _ in 0..3 {
        producer.produce(100);
        bench.redis.stop();
        bench.redis.start_again();
    }
    producer.produce(100);
    let ids = producer.stop();
    all_done(&mut bench, &ids);
    eventually("it is ready again", || (host.get("/readyz").status == 200).then_some(()));
    host.stop();
}

#[test]
fn redis_24_an_outage_of_ten_seconds_needs_no_restart() {
    let mut bench = Bench::with_redis(EMPTY, &["--appendfsync", "always"]);
    bench.install("empty", "empty");
    let host = bench.host();
    eventually("it is ready", || (host.get("/readyz").status == 200).then_some(()));
    let producer = Producer::start(&bench.redis.url(), &[]);
    producer.produce(100);
    bench.redis.stop();
    let away = Instant::now();
    eventually("readiness turns false", || (host.get("/readyz").status == 503).then_some(()));
    assert_eq!(host.get("/livez").status, 200);
    // The test is about the length of the outage, so it sleeps.
    std::thread::sleep(Duration::from_secs(10).saturating_sub(away.elapsed()));
    assert_eq!(host.get("/readyz").status, 503);
    bench.redis.start_again();
    eventually("readiness comes back", || (host.get("/readyz").status == 200).then_some(()));
    producer.produce(100);
    let ids = producer.stop();
    all_done(&mut bench, &ids);
    assert!(host.metric("tqhost_redis_reconnects_total") > 0.5);
    host.stop();
}

#[test]
fn redis_13_a_flushed_database_is_filled_again_from_the_beginning() {
    let mut bench = Bench::new(EMPTY);
    bench.install("empty", "empty");
    let host = bench.host();
    let before = bench.xadd("work", &[("n", "1")]);
    bench.until("work", &before, "COMPLETED");
    let _: () = bench.redis("FLUSHALL", "SYNC");
    // The host has not noticed the flush yet. It will create the group at 0, not at the end.
    let ids: Vec<String> = (0..20).map(|n| bench.xadd("work", &[("n", &n.to_string())])).collect();
    all_done(&mut bench, &ids);
    host.stop();
}

#[test]
fn redis_14_forgotten_scripts_are_loaded_again() {
    let mut bench = Bench::new(EMPTY);
    bench.install("empty", "empty");
    let host = bench.host();
    let producer = Producer::start(&bench.redis.url(), &[]);
    for _ in 0..20 {
        producer.produce(10);
        let _: () = bench.redis("SCRIPT", ("FLUSH", "SYNC"));
        let _: () = bench.redis("FUNCTION", ("FLUSH", "SYNC"));
    }
    let ids = producer.stop();
    all_done(&mut bench, &ids);
    host.stop();
}

#[test]
fn redis_45_healthy_tasks_are_not_charged_for_a_redis_that_stood_still_for_longer_than_their_lease() {
    // With the default rules a task is dead after two lost hosts.
    let held = Held::new();
    let mut bench = held.bench("[queues.work]\nplugin = \"fetches\"\nlease = \"1s\"\nconcurrency = 5\n");
    let hosts = [bench.host(), bench.host()];
    let ids: Vec<String> = (0..10).map(|_| bench.xadd("work", &held.task())).collect();
    bench.until_running("work", 10);
    for _ in 0..2 {
        let _: () = bench.redis("DEBUG", ("SLEEP", "3"));
    }
    // The tasks still run when the leases that count from the end of the silence are over.
    let renewed = |bench: &mut Bench| {
        let pending: Vec<(String, String, u64, u64)> =
            bench.redis("XPENDING", ("work", "tqhost", "-", "+", 10));
        pending.len() == 10 && pending.iter().all(|(_, _, idle_ms, _)| *idle_ms < 700)
    };
    let back = Instant::now();
    eventually("all leases are renewed for longer than a lease", || {
        (back.elapsed() > Duration::from_millis(1500) && renewed(&mut bench)).then_some(())
    });
    held.end();
    bench.all_done("work", &ids);
    for host in &hosts {
        assert_eq!(
            (host.count("tqhost_reclaimed_total", "work"), host.count("tqhost_lease_lost_total", "work")),
            (0, 0)
        );
    }
    for host in hosts {
        host.stop();
    }
}

#[test]
fn redis_21_a_stall_of_five_seconds_is_waited_out() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"empty\"\nlease = \"2s\"\n");
    bench.install("empty", "empty");
    let host = bench.host();
    let ids: Vec<String> = (0..50).map(|n| bench.xadd("work", &[("n", &n.to_string())])).collect();
    let _: () = bench.redis("DEBUG", ("SLEEP", "5"));
    let more: Vec<String> = (0..50).map(|n| bench.xadd("work", &[("n", &n.to_string())])).collect();
    all_done(&mut bench, &[ids, more].concat());
    host.stop();
}

#[test]
fn redis_22_killed_connections_are_made_anew_and_nothing_delivered_is_forgotten() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"empty\"\nlease = \"60s\"\n");
    bench.install("empty", "empty");
    let host = bench.host();
    let producer = Producer::start(&bench.redis.url(), &[]);
    for _ in 0..10 {
        producer.produce(20);
        let _: i64 = bench.redis("CLIENT", ("KILL", "TYPE", "normal", "SKIPME", "yes"));
    }
    let ids = producer.stop();
    // This is well within the lease. Entries that were delivered to a broken connection are found without
    // waiting for their lease.
    within(Duration::from_secs(30), "all is done", || (bench.places("work").length == 0).then_some(()));
    all_done(&mut bench, &ids);
    host.stop();
}

#[test]
fn data_32_what_cannot_be_dead_lettered_is_not_acked() {
    let mut bench = Bench::new(
        "[queues.work]\nplugin = \"rejects\"\nlease = \"1s\"\n[queues.other]\nplugin = \"empty\"\n",
    );
    bench.install("rejects", "rejects");
    bench.install("empty", "empty");
    let host = bench.host();
    host.until_ready();
    let _: () = bench.redis("SET", ("tq:{work}:dead", "in the way"));
    let id = bench.xadd("work", &[("n", "1")]);
    host.log("a call to Redis failed; trying again");
    assert_eq!(bench.places_but_dead("work"), Places { length: 1, pending: 1, ..NOTHING });
    let other = bench.xadd("other", &[("n", "1")]);
    bench.until("other", &other, "COMPLETED");
    let _: () = bench.redis("DEL", "tq:{work}:dead");
    bench.until("work", &id, "FAILED");
    assert_eq!(bench.places("work"), Places { dead: 1, ..NOTHING });
    host.stop();
}

#[test]
fn data_29_entries_that_somebody_else_deleted_are_counted_and_named() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"sleeps\"\nlease = \"1s\"\n");
    bench.install("sleeps", "sleeps");
    let host = bench.host();
    let id = bench.xadd("work", &[("ms", "60000")]);
    until_running(&mut bench, 1);
    host.kill();
    let _: i64 = bench.redis("XDEL", ("work", &id));
    let host = bench.host();
    let line = host.log("were deleted by somebody else");
    assert!(line["first"].as_str().is_some_and(|first| first.contains(&id)), "{line}");
    host.until_count("tqhost_lost_entries_total", "work", 1);
    bench.until("work", &id, "FAILED");
    assert!(bench.status("work", &id, "error").contains("deleted"));
    host.stop();
}

#[test]
fn data_31_a_task_with_as_many_fields_as_there_may_be_survives_its_retries() {
    let mut bench =
        Bench::new("[queues.work]\nplugin = \"fails-twice\"\nbackoff = { delays = [\"50ms\"] }\n");
    bench.install("fails-twice", "fails-twice");
    let host = bench.host();
    let names: Vec<String> = (0..1000).map(|n| format!("f{n}")).collect();
    let fields: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "x")).collect();
    let id = bench.xadd("work", &fields);
    bench.until("work", &id, "COMPLETED");
    assert_eq!(bench.status("work", &id, "attempt"), "3");
    host.stop();
}

#[test]
fn worker_04_sigterm_while_redis_is_away_is_obeyed() {
    let queues: String = (0..40).map(|n| format!("[queues.q{n}]\nplugin = \"empty\"\n")).collect();
    let mut bench = Bench::new(&format!("shutdown_grace = \"1s\"\n{queues}"));
    bench.install("empty", "empty");
    let mut host = bench.host();
    bench.redis.stop();
    eventually("readiness turns false", || (host.get("/readyz").status == 503).then_some(()));
    host.signal(Signal::SIGTERM);
    // The grace is one second, the settlements get five, the rest two. The sum is far below the limit, which
    // only a defect would reach.
    within(Duration::from_secs(20), "the host ends", || host.has_ended().then_some(()));
    assert_eq!(host.ended(), 0);
}

#[test]
fn data_30_a_key_that_is_no_marker_holds_nothing_up() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"empty\"\n");
    bench.install("empty", "empty");
    let _: u64 = bench.redis("LPUSH", ("tq:{work}:key:k", "in the way"));
    let host = bench.host();
    let id = bench.xadd("work", &[("tq-key", "k")]);
    let next = bench.xadd("work", &[("n", "1")]);
    bench.until("work", &id, "COMPLETED");
    bench.until("work", &next, "COMPLETED");
    host.stop();
}
