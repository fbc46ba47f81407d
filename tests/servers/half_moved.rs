//! A stream whose move takes longer than the time after which its node counts as failed.
//!
//! A key is moved in one piece, and its node does nothing else meanwhile. So its replica takes over in the
//! middle of the move, and the stream is at both places: the new primary has the slot, and the target a copy
//! that nobody reads. The move is made long here by a reply that does not arrive.

use redis::Value;
use serde_json::json;

use crate::support::proxy::{Fate, Proxy};
use crate::support::{Bench, Cluster, eventually};

const TASKS: usize = 300;
/// How long the node waits for the reply, in milliseconds.
const HANGS: u64 = 6000;

/// Sends a command about a key that the node is about to get.
fn asking(cluster: &Cluster, number: usize, command: &str, key: &str) -> u64 {
    let mut connection = cluster.nodes[number].connection();
    eventually("the node answers", || {
        redis::cmd("ASKING").exec(&mut connection).ok()?;
        redis::cmd(command).arg(key).query(&mut connection).ok()
    })
}

#[test]
fn each_task_is_done_once_though_a_primary_is_replaced_while_it_moves_their_stream() {
    let bench = Bench::new("[queues.unused]\n");
    let cluster = Cluster::start(bench.dir.path(), 3, true);
    let name = cluster.name_on(0);
    bench.configure(&format!(
        "[queues.{name}]\nplugin = \"effects\"\nlease = \"2s\"\nconcurrency = 5\nmax_crashes = 2\n\
         max_retries = 100\n[plugins.effects]\n{}",
        cluster.config()
    ));
    bench.install("effects", "effects");
    let add = |n: usize| {
        let calls = json!([["count", format!("n{n}"), 1], ["sleep", 40]]).to_string();
        cluster.xadd(&name, &[("do", &calls)])
    };
    let host = bench.host();
    let ids: Vec<String> = (0..TASKS).map(add).collect();
    let (slot, replica) = (cluster.slot(&name), 3);
    let copied: u64 = cluster.ask(0, redis::cmd("WAIT").arg(1).arg(1500)).expect("WAIT");
    assert_eq!(copied, 1, "the replica has the tasks");
    cluster.begin_move(slot, 0, 1);
    let way = Proxy::start(cluster.nodes[1].port);
    way.hold("RESTORE-ASKING", Fate::HoldReply);
    let mut migrate = redis::cmd("MIGRATE");
    migrate.arg("127.0.0.1").arg(way.port).arg(&name).arg(0).arg(HANGS);
    let gone: Result<Value, _> = cluster.ask(0, &migrate);
    assert!(gone.is_err_and(|error| error.is_timeout()), "the node hangs");
    eventually("the replica takes over", || {
        let role: Value = cluster.ask(replica, &redis::cmd("ROLE")).ok()?;
        format!("{role:?}").contains("master").then_some(())
    });
    // The target does not hear of a new primary of a slot that it is about to get: it knows of none, and
    // serves nothing until an operator names it.
    let id = cluster.id(replica);
    let name_it = redis::cmd("CLUSTER").arg("SETSLOT").arg(slot).arg("NODE").arg(id).clone();
    eventually("the target knows the new primary", || cluster.ask::<()>(1, &name_it).ok());
    // A new primary of Valkey goes on with the move, and takes no call that has keys of both places.
    cluster.ok(replica, redis::cmd("CLUSTER").arg("SETSLOT").arg(slot).arg("STABLE"));
    let left = asking(&cluster, 1, "XLEN", &name) as usize;
    assert!(left > 0, "the target has a copy of what was left");
    let done = || ids.iter().filter(|id| cluster.status(&name, id, "status") == "COMPLETED").count();
    eventually("the host works on the new primary", || (done() > TASKS - left).then_some(()));
    println!("{left} of {TASKS} tasks were left when the stream was moved");
    // Then the operator drops the copy, which is older than the stream, and ends the move. The command
    // `redis-cli --cluster fix` refuses to choose; with `--cluster-replace` the copy would bring back tasks
    // that are done.
    assert_eq!(asking(&cluster, 1, "DEL", &name), 1);
    cluster.ok(1, redis::cmd("CLUSTER").arg("SETSLOT").arg(slot).arg("STABLE"));
    eventually("the old primary follows the new one", || cluster.follows(0, replica).then_some(()));
    cluster.until_whole();
    // The next try is fast enough.
    cluster.begin_move(slot, replica, 1);
    cluster.end_move(slot, replica, 1);
    cluster.all_done(&name, &ids);
    for n in 0..TASKS {
        assert_eq!(cluster.counted(&name, &format!("n{n}")), 1, "{n} is committed once");
    }
    assert_eq!(host.count("tqhost_reclaimed_total", &name), 0, "the host lived");
    bench.tqhost(&["doctor", &name]).ok();
    host.stop();
}
