//! Reclaims: which of them count as a crash of the task, and how much one of them takes over.

use std::time::Duration;

use tokio::runtime::Runtime;
use tqhost::testing::config::Config;
use tqhost::testing::queue::{Queue, Redis, StreamEntry};

use crate::support::{Bench, eventually};

const STREAM: &str = "work";

/// Consumers of a queue, through the library.
struct Consumers {
    queue: Queue,
    runtime: Runtime,
}

impl Consumers {
    fn new(bench: &Bench) -> Consumers {
        let rules = Config::load(&bench.config()).expect("a configuration").queues[0].clone();
        let queue = Queue::new(rules, Redis::open(&bench.redis.url()).expect("a URL").link());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(queue.ensure_group()).expect("a group");
        Consumers { queue, runtime }
    }

    fn reclaim(&self, from: &str) -> (Vec<StreamEntry>, String) {
        let reclaimed = self.queue.reclaim("new", from, 50, self.queue.outlived());
        let found = self.runtime.block_on(reclaimed).expect("a reclaim");
        assert!(found.lost.is_empty());
        (found.entries, found.cursor)
    }

    /// Waits until a lease has ended; returns the first such task from `from` on.
    fn until_abandoned(&self, from: &str) -> String {
        let lease = self.queue.rules.lease;
        let first = || self.runtime.block_on(self.queue.first_abandoned(from, lease)).expect("a look");
        eventually("a lease ends", first)
    }
}

fn read(bench: &mut Bench, consumer: &str, ms: &str) -> String {
    let id = bench.xadd(STREAM, &[("ms", ms)]);
    let _: redis::Value =
        bench.redis("XREADGROUP", ("GROUP", "tqhost", consumer, "COUNT", 1, "STREAMS", STREAM, ">"));
    id
}

/// The owner renews one of its own entries, or records that it last did so a minute ago. Either is a sign of
/// life.
fn keep(bench: &mut Bench, owner: &str, entry: &str, idle_ms: u32) {
    let _: redis::Value =
        bench.redis("XCLAIM", (STREAM, "tqhost", owner, 0, entry, "IDLE", idle_ms, "JUSTID"));
}

fn deliveries(entries: &[StreamEntry]) -> Vec<(&str, u32)> {
    entries.iter().map(|entry| (entry.id.as_str(), entry.deliveries)).collect()
}

#[test]
fn a_take_over_is_a_crash_of_the_task_if_its_owner_died_with_it() {
    let mut bench = Bench::new("[queues.work]\nlease = \"1s\"\n");
    let consumers = Consumers::new(&bench);
    let lost = read(&mut bench, "dies", "1");
    assert_eq!(consumers.until_abandoned("-"), lost);
    assert_eq!(deliveries(&consumers.reclaim("-").0), [(lost.as_str(), 2)]);

    let left = read(&mut bench, "lives", "1");
    let kept = read(&mut bench, "lives", "1");
    keep(&mut bench, "lives", &left, 60_000);
    keep(&mut bench, "lives", &kept, 0);
    assert_eq!(
        deliveries(&consumers.reclaim("-").0),
        [(left.as_str(), 1)],
        "its owner lives, and did not renew it"
    );
}

#[test]
fn a_host_charges_nothing_for_a_task_of_a_consumer_that_lives() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"sleeps\"\nlease = \"1s\"\n");
    bench.install("sleeps", "sleeps");
    drop(Consumers::new(&bench));
    let left = read(&mut bench, "lives", "2000");
    keep(&mut bench, "lives", &left, 60_000);
    let host = bench.host();
    bench.until(STREAM, &left, "PROCESSING");
    let pending: Vec<(String, String, u64, u64)> = bench.redis("XPENDING", (STREAM, "tqhost", "-", "+", 1));
    assert_eq!(pending[0].3, 1);
    bench.until(STREAM, &left, "COMPLETED");
    host.stop();
}

#[test]
fn after_a_silence_of_redis_nobody_is_taken_for_dead_for_a_lease() {
    let mut bench = Bench::new("[queues.work]\nlease = \"4s\"\n");
    let consumers = Consumers::new(&bench);
    let task = read(&mut bench, "cut-off", "1");
    let mut sleeping = bench.redis.connection();
    let silence = std::thread::spawn(move || redis::cmd("DEBUG").arg("SLEEP").arg(3.5).exec(&mut sleeping));
    eventually("Redis was silent", || {
        consumers
            .runtime
            .block_on(consumers.queue.first_abandoned("-", Duration::from_secs(60)))
            .expect("a look");
        consumers.queue.is_just_back().then_some(())
    });
    silence.join().expect("the thread").expect("DEBUG SLEEP");
    assert_eq!(consumers.until_abandoned("-"), task);
    assert_eq!(deliveries(&consumers.reclaim("-").0), [(task.as_str(), 1)]);
    eventually("a lease is over since then", || (consumers.queue.outlived() > Duration::ZERO).then_some(()));
}

#[test]
fn after_refused_writes_nobody_is_taken_for_dead_for_a_lease() {
    let mut bench = Bench::new("[queues.work]\nlease = \"4s\"\n");
    let consumers = Consumers::new(&bench);
    let task = read(&mut bench, "refused", "1");
    let _: () = bench.redis("CONFIG", ("SET", "min-replicas-to-write", "1"));
    // Redis answers reads all the time, so there is no silence.
    assert_eq!(consumers.until_abandoned("-"), task);
    let asked = consumers.queue.reclaim("new", "-", 50, consumers.queue.outlived());
    let refused = consumers.runtime.block_on(asked).expect_err("Redis refuses writes");
    assert!(format!("{refused:?}").contains("NOREPLICAS"), "{refused:?}");
    assert!(consumers.queue.is_just_back(), "its owner had no time to renew the lease");
    let _: () = bench.redis("CONFIG", ("SET", "min-replicas-to-write", "0"));
    assert_eq!(deliveries(&consumers.reclaim("-").0), [(task.as_str(), 1)]);
    eventually("a lease is over since then", || (consumers.queue.outlived() > Duration::ZERO).then_some(()));
}

#[test]
fn a_take_over_is_bounded_in_bytes() {
    let mut bench = Bench::new("[queues.work]\nlease = \"1s\"\n");
    let consumers = Consumers::new(&bench);
    let large = "x".repeat(2 << 20);
    let small: Vec<String> = (0..2).map(|_| bench.xadd(STREAM, &[("content", "x")])).collect();
    let ids: Vec<String> =
        small.into_iter().chain((0..5).map(|_| bench.xadd(STREAM, &[("content", &large)]))).collect();
    let _: redis::Value = bench.redis("XREADGROUP", ("GROUP", "tqhost", "dies", "STREAMS", STREAM, ">"));
    consumers.until_abandoned(&ids[6]);
    let (mut from, mut taken, mut steps) = ("-".to_owned(), Vec::new(), Vec::new());
    while !from.is_empty() {
        let (entries, next) = consumers.reclaim(&from);
        steps.push(entries.len());
        taken.extend(entries);
        let pending: Vec<redis::Value> = bench.redis("XPENDING", (STREAM, "tqhost", "-", "+", 10, "dies"));
        assert_eq!(pending.len(), ids.len() - taken.len(), "what did not fit stays where it was");
        from = next;
    }
    assert_eq!(steps, [4, 2, 1]);
    assert_eq!(deliveries(&taken), ids.iter().map(|id| (id.as_str(), 2)).collect::<Vec<_>>());
}
