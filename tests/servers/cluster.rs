//! Redis Cluster: queues on all nodes, slots that move, nodes that fail.
//!
//! The names of the queues are chosen so that each node has one: a call with a key of another slot works by
//! chance where one node has both.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use serde_json::json;
use tqhost::testing::queue::script;

use crate::support::words::masked;
use crate::support::{Bench, Cluster, Ran, eventually};

/// A bench whose hosts use a cluster, and the names of a queue on each primary. In `queues`, `NAME` stands
/// for the name, and the whole text is there once for each.
fn bench(primaries: usize, with_replicas: bool, queues: &str) -> (Bench, Cluster, Vec<String>) {
    let bench = Bench::new("[queues.unused]\n");
    let cluster = Cluster::start(bench.dir.path(), primaries, with_replicas);
    let names: Vec<String> = (0..primaries).map(|primary| cluster.name_on(primary)).collect();
    let queues: String = names.iter().map(|name| queues.replace("NAME", name)).collect();
    bench.configure(&format!("{queues}\n{}", cluster.config()));
    (bench, cluster, names)
}

#[test]
fn queues_on_all_nodes_work_as_on_one_server() {
    let queues = "[queues.NAME]\nplugin = \"as-told\"\nlease = \"2s\"\nmax_retries = 2\n\
                  backoff = { base = \"100ms\", max = \"200ms\", jitter = 0.0 }\n\
                  idempotency = { field = \"key\" }\nserial = { field = \"tenant\" }\nevents = 100\n\
                  rate_limit = \"1000/s\"\nfailed_attempts = 3\n";
    let (bench, cluster, names) = bench(3, false, queues);
    bench.install("as-told", "as-told");
    let hosts = [bench.host(), bench.host()];
    let mut tasks = Vec::new();
    for name in &names {
        for n in 0..20 {
            let (end, retries) = (["ok", "reject"][n % 2], u8::from(n % 4 == 0));
            let data = json!({ "end": end, "retries": retries }).to_string();
            let (tenant, key) = ((n % 3).to_string(), format!("k{n}"));
            let fields = [("data", data.as_str()), ("tenant", &tenant), ("tq-key", &key)];
            tasks.push((name, cluster.xadd(name, &fields), ["COMPLETED", "FAILED"][n % 2]));
        }
        // A second task with a key that has been seen does nothing.
        cluster.xadd(name, &[("data", "{\"end\":\"ok\"}"), ("tenant", "0"), ("tq-key", "k0")]);
    }
    for (name, id, status) in &tasks {
        cluster.until(name, id, status);
    }
    for name in &names {
        eventually("the queue is empty", || {
            (cluster.query::<u64>(redis::cmd("XLEN").arg(name)) == 0).then_some(())
        });
        let dead = format!("tq:{{{name}}}:dead");
        assert_eq!(cluster.query::<u64>(redis::cmd("XLEN").arg(dead)), 10, "each rejected task is there");
        // The commands find their way, too.
        let done = bench.tqhost(&["enqueue", name, "data={\"end\":\"ok\"}", "tenant=a", "--wait"]).ok();
        assert!(done.stdout.contains("COMPLETED"), "{done:?}");
        let delayed =
            bench.tqhost(&["enqueue", name, "data={\"end\":\"ok\"}", "--delay", "1h", "--json"]).ok().json();
        let id = delayed["id"].as_str().expect("an id");
        bench.tqhost(&["cancel", name, id]).ok();
        cluster.until(name, id, "CANCELLED");
        bench.tqhost(&["dead", "requeue", name, "--all"]).ok();
        bench.tqhost(&["pause", name]).ok();
        bench.tqhost(&["resume", name]).ok();
        eventually("all of them are dead again", || {
            let dead = format!("tq:{{{name}}}:dead");
            (cluster.query::<u64>(redis::cmd("XLEN").arg(dead)) == 10).then_some(())
        });
        bench.tqhost(&["doctor", name]).ok();
    }
    let rows = bench.tqhost(&["queues", "--json"]).ok().json();
    assert_eq!(rows.as_array().map(Vec::len), Some(3), "{rows}");
    hosts[0].until_ready();
    crate::support::Host::stop_all(hosts);
}

#[test]
fn features_that_need_several_slots_are_refused_and_a_node_is_told_from_a_cluster() {
    let bench = Bench::new("[queues.a]\n");
    let cluster = Cluster::start(bench.dir.path(), 1, false);
    // A warning about the user may come before.
    let told = |ran: Ran| masked(ran.ends_with(1).stderr.lines().last().unwrap_or_default(), &[]);
    bench.configure_url("[queues.a]\n", &cluster.nodes[0].url());
    let refused = bench.tqhost(&["run"]);
    insta::assert_snapshot!(
        told(refused),
        @"tqhost: Redis at redis://127.0.0.1:PORT is a node of a cluster: write redis.url as a list of \
          urls of some of its nodes, like [\"redis://127.0.0.1:PORT\"]"
    );
    let url = bench.redis.url();
    let config = "[queues.a]\n[admin]\nlisten = \"127.0.0.1:0\"\n";
    bench.configure(&format!("{config}[redis]\nwait = \"0s\"\nurl = [\"{url}\"]\n"));
    let refused = bench.tqhost(&["run"]);
    insta::assert_snapshot!(
        told(refused),
        @"tqhost: Redis at redis://127.0.0.1:PORT is in no cluster: write redis.url as one url, not as a list"
    );
    let queues = "[queues.a]\nlist = \"a:list\"\non_end = \"b\"\n[queues.b]\ndead_letter = \"b:dead\"\n";
    bench.configure(&format!("{queues}{}", cluster.config().replace(", ", ",")));
    let refused = bench.tqhost(&["check"]);
    for way_out in ["stream = \"{a:list}:stream\"", "queues.b.dead_letter"] {
        assert!(refused.code == 78 && refused.stderr.contains(way_out), "{way_out}: {refused:?}");
    }
}

/// The last key of each call is for this: without it, Redis begins a call all of whose keys are still there.
#[test]
fn redis_begins_no_call_with_the_freeze_key_in_a_slot_that_moves() {
    let (bench, cluster, names) = bench(2, false, "[queues.NAME]\n");
    let host = bench.host();
    let name = &names[0];
    cluster.begin_move(cluster.slot(name), 0, 1);
    let call = |last: &str| -> Result<i64, redis::RedisError> {
        let keys = [name.clone(), format!("tq:{{{name}}}:history"), format!("tq:{{{name}}}:{last}")];
        let reach = format!("reach_{}", script::REACH.sha1());
        cluster.ask(0, redis::cmd("FCALL").arg(reach).arg(keys.len()).arg(&keys))
    };
    assert_eq!(call("history").ok(), Some(1));
    let refused = call("-").expect_err("the slot moves");
    assert_eq!(refused.code(), Some("TRYAGAIN"), "{refused}");
    cluster.end_move(cluster.slot(name), 0, 1);
    host.stop();
}

#[test]
fn nothing_is_done_by_halves_in_a_slot_that_moves() {
    let queues = "[queues.NAME]\nplugin = \"as-told\"\nlease = \"2s\"\nmax_crashes = 2\n\
                  serial = { field = \"tenant\" }\n\
                  backoff = { base = \"100ms\", max = \"200ms\", jitter = 0.0 }\n";
    let (bench, cluster, names) = bench(2, false, queues);
    bench.install("as-told", "as-told");
    let host = bench.host();
    let name = &names[0];
    let slot = cluster.slot(name);
    let data = json!({ "end": "ok", "ms": 20, "retries": 1 }).to_string();
    let add = |count: usize| -> Vec<String> {
        let fields = |n: usize| [("data", data.as_str()), ("tenant", ["a", "b", "c"][n % 3])];
        (0..count).map(|n| cluster.xadd(name, &fields(n))).collect()
    };
    let mut ids = add(50);
    let (mut from, mut to) = (0, 1);
    for _ in 0..4 {
        ids.extend(add(20));
        cluster.begin_move(slot, from, to);
        let before = cluster.places(from, name);
        // Longer than a lease, which nobody can renew meanwhile.
        std::thread::sleep(Duration::from_millis(2500));
        assert_eq!(cluster.places(from, name), before, "no call begins in a slot that moves");
        let began = Instant::now();
        cluster.end_move(slot, from, to);
        let next = cluster.xadd(name, &[("data", "{\"end\":\"ok\"}"), ("tenant", "d")]);
        cluster.until(name, &next, "COMPLETED");
        println!("a slot moves: a new task is done {:?} after the move began to end", began.elapsed());
        (from, to) = (to, from);
        let last = ids.last().expect("a task").clone();
        cluster.until(name, &last, "COMPLETED");
    }
    cluster.all_done(name, &ids);
    for id in &ids {
        assert_eq!(cluster.status(name, id, "attempt"), "2", "one retry, and no crash");
    }
    assert_eq!(host.count("tqhost_reclaimed_total", name), 0, "nobody counts as dead because a slot moved");
    host.stop();
}

#[test]
fn a_handler_that_reads_its_state_waits_for_a_failover() {
    let queues = "[queues.NAME]\nplugin = \"effects\"\nlease = \"20s\"\n";
    let (bench, mut cluster, names) = bench(3, true, queues);
    bench.install("effects", "effects");
    let host = bench.host();
    let name = &names[0];
    let calls = json!([["sleep", 1000], ["count", "n", 1]]).to_string();
    let id = cluster.xadd(name, &[("do", calls.as_str())]);
    cluster.until(name, &id, "PROCESSING");
    // The replica has what happened so far, since it has what comes after it.
    cluster.ok(0, redis::cmd("SET").arg(format!("{{{name}}}:later")).arg(1));
    let replicas: u64 = cluster.ask(0, redis::cmd("WAIT").arg(1).arg(10_000)).expect("WAIT");
    assert_eq!(replicas, 1);
    cluster.nodes[0].kill();
    cluster.until(name, &id, "COMPLETED");
    assert_eq!((cluster.status(name, &id, "attempt").as_str(), cluster.counted(name, "n")), ("1", 1));
    host.stop();
}

#[test]
fn a_primary_that_dies_is_followed_by_its_replica() {
    let queues = "[queues.NAME]\nplugin = \"empty\"\nlease = \"5s\"\n";
    let (bench, mut cluster, names) = bench(3, true, queues);
    bench.install("empty", "empty");
    let host = bench.host();
    for name in &names {
        let ids: Vec<String> = (0..20).map(|_| cluster.xadd(name, &[("n", "1")])).collect();
        cluster.all_done(name, &ids);
    }
    // A planned one first: the replica of the second primary takes its place.
    let began = Instant::now();
    cluster.ok(4, redis::cmd("CLUSTER").arg("FAILOVER"));
    let id = cluster.xadd(&names[1], &[("n", "2")]);
    cluster.until(&names[1], &id, "COMPLETED");
    println!("manual failover: {:?}", began.elapsed());
    // Then one that nobody planned. The other nodes work on meanwhile.
    let began = Instant::now();
    cluster.nodes[0].kill();
    let other = cluster.xadd(&names[2], &[("n", "3")]);
    cluster.until(&names[2], &other, "COMPLETED");
    let id = cluster.xadd(&names[0], &[("n", "3")]);
    let taken = began.elapsed();
    cluster.until(&names[0], &id, "COMPLETED");
    println!("kill: the cluster after {taken:?}, the host after {:?}", began.elapsed());
    host.until_ready();
    host.stop();
}

#[test]
fn a_primary_that_hangs_is_given_up() {
    let queues = "[queues.NAME]\nplugin = \"empty\"\nlease = \"5s\"\n";
    let (bench, cluster, names) = bench(3, true, queues);
    bench.install("empty", "empty");
    let host = bench.host();
    let id = cluster.xadd(&names[0], &[("n", "1")]);
    cluster.until(&names[0], &id, "COMPLETED");
    let pid = cluster.nodes[0].pid();
    kill(pid, Signal::SIGSTOP).expect("stop a primary");
    let began = Instant::now();
    let id = cluster.xadd(&names[0], &[("n", "2")]);
    let taken = began.elapsed();
    cluster.until(&names[0], &id, "COMPLETED");
    println!("stop: the cluster after {taken:?}, the host after {:?}", began.elapsed());
    kill(pid, Signal::SIGCONT).expect("let it go on");
    let id = cluster.xadd(&names[0], &[("n", "3")]);
    cluster.until(&names[0], &id, "COMPLETED");
    host.stop();
}
