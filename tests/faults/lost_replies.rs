//! The reply of a script is lost after Redis carried it out, for every script in turn: the second call
//! changes nothing.
//!
//! The host reaches Redis through a proxy that loses replies. Producers and the test itself connect directly.

use std::collections::{HashMap, HashSet};

use tqhost::testing::queue::script;

use super::ends;
use crate::support::proxy::Proxy;
use crate::support::{Bench, Host, Places, eventually};

/// Replies that each test loses.
const LOST: usize = 3;

/// Adds tasks of every kind until the planned replies are lost, then a few more. In the end each task must
/// have the right end, once.
fn every_task_ends_once(bench: &mut Bench, proxy: &Proxy, host: Host) {
    let mut added = Vec::new();
    for _ in 0..5 {
        added.extend(ends::add(bench, "1500"));
    }
    eventually("the planned replies are lost", || {
        added.extend(ends::add(bench, "1500"));
        (proxy.hits() == LOST).then_some(())
    });
    added.extend(ends::add(bench, "1500"));
    ends::each_ended_once(bench, &added);
    host.stop();
}

/// Loses replies of one script. The script is loaded before, so the lost reply is that of a call that was
/// carried out.
fn lose(script: &script::Script) {
    let (mut bench, proxy) = ends::behind_proxy("");
    load(&mut bench, script);
    let host = bench.host();
    proxy.lose_replies(script.sha1(), LOST);
    every_task_ends_once(&mut bench, &proxy, host);
}

fn load(bench: &mut Bench, script: &script::Script) {
    let sha1: String = bench.redis("SCRIPT", ("LOAD", &script.source));
    assert_eq!(sha1, script.sha1());
}

#[test]
fn network_26_read() {
    let (mut bench, proxy) = ends::behind_proxy("");
    let host = bench.host();
    proxy.lose_replies("XREADGROUP", LOST);
    every_task_ends_once(&mut bench, &proxy, host);
}

#[test]
fn network_26_begin() {
    lose(&script::BEGIN);
}

#[test]
fn network_26_settle() {
    lose(&script::SETTLE);
}

#[test]
fn network_26_what_was_settled_is_counted_and_told_although_the_reply_was_lost() {
    let (mut bench, proxy) = ends::behind_proxy("");
    load(&mut bench, &script::SETTLE);
    let host = bench.host();
    proxy.lose_replies(script::SETTLE.sha1(), 1);
    let fine = bench.xadd("fine", &[("n", "1")]);
    host.until_ended_as("fine", "completed", 1);
    assert_eq!((proxy.hits(), bench.status("fine", &fine, "status").as_str()), (1, "COMPLETED"));
    proxy.lose_replies(script::SETTLE.sha1(), 1);
    let bad = bench.xadd("bad", &[("n", "1")]);
    host.until_ended_as("bad", "rejected", 1);
    let told = host.log("dead-lettered");
    assert_eq!((proxy.hits(), told["task"].as_str()), (1, Some(bad.as_str())));
    host.stop();
}

#[test]
fn network_26_promote() {
    lose(&script::PROMOTE);
}

#[test]
fn network_26_heartbeat() {
    lose(&script::HEARTBEAT);
}

#[test]
fn network_26_reclaim() {
    let (mut bench, proxy) = ends::behind_proxy("");
    // With the default rules a lost reply is no crash of the task's host.
    let config = std::fs::read_to_string(bench.config()).expect("the configuration");
    bench.configure(&config.replace("max_crashes = 100\n", ""));
    load(&mut bench, &script::RECLAIM);
    let dying = bench.host();
    let id = bench.xadd("slow", &[("ms", "3000")]);
    eventually("it runs", || (bench.places("slow").pending == 1).then_some(()));
    dying.kill();
    proxy.lose_replies(script::RECLAIM.sha1(), 1);
    let host = bench.host();
    bench.until("slow", &id, "COMPLETED");
    assert_eq!(proxy.hits(), 1);
    assert_eq!(bench.status("slow", &id, "attempt"), "1");
    host.stop();
}

#[test]
fn network_26_recover() {
    let (mut bench, proxy) = ends::behind_proxy("");
    load(&mut bench, &script::RECOVER);
    let host = bench.host();
    // A recovery follows a read whose reply was lost. Then its own reply is lost.
    proxy.lose_replies("XREADGROUP", 1);
    let id = bench.xadd("fine", &[("n", "1")]);
    eventually("a read is lost", || (proxy.hits() == 1).then_some(()));
    proxy.lose_replies(script::RECOVER.sha1(), LOST);
    every_task_ends_once(&mut bench, &proxy, host);
    assert_eq!(bench.status("fine", &id, "status"), "COMPLETED");
}

#[test]
fn network_26_enqueue() {
    let (mut bench, proxy) = ends::behind_proxy("");
    load(&mut bench, &script::ENQUEUE);
    proxy.lose_replies(script::ENQUEUE.sha1(), 1);
    let id = bench.tqhost(&["enqueue", "fine", "n=1"]).ok().stdout.trim().to_owned();
    assert_eq!(proxy.hits(), 1);
    let length: u64 = bench.redis("XLEN", "fine");
    assert_eq!(length, 1, "the task was accepted once");
    let host = bench.host();
    bench.until("fine", &id, "COMPLETED");
    host.stop();
}

#[test]
fn network_26_fire() {
    // The plugin is missing, so enqueued tasks stay in the stream.
    let (mut bench, proxy) = ends::behind_proxy(
        "[queues.ticks]\nplugin = \"missing\"\n[queues.ticks.schedule]\ncron = \"* * * * * *\"\n",
    );
    load(&mut bench, &script::FIRE);
    proxy.lose_replies(script::FIRE.sha1(), LOST);
    let host = bench.host();
    eventually("the planned replies are lost", || (proxy.hits() == LOST).then_some(()));
    let so_far: usize = bench.redis("XLEN", "ticks");
    let length = eventually("the schedule goes on", || {
        Some(bench.redis::<usize>("XLEN", "ticks")).filter(|length| *length > so_far + 1)
    });
    let entries: Vec<(String, HashMap<String, String>)> = bench.redis("XRANGE", ("ticks", "-", "+"));
    let times: HashSet<&String> = entries.iter().map(|(_, fields)| &fields["scheduled_at"]).collect();
    assert!(times.len() == entries.len() && times.len() >= length, "each time once: {entries:?}");
    host.stop();
}

#[test]
fn network_26_requeue() {
    let (mut bench, proxy) = ends::behind_proxy("");
    let host = bench.host();
    let id = bench.xadd("bad", &[("n", "1")]);
    bench.until("bad", &id, "FAILED");
    host.stop();
    load(&mut bench, &script::REQUEUE);
    proxy.lose_replies(script::REQUEUE.sha1(), 1);
    let first = bench.tqhost(&["dead", "requeue", "bad", &id, "--json"]);
    assert_eq!((first.code, proxy.hits()), (1, 1), "it says that it does not know: {first:?}");
    let second = bench.tqhost(&["dead", "requeue", "bad", &id, "--json"]).ends_with(1);
    assert_eq!(second.json(), serde_json::json!({"succeeded": 0, "skipped": 1}));
    assert_eq!(
        bench.places("bad"),
        Places { length: 1, pending: 0, delayed: 0, parked: 0, dead: 0 },
        "it came back once"
    );
}

#[test]
fn network_26_mend() {
    let (mut bench, proxy) = ends::behind_proxy("");
    load(&mut bench, &script::MEND);
    let _: () = bench.redis("XGROUP", ("CREATE", "fine", "tqhost", "0", "MKSTREAM"));
    // The history begins as a host creates it: nothing was done before.
    let _: u64 = bench.redis("HSET", ("tq:{fine}:history", "tqhost", "0-0"));
    let id = bench.xadd("fine", &[("n", "1")]);
    let _: () = bench.redis("XGROUP", ("SETID", "fine", "tqhost", "$"));
    proxy.lose_replies(script::MEND.sha1(), 1);
    assert_eq!((bench.tqhost(&["doctor", "fine", "--fix"]).code, proxy.hits()), (1, 1));
    bench.tqhost(&["doctor", "fine", "--fix"]).ok();
    let length: u64 = bench.redis("XLEN", "fine");
    assert_eq!(length, 1, "it came back once");
    let host = bench.host();
    bench.until("fine", &id, "COMPLETED");
    host.stop();
}

#[test]
fn network_26_examine() {
    let (mut bench, proxy) = ends::behind_proxy("");
    load(&mut bench, &script::EXAMINE);
    let _: u64 = bench.redis("HSET", ("tq:{fine}:task:gone", &[("status", "PENDING"), ("entry", "1-0")]));
    proxy.lose_replies(script::EXAMINE.sha1(), 1);
    assert_eq!((bench.tqhost(&["doctor", "fine", "--fix"]).code, proxy.hits()), (1, 1));
    bench.tqhost(&["doctor", "fine", "--fix"]).ok();
    assert_eq!(bench.status("fine", "gone", "status"), "FAILED");
    bench.tqhost(&["doctor", "fine"]).ok();
}
