//! A cluster in which primaries die, hang, step down and give slots away, and hosts are killed, in random
//! order under load.
//!
//! A primary that dies or hangs for long may take acknowledged writes with it, because Redis replicates them
//! later. So a task is lost if the last primary of its slot knows nothing of it, and it was acknowledged just
//! before or during such a fault. All others must be completed, with their effects once, and nothing may be
//! left over or in two places. `TQHOST_STORM_SEED` repeats a run's plan, and `TQHOST_STORM_SECONDS` is how
//! long it lasts (20). Not here: faults in which nothing may be lost (`storm`).

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use fastrand::Rng;
use nix::sys::signal::{Signal, kill};
use serde_json::json;

use crate::support::{Bench, Cluster, Host, Load, eventually};

const QUEUES: &str = "[queues.NAME]\nplugin = \"effects\"\nlease = \"2s\"\nmax_crashes = 1000\n\
                      max_retries = 100\nconcurrency = 5\n\
                      backoff = { base = \"50ms\", max = \"100ms\", jitter = 0.0 }\n";
const SERIAL: &str = "serial = { field = \"tenant\" }\n";
/// A connection that has no answer for so long is given up.
const PATIENCE: Duration = Duration::from_secs(1);
/// A replica has each write of its primary after this time, also on a busy machine.
const LAG: Duration = Duration::from_secs(1);
/// The ids of all tasks in a queue.
const IDS: &str = "local ids = {}
    local function add(fields)
        for i = 1, #fields, 2 do
            if fields[i] == 'tq-id' then table.insert(ids, fields[i + 1]) end
        end
    end
    for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+')) do add(entry[2]) end
    for _, packed in ipairs(redis.call('HVALS', KEYS[2])) do add(cmsgpack.unpack(packed)) end
    return ids";

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

/// Adds tasks to these queues in turn, each to the node that takes it.
fn load(cluster: &Cluster, names: &[String]) -> Load {
    let urls: Vec<String> = cluster.nodes.iter().map(|node| node.url()).collect();
    let (names, mut at) = (names.to_vec(), vec![0; names.len()]);
    let mut connections: HashMap<usize, redis::Connection> = HashMap::new();
    Load::start(Duration::from_millis(15), move |n| {
        let queue = n % names.len();
        let calls = json!([["count", format!("n{n}"), 1], ["sleep", 20], ["first", 1, ["retry"]]]);
        let (id, tenant) = (format!("task-{n}"), (n % 7).to_string());
        let mut add = redis::cmd("XADD");
        add.arg(&names[queue]).arg("*").arg("tq-id").arg(id).arg("tenant").arg(tenant);
        add.arg("do").arg(calls.to_string());
        for _ in 0..urls.len() {
            let node = at[queue];
            let open = || {
                let client = redis::Client::open(urls[node].as_str()).ok()?;
                let connection = client.get_connection_with_timeout(PATIENCE).ok()?;
                connection.set_read_timeout(Some(PATIENCE)).ok()?;
                Some(connection)
            };
            let connection = connections.remove(&node).or_else(open);
            if let Some(mut connection) = connection {
                let added = add.query::<String>(&mut connection);
                let is_broken = added.as_ref().is_err_and(redis::RedisError::is_io_error);
                if !is_broken {
                    connections.insert(node, connection);
                }
                if added.is_ok() || is_broken {
                    // It may have arrived although nobody said so: another one is sent next.
                    at[queue] = if is_broken { (node + 1) % urls.len() } else { node };
                    return added.is_ok();
                }
            }
            at[queue] = (node + 1) % urls.len();
        }
        false
    })
}

/// Waits until each primary has a replica that follows it.
fn until_replicated(cluster: &Cluster) {
    cluster.until_whole();
    let following = |number: usize| {
        (0..cluster.nodes.len()).any(|primary| primary != number && cluster.follows(number, primary))
    };
    eventually("each primary has a replica", || {
        let count = (0..cluster.nodes.len()).filter(|number| following(*number)).count();
        (2 * count == cluster.nodes.len()).then_some(())
    });
}

fn is_primary(cluster: &Cluster, number: usize) -> bool {
    let info: String = cluster.ask(number, redis::cmd("INFO").arg("replication")).unwrap_or_default();
    info.contains("role:master")
}

fn replica_of(cluster: &Cluster, primary: usize) -> usize {
    eventually("a primary has a replica", || {
        (0..cluster.nodes.len()).find(|number| *number != primary && cluster.follows(*number, primary))
    })
}

fn write_at_once(cluster: &Cluster, number: usize) {
    let set = redis::cmd("CONFIG").arg("SET").arg("appendfsync").arg("always").clone();
    eventually("a node is set", || cluster.ask::<()>(number, &set).ok());
}

/// Does something to the node of a queue, and says whether it may have lost acknowledged writes.
fn disturb(cluster: &mut Cluster, random: &mut Rng, names: &[String], hold: Duration) -> (String, bool) {
    let queue = random.usize(0..names.len());
    let primary = cluster.owner(&names[queue]);
    match random.u8(0..6) {
        0 => {
            cluster.nodes[primary].kill();
            cluster.nodes[primary].start_again();
            write_at_once(cluster, primary);
            (format!("node {primary} is killed, and starts again at once"), true)
        }
        1 => {
            let replica = replica_of(cluster, primary);
            cluster.nodes[primary].kill();
            eventually("the replica takes over", || is_primary(cluster, replica).then_some(()));
            cluster.nodes[primary].start_again();
            write_at_once(cluster, primary);
            (format!("node {primary} is killed, and node {replica} takes over"), true)
        }
        2 => {
            cluster.fail_over(primary);
            (format!("node {primary} steps down"), false)
        }
        3 => {
            let others = (0..cluster.nodes.len()).filter(|number| *number != primary);
            let others: Vec<usize> = others.filter(|number| is_primary(cluster, *number)).collect();
            let to = others[random.usize(0..others.len())];
            let (slot, held) = (cluster.slot(&names[queue]), random.u64(0..hold.as_millis() as u64));
            cluster.begin_move(slot, primary, to);
            std::thread::sleep(Duration::from_millis(held));
            cluster.end_move(slot, primary, to);
            (format!("a slot moves from node {primary} to node {to} for {held} ms"), false)
        }
        4 => {
            let pid = cluster.nodes[primary].pid();
            kill(pid, Signal::SIGSTOP).expect("stop a node");
            std::thread::sleep(Duration::from_millis(random.u64(100..1200)));
            kill(pid, Signal::SIGCONT).expect("let it go on");
            (format!("node {primary} hangs"), false)
        }
        _ => {
            let (pid, replica) = (cluster.nodes[primary].pid(), replica_of(cluster, primary));
            kill(pid, Signal::SIGSTOP).expect("stop a node");
            eventually("the replica takes over", || is_primary(cluster, replica).then_some(()));
            kill(pid, Signal::SIGCONT).expect("let it go on");
            (format!("node {primary} hangs until node {replica} has taken over"), true)
        }
    }
}

/// Asserts that no task is in two places.
fn audit(cluster: &Cluster, name: &str) {
    let keys = [name.to_owned(), format!("tq:{{{name}}}:parked")];
    let ids: Vec<String> = cluster.query(redis::cmd("EVAL").arg(IDS).arg(2).arg(&keys));
    let mut counts: BTreeMap<&String, u32> = BTreeMap::new();
    ids.iter().for_each(|id| *counts.entry(id).or_default() += 1);
    counts.retain(|_, count| *count > 1);
    assert!(counts.is_empty(), "in two places of {name}: {counts:?}");
}

#[test]
fn no_task_is_stuck_or_done_twice_though_nodes_die_and_hang() {
    let seed = setting("TQHOST_STORM_SEED").unwrap_or_else(|| fastrand::u64(..));
    let seconds = setting("TQHOST_STORM_SECONDS");
    println!("TQHOST_STORM_SEED={seed}");
    let (mut random, hold) = (Rng::with_seed(seed), if seconds.is_some() { 20 } else { 3 });
    let bench = Bench::new("[queues.unused]\n");
    let mut cluster = Cluster::start(bench.dir.path(), 3, true);
    (0..6).for_each(|number| write_at_once(&cluster, number));
    let names: Vec<String> = (0..3).map(|primary| cluster.name_on(primary)).collect();
    let queue = |n: usize| QUEUES.replace("NAME", &names[n]) + if n == 1 { SERIAL } else { "" };
    let queues: String = (0..3).map(queue).collect();
    bench.configure(&format!("{queues}[plugins.effects]\n{}", cluster.config()));
    bench.install("effects", "effects");
    let mut hosts = vec![bench.host(), bench.host()];
    let (load, mut at_risk, mut gone) = (load(&cluster, &names), Vec::new(), Vec::<Host>::new());
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(20));
    while Instant::now() < end {
        let (began, before) = (Instant::now(), load.count());
        if random.u8(0..7) == 0 {
            let killed = hosts.remove(0);
            killed.signal(Signal::SIGKILL);
            // Its log is told if the test fails.
            gone.push(killed);
            gone.drain(..gone.len().saturating_sub(3));
            hosts.push(bench.host());
            println!("{:?} left: a host is killed", end.saturating_duration_since(began));
        } else {
            let (what, loses) = disturb(&mut cluster, &mut random, &names, Duration::from_secs(hold));
            until_replicated(&cluster);
            println!("{:?} left: {what}, {:?}", end.saturating_duration_since(began), began.elapsed());
            if loses {
                at_risk.push((began - LAG, Instant::now()));
            }
        }
        names.iter().for_each(|name| audit(&cluster, name));
        eventually("the load goes on", || (load.count() > before + 20).then_some(()));
    }
    let accepted = load.stop();
    for name in &names {
        eventually("nothing is left in the queue", || {
            let count = |command: &str, key: String| cluster.query::<u64>(redis::cmd(command).arg(key));
            let base = format!("tq:{{{name}}}");
            let left = count("XLEN", name.clone()) + count("ZCARD", format!("{base}:delayed"));
            (left + count("HLEN", format!("{base}:parked")) == 0).then_some(())
        });
        let dead: u64 = cluster.query(redis::cmd("XLEN").arg(format!("tq:{{{name}}}:dead")));
        assert_eq!(dead, 0, "no task is buried");
        bench.tqhost(&["doctor", name]).ok();
    }
    let (mut lost, mut wrong) = (0, Vec::new());
    for task in &accepted {
        let (name, id) = (&names[task.n % names.len()], format!("task-{}", task.n));
        let key = format!("tq:{{{name}}}:state:effects:n{}", task.n);
        let done: Option<u64> = cluster.query(redis::cmd("GET").arg(key));
        let status = cluster.status(name, &id, "status");
        // A host may have had it when the new primary came, and has noted then that it is gone.
        let is_gone = ["", "FAILED"].contains(&status.as_str()) && done.is_none();
        lost += usize::from(is_gone);
        let is_explained = is_gone && task.is_within(&at_risk);
        let result = cluster.status(name, &id, "result");
        if !is_explained && (status.as_str(), done) != ("COMPLETED", Some(1)) {
            let left = end.saturating_duration_since(task.at);
            wrong
                .push(format!("{id} of {name}, acknowledged with {left:?} left: {status} {done:?} {result}"));
        }
    }
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    println!("{} tasks, {lost} lost", accepted.len());
    Host::stop_all(hosts);
}
