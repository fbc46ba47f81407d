//! Queues in which nothing happens: what they cost, and that the host notices every event in them at once.
//!
//! The cost is a count of commands, over spans of Redis's own clock.

use std::time::Duration;

use crate::support::{Bench, Host, eventually};

/// Queues of the test that counts commands.
const QUEUES: usize = 500;
/// The most commands per second of a host with [`QUEUES`] queues that are all at rest.
const MOST: u64 = 100;
/// The time over which commands are counted.
const SPAN: Duration = Duration::from_secs(5);

/// Queues `q0`, `q1`, … with one plugin.
fn queues(count: usize, more: &str) -> String {
    let head = format!("{more}[defaults]\nplugin = \"echo\"\n");
    (0..count).fold(head, |text, n| text + &format!("[queues.q{n}]\n"))
}

/// The commands that Redis carries out in [`SPAN`] of its own time, including those within scripts, and
/// without those of this test.
fn commands(bench: &mut Bench) -> u64 {
    let ask = |bench: &mut Bench| -> (u64, u64) {
        let text: String = bench.redis("INFO", ("server", "commandstats"));
        let calls = text
            .lines()
            .filter_map(|line| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok());
        let time = text.lines().find_map(|line| line.strip_prefix("server_time_usec:")?.parse().ok());
        (time.expect("Redis's time"), calls.sum())
    };
    let first = ask(bench);
    let mut asked = 1;
    eventually("the span is over", || {
        // The test measures a rate, so it sleeps.
        std::thread::sleep(SPAN / 5);
        let now = ask(bench);
        let ends = now.0 - first.0 >= SPAN.as_micros() as u64;
        let found = now.1 - first.1 - asked;
        asked += 1;
        ends.then(|| println!("{found} commands in {} ms", (now.0 - first.0) / 1000)).map(|()| found)
    })
}

/// Waits until each host waits for this many streams in one read, and reads from none of them separately.
fn until_all_rest(bench: &mut Bench, hosts: usize) {
    eventually("all queues rest", || {
        let clients: String = bench.redis("CLIENT", "LIST");
        let blocked: Vec<&str> = clients.lines().filter(|line| line.contains(" flags=b ")).collect();
        let waiting = blocked.iter().filter(|line| line.contains(" cmd=xread ")).count();
        (blocked.len() == hosts && waiting == hosts).then_some(())
    });
}

/// A host with this many queues, all at rest.
fn resting(count: usize, more: &str) -> (Bench, Host) {
    let mut bench = Bench::new(&queues(count, more));
    bench.install("echo", "echo");
    let host = bench.host();
    host.until_ready();
    until_all_rest(&mut bench, 1);
    (bench, host)
}

/// The host that has the duties of a queue.
fn holder(bench: &mut Bench, queue: &str) -> String {
    let holder: Option<String> = bench.redis("HGET", ("tq:hosts:duties", format!("{queue} tqhost")));
    holder.unwrap_or_default()
}

fn id(host: &Host) -> String {
    host.log("tqhost is running")["host"].as_str().expect("its id").to_owned()
}

#[test]
fn idle_queues_cost_few_commands_and_four_hosts_less_than_double() {
    let mut bench = Bench::new(&queues(QUEUES, ""));
    bench.install("echo", "echo");
    let mut hosts = vec![bench.host()];
    until_all_rest(&mut bench, hosts.len());
    // A host that has started looks at each queue, for longer on a busy machine.
    let most = MOST * SPAN.as_secs();
    let first = eventually(&format!("one host has less than {most} commands in {SPAN:?}"), || {
        Some(commands(&mut bench)).filter(|commands| *commands < most)
    });
    // On a busy machine a host gets to less in some spans than in others, so one span says little.
    let spans: Vec<u64> = (0..2).map(|_| commands(&mut bench)).chain([first]).collect();
    let one = spans.into_iter().filter(|commands| *commands < most).max().unwrap_or(first);
    hosts.extend((0..3).map(|_| bench.host()));
    until_all_rest(&mut bench, hosts.len());
    // The tasks find all hosts at rest.
    for n in 0..QUEUES / 10 {
        let queue = format!("q{n}");
        let id = bench.xadd(&queue, &[("n", "1")]);
        bench.until(&queue, &id, "COMPLETED");
    }
    until_all_rest(&mut bench, hosts.len());
    eventually(&format!("four hosts have less than twice the {one} commands of one"), || {
        (commands(&mut bench) < 2 * one).then_some(())
    });
    Host::stop_all(hosts);
}

#[test]
fn a_queue_that_rests_wakes_for_a_task_of_any_kind() {
    let (mut bench, host) = resting(5, "");
    // One queue after the other wakes, while the rest of them rests.
    for queue in ["q0", "q1", "q2", "q3", "q4"] {
        let plain = bench.xadd(queue, &[("n", "1")]);
        bench.until(queue, &plain, "COMPLETED");
    }
    until_all_rest(&mut bench, 1);
    for queue in ["q0", "q1", "q2", "q3", "q4"] {
        bench.tqhost(&["enqueue", queue, "n=2", "--delay", "1s", "--wait"]).ok();
    }
    host.stop();
}

/// A pause and a delayed task of a queue at rest are seen, and its tasks run.
#[track_caller]
fn looked_after(bench: &mut Bench, host: &Host, queue: &str) {
    bench.tqhost(&["enqueue", queue, "n=1", "--delay", "1s", "--wait"]).ok();
    bench.tqhost(&["pause", queue]).ok();
    let states = || host.get("/readyz").body.matches("\"paused\"").count();
    eventually("the pause is seen", || (states() == 1).then_some(()));
    bench.tqhost(&["resume", queue]).ok();
    let id = bench.xadd(queue, &[("n", "1")]);
    bench.until(queue, &id, "COMPLETED");
}

#[test]
fn a_queue_whose_keys_are_denied_leaves_the_wait_and_holds_up_nobody() {
    let queues = queues(5, "");
    let mut bench = Bench::new(&queues);
    bench.install("echo", "echo");
    let allow = |bench: &mut Bench, rule: &[&str]| {
        let _: () = bench.redis("ACL", [&["SETUSER", "host", "on", ">p", "+@all", "&*"][..], rule].concat());
    };
    // All keys of one queue are denied from the start.
    let others = ["resetkeys", "~q[0234]", "~tq:{q[0234]}:*", "~tq:host*"];
    allow(&mut bench, &others);
    bench.configure_url(&queues, &format!("redis://host:p@127.0.0.1:{}", bench.redis.port));
    let host = bench.host();
    let waits = bench.xadd("q1", &[("n", "1")]);
    // Then its stream alone, and its keys without the stream.
    let rules = [
        &others[..],
        &["resetkeys", "~q[0234]", "~tq:*"],
        &["resetkeys", "~q*", "~tq:{q[0234]}:*", "~tq:host*"],
    ];
    for rule in rules {
        allow(&mut bench, rule);
        for queue in ["q0", "q2", "q3", "q4"] {
            let id = bench.xadd(queue, &[("n", "1")]);
            bench.until(queue, &id, "COMPLETED");
        }
        // One read waits for all the others.
        until_all_rest(&mut bench, 1);
        looked_after(&mut bench, &host, "q3");
        host.until_unready("q1");
        let waits = bench.xadd("q1", &[("n", "1")]);
        allow(&mut bench, &["~*"]);
        bench.until("q1", &waits, "COMPLETED");
        host.until_ready();
        until_all_rest(&mut bench, 1);
    }
    bench.until("q1", &waits, "COMPLETED");
    host.stop();
}

#[test]
fn a_broken_queue_leaves_the_wait_and_holds_up_nobody() {
    let (mut bench, host) = resting(5, "");
    let _: () = bench.redis("SET", ("q1", "not a stream"));
    for key in ["delayed", "paused", "hold"] {
        let _: () = bench.redis("RPUSH", (format!("tq:{{q1}}:{key}"), "x"));
    }
    host.until_unready("WRONGTYPE");
    for queue in ["q0", "q2", "q3", "q4"] {
        let id = bench.xadd(queue, &[("n", "1")]);
        bench.until(queue, &id, "COMPLETED");
    }
    // The other queues rest: one read waits for them, although a key of this type would end such a read.
    until_all_rest(&mut bench, 1);
    looked_after(&mut bench, &host, "q0");
    let _: u64 = bench.redis("DEL", &["q1", "tq:{q1}:delayed", "tq:{q1}:paused", "tq:{q1}:hold"]);
    let id = bench.xadd("q1", &[("n", "1")]);
    bench.until("q1", &id, "COMPLETED");
    host.until_ready();
    host.stop();
}

#[test]
fn a_stream_that_is_deleted_while_its_queue_rests_is_found_again() {
    let (mut bench, host) = resting(2, "");
    for _ in 0..2 {
        until_all_rest(&mut bench, 1);
        let _: u64 = bench.redis("DEL", "q0");
        // The stream's ids begin anew, below those that were delivered.
        let _: String = bench.redis("XADD", ("q0", "1-1", "n", "1"));
        bench.until("q0", "1-1", "COMPLETED");
        let _: u64 = bench.redis("DEL", "tq:{q0}:task:1-1");
        let id = bench.xadd("q0", &[("n", "1")]);
        bench.until("q0", &id, "COMPLETED");
    }
    host.stop();
}

#[test]
fn a_queue_that_rests_and_has_to_share_the_host_wakes_too() {
    let (mut bench, host) = resting(3, "concurrency = 1\n");
    for n in 0..3 {
        let queue = format!("q{n}");
        let id = bench.xadd(&queue, &[("n", "1")]);
        bench.until(&queue, &id, "COMPLETED");
    }
    host.stop();
}

#[test]
fn a_pause_is_seen_while_a_queue_rests_and_ends_as_soon_as_it_is_resumed() {
    let (mut bench, host) = resting(2, "");
    bench.tqhost(&["pause", "q0"]).ok();
    eventually("the pause is seen", || host.get("/readyz").body.contains("paused").then_some(()));
    let id = bench.xadd("q0", &[("n", "1")]);
    let other = bench.xadd("q1", &[("n", "1")]);
    bench.until("q1", &other, "COMPLETED");
    until_all_rest(&mut bench, 1);
    assert_eq!(bench.status("q0", &id, "status"), "");
    bench.tqhost(&["resume", "q0"]).ok();
    bench.until("q0", &id, "COMPLETED");
    host.stop();
}

#[test]
fn duties_go_to_another_host_when_theirs_stops_or_dies() {
    let mut bench = Bench::new(&queues(2, ""));
    bench.install("echo", "echo");
    let first = bench.host();
    let first_id = id(&first);
    eventually("the first host has the duties", || (holder(&mut bench, "q0") == first_id).then_some(()));
    let second = bench.host();
    let second_id = id(&second);
    second.until_ready();
    assert_eq!(holder(&mut bench, "q0"), first_id);
    first.stop();
    eventually("the second host has the duties", || (holder(&mut bench, "q0") == second_id).then_some(()));
    bench.tqhost(&["enqueue", "q0", "n=1", "--delay", "1s", "--wait"]).ok();
    let third = bench.host();
    let third_id = id(&third);
    third.until_ready();
    second.kill();
    // No host got a signal. The third host finds the delayed task when it has the duties.
    bench.tqhost(&["enqueue", "q1", "n=1", "--delay", "1s", "--wait"]).ok();
    eventually("the third host has the duties", || (holder(&mut bench, "q1") == third_id).then_some(()));
    third.stop();
    let left: u64 = bench.redis("ZCARD", "tq:hosts:leases:{tq:hosts:duties}");
    assert!(left <= 1, "a host that stops leaves no lease: {left}");
}

#[test]
fn the_duties_of_a_removed_queue_go_to_another_host_although_redis_refused_to_free_them_at_first() {
    let mut bench = Bench::new(&queues(2, ""));
    bench.install("echo", "echo");
    // The other host has a configuration of its own, which stays.
    let stays = bench.dir.path().join("stays.toml");
    std::fs::copy(bench.config(), &stays).expect("copy the configuration");
    let _: () = bench.redis("ACL", ("SETUSER", "host", "on", ">p", "~*", "&*", "+@all"));
    let url = format!("redis://host:p@127.0.0.1:{}", bench.redis.port);
    bench.configure_url(&queues(2, ""), &url);
    let first = bench.host();
    let first_id = id(&first);
    eventually("the first host has the duties", || (holder(&mut bench, "q1") == first_id).then_some(()));
    let second = Host::start(&stays, "info,tqhost=debug");
    let second_id = id(&second);
    let _: () = bench.redis("ACL", ("SETUSER", "host", "-hdel"));
    bench.configure_url(&queues(1, ""), &url);
    eventually("Redis refuses to free the duties", || {
        let refused: Vec<redis::Value> = bench.redis("ACL", "LOG");
        format!("{refused:?}").contains("hdel").then_some(())
    });
    assert_eq!(holder(&mut bench, "q1"), first_id);
    let _: () = bench.redis("ACL", ("SETUSER", "host", "+hdel"));
    eventually("the second host has the duties", || (holder(&mut bench, "q1") == second_id).then_some(()));
    assert_eq!(holder(&mut bench, "q0"), first_id);
    Host::stop_all([first, second]);
}
