//! Tasks that go to queues in other slots of a cluster.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{Bench, Cluster, Host, eventually};

/// A bench with a queue on each primary of a cluster. The first one enqueues to the others, and the last one
/// is told of its ends.
fn bench(with_replicas: bool) -> (Bench, Cluster, Vec<String>) {
    let bench = Bench::new("[queues.unused]\n");
    let cluster = Cluster::start(bench.dir.path(), 3, with_replicas);
    let names: Vec<String> = (0..3).map(|primary| cluster.name_on(primary)).collect();
    let rules = "plugin = \"effects\"\nlease = \"2s\"\nmax_crashes = 10\nconcurrency = 10\n\
                 retention = \"0s\"\nmax_retries = 100\n\
                 backoff = { base = \"100ms\", max = \"100ms\", jitter = 0.0 }\n";
    let [from, to, told] = [&names[0], &names[1], &names[2]];
    bench.configure(&format!(
        "[queues.{from}]\nenqueue_to = [\"{to}\", \"{told}\", \"{from}\"]\non_end = \"{told}\"\n{rules}\
         [queues.{to}]\n{rules}idempotency = {{ field = \"event\" }}\n[queues.{told}]\n{rules}\
         [plugins.effects]\n{}",
        cluster.config()
    ));
    bench.install("effects", "effects");
    (bench, cluster, names)
}

fn add(cluster: &Cluster, stream: &str, calls: &Value) -> String {
    cluster.xadd(stream, &[("do", &calls.to_string())])
}

fn length(cluster: &Cluster, key: &str) -> u64 {
    cluster.query(redis::cmd("XLEN").arg(key))
}

#[test]
fn a_task_for_another_node_is_like_any_other_and_a_flow_stays_within_one_slot() {
    let (bench, cluster, names) = bench(false);
    let host = bench.host();
    let next = |queue: &str, key: &str, more: Value| {
        let mut task = json!({ "queue": queue, "fields": { "do": [["count", key, 1]], "event": key } });
        task.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
        task
    };
    let calls = json!([
        ["enqueue", next(&names[1], "plain", json!({}))],
        ["enqueue", next(&names[1], "delayed", json!({ "delay": 1000 }))],
        ["enqueue", next(&names[1], "plain", json!({}))],
        ["enqueue", next(&names[1], "other", json!({ "key": "plain" }))],
        ["enqueue", next(&names[2], "plain", json!({}))],
        ["enqueue", next(&names[0], "plain", json!({}))],
        ["first", 1, ["retry"]],
    ]);
    add(&cluster, &names[0], &calls);
    // The last queue is also told of the end of a task with this counter.
    for name in &names {
        eventually("the task has run", || (cluster.counted(name, "plain") >= 1).then_some(()));
    }
    eventually("so has the delayed one", || (cluster.counted(&names[1], "delayed") == 1).then_some(()));
    assert_eq!(cluster.counted(&names[1], "plain"), 1, "two tasks have one key");
    assert_eq!(cluster.counted(&names[1], "other"), 0, "another task has its key");
    eventually("nothing is left on the way", || {
        (length(&cluster, &format!("tq:{{{}}}:out", names[0])) == 0).then_some(())
    });
    let flow =
        json!([["fan-out", [next(&names[1], "part", json!({}))], next(&names[0], "whole", json!({}))]]);
    add(&cluster, &names[0], &json!([["count", "begun", 1], flow[0]]));
    eventually("the task of the flow is done", || (cluster.counted(&names[0], "begun") == 1).then_some(()));
    assert_eq!(cluster.counted(&names[0], "whole") + cluster.counted(&names[1], "part"), 0);
    // A task that nobody can take to its queue stays, and is told.
    let out = format!("tq:{{{}}}:out", names[0]);
    let _: String = cluster.query(redis::cmd("XADD").arg(&out).arg("*").arg("to").arg("nowhere"));
    host.log("Redis refused a step of a task");
    assert_eq!(length(&cluster, &out), 1);
    let shown = bench.tqhost(&["queues", &names[0], "--json"]).ok().json();
    assert_eq!(shown["outgoing"], 1, "{shown}");
    // The tasks behind it go on.
    add(&cluster, &names[0], &json!([["enqueue", next(&names[1], "behind", json!({}))]]));
    eventually("the task has run", || (cluster.counted(&names[1], "behind") == 1).then_some(()));
    host.stop();
}

#[test]
fn each_task_comes_once_though_hosts_die_and_slots_move() {
    let count: u64 = std::env::var("TQHOST_RELAYED").ok().and_then(|count| count.parse().ok()).unwrap_or(800);
    let (bench, cluster, names) = bench(true);
    let [from, to, told] = [&names[0], &names[1], &names[2]];
    let mut hosts = vec![bench.host(), bench.host()];
    let mut gone = Vec::new();
    let child =
        |queue: &String| json!(["enqueue", { "queue": queue, "fields": { "do": [["count", "n", 1]] } }]);
    // The tasks for ends repeat the field `do`: each adds one, and finds no queue that it may enqueue to.
    let calls = json!([["count", "ended", 1], child(to), child(told)]);
    for n in 0..count {
        add(&cluster, from, &calls);
        match (n * 8 / count, n % (count / 8)) {
            (1 | 4 | 6, 0) => {
                let killed = hosts.remove(0);
                killed.signal(Signal::SIGKILL);
                gone.push(killed);
                hosts.push(bench.host());
            }
            (2, 0) => {
                let (owner, slot) = (cluster.owner(from), cluster.slot(from));
                let other = cluster.owner(to);
                cluster.begin_move(slot, owner, other);
                std::thread::sleep(Duration::from_millis(500));
                cluster.end_move(slot, owner, other);
            }
            (3 | 5, 0) => cluster.fail_over(cluster.owner(told)),
            _ => {}
        }
    }
    eventually("all tasks have run, and nothing is on the way", || {
        // In the order in which tasks go on, so that none is overlooked on its way.
        let is_done = |queue: &String| {
            let delayed = redis::cmd("ZCARD").arg(format!("tq:{{{queue}}}:delayed")).clone();
            cluster.query::<u64>(&delayed) + length(&cluster, queue) + cluster.query::<u64>(&delayed) == 0
        };
        let is_relayed = || length(&cluster, &format!("tq:{{{from}}}:out")) == 0;
        (is_done(from) && is_relayed() && is_done(to) && is_done(told)).then_some(())
    });
    assert_eq!(cluster.counted(from, "ended"), count, "each task is committed once");
    assert_eq!(cluster.counted(to, "n"), count, "each child comes once");
    assert_eq!(cluster.counted(told, "n"), count, "each child comes once");
    assert_eq!(cluster.counted(told, "ended"), count, "each end is told once");
    Host::stop_all(hosts);
}
