//! The freeze key: no call of a script begins in a slot that moves, and without the key it would end by
//! halves.
//!
//! The key is the last one of each call of several keys, and never exists. The scripts are called here as
//! hosts call them, with and without it, after all other keys of the call have been made: then a server has
//! no other reason to refuse the call. Not here: hosts whose slots move (`cluster`).

use redis::{Cmd, RedisError, Value};
use tqhost::testing::queue::script::{self, Script};

use crate::support::{Bench, Cluster, eventually};

const HOUR_MS: &str = "3600000";
const PARK: &str = "redis.call('ZADD', KEYS[1], 1, ARGV[1]) \
    return redis.call('HSET', KEYS[2], ARGV[1], cmsgpack.pack({ unpack(ARGV, 2) }))";

/// A queue of one track on the first of two nodes, and no host.
struct Track<'c> {
    cluster: &'c Cluster,
    stream: String,
    /// The number of the last call of settle.lua.
    number: u64,
}

impl Track<'_> {
    /// A queue that has no keys yet but its stream, its dead letters and its history.
    fn new<'c>(cluster: &'c Cluster, name: &str) -> Track<'c> {
        let mut names = (0..).map(|n| format!("{name}-{n}"));
        let stream = names.find(|name| cluster.slot(name) < 8000).expect("a name");
        let track = Track { cluster, stream, number: 0 };
        let stream = &track.stream;
        track.run(redis::cmd("XGROUP").arg("CREATE").arg(stream).arg("tqhost").arg("0").arg("MKSTREAM"));
        track.run(redis::cmd("HSET").arg(track.key("history")).arg("tqhost").arg("0-0"));
        track.run(redis::cmd("XADD").arg(track.key("dead")).arg("*").arg("n").arg("0"));
        // A key that is missing would refuse each call, as the freeze key does.
        track.run(redis::cmd("SET").arg(track.key("limits")).arg("{\"concurrency\":1}"));
        track
    }

    fn key(&self, of: &str) -> String {
        format!("tq:{{{}}}:{of}", self.stream)
    }

    fn keys(&self, names: &[&str]) -> Vec<String> {
        names.iter().map(|name| self.key(name)).collect()
    }

    fn run(&self, command: &Cmd) -> Value {
        self.cluster.ask(0, command).unwrap_or_else(|error| panic!("{error}"))
    }

    fn add(&self) -> String {
        let add = redis::cmd("XADD").arg(&self.stream).arg("*").arg("n").arg("1").clone();
        self.cluster.ask(0, &add).expect("XADD")
    }

    /// Calls a script with the keys of tracks behind its own keys, and with the freeze key or without it.
    fn call(
        &self,
        script: &Script,
        keys: &[String],
        args: &[&str],
        freeze: bool,
    ) -> Result<Value, RedisError> {
        let mut all = vec![self.stream.clone()];
        all.extend_from_slice(keys);
        let (group, statuses) = (["tqhost", HOUR_MS, HOUR_MS], self.key("task:"));
        let mut last = vec!["", &self.stream, ""];
        if script.name != "promote" {
            all.extend(self.keys(&["owners", "tracks", "delayed", "parked", "limits"]));
            last = vec!["1", &statuses, "+", &self.stream, ""];
        }
        all.extend(freeze.then(|| self.key("-")));
        let mut call = redis::cmd("EVAL");
        call.arg(&script.source).arg(all.len()).arg(&all).arg(&group[..]).arg(args).arg(&last);
        self.cluster.ask(0, &call)
    }

    fn claim(&self, freeze: bool) -> Result<Value, RedisError> {
        let keys = self.keys(&["delayed", "history"]);
        self.call(&script::CLAIM, &keys, &["c", "10", "", "", ""], freeze)
    }

    /// Completes a task.
    fn settle(&mut self, entry: &str, id: &str, freeze: bool) -> Result<Value, RedisError> {
        let status = format!("task:{id}");
        let mut keys = self.keys(&["delayed", "parked", "dead", "settled:c:0", &status]);
        keys.push(self.stream.clone());
        self.number += 1;
        let number = self.number.to_string();
        let call = ["c", &number, "0", "0", "0", "0", "0", "p"];
        let attempt = ["COMPLETED", "", "", entry, "1", "p", "1", "0", id, "", "", "0", "0", "0", ""];
        self.call(&script::SETTLE, &keys, &[&call[..], &attempt].concat(), freeze)
    }

    fn promote(&self, member: &str, freeze: bool) -> Result<Value, RedisError> {
        let mut keys = self.keys(&["delayed", "parked"]);
        keys.push(self.stream.clone());
        self.call(&script::PROMOTE, &keys, &["100", member], freeze)
    }

    /// The only entry that is being worked on.
    fn pending(&self) -> String {
        let ask = redis::cmd("XPENDING").arg(&self.stream).arg("tqhost").arg("-").arg("+").arg(1).clone();
        let pending: Vec<(String, String, u64, u64)> = self.cluster.ask(0, &ask).expect("XPENDING");
        pending[0].0.clone()
    }

    fn places(&self) -> Vec<Value> {
        self.cluster.places(0, &self.stream)
    }

    /// Begins to move the slot. These keys go over at once.
    fn begin_move(&self, moved: &[String]) {
        self.cluster.begin_move(self.cluster.slot(&self.stream), 0, 1);
        moved.iter().for_each(|key| self.cluster.move_key(key, 0, 1));
    }
}

/// Asserts that a call with the freeze key is refused and changes nothing, and that the same call without it
/// changes something and yet fails.
fn proves(track: &mut Track, call: impl Fn(&mut Track, bool) -> Result<Value, RedisError>) {
    let before = track.places();
    let refused = call(track, true).expect_err("the slot moves");
    assert_eq!(refused.code(), Some("TRYAGAIN"), "{refused}");
    assert_eq!(track.places(), before, "nothing has changed");
    let broken = call(track, false);
    println!("without the freeze key: {broken:?}");
    // A settlement notes that its track does not know of the end (3).
    let is_half = match &broken {
        Ok(Value::Array(results)) => {
            matches!(&results[..], [Value::Array(one)] if one.last() == Some(&Value::Int(3)))
        }
        result => result.is_err(),
    };
    assert!(is_half, "it comes to a key that is not here: {broken:?}");
    assert_ne!(track.places(), before, "half of it was done");
}

#[test]
fn a_claim_in_a_slot_that_moves_leaves_everything_as_it_is() {
    let dir = tempfile::tempdir().expect("a folder");
    let cluster = Cluster::start(dir.path(), 2, false);
    let mut track = Track::new(&cluster, "claim");
    // The first task runs, the second one waits for it, and nobody has seen the third one.
    track.add();
    track.add();
    track.claim(true).expect("a claim");
    track.add();
    track.begin_move(&[]);
    proves(&mut track, |track, freeze| track.claim(freeze));
}

#[test]
fn a_settlement_in_a_slot_that_moves_leaves_everything_as_it_is() {
    let dir = tempfile::tempdir().expect("a folder");
    let cluster = Cluster::start(dir.path(), 2, false);
    let mut track = Track::new(&cluster, "settle");
    let tasks: Vec<String> = (0..3).map(|_| track.add()).collect();
    track.claim(true).expect("a claim");
    // The first task ends, so that the second one is called up, and runs.
    track.settle(&tasks[0], &tasks[0], true).expect("a settlement");
    track.claim(true).expect("a claim");
    let entry = track.pending();
    let status = |task: &String| track.key(&format!("task:{task}"));
    track.run(redis::cmd("HSET").arg(status(&tasks[1])).arg("status").arg("PROCESSING"));
    // The status of the task that is called up next is at the new place already.
    track.begin_move(&[status(&tasks[2])]);
    proves(&mut track, |track, freeze| track.settle(&entry, &tasks[1], freeze));
}

#[test]
fn a_promotion_in_a_slot_that_moves_leaves_everything_as_it_is() {
    let dir = tempfile::tempdir().expect("a folder");
    let cluster = Cluster::start(dir.path(), 2, false);
    let mut track = Track::new(&cluster, "promote");
    let parked = track.keys(&["delayed", "parked"]);
    track.run(redis::cmd("EVAL").arg(PARK).arg(2).arg(&parked).arg("due").arg("n").arg("1"));
    track.begin_move(&[]);
    proves(&mut track, |track, freeze| track.promote("due", freeze));
}

/// Redis tells of each call that a host sends while it does everything that it can do.
#[test]
fn every_call_of_several_keys_that_a_host_sends_has_the_key() {
    let bench = Bench::new("[queues.unused]\n");
    let cluster = Cluster::start(bench.dir.path(), 1, false);
    let rules = "plugin = \"as-told\"\nlease = \"2s\"\nbackoff = { delays = [\"50ms\"] }\n\
                 idempotency = { field = \"key\" }\nevents = 100\n\
                 failed_attempts = 3\nrate_limit = \"1000/s\"\n";
    let serial = "serial = { field = \"tenant\" }\n";
    bench.configure(&format!("[queues.a]\n{rules}[queues.b]\n{rules}{serial}{}", cluster.config()));
    bench.install("as-told", "as-told");
    let calls = Calls::watch(&cluster);
    let host = bench.host();
    let data = "{\"end\":\"ok\",\"retries\":1}";
    for queue in ["a", "b"] {
        let add = |n: usize, data: &str| {
            let key = format!("{n}");
            cluster.xadd(queue, &[("data", data), ("tenant", "t"), ("key", &key)])
        };
        let ids: Vec<String> = (0..10).map(|n| add(n, data)).collect();
        let dead = add(10, "{\"end\":\"reject\"}");
        cluster.until(queue, &dead, "FAILED");
        cluster.all_done(queue, &ids);
        let delayed =
            bench.tqhost(&["enqueue", queue, "data={\"end\":\"ok\"}", "--delay", "1h", "--json"]).ok().json();
        bench.tqhost(&["cancel", queue, delayed["id"].as_str().expect("an id")]).ok();
        bench.tqhost(&["dead", "requeue", queue, "--all"]).ok();
        bench.tqhost(&["doctor", queue]).ok();
        // Another host takes this one over.
        let id = add(11, "{\"end\":\"ok\",\"ms\":1000}");
        cluster.until(queue, &id, "PROCESSING");
    }
    host.kill();
    let host = bench.host();
    for queue in ["a", "b"] {
        eventually("all tasks are done", || {
            (cluster.query::<u64>(redis::cmd("XLEN").arg(queue)) == 0).then_some(())
        });
    }
    host.stop();
    let calls = calls.stop();
    let names: std::collections::BTreeSet<&str> = calls.iter().map(|call| call.script).collect();
    println!("{} calls: {names:?}", calls.len());
    for name in ["settle", "promote", "claim", "begin", "heartbeat", "reclaim", "cancel", "requeue"] {
        assert!(names.contains(name), "a host calls {name}: {names:?}");
    }
    for call in calls.iter().filter(|call| call.keys.len() > 1) {
        let last = call.keys.last().expect("a key");
        assert!(last.starts_with("tq:{") && last.ends_with("}:-"), "{} has {:?}", call.script, call.keys);
    }
}

/// A call of a script.
struct Call {
    script: &'static str,
    keys: Vec<String>,
}

/// Watches the calls that the first node of a cluster gets.
struct Calls {
    /// It ends with the connection.
    thread: std::thread::JoinHandle<Vec<Call>>,
    id: i64,
    node: redis::Connection,
}

impl Calls {
    fn watch(cluster: &Cluster) -> Calls {
        let mut monitor = cluster.nodes[0].connection();
        let id = redis::cmd("CLIENT").arg("ID").query(&mut monitor).expect("CLIENT ID");
        redis::cmd("MONITOR").exec(&mut monitor).expect("MONITOR");
        let read = move || {
            let lines = std::iter::from_fn(|| monitor.recv_response().ok());
            lines.filter_map(|line| call_of(&redis::from_redis_value::<String>(line).ok()?)).collect()
        };
        Calls { thread: std::thread::spawn(read), id, node: cluster.nodes[0].connection() }
    }

    fn stop(mut self) -> Vec<Call> {
        let kill = redis::cmd("CLIENT").arg("KILL").arg("ID").arg(self.id).exec(&mut self.node);
        kill.expect("CLIENT KILL");
        self.thread.join().expect("the calls")
    }
}

/// A call of a script, alone or as a function, in a line of MONITOR: the time, the client, and each word in
/// quotes.
fn call_of(line: &str) -> Option<Call> {
    let words: Vec<&str> = line.split("] \"").nth(1)?.trim_end_matches('"').split("\" \"").collect();
    let [_, called, count, rest @ ..] = &words[..] else { return None };
    let script = script::declared().into_iter().find(|script| called.ends_with(script.sha1()))?;
    let keys = rest.get(..count.parse().ok()?)?.iter().map(|key| (*key).to_owned());
    Some(Call { script: script.name, keys: keys.collect() })
}
