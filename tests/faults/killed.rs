//! Hosts and commands that are killed during a script that is not part of an attempt: reclaim, recover,
//! leave, move from a list, accept, requeue, cancel, rate.
//!
//! A proxy holds the call or its reply, and the process that waits for it is killed.
//!
//! Not here: the scripts of an attempt (`worker`).

use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use nix::sys::signal::Signal;
use serde_json::json;
use tqhost::testing::queue::script::{self, Script};

use super::ends;
use super::redis::blocked;
use crate::support::proxy::{Fate, Proxy};
use crate::support::{Bench, Host, Places, eventually};

const BOTH: [Fate; 2] = [Fate::HoldRequest, Fate::HoldReply];

/// Loads a script, so that the proxy holds the call itself, and holds the next call.
fn hold(bench: &mut Bench, proxy: &Proxy, script: &LazyLock<Script>, fate: Fate) {
    let _: String = bench.redis("SCRIPT", ("LOAD", &script.source));
    proxy.hold(script.sha1(), fate);
}

/// Waits until the call is held, and kills the host that waits for it.
#[track_caller]
fn kill_held(proxy: &Proxy, host: Host) {
    eventually("the host waits for Redis", || (proxy.hits() == 1).then_some(()));
    host.kill();
}

/// Starts a tqhost command, waits until its call is held, and kills the command.
#[track_caller]
fn kill_command(bench: &Bench, proxy: &Proxy, args: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tqhost"));
    command.arg("--config").arg(bench.config()).args(args).stdin(Stdio::null()).stdout(Stdio::null());
    let mut child: Child = command.spawn().expect("start tqhost");
    eventually("the command waits for Redis", || (proxy.hits() == 1).then_some(()));
    child.kill().expect("kill a command");
    child.wait().expect("the end of a command");
}

#[test]
fn worker_02_kill_9_before_reclaim() {
    let (mut bench, proxy) = ends::behind_proxy("");
    let first = bench.host();
    let added = ends::add(&mut bench, "60000");
    bench.until("slow", &added[3].1, "PROCESSING");
    first.kill();
    hold(&mut bench, &proxy, &script::RECLAIM, Fate::HoldRequest);
    // The second host is killed before its reclaim reaches Redis. The third host's reclaim succeeds.
    kill_held(&proxy, bench.host_that_may_fail());
    let _: i64 = bench.redis("XDEL", ("slow", &added[3].1));
    let again = ends::add(&mut bench, "100");
    let third = bench.host();
    ends::each_ended_once(&mut bench, &[&added[..3], &again].concat());
    third.stop();
}

#[test]
fn worker_02_kill_9_around_recover() {
    for fate in BOTH {
        let (mut bench, proxy) = ends::behind_proxy("");
        let first = bench.host();
        let name = first.log("tqhost is running")["host"].as_str().expect("a name").to_owned();
        // A loop notices a killed connection only if it already reads.
        eventually("it reads all four queues", || (blocked(&mut bench).len() == 4).then_some(()));
        // Redis delivers these tasks to the host, and the host never sees them, as after a lost reply.
        let mut added = Vec::new();
        for (queue, field) in [("fine", "n"), ("twice", "n"), ("bad", "n"), ("slow", "ms")] {
            let mut pipe = redis::pipe();
            pipe.atomic().cmd("XADD").arg(queue).arg("*").arg(field).arg(100);
            pipe.cmd("XREADGROUP").arg(&["GROUP", "tqhost", &name, "STREAMS", queue, ">"]).ignore();
            let (id,): (String,) = pipe.query(&mut bench.db).expect("XADD and XREADGROUP");
            added.push((queue, id));
        }
        hold(&mut bench, &proxy, &script::RECOVER, fate);
        // A host looks for unseen deliveries after a read has failed.
        let _: u64 = bench.redis("CLIENT", ("KILL", "TYPE", "normal"));
        kill_held(&proxy, first);
        let second = bench.host();
        ends::each_ended_once(&mut bench, &added);
        second.stop();
    }
}

#[test]
fn worker_02_kill_9_around_leave() {
    for fate in BOTH {
        let (mut bench, proxy) = ends::behind_proxy("");
        let first = bench.host();
        let mut added = ends::add(&mut bench, "100");
        ends::each_ended_once(&mut bench, &added);
        hold(&mut bench, &proxy, &script::LEAVE, fate);
        first.signal(Signal::SIGTERM);
        kill_held(&proxy, first);
        let names = |bench: &mut Bench| {
            let groups: Vec<redis::Value> = ["fine", "twice", "bad", "slow"]
                .iter()
                .flat_map(|queue| bench.redis::<Vec<redis::Value>>("XINFO", ("CONSUMERS", *queue, "tqhost")))
                .collect();
            groups.len()
        };
        // Four queues leave, one after the other or together. The janitor removes a name that is left behind.
        let left = names(&mut bench);
        assert!(if fate == Fate::HoldRequest { left >= 1 } else { left <= 3 }, "{left} names are left");
        let second = bench.host();
        added.extend(ends::add(&mut bench, "100"));
        ends::each_ended_once(&mut bench, &added);
        second.stop();
        assert_eq!(names(&mut bench), left, "the second host took its own names with it");
    }
}

#[test]
fn worker_02_kill_9_around_move() {
    for fate in BOTH {
        let (mut bench, proxy) =
            ends::behind_proxy("[queues.reports]\nlist = \"report:queue\"\nplugin = \"echo\"\n");
        hold(&mut bench, &proxy, &script::MOVE, fate);
        for n in 0..20 {
            let _: u64 = bench.redis("LPUSH", ("report:queue", n));
        }
        kill_held(&proxy, bench.host_that_may_fail());
        let (listed, queued): (u64, u64) =
            (bench.redis("LLEN", "report:queue"), bench.redis("XLEN", "reports"));
        // The host may have run some of the tasks that it had moved.
        let done = bench.redis::<Vec<String>>("KEYS", "tq:{reports}:task:*").len() as u64;
        if fate == Fate::HoldRequest {
            assert_eq!((listed, queued, done), (20, 0, 0), "nothing was moved");
        } else {
            assert!(listed == 0 && queued <= 20 && done <= 20, "all were moved: {listed}, {queued}, {done}");
        }
        let host = bench.host();
        let results = eventually("all have run", || {
            let keys: Vec<String> = bench.redis("KEYS", "tq:{reports}:task:*");
            let mut results: Vec<u64> = Vec::new();
            for key in keys {
                let result: Option<String> = bench.redis("HGET", (key, "result"));
                let result: serde_json::Value = serde_json::from_str(&result?).expect("JSON");
                results.push(
                    result["fields"]["data"].as_str().and_then(|data| data.parse().ok()).expect("a number"),
                );
            }
            (results.len() >= 20).then_some(results)
        });
        let mut sorted = results;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..20).collect::<Vec<_>>(), "each became one task");
        bench.until_drained("reports");
        host.stop();
    }
}

#[test]
fn worker_02_kill_9_around_rate() {
    for fate in BOTH {
        let (mut bench, proxy) =
            ends::behind_proxy("[queues.rated]\nplugin = \"echo\"\nrate_limit = \"100/s\"\n");
        hold(&mut bench, &proxy, &script::RATE, fate);
        let ids: Vec<String> = (0..20).map(|n| bench.xadd("rated", &[("n", &n.to_string())])).collect();
        kill_held(&proxy, bench.host_that_may_fail());
        let host = bench.host();
        bench.all_done("rated", &ids);
        host.stop();
    }
}

#[test]
fn worker_02_kill_9_around_enqueue() {
    for (fate, accepted) in [(Fate::HoldRequest, 0), (Fate::HoldReply, 1)] {
        for delay in ["0ms", "1s"] {
            let (mut bench, proxy) = ends::behind_proxy("");
            hold(&mut bench, &proxy, &script::ENQUEUE, fate);
            kill_command(&bench, &proxy, &["enqueue", "fine", "n=1", "--key", "k", "--delay", delay]);
            let (queued, delayed): (u64, u64) =
                (bench.redis("XLEN", "fine"), bench.redis("ZCARD", "tq:{fine}:delayed"));
            assert_eq!(queued + delayed, accepted, "accepted as a whole, or not at all");
            // A client that does not know the outcome asks again with the same key.
            let told = bench.tqhost(&["enqueue", "fine", "n=1", "--key", "k", "--json"]).ok().json();
            assert_eq!(told["duplicate"] == true, accepted == 1, "{told}");
            let host = bench.host();
            bench.until("fine", told["id"].as_str().expect("an id"), "COMPLETED");
            bench.until_drained("fine");
            assert_eq!(bench.redis::<Vec<String>>("KEYS", "tq:{fine}:task:*").len(), 1, "one task");
            host.stop();
        }
    }
}

#[test]
fn worker_02_kill_9_around_requeue() {
    for (fate, requeued) in [(Fate::HoldRequest, 0), (Fate::HoldReply, 1)] {
        let (mut bench, proxy) = ends::behind_proxy("");
        let host = bench.host();
        let id = bench.xadd("bad", &[("n", "1")]);
        bench.until("bad", &id, "FAILED");
        host.stop();
        hold(&mut bench, &proxy, &script::REQUEUE, fate);
        kill_command(&bench, &proxy, &["dead", "requeue", "bad", &id]);
        assert_eq!(bench.places("bad"), Places { length: requeued, dead: 1 - requeued, ..Places::default() });
        let told = bench.tqhost(&["dead", "requeue", "bad", &id, "--json"]).json();
        assert_eq!(told, json!({"succeeded": 1 - requeued, "skipped": requeued}));
        assert_eq!(bench.places("bad"), Places { length: 1, ..Places::default() }, "it came back once");
        let host = bench.host();
        bench.until("bad", &id, "FAILED");
        bench.until_drained("bad");
        assert_eq!(bench.places("bad").dead, 1);
        host.stop();
    }
}

#[test]
fn worker_02_kill_9_around_cancel() {
    for fate in BOTH {
        let (mut bench, proxy) = ends::behind_proxy("");
        let enqueue = |bench: &Bench, args: &[&str]| {
            bench.tqhost(&[&["enqueue", "slow"], args].concat()).ok().stdout.trim().to_owned()
        };
        for place in ["delayed", "queued", "running"] {
            let id = match place {
                "delayed" => enqueue(&bench, &["ms=100", "--delay", "2s"]),
                "queued" => enqueue(&bench, &["ms=100"]),
                _ => enqueue(&bench, &["ms=1500"]),
            };
            let host = (place == "running").then(|| bench.host());
            if host.is_some() {
                bench.until("slow", &id, "PROCESSING");
            }
            hold(&mut bench, &proxy, &script::CANCEL, fate);
            kill_command(&bench, &proxy, &["cancel", "slow", &id]);
            let host = host.unwrap_or_else(|| bench.host());
            bench.until("slow", &id, if fate == Fate::HoldRequest { "COMPLETED" } else { "CANCELLED" });
            bench.until_drained("slow");
            assert_eq!(bench.places("slow"), Places::default(), "{place}");
            host.stop();
        }
    }
}
