//! Queues that limit which tasks run beside each other, while hosts are killed, stopped and parted from
//! Redis: never two owners, never out of order, nothing lost.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tqhost::testing::queue::script;

use crate::support::proxy::Proxy;
use crate::support::runs::{assert_in_order, most_at_once};
use crate::support::{Bench, Host, Runs, eventually};

const KEYS: [&str; 3] = ["a", "b", "c"];
const TASKS: u32 = 20;

/// Queues with every kind of limit. The lease is short, and long enough for a busy machine.
const QUEUES: &str = "[defaults]\nplugin = \"fetches\"\nlease = \"3s\"\nmax_crashes = 1000\n\
                      [queues.few]\nmax_running = 2\n[queues.track]\nserial = { field = \"key\" }\n\
                      [queues.line]\nmax_running = 1\norder = \"strict\"\n";

/// Adds the tasks of all queues. Gives their queues and ids.
fn add(runs: &Runs, bench: &mut Bench) -> Vec<(&'static str, String)> {
    let mut added = Vec::new();
    for n in 0..TASKS {
        for key in KEYS {
            added.push(("track", runs.add(bench, "track", key, n, 60)));
        }
        added.push(("line", runs.add(bench, "line", "line", n, 60)));
        added.push(("few", runs.add(bench, "few", "few", n, 60)));
    }
    added
}

/// How many of these tasks have completed.
fn completed(bench: &mut Bench, added: &[(&'static str, String)]) -> usize {
    added.iter().filter(|(queue, id)| bench.status(queue, id, "status") == "COMPLETED").count()
}

#[track_caller]
fn assert_kept_to_the_limits(runs: &Runs, bench: &mut Bench, added: &[(&'static str, String)]) {
    for queue in ["few", "track", "line"] {
        let ids: Vec<String> =
            added.iter().filter(|(of, _)| *of == queue).map(|(_, id)| id.clone()).collect();
        bench.all_done(queue, &ids);
    }
    for key in KEYS.into_iter().chain(["line"]) {
        assert_in_order(&runs.in_time(key), TASKS);
    }
    assert!(most_at_once(&runs.in_time("few")) <= 2);
    for queue in ["track", "line"] {
        let left: u64 =
            bench.redis("EXISTS", &[format!("tq:{{{queue}}}:owners"), format!("tq:{{{queue}}}:tracks")]);
        assert_eq!(left, 0, "{queue}: tracks without tasks leave no key behind");
        bench.tqhost(&["doctor", queue]).ok();
    }
}

/// Lets three hosts work, and does `harm` with one of them in turn, until all tasks have completed.
fn under(harm: impl Fn(&Runs, &mut Bench, Host) -> Host) {
    let runs = Runs::start();
    let mut bench = runs.bench(QUEUES);
    let added = add(&runs, &mut bench);
    let mut hosts: Vec<Host> = (0..3).map(|_| bench.host()).collect();
    let mut before = 0;
    for _ in 0..4 {
        // Every harm comes while tasks run, and after some have completed since the one before.
        eventually("tasks complete", || {
            let now = completed(&mut bench, &added);
            let goes_on = now >= (before + 15).min(added.len() - 10);
            goes_on.then(|| before = now)
        });
        let victim = hosts.remove(0);
        hosts.push(harm(&runs, &mut bench, victim));
    }
    assert_kept_to_the_limits(&runs, &mut bench, &added);
    Host::stop_all(hosts);
}

#[test]
fn killed_hosts_break_no_order() {
    under(|_, bench, host| {
        host.kill();
        bench.host()
    });
}

#[test]
fn hosts_that_stop_break_no_order() {
    under(|_, bench, host| {
        host.stop();
        bench.host()
    });
}

#[test]
fn hosts_that_are_stopped_for_longer_than_the_lease_break_no_order() {
    under(|runs, bench, host| {
        host.signal(Signal::SIGSTOP);
        let consumers = |bench: &mut Bench| -> usize {
            let pending: Vec<(String, String, u64, u64)> =
                bench.redis("XPENDING", ("track", "tqhost", "IDLE", 2900, "-", "+", 100));
            pending.len()
        };
        // Whatever it had is taken over.
        let since = Instant::now();
        eventually("its tasks are taken over", || {
            (since.elapsed() > Duration::from_millis(3500) && consumers(bench) == 0).then_some(())
        });
        runs.wake(&host);
        host
    });
}

#[test]
fn lost_connections_break_no_order() {
    under(|_, bench, host| {
        for _ in 0..3 {
            let _: u64 = bench.redis("CLIENT", ("KILL", "TYPE", "normal", "SKIPME", "yes"));
        }
        host
    });
}

/// Loses replies of one script while hosts work.
fn lose(script: &script::Script) {
    let runs = Runs::start();
    let mut bench = runs.bench(QUEUES);
    let proxy = Proxy::start(bench.redis.port);
    bench.configure_for(&runs.queues(QUEUES), proxy.port);
    let hosts = [bench.host(), bench.host()];
    proxy.lose_replies(script.sha1(), 6);
    let added = add(&runs, &mut bench);
    assert_kept_to_the_limits(&runs, &mut bench, &added);
    assert_eq!(proxy.hits(), 6);
    Host::stop_all(hosts);
}

#[test]
fn lost_replies_to_claims_break_no_order() {
    lose(&script::CLAIM);
}

#[test]
fn lost_replies_to_settlements_break_no_order() {
    lose(&script::SETTLE);
}

#[test]
fn lost_replies_to_takeovers_from_an_old_consumer_break_no_order() {
    let runs = Runs::start();
    let mut bench = runs.bench(QUEUES);
    let proxy = Proxy::start(bench.redis.port);
    for queue in ["few", "track", "line"] {
        let _: () = bench.redis("XGROUP", ("CREATE", queue, "tqhost", "0", "MKSTREAM"));
    }
    let added = add(&runs, &mut bench);
    for queue in ["few", "track", "line"] {
        let _: redis::Value =
            bench.redis("XREADGROUP", ("GROUP", "tqhost", "old", "COUNT", 15, "STREAMS", queue, ">"));
        bench.tqhost(&["adopt", queue, "--yes", "--stopped"]).ok();
    }
    bench.configure_for(&runs.queues(QUEUES), proxy.port);
    proxy.lose_replies(script::RECLAIM.sha1(), 6);
    let hosts = [bench.host(), bench.host()];
    assert_kept_to_the_limits(&runs, &mut bench, &added);
    assert_eq!(proxy.hits(), 6);
    Host::stop_all(hosts);
}

#[test]
fn a_task_that_its_host_begins_again_has_a_whole_lease() {
    let runs = Runs::start();
    let mut bench = runs.bench(QUEUES);
    let proxy = Proxy::start(bench.redis.port);
    bench.configure_for(&runs.queues(QUEUES), proxy.port);
    let host = bench.host();
    let id = runs.add(&mut bench, "track", "track", 0, 600_000);
    eventually("it runs", || (runs.all().len() == 1).then_some(()));
    proxy.part();
    eventually("its lease is over, and its host has stopped it", || {
        let over: Vec<(String, String, u64, u64)> =
            bench.redis("XPENDING", ("track", "tqhost", "IDLE", 3000, "-", "+", 1));
        (over.len() == 1 && runs.all()[0].ended.is_some()).then_some(())
    });
    // The host looks for entries that it was given in replies that were lost, and finds this one.
    let _: u64 = bench.redis("CLIENT", ("KILL", "TYPE", "normal", "SKIPME", "yes"));
    proxy.heal();
    eventually("it runs again", || (runs.all().len() == 2).then_some(()));
    let taken_over: Vec<String> = bench.redis("XCLAIM", ("track", "tqhost", "other", 3000, &id, "JUSTID"));
    assert!(taken_over.is_empty(), "another host may not take it over while it runs");
    bench.tqhost(&["cancel", "track", &id]).ok();
    bench.until_drained("track");
    assert_eq!(most_at_once(&runs.all()), 1);
    host.stop();
}

#[test]
fn a_host_without_redis_stops_its_handlers_before_another_one_begins() {
    let runs = Runs::start();
    let mut bench = runs.bench(QUEUES);
    let proxy = Proxy::start(bench.redis.port);
    bench.configure_for(&runs.queues(QUEUES), proxy.port);
    let parted = bench.host();
    let ids: Vec<(&str, String)> = ["few", "few", "line", "track"]
        .into_iter()
        .map(|queue| (queue, runs.add(&mut bench, queue, queue, 0, 5000)))
        .collect();
    eventually("all run", || (runs.all().len() == 4).then_some(()));
    bench.configure_for(&runs.queues(QUEUES), bench.redis.port);
    let other = bench.host();
    proxy.part();
    for (queue, id) in &ids {
        bench.until(queue, id, "COMPLETED");
    }
    for queue in ["line", "track"] {
        let runs = runs.of(queue);
        assert_eq!((runs.len(), most_at_once(&runs)), (2, 1), "{runs:#?}");
        assert!(!runs[0].answered && runs[1].answered, "the first one was stopped: {runs:#?}");
    }
    assert_eq!(most_at_once(&runs.in_time("few")), 2);
    proxy.heal();
    parted.until_ready();
    Host::stop_all([parted, other]);
}
