//! A host forgets what it remembers of the nodes of a cluster, and what it decided about them, in time.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{Bench, Cluster, Host, eventually};

/// A bench whose hosts use a cluster, with queues that all lie on the node of the name `t`.
fn bench(count: usize, replicas: bool, rules: &str) -> (Bench, Cluster, Vec<String>) {
    let bench = Bench::new("[queues.unused]\n");
    let cluster = Cluster::start(bench.dir.path(), if replicas { 3 } else { 2 }, replicas);
    let streams: Vec<String> = (0..count).map(|n| format!("{{t}}:{n}")).collect();
    let queues: String =
        (0..count).map(|n| format!("[queues.q{n}]\nstream = \"{}\"\n{rules}", streams[n])).collect();
    bench.configure(&format!("{queues}{}", cluster.config()));
    (bench, cluster, streams)
}

/// The number of entries that are left in these streams.
fn left(cluster: &Cluster, streams: &[String]) -> u64 {
    streams.iter().map(|stream| cluster.query::<u64>(redis::cmd("XLEN").arg(stream))).sum()
}

fn add_to_each(cluster: &Cluster, streams: &[String]) {
    for stream in streams {
        let _: String = cluster.query(redis::cmd("XADD").arg(stream).arg("*").arg("n").arg(1));
    }
}

/// Waits until all queues rest: no read of a queue of its own is left on any node.
fn until_resting(cluster: &Cluster) {
    eventually("no queue reads for itself", || {
        let reads = (0..cluster.nodes.len()).map(|number| {
            let clients: String = cluster.ask(number, redis::cmd("CLIENT").arg("LIST")).ok()?;
            Some(
                clients
                    .lines()
                    .filter(|line| line.contains("flags=b") && line.contains("=xreadgroup"))
                    .count(),
            )
        });
        (reads.sum::<Option<usize>>()? == 0).then_some(())
    });
}

#[test]
fn a_server_that_does_not_tell_of_changes_is_asked_again_and_again() {
    let (bench, cluster, streams) = bench(3, false, "plugin = \"empty\"\n");
    bench.install("empty", "empty");
    for number in 0..cluster.nodes.len() {
        cluster.ok(number, redis::cmd("ACL").arg("SETUSER").arg("default").arg("-client|tracking"));
    }
    let host = bench.host();
    host.log("Redis does not tell of changes");
    add_to_each(&cluster, &streams);
    eventually("all tasks are done", || (left(&cluster, &streams) == 0).then_some(()));
    until_resting(&cluster);
    add_to_each(&cluster, &streams);
    eventually("those that come later, too", || (left(&cluster, &streams) == 0).then_some(()));
    host.stop();
}

#[test]
fn replies_of_a_primary_do_not_hold_for_its_successor() {
    let (bench, cluster, streams) = bench(30, true, "plugin = \"empty\"\n");
    bench.install("empty", "empty");
    let host = bench.host();
    add_to_each(&cluster, &streams);
    eventually("all tasks are done", || (left(&cluster, &streams) == 0).then_some(()));
    until_resting(&cluster);
    cluster.fail_over(cluster.owner(&streams[0]));
    let began = Instant::now();
    add_to_each(&cluster, &streams);
    eventually("the tasks on the new primary are done", || (left(&cluster, &streams) == 0).then_some(()));
    // By turns alone, one queue a second would see its task.
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    host.stop();
}

/// No server says anything of a key that does not exist when its slot moves away.
#[test]
fn a_pause_is_seen_in_a_slot_that_has_moved() {
    let (bench, cluster, streams) = bench(2, false, "plugin = \"empty\"\n");
    bench.install("empty", "empty");
    let host = bench.host();
    add_to_each(&cluster, &streams);
    eventually("all tasks are done", || (left(&cluster, &streams) == 0).then_some(()));
    until_resting(&cluster);
    let (from, slot) = (cluster.owner(&streams[0]), cluster.slot(&streams[0]));
    cluster.begin_move(slot, from, 1 - from);
    cluster.end_move(slot, from, 1 - from);
    add_to_each(&cluster, &streams);
    eventually("the host works at the new place", || (left(&cluster, &streams) == 0).then_some(()));
    bench.tqhost(&["pause", "q0"]).ok();
    eventually("a task stays in the paused queue, though one of the other queue is done", || {
        add_to_each(&cluster, &streams);
        eventually("the other queue is empty", || (left(&cluster, &streams[1..]) == 0).then_some(()));
        (left(&cluster, &streams[..1]) > 0).then_some(())
    });
    bench.tqhost(&["resume", "q0"]).ok();
    eventually("it goes on", || (left(&cluster, &streams) == 0).then_some(()));
    host.stop();
}

#[test]
fn a_host_that_lives_is_not_taken_for_dead_by_another_one_after_a_slot_has_moved() {
    let (bench, cluster, streams) = bench(1, false, "plugin = \"as-told\"\nlease = \"2s\"\n");
    bench.install("as-told", "as-told");
    let busy = bench.host();
    let data = json!({ "end": "ok", "ms": 9000 }).to_string();
    let ids: Vec<String> = (0..3)
        .map(|_| cluster.query(redis::cmd("XADD").arg(&streams[0]).arg("*").arg("data").arg(&data)))
        .collect();
    eventually("all tasks run", || {
        let status =
            |id: &String| redis::cmd("HGET").arg(format!("tq:{{t}}:0:task:{id}")).arg("status").clone();
        let run = |id| cluster.query::<Option<String>>(&status(id)).as_deref() == Some("PROCESSING");
        ids.iter().all(run).then_some(())
    });
    // The other host has nothing to renew, so no call of its own tells it that the slot moves.
    let other = bench.host();
    other.until_ready();
    let (from, slot) = (cluster.owner(&streams[0]), cluster.slot(&streams[0]));
    cluster.begin_move(slot, from, 1 - from);
    // Longer than two leases: nobody can renew one in a slot that moves.
    std::thread::sleep(Duration::from_millis(4500));
    cluster.end_move(slot, from, 1 - from);
    eventually("all tasks are done", || (left(&cluster, &streams) == 0).then_some(()));
    for host in [&busy, &other] {
        assert_eq!(host.count("tqhost_reclaimed_total", "q0"), 0, "its host lives");
    }
    Host::stop_all([busy, other]);
}
