//! Networks that fall silent, break or delay, and how the host's readiness shows it.

use std::time::Duration;

use nix::sys::signal::Signal;
use tqhost::testing::queue::script;

use crate::support::proxy::{Fate, Proxy};
use crate::support::{Bench, Producer, eventually, within};

const EMPTY: &str = "[queues.work]\nplugin = \"empty\"\nlease = \"2s\"\n";

#[test]
fn network_25_half_open_connections_are_given_up_and_made_anew() {
    let mut bench = Bench::new(EMPTY);
    let proxy = Proxy::start(bench.redis.port);
    bench.configure_for(EMPTY, proxy.port);
    bench.install("empty", "empty");
    let host = bench.host();
    let before = bench.xadd("work", &[("n", "1")]);
    bench.until("work", &before, "COMPLETED");
    proxy.forget_connections();
    let ids: Vec<String> = (0..20).map(|n| bench.xadd("work", &[("n", &n.to_string())])).collect();
    // A read may take a second, and its reply ten more. Then the host reconnects by itself.
    within(Duration::from_secs(30), "the tasks are done", || {
        (bench.places("work").length == 0).then_some(())
    });
    bench.all_done("work", &ids);
    assert!(host.metric("tqhost_redis_reconnects_total") > 0.5);
    host.until_ready();
    host.stop();
}

/// The host gives the attempt up when it could not renew the lease, and learns later that Redis has given it
/// the task meanwhile.
#[test]
fn network_25_a_task_that_is_granted_after_its_lease_was_given_up_goes_back_at_once() {
    let queues = "[queues.work]\nplugin = \"empty\"\nlease = \"2s\"\nidempotency = { field = \"key\" }\n";
    let mut bench = Bench::new(queues);
    let proxy = Proxy::start(bench.redis.port);
    bench.configure_for(queues, proxy.port);
    bench.install("empty", "empty");
    let host = bench.host();
    proxy.hold(script::BEGIN.sha1(), Fate::HoldReply);
    let id = bench.xadd("work", &[("key", "k")]);
    eventually("the reply is held", || (proxy.hits() == 1).then_some(()));
    bench.until("work", &id, "COMPLETED");
    assert_eq!(
        host.count("tqhost_reclaimed_total", "work"),
        0,
        "it waited for no lease, and is charged no crash"
    );
    host.stop();
}

#[test]
fn network_27_a_partition_longer_than_the_lease_then_healed() {
    let queues = "[queues.work]\nplugin = \"sleeps\"\nlease = \"1s\"\nconcurrency = 10\nmax_crashes = 10\n";
    let mut bench = Bench::new(queues);
    let proxy = Proxy::start(bench.redis.port);
    bench.install("sleeps", "sleeps");
    bench.configure_for(queues, proxy.port);
    let parted = bench.host();
    bench.configure_for(queues, bench.redis.port);
    let ids: Vec<String> = (0..10).map(|_| bench.xadd("work", &[("ms", "2000")])).collect();
    bench.until_running("work", 10);
    proxy.part();
    let other = bench.host();
    // The tasks also end in the host that is cut off. Its settlements are on their way when the network
    // heals.
    other.log("took over tasks whose host fell silent");
    eventually("the attempts of the host that is cut off have ended", || {
        (parted.logged("attempt ended").len() >= 10).then_some(())
    });
    proxy.heal();
    bench.all_done("work", &ids);
    eventually("each was committed once", || {
        (parted.ended_as("work", "completed") + other.ended_as("work", "completed") == 10).then_some(())
    });
    for id in &ids {
        assert_eq!(bench.status("work", id, "attempt"), "1");
    }
    parted.until_ready();
    // The host that was cut off works again.
    other.stop();
    let after = bench.xadd("work", &[("ms", "0")]);
    bench.until("work", &after, "COMPLETED");
    parted.stop();
}

#[test]
fn network_28_latency_and_jitter_cost_time_only() {
    let queues = "[defaults]\nlease = \"2s\"\nbackoff = { delays = [\"100ms\"] }\n\
                  [queues.work]\nplugin = \"sleeps\"\nconcurrency = 50\n[queues.twice]\n\
                  plugin = \"fails-twice\"\nconcurrency = 50\n";
    let mut bench = Bench::new(queues);
    let proxy = Proxy::start(bench.redis.port);
    bench.configure_for(queues, proxy.port);
    bench.install("sleeps", "sleeps");
    bench.install("fails-twice", "fails-twice");
    let hosts = [bench.host(), bench.host()];
    proxy.delay(10..150);
    let work: Vec<String> = (0..100).map(|_| bench.xadd("work", &[("ms", "300")])).collect();
    let twice: Vec<String> = (0..100).map(|n| bench.xadd("twice", &[("n", &n.to_string())])).collect();
    bench.all_done("work", &work);
    bench.all_done("twice", &twice);
    for queue in ["work", "twice"] {
        let sum = |name| hosts.iter().map(|host| host.count(name, queue)).sum::<u64>();
        assert_eq!(
            (sum("tqhost_reclaimed_total"), sum("tqhost_lease_lost_total")),
            (0, 0),
            "no lease was lost to a slow network"
        );
        eventually("each was committed once", || {
            (hosts.iter().map(|host| host.ended_as(queue, "completed")).sum::<u64>() == 100).then_some(())
        });
    }
    for host in &hosts {
        host.until_ready();
    }
    proxy.heal();
    for host in hosts {
        host.stop();
    }
}

#[test]
fn proof_43_readiness_turns_false_when_reads_hang_while_ping_works() {
    let mut bench = Bench::new(EMPTY);
    let proxy = Proxy::start(bench.redis.port);
    bench.configure_for(EMPTY, proxy.port);
    bench.install("empty", "empty");
    let host = bench.host();
    host.until_ready();
    proxy.hold_all("XREADGROUP");
    host.until_unready("no sign of life");
    assert!((host.metric("tqhost_fetch_stalled{queue=\"work\"}") - 1.0).abs() < 0.1);
    assert_eq!(host.get("/livez").status, 200);
    // Redis itself works, through the same proxy.
    let through = redis::Client::open(format!("redis://127.0.0.1:{}", proxy.port)).expect("a valid URL");
    let mut through = through.get_connection().expect("a connection through the proxy");
    assert_eq!(redis::cmd("PING").query::<String>(&mut through).expect("PING"), "PONG");
    proxy.heal();
    let id = bench.xadd("work", &[("n", "1")]);
    bench.until("work", &id, "COMPLETED");
    host.until_ready();
    host.stop();
}

#[test]
fn network_27_a_host_that_is_cut_off_still_stops() {
    let mut bench = Bench::new(EMPTY);
    let queues = format!("shutdown_grace = \"300ms\"\n{EMPTY}");
    let proxy = Proxy::start(bench.redis.port);
    bench.configure_for(&queues, proxy.port);
    bench.install("empty", "empty");
    let mut host = bench.host();
    let producer = Producer::start(&bench.redis.url(), &[]);
    producer.produce(50);
    proxy.part();
    producer.produce(20);
    host.signal(Signal::SIGTERM);
    within(Duration::from_secs(30), "the host ends", || host.try_ended());
    proxy.heal();
    let ids = producer.stop();
    let next = bench.host();
    bench.all_done("work", &ids);
    next.stop();
}
