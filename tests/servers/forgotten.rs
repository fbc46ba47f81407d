//! A primary of a cluster that forgets: what it has acknowledged is not in the history that goes on.
//!
//! Not here: a watched primary (`failovers`), faults in random order (`turmoil`).

use std::collections::BTreeSet;

use redis::Cmd;
use serde_json::json;

use crate::support::{Bench, Cluster, eventually};

/// A bench with a queue on each of three primaries, each of which has a replica. The first queue enqueues to
/// the second one.
fn bench() -> (Bench, Cluster, Vec<String>) {
    let bench = Bench::new("[queues.unused]\n");
    let cluster = Cluster::to_be_parted(bench.dir.path(), 3);
    let names: Vec<String> = (0..3).map(|primary| cluster.name_on(primary)).collect();
    let rules =
        "plugin = \"effects\"\nlease = \"2s\"\nconcurrency = 10\nmax_crashes = 10\nmax_retries = 100\n";
    let [from, to, _] = [&names[0], &names[1], &names[2]];
    bench.configure(&format!(
        "[queues.{from}]\nenqueue_to = [\"{to}\"]\n{rules}\
         [queues.{to}]\n{rules}idempotency = {{ field = \"event\" }}\n[plugins.effects]\n{}",
        cluster.config()
    ));
    bench.install("effects", "effects");
    (bench, cluster, names)
}

/// Whether a task is completed, as this node has it.
fn is_done(cluster: &Cluster, number: usize, stream: &str, id: &str) -> bool {
    let get = redis::cmd("HGET").arg(format!("tq:{{{stream}}}:task:{id}")).arg("status").clone();
    // A replica answers only those who know that it is one.
    let _: Result<redis::Value, _> = cluster.ask(number, &redis::cmd("READONLY"));
    cluster.ask::<Option<String>>(number, &get).ok().flatten().as_deref() == Some("COMPLETED")
}

fn follower(cluster: &Cluster, primary: usize) -> usize {
    eventually("a primary has a replica", || (0..6).find(|number| cluster.follows(*number, primary)))
}

/// Waits until the replica of a primary has all that the primary has taken so far.
fn until_level(cluster: &Cluster, primary: usize, replica: usize) {
    let offset = |number: usize| -> Option<u64> {
        let info: String = cluster.ask(number, redis::cmd("INFO").arg("replication")).ok()?;
        let name = if number == primary { "master_repl_offset:" } else { "slave_repl_offset:" };
        info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    };
    let goal = offset(primary).expect("an offset");
    eventually("the replica is level", || (offset(replica)? >= goal).then_some(()));
}

/// Lets the replica of a primary hear nothing more: its connection is closed, and it may open no other one.
fn cut_replication(cluster: &Cluster, primary: usize, replica: usize) {
    let deny: Cmd = redis::cmd("ACL").arg("SETUSER").arg("default").arg("-psync").arg("-sync").clone();
    cluster.ok(primary, &deny);
    cluster.ok(primary, redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("replica"));
    eventually("the replica has lost its primary", || (!cluster.follows(replica, primary)).then_some(()));
}

/// The parents were settled, and their children were taken to another node. The new primary knows nothing of
/// that, so that it runs the parents again. Their children have keys, and each comes once.
#[test]
fn settlements_that_a_primary_forgot_are_made_again_and_children_with_keys_come_once() {
    const BEFORE: usize = 40;
    const AFTER: usize = 20;
    let (bench, mut cluster, names) = bench();
    let [from, to] = [&names[0], &names[1]];
    let child = |key: Option<String>| {
        let counter = key.as_ref().map_or_else(|| "plain".to_owned(), |key| format!("keyed-{key}"));
        json!(["enqueue", { "queue": to, "fields": { "do": [["count", counter, 1]] }, "key": key }])
    };
    let add = |n: usize| {
        let calls = json!([["count", format!("n{n}"), 1], child(Some(n.to_string())), child(None)]);
        cluster.xadd(from, &[("do", &calls.to_string())])
    };
    let host = bench.host();
    let first = add(1000);
    cluster.until(from, &first, "COMPLETED");
    bench.tqhost(&["pause", from]).ok();
    let before: Vec<String> = (0..BEFORE).map(add).collect();
    let primary = cluster.owner(from);
    let replica = follower(&cluster, primary);
    until_level(&cluster, primary, replica);
    cut_replication(&cluster, primary, replica);
    // A read that waited when the pause began takes one more task.
    let ended = before.iter().filter(|id| is_done(&cluster, replica, from, id)).count();
    bench.tqhost(&["resume", from]).ok();
    let after: Vec<String> = (BEFORE..BEFORE + AFTER).map(add).collect();
    for id in before.iter().chain(&after) {
        cluster.until(from, id, "COMPLETED");
    }
    eventually("their children have run", || {
        (cluster.counted(to, "plain") == (BEFORE + AFTER + 1) as u64).then_some(())
    });
    cluster.nodes[primary].kill();
    eventually("the replica takes over", || {
        let role: redis::Value = cluster.ask(replica, &redis::cmd("ROLE")).ok()?;
        format!("{role:?}").contains("master").then_some(())
    });
    // The pause is a thing that the new primary knows.
    eventually("the queue goes on", || (bench.tqhost(&["resume", from]).code == 0).then_some(()));
    cluster.nodes[primary].start_again();
    cluster.until_whole();
    for id in &before {
        cluster.until(from, id, "COMPLETED");
    }
    eventually("nothing is left on the way", || {
        let places = [from.clone(), format!("tq:{{{from}}}:out"), to.clone()];
        places.iter().all(|key| cluster.query::<u64>(redis::cmd("XLEN").arg(key)) == 0).then_some(())
    });
    let lost: BTreeSet<&String> =
        before.iter().chain(&after).filter(|id| cluster.status(from, id, "status").is_empty()).collect();
    assert_eq!(lost, after.iter().collect(), "the tasks that the replica lacked, and no others, are lost");
    for n in 0..BEFORE + AFTER {
        let is_lost = n >= BEFORE;
        assert_eq!(cluster.counted(from, &format!("n{n}")), u64::from(!is_lost), "committed once: {n}");
        assert_eq!(cluster.counted(to, &format!("keyed-{n}")), 1, "the child of {n} came once");
    }
    let plain = cluster.counted(to, "plain");
    println!("{} lost; {plain} children without keys of {} tasks", lost.len(), BEFORE + AFTER + 1);
    // Both runs of a parent have committed its child, each in its own history.
    assert_eq!(plain, (2 * BEFORE - ended + AFTER + 1) as u64);
    host.stop();
}

/// A primary that hears nothing of the others goes on with one host, while its replica takes over and works
/// with another host. When it hears of that, its history ends.
#[test]
fn of_two_primaries_that_run_the_same_tasks_one_history_is_left() {
    const TASKS: usize = 30;
    let (bench, cluster, names) = bench();
    let [from, to] = [&names[0], &names[1]];
    let add = |n: usize| {
        let key = n.to_string();
        let child = json!({ "do": [["count", format!("keyed-{n}"), 1]] });
        let calls = json!([
            ["count", format!("n{n}"), 1],
            ["sleep", 100],
            ["enqueue", { "queue": to, "fields": child, "key": key }],
        ]);
        cluster.xadd(from, &[("do", &calls.to_string())])
    };
    let old_side = bench.host();
    let first = add(1000);
    cluster.until(from, &first, "COMPLETED");
    bench.tqhost(&["pause", from]).ok();
    let ids: Vec<String> = (0..TASKS).map(add).collect();
    let primary = cluster.owner(from);
    let replica = follower(&cluster, primary);
    until_level(&cluster, primary, replica);
    cluster.part();
    cluster.ok(replica, redis::cmd("CLUSTER").arg("FAILOVER").arg("TAKEOVER"));
    eventually("the replica has taken over", || {
        let info: String = cluster.ask(replica, redis::cmd("INFO").arg("replication")).ok()?;
        info.contains("role:master").then_some(())
    });
    // Both sides go on. Only the replica knows that it has taken over, so the new host hears it from there.
    let pause = format!("tq:{{{from}}}:paused");
    cluster.ok(primary, redis::cmd("DEL").arg(&pause));
    cluster.ok(replica, redis::cmd("DEL").arg(&pause));
    let text = std::fs::read_to_string(bench.config()).expect("the configuration");
    let known = text.split("url = [").nth(1).and_then(|rest| rest.split(']').next()).expect("urls");
    bench.configure(&text.replace(known, &format!("\"{}\"", cluster.nodes[replica].url())));
    let new_side = bench.host();
    for (side, name) in [(primary, "old"), (replica, "new")] {
        let count = || ids.iter().filter(|id| is_done(&cluster, side, from, id)).count();
        let has_all = || (count() == TASKS).then_some(());
        eventually(&format!("the {name} primary has completed all tasks"), has_all);
        println!("the {name} primary has completed {} of {TASKS}", count());
    }
    cluster.heal();
    eventually("the old primary follows the new one", || cluster.follows(primary, replica).then_some(()));
    cluster.until_whole();
    cluster.all_done(from, &ids);
    eventually("nothing is left on the way", || {
        let places = [format!("tq:{{{from}}}:out"), to.clone()];
        places.iter().all(|key| cluster.query::<u64>(redis::cmd("XLEN").arg(key)) == 0).then_some(())
    });
    for n in 0..TASKS {
        assert_eq!(cluster.counted(from, &format!("n{n}")), 1, "{n} is committed once");
        assert_eq!(cluster.counted(to, &format!("keyed-{n}")), 1, "the child of {n} came once");
    }
    for name in [from, to] {
        bench.tqhost(&["doctor", name]).ok();
    }
    let ran = [&old_side, &new_side].map(|host| host.ended_as(from, "completed"));
    println!("the hosts have completed {ran:?} attempts");
    crate::support::Host::stop_all([old_side, new_side]);
}
