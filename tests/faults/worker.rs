//! Hosts that die at a chosen moment, hang, share a name, or are replaced under load.
//!
//! A proxy chooses the moment: it holds one request or its reply, and the host is killed while it waits.
//!
//! Not here: other tests of dying hosts (`hosts`).

use std::collections::HashSet;
use std::sync::LazyLock;

use nix::sys::signal::Signal;
use tqhost::testing::queue::script::{self, Script};

use super::ends::{self, Added};
use crate::support::proxy::{Fate, Proxy};
use crate::support::{Bench, Held, Host, Places, Producer, eventually};

/// Kills a host during a request that contains `pattern`: before it reaches Redis, or after Redis has carried
/// it out. Another host must end every task once, each with its own outcome.
fn killed_at(pattern: &str, fate: Fate) {
    let (mut bench, proxy) = ends::behind_proxy("");
    let host = bench.host();
    proxy.hold(pattern, fate);
    let added: Vec<Added> = (0..3).flat_map(|_| ends::add(&mut bench, "800")).collect();
    eventually("the host waits for Redis", || (proxy.hits() == 1).then_some(()));
    host.kill();
    let host = bench.host();
    ends::each_ended_once(&mut bench, &added);
    host.stop();
}

/// Kills a host during a call of a script.
fn killed_in(script: &'static LazyLock<Script>, fate: Fate) {
    killed_at(script.sha1(), fate);
}

#[test]
fn worker_02_kill_9_before_a_read() {
    killed_at("XREADGROUP", Fate::HoldRequest);
}

#[test]
fn worker_02_kill_9_after_a_read() {
    killed_at("XREADGROUP", Fate::HoldReply);
}

#[test]
fn worker_02_kill_9_before_begin() {
    killed_in(&script::BEGIN, Fate::HoldRequest);
}

#[test]
fn worker_02_kill_9_after_begin() {
    killed_in(&script::BEGIN, Fate::HoldReply);
}

#[test]
fn worker_02_kill_9_before_settle() {
    killed_in(&script::SETTLE, Fate::HoldRequest);
}

#[test]
fn worker_02_kill_9_after_settle() {
    killed_in(&script::SETTLE, Fate::HoldReply);
}

#[test]
fn worker_02_kill_9_before_promote() {
    killed_in(&script::PROMOTE, Fate::HoldRequest);
}

#[test]
fn worker_02_kill_9_after_promote() {
    killed_in(&script::PROMOTE, Fate::HoldReply);
}

#[test]
fn worker_02_kill_9_before_heartbeat() {
    killed_in(&script::HEARTBEAT, Fate::HoldRequest);
}

#[test]
fn worker_02_kill_9_after_heartbeat() {
    killed_in(&script::HEARTBEAT, Fate::HoldReply);
}

#[test]
fn worker_02_kill_9_after_reclaim() {
    let (mut bench, proxy) = ends::behind_proxy("");
    let id = bench.xadd("slow", &[("ms", "3000")]);
    let first = bench.host();
    bench.until_running("slow", 1);
    first.kill();
    proxy.hold(script::RECLAIM.sha1(), Fate::HoldReply);
    let second = bench.host();
    eventually("the task is claimed by a host that does not know it", || (proxy.hits() == 1).then_some(()));
    second.kill();
    let third = bench.host();
    bench.until("slow", &id, "COMPLETED");
    assert_eq!(bench.status("slow", &id, "attempt"), "1");
    third.until_ended_as("slow", "completed", 1);
    third.stop();
}

#[test]
fn worker_03_killed_between_a_handlers_success_and_its_settlement() {
    let (mut bench, proxy) = ends::behind_proxy("");
    proxy.hold(script::SETTLE.sha1(), Fate::HoldRequest);
    let first = bench.host();
    let id = bench.xadd("fine", &[("n", "1")]);
    eventually("the handler has ended, its settlement is on the way", || (proxy.hits() == 1).then_some(()));
    first.log("attempt ended");
    first.kill();
    assert_ne!(bench.status("fine", &id, "status"), "COMPLETED", "nothing was committed");
    assert_eq!(bench.places("fine"), Places { length: 1, pending: 1, ..Places::default() });
    let second = bench.host();
    bench.until("fine", &id, "COMPLETED");
    bench.until_drained("fine");
    // One crash causes one more execution.
    second.until_count("tqhost_reclaimed_total", "fine", 1);
    second.until_ended_as("fine", "completed", 1);
    assert_eq!(bench.status("fine", &id, "attempt"), "1");
    second.stop();
}

#[test]
fn worker_07_heartbeats_do_not_keep_a_hung_handler_alive() {
    let rules = "timeout = \"3s\"\nlease = \"1s\"\nmax_retries = 0\n";
    let mut bench = Bench::new(&format!(
        "[queues.busy]\nplugin = \"loops\"\n{rules}[queues.parked]\nplugin = \"sleeps\"\n{rules}"
    ));
    bench.install("loops", "loops");
    bench.install("sleeps", "sleeps");
    // A second host would reclaim the tasks if their leases ended.
    let hosts = [bench.host(), bench.host()];
    let ids =
        [("busy", bench.xadd("busy", &[("n", "1")])), ("parked", bench.xadd("parked", &[("ms", "600000")]))];
    for (queue, id) in &ids {
        bench.until(queue, id, "FAILED");
        let error = bench.status(queue, id, "error");
        assert!(error.starts_with("timeout: "), "{queue}: {error}");
        let time = |bench: &mut Bench, field| bench.status(queue, id, field).parse::<u64>().expect("a time");
        let took = time(&mut bench, "finished_at") - time(&mut bench, "started_at");
        assert!((3000..10_000).contains(&took), "{queue} was ended after {took} ms");
        assert_eq!(bench.places(queue), Places { dead: 1, ..Places::default() });
        for host in &hosts {
            assert_eq!(
                (host.count("tqhost_reclaimed_total", queue), host.count("tqhost_lease_lost_total", queue)),
                (0, 0)
            );
        }
    }
    Host::stop_all(hosts);
}

/// The names of a group's consumers.
fn consumers(bench: &mut Bench) -> HashSet<String> {
    let rows: Vec<Vec<redis::Value>> = bench.redis("XINFO", ("CONSUMERS", "work", "tqhost"));
    rows.iter().map(|row| redis::from_redis_value_ref(&row[1]).expect("a name")).collect()
}

#[test]
fn worker_09_hosts_of_one_machine_and_configuration_have_names_of_their_own() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"sleeps\"\nconcurrency = 5\nlease = \"1s\"\n");
    bench.install("sleeps", "sleeps");
    let ids: Vec<String> = (0..20).map(|_| bench.xadd("work", &[("ms", "2000")])).collect();
    let hosts = [bench.host(), bench.host()];
    let name = |host: &Host| host.log("tqhost is running")["host"].as_str().expect("a name").to_owned();
    let names: HashSet<String> = hosts.iter().map(name).collect();
    bench.until_running("work", 10);
    assert_eq!(consumers(&mut bench), names, "two names for two hosts");
    bench.all_done("work", &ids);
    eventually("both worked, and no task was run twice", || {
        let completed: Vec<u64> = hosts.iter().map(|host| host.ended_as("work", "completed")).collect();
        (completed.iter().all(|n| *n > 0) && completed.iter().sum::<u64>() == 20).then_some(())
    });
    let [first, second] = hosts;
    first.kill();
    let again = bench.host();
    assert!(!names.contains(&name(&again)), "a start has a name of its own");
    again.stop();
    second.stop();
}

/// Replaces three hosts, one after the other, while tasks flow. With `new_first` the new host starts before
/// the old one stops.
fn rolling_restart(new_first: bool) {
    let mut bench = Bench::new("[queues.work]\nplugin = \"sleeps\"\nconcurrency = 20\nlease = \"2s\"\n");
    bench.install("sleeps", "sleeps");
    let mut old = bench.host();
    let producer = Producer::start(&bench.redis.url(), &[("ms", "50")]);
    let mut released = 0;
    for _ in 0..3 {
        producer.produce(100);
        if new_first {
            let new = bench.host();
            producer.produce(20);
            released += old.ended_as("work", "released");
            old.stop();
            old = new;
        } else {
            released += old.ended_as("work", "released");
            old.stop();
            producer.produce(20);
            old = bench.host();
        }
    }
    let ids = producer.stop();
    bench.all_done("work", &ids);
    for id in &ids {
        assert_eq!(bench.status("work", id, "attempt"), "1", "a restart charges no attempt");
    }
    assert_eq!(
        (released, old.count("tqhost_reclaimed_total", "work"), old.count("tqhost_lease_lost_total", "work")),
        (0, 0, 0)
    );
    assert_eq!(consumers(&mut bench).len(), 1, "hosts that stop leave no name behind");
    old.stop();
}

#[test]
fn worker_10_rolling_restart_new_host_first() {
    rolling_restart(true);
}

#[test]
fn worker_10_rolling_restart_old_host_first() {
    rolling_restart(false);
}

const TWO: &str = "[queues.first]\nplugin = \"sleeps\"\n[queues.second]\nplugin = \"sleeps\"\n";

#[test]
fn worker_04_a_queue_whose_preparation_fails_is_prepared_again() {
    let queues: String = (0..10).map(|n| format!("[queues.q{n}]\nplugin = \"echo\"\n")).collect();
    let mut bench = Bench::new(&queues);
    let proxy = Proxy::start(bench.redis.port);
    bench.configure_for(&queues, proxy.port);
    bench.install("echo", "echo");
    // Each lost reply ends the connection of all queues.
    proxy.lose_replies("tq:{q9}:", 3);
    let ids: Vec<String> = (0..10).map(|n| bench.xadd(&format!("q{n}"), &[("n", "1")])).collect();
    let host = bench.host();
    for (n, id) in ids.iter().enumerate() {
        bench.until(&format!("q{n}"), id, "COMPLETED");
    }
    assert_eq!(proxy.hits(), 3);
    host.stop();
}

#[test]
fn worker_04_sigterm_at_the_start_leaves_nothing_behind() {
    let mut bench = Bench::new(TWO);
    let proxy = Proxy::start(bench.redis.port);
    bench.configure_for(TWO, proxy.port);
    bench.install("sleeps", "sleeps");
    // The network is so slow that one queue is ready and the other is not.
    proxy.delay(400..401);
    let mut host = bench.host_that_may_fail();
    eventually("the first queue is prepared", || bench.redis::<bool>("EXISTS", "first").then_some(()));
    host.signal(Signal::SIGTERM);
    assert_eq!(host.ended(), 0, "{}", host.raw());
    let names: Vec<redis::Value> = bench.redis("XINFO", ("CONSUMERS", "first", "tqhost"));
    assert!(names.is_empty(), "no name is left behind: {names:?}");
}

#[test]
fn worker_04_a_second_sigterm_gives_tasks_back_while_a_read_waits_for_its_reply() {
    let held = Held::new();
    let queues = "[queues.work]\nplugin = \"fetches\"\nconcurrency = 5\n";
    let mut bench = held.bench(queues);
    let proxy = Proxy::start(bench.redis.port);
    bench.configure_for(&held.queues(queues), proxy.port);
    let mut host = bench.host();
    let ids: Vec<String> = (0..3).map(|_| bench.xadd("work", &held.task())).collect();
    bench.until_running("work", ids.len());
    proxy.hold("XREADGROUP", Fate::HoldReply);
    eventually("a read waits for its reply", || (proxy.hits() == 1).then_some(()));
    host.signal(Signal::SIGTERM);
    host.log("stopping: no new tasks");
    host.signal(Signal::SIGTERM);
    host.log("told to stop again");
    assert_eq!(host.ended(), 0);
    assert_eq!(bench.places("work"), Places { length: 3, ..Places::default() }, "they were given back");
    for id in &ids {
        assert_eq!(bench.status("work", id, "status"), "PENDING");
    }
}

#[test]
fn worker_04_sigterm_gives_back_a_task_whose_delivery_was_lost() {
    let queues = "[queues.work]\nplugin = \"empty\"\n";
    let mut bench = Bench::new(queues);
    let proxy = Proxy::start(bench.redis.port);
    bench.configure_for(queues, proxy.port);
    let mut host = bench.host();
    let id = bench.xadd("work", &[("n", "1")]);
    proxy.hold("XREADGROUP", Fate::HoldReply);
    // The host reads nothing before it has the plugin.
    bench.install("empty", "empty");
    eventually("the task is delivered in a reply that does not arrive", || (proxy.hits() == 1).then_some(()));
    assert_eq!(bench.places("work").pending, 1);
    host.signal(Signal::SIGTERM);
    assert_eq!(host.ended(), 0);
    assert_eq!(bench.places("work"), Places { length: 1, ..Places::default() }, "it was given back");
    let next = bench.host();
    bench.until("work", &id, "COMPLETED");
    assert_eq!(next.count("tqhost_reclaimed_total", "work"), 0, "it does not count as a crash");
    next.stop();
}

/// A host is suspended, another host reclaims its task, and somebody deletes the entry. The first host does
/// not count that as a loss when it continues.
#[test]
fn worker_05_a_host_that_wakes_up_does_not_end_what_another_one_runs_without_its_entry() {
    let held = Held::new();
    let mut bench = held.bench("[queues.work]\nplugin = \"fetches\"\nlease = \"1s\"\n");
    let first = bench.host();
    let id = bench.xadd("work", &held.task());
    bench.until("work", &id, "PROCESSING");
    let consumer = bench.status("work", &id, "consumer");
    first.signal(Signal::SIGSTOP);
    let second = bench.host();
    eventually("another host has it", || (bench.status("work", &id, "consumer") != consumer).then_some(()));
    let _: u64 = bench.redis("XDEL", ("work", &id));
    second.until_count("tqhost_lost_entries_total", "work", 1);
    first.signal(Signal::SIGCONT);
    first.until_count("tqhost_lease_lost_total", "work", 1);
    held.end();
    bench.until("work", &id, "COMPLETED");
    second.stop();
    first.stop();
}
