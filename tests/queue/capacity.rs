//! Queues that compete for the capacity of one host: they share it by priority, and no queue keeps a part
//! that it does not use.

use crate::support::{Bench, Host, eventually};

/// Queues that run `sleeps` with these priorities, in a host with `capacity` permits.
fn queues(capacity: u32, priorities: &[(&str, u32)]) -> String {
    let head = format!("concurrency = {capacity}\n[defaults]\nplugin = \"sleeps\"\nretention = \"0s\"\n");
    priorities
        .iter()
        .fold(head, |text, (name, priority)| text + &format!("[queues.{name}]\npriority = {priority}\n"))
}

/// Adds `count` tasks that take `ms` milliseconds each.
fn fill(bench: &mut Bench, queue: &str, count: usize, ms: &str) {
    let mut pipe = redis::pipe();
    for _ in 0..count {
        pipe.cmd("XADD").arg(queue).arg("*").arg("ms").arg(ms).ignore();
    }
    let _: () = pipe.query(&mut bench.redis.connection()).expect("XADD");
}

fn completed(host: &Host, queue: &str) -> u64 {
    host.ended_as(queue, "completed")
}

/// While all queues still have tasks, each queue's share of the completed tasks matches its priority within a
/// tenth.
fn share(capacity: u32, priorities: &[(&str, u32)], each: usize) {
    let config = queues(capacity, priorities);
    let mut bench = Bench::new(&config);
    for (name, _) in priorities {
        fill(&mut bench, name, each, "3");
    }
    bench.install("sleeps", "sleeps");
    let host = bench.host();
    let (first, _) = priorities[0];
    eventually("the first queue is three quarters done", || {
        (completed(&host, first) >= each as u64 * 3 / 4).then_some(())
    });
    let done: Vec<u64> = priorities.iter().map(|(name, _)| completed(&host, name)).collect();
    for (name, _) in priorities {
        assert!(bench.places(name).length > 0, "{name} has tasks left: {done:?}");
    }
    let (all, weights): (u64, u32) =
        (done.iter().sum(), priorities.iter().map(|(_, priority)| priority).sum());
    for ((name, priority), done) in priorities.iter().zip(&done) {
        let due = all as f64 * f64::from(*priority) / f64::from(weights);
        assert!((*done as f64 / due - 1.0).abs() < 0.1, "{name} did {done}, due were {due:.0}");
    }
    println!("{priorities:?} at {capacity}: {done:?}");
    host.stop();
}

#[test]
fn two_queues_share_by_two_to_one() {
    share(6, &[("high", 2), ("low", 1)], 2000);
}

#[test]
fn three_queues_share_by_five_to_three_to_one() {
    share(9, &[("high", 5), ("middle", 3), ("low", 1)], 2000);
}

#[test]
fn one_attempt_at_a_time_is_shared_too() {
    share(1, &[("high", 2), ("low", 1)], 400);
}

#[test]
fn capacity_that_a_queue_does_not_use_goes_to_the_others() {
    let mut bench = Bench::new(&queues(4, &[("busy", 1), ("idle", 100)]));
    bench.install("sleeps", "sleeps");
    let host = bench.host();
    fill(&mut bench, "busy", 8, "1500");
    eventually("all four work for the busy queue", || (bench.places("busy").pending == 4).then_some(()));
    // The next free permit goes to the queue that had none.
    let id = bench.xadd("idle", &[("ms", "0")]);
    bench.until_drained("idle");
    assert!(bench.places("busy").length > 0, "{id} did not wait for the others' last");
    bench.until_drained("busy");
    host.until_ended_as("busy", "completed", 8);
    host.until_ended_as("idle", "completed", 1);
    // Both queues are empty and hold no permits, so each of them can use the whole capacity.
    for queue in ["idle", "busy"] {
        fill(&mut bench, queue, 4, "700");
        eventually("all four work for one queue", || (bench.places(queue).pending == 4).then_some(()));
        bench.until_drained(queue);
    }
    host.stop();
}

#[test]
fn a_host_with_a_bound_takes_over_what_a_dead_one_left() {
    let config = queues(2, &[("a", 1), ("b", 1)]).replace("[defaults]\n", "[defaults]\nlease = \"1s\"\n");
    let mut bench = Bench::new(&config);
    bench.install("sleeps", "sleeps");
    let host = bench.host();
    for queue in ["a", "b"] {
        fill(&mut bench, queue, 6, "400");
    }
    eventually("two run", || (bench.places("a").pending + bench.places("b").pending == 2).then_some(()));
    host.kill();
    let next = bench.host();
    for queue in ["a", "b"] {
        bench.until_drained(queue);
    }
    assert!(completed(&next, "a") + completed(&next, "b") >= 10);
    next.stop();
}
