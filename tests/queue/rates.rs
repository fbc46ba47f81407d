//! Rate limits when hosts die and replies are lost: a task that is taken over or recovered starts again, and
//! counts again.
//!
//! The times are from Redis's clock. A start may be late, never early, so a test asks only for the time that
//! all starts together take at least. Not here: hosts that work (`control`).

use crate::support::proxy::Proxy;
use crate::support::{Bench, Held, Runs, eventually};

/// When the tasks began to run, in ms of Redis's clock, by task.
fn starts(bench: &mut Bench, ids: &[String]) -> Vec<u64> {
    ids.iter().map(|id| bench.status("work", id, "started_at").parse().expect("a time")).collect()
}

/// The time (ms) between the first and the last start.
fn span(starts: &[u64]) -> u64 {
    starts.iter().max().expect("a start") - starts.iter().min().expect("a start")
}

#[test]
fn tasks_that_are_taken_over_from_a_dead_host_count_for_the_rate() {
    let held = Held::new();
    let mut bench = held.bench(
        "[queues.work]\nplugin = \"fetches\"\nconcurrency = 50\nlease = \"1s\"\nmax_crashes = 100\n\
         rate_limit = \"4/s\"\n",
    );
    let ids: Vec<String> = (0..12).map(|_| bench.xadd("work", &held.task())).collect();
    let first = bench.host();
    bench.until_running("work", ids.len());
    let before = starts(&mut bench, &ids);
    first.kill();
    let second = bench.host();
    let after = eventually("all run again", || {
        let now = starts(&mut bench, &ids);
        now.iter().zip(&before).all(|(now, before)| now > before).then_some(now)
    });
    // Eleven starts after the first one, less the one that may come early, take 2.5 seconds. Without the
    // limit, one step takes all tasks over.
    for (what, starts) in [("of the first host", &before), ("of the second host", &after)] {
        assert!(span(starts) >= 1500, "the starts {what} took {} ms: {starts:?}", span(starts));
    }
    held.end();
    bench.until_drained("work");
    second.until_count("tqhost_reclaimed_total", "work", ids.len() as u64);
    second.stop();
}

#[test]
fn tasks_that_are_recovered_after_a_lost_reply_count_for_the_rate() {
    let held = Held::new();
    let queues = "[queues.work]\nplugin = \"fetches\"\nconcurrency = 50\nrate_limit = \"1/s\"\n";
    let mut bench = held.bench(queues);
    let proxy = Proxy::start(bench.redis.port);
    bench.configure_for(&held.queues(queues), proxy.port);
    let ids: Vec<String> = (0..5).map(|_| bench.xadd("work", &held.task())).collect();
    // Each of these reads delivers one task, since one may start at a time.
    proxy.lose_replies("XREADGROUP", ids.len());
    let host = bench.host();
    bench.until_running("work", ids.len());
    assert_eq!(proxy.hits(), ids.len());
    // Four starts after the first one, less the one that may come early, take three seconds. The pauses after
    // errors are shorter.
    let starts = starts(&mut bench, &ids);
    assert!(span(&starts) >= 2000, "the starts took {} ms: {starts:?}", span(&starts));
    held.end();
    bench.until_drained("work");
    host.log("found tasks that were delivered in a reply that was lost");
    host.stop();
}

#[test]
fn tasks_of_a_dead_host_start_before_new_ones() {
    let runs = Runs::start();
    let mut bench =
        runs.bench("[queues.work]\nplugin = \"fetches\"\nlease = \"2s\"\nrate_limit = \"10/m\"\n");
    let first = bench.host();
    runs.add(&mut bench, "work", "left", 0, 600_000);
    eventually("it runs", || (runs.of("left").len() == 1).then_some(()));
    first.kill();
    // These take every place as soon as it is free, for longer than the test waits for anything.
    for n in 0..20 {
        runs.add(&mut bench, "work", "new", n, 0);
    }
    let second = bench.host();
    eventually("it is taken over", || (runs.of("left").len() == 2).then_some(()));
    assert!(bench.places("work").length > 1, "new tasks still wait: {:?}", bench.places("work"));
    second.kill();
}

#[test]
fn a_read_that_fails_costs_no_place() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"empty\"\nrate_limit = \"2/h\"\n");
    bench.install("empty", "empty");
    let host = bench.host();
    let reading = eventually("the host waits for tasks", || {
        let clients: String = bench.redis("CLIENT", "LIST");
        // It is blocked in the read.
        let is_reading = |client: &&str| client.contains("cmd=xreadgroup") && client.contains(" flags=b ");
        let reads = clients.lines().find(is_reading)?;
        reads.split(' ').find_map(|part| part.strip_prefix("id=")).map(str::to_owned)
    });
    assert_eq!(bench.redis::<u64>("CLIENT", ("KILL", "ID", reading)), 1);
    host.log("a call to Redis failed; trying again");
    let id = bench.xadd("work", &[("a", "1")]);
    bench.until("work", &id, "COMPLETED");
    host.stop();
}
