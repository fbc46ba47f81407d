//! `tqhost adopt --out`: a plain consumer gets everything that has not ended, and finds no keys of tqhost.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::bench::tqhost;
use crate::support::web::Service;
use crate::support::{Bench, Held, Ran, Web, eventually};

const QUEUE: &str = "[queues.work]\nplugin = \"fails-twice\"\nlease = \"1s\"\n\
                     backoff = { delays = [\"1h\"] }\n";

fn out(bench: &Bench, more: &[&str]) -> Ran {
    bench.tqhost(&[&["adopt", "work", "--out", "--json"], more].concat())
}

fn kinds(report: &Value) -> HashMap<String, u64> {
    let kind = |item: &Value| {
        (item["kind"].as_str().expect("a kind").to_owned(), item["count"].as_u64().expect("a count"))
    };
    report["found"].as_array().expect("findings").iter().map(kind).collect()
}

/// Reads as a consumer that knows XREADGROUP, XACK and nothing else.
fn consume(bench: &mut Bench) -> Vec<HashMap<String, String>> {
    type Entries = Vec<(String, HashMap<String, String>)>;
    let read: Option<Vec<(String, Entries)>> =
        bench.redis("XREADGROUP", ("GROUP", "tqhost", "plain", "COUNT", 100, "STREAMS", "work", ">"));
    let entries = read.unwrap_or_default().into_iter().flat_map(|(_, entries)| entries);
    entries.map(|(_, fields)| fields).collect()
}

#[test]
fn a_plain_consumer_gets_what_has_not_ended() {
    let bench = Bench::new(QUEUE);
    bench.install("fails-twice", "fails-twice");
    let host = bench.host();
    let enqueue =
        |more: &[&str]| bench.tqhost(&[&["enqueue", "work"], more].concat()).ok().stdout.trim().to_owned();
    let retried = enqueue(&["n=retried", "--key", "k1"]);
    let _timed = enqueue(&["n=timed", "--delay", "10h"]);
    let mut bench = bench;
    eventually("both are delayed", || (bench.places("work").delayed == 2).then_some(()));
    assert_eq!(bench.status("work", &retried, "attempt"), "2");
    let refused = out(&bench, &["--yes"]);
    assert_eq!((refused.code, kinds(&refused.json())["host"]), (1, 1), "{refused:#?}");
    host.stop();
    // A host that died left this one.
    bench.xadd("work", &[("n", "running")]);
    let dead_host = "box-17-0123456789ab";
    let _: redis::Value =
        bench.redis("XREADGROUP", ("GROUP", "tqhost", dead_host, "COUNT", 1, "STREAMS", "work", ">"));
    bench.xadd("work", &[("n", "waiting")]);
    bench.xadd("tq:{work}:dead", &[("n", "dead"), ("tq-reason", "rejected"), ("tq-id", "x")]);
    let _: () = bench.redis("SET", ("tq:{work}:hold", "{}"));
    let ended = "tq:{work}:task:ended";
    let _: u64 = bench.redis("HSET", (ended, "status", "COMPLETED"));
    let _: u64 = bench.redis("EXPIRE", (ended, 1000));

    let before = bench.places("work");
    let told = out(&bench, &[]).ok().json();
    let expected = [("waiting", 1), ("running", 1), ("delayed", 1), ("timed", 1), ("dead", 1), ("keys", 1)];
    assert_eq!(kinds(&told), expected.map(|(kind, count)| (kind.to_owned(), count)).into(), "{told:#}");
    assert_eq!(bench.places("work"), before, "looking changes nothing");
    out(&bench, &["--yes"]).ok();
    out(&bench, &["--yes"]).ok();
    let mut names: Vec<String> = consume(&mut bench)
        .into_iter()
        .map(|mut fields| {
            assert_eq!(fields.len(), 1, "{fields:?}");
            fields.remove("n").expect("the producer's field")
        })
        .collect();
    names.sort();
    assert_eq!(names, ["retried", "running", "waiting"]);
    out(&bench, &["--yes"]).ok();
    assert_eq!(consume(&mut bench).len(), 0, "what the plain consumer runs stays with it");
    let keys = |bench: &mut Bench| {
        let mut keys: Vec<String> = bench.redis("KEYS", "tq:{work}:*");
        keys.sort();
        keys
    };
    let left = keys(&mut bench);
    assert!(left.iter().any(|key| key.ends_with(":delayed")), "the producer's delay holds: {left:?}");
    out(&bench, &["--yes", "--early"]).ok();
    assert_eq!(consume(&mut bench)[0]["n"], "timed");
    assert_eq!(keys(&mut bench), ["tq:{work}:dead", ended], "dead letters and ends stay");
    let consumers: Vec<HashMap<String, redis::Value>> = bench.redis("XINFO", ("CONSUMERS", "work", "tqhost"));
    assert_eq!(consumers.len(), 1, "only the plain one is left: {consumers:?}");
}

#[test]
fn a_list_gets_its_items_back_in_order() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\nlease = \"1s\"\nlist = \"report:queue\"\n");
    bench.install("echo", "echo");
    bench.tqhost(&["pause", "work"]).ok();
    let host = bench.host();
    for n in 1..=4 {
        let _: u64 = bench.redis("LPUSH", ("report:queue", n));
    }
    eventually("they are tasks", || (bench.places("work").length == 4).then_some(()));
    host.stop();
    let _: redis::Value = bench
        .redis("XREADGROUP", ("GROUP", "tqhost", "box-17-0123456789ab", "COUNT", 1, "STREAMS", "work", ">"));
    // This one came while nobody moved it.
    let _: u64 = bench.redis("LPUSH", ("report:queue", 5));
    out(&bench, &["--yes"]).ok();
    let items: Vec<u64> = bench.redis("LRANGE", ("report:queue", 0, -1));
    assert_eq!(items, [5, 4, 3, 2, 1], "BRPOP takes the oldest first");
    assert_eq!(bench.places("work").length, 0);
    let keys: Vec<String> = bench.redis("KEYS", "tq:{work}:*");
    assert_eq!(keys, [""; 0]);
}

#[test]
fn tasks_that_a_frozen_host_may_still_run_stay_until_its_lease_is_over() {
    let held = Held::new();
    let mut bench = held.bench("[queues.work]\nplugin = \"fetches\"\nlease = \"5m\"\n");
    let [url] = held.task();
    let host = bench.host();
    let id = bench.xadd("work", &[url]);
    bench.until("work", &id, "PROCESSING");
    host.signal(Signal::SIGSTOP);
    // Its announcement expires after a while.
    let announced: Vec<String> = bench.redis("ZRANGE", ("tq:hosts", 0, -1));
    let _: u64 = bench.redis("DEL", format!("tq:host:{}", announced[0]));
    let before = bench.places("work");
    let refused = out(&bench, &["--yes"]);
    let report = refused.json();
    assert_eq!((refused.code, &report["acted"]), (1, &Value::Bool(false)), "{report:#}");
    let running = report["found"].as_array().expect("findings").iter().find(|item| item["kind"] == "running");
    let running = running.expect("it may still run");
    let what = running["what"].as_str().expect("a text");
    assert!(what.contains("another 4m") && what.contains(", until 2"), "{what}");
    assert!(running["step"].as_str().expect("a step").contains("--stopped"), "{running:#}");
    assert_eq!(out(&bench, &[]).ok().json()["ok"], Value::Bool(false), "it tells so without --yes");
    assert_eq!(bench.places("work"), before);
    // A lease that is short is waited for.
    let short = held.queues("[queues.work]\nplugin = \"fetches\"\nlease = \"1s\"\n");
    bench.configure_for(&short, bench.redis.port);
    let _: redis::Value = bench.redis("XCLAIM", ("work", "tqhost", &announced[0], 0, &id, "IDLE", 0));
    let begun = Instant::now();
    host.kill();
    out(&bench, &["--yes"]).ok();
    assert!(begun.elapsed() > Duration::from_millis(900), "it waited for {:?}", begun.elapsed());
    assert_eq!(consume(&mut bench).len(), 1);
}

#[test]
fn an_operator_may_say_that_the_hosts_have_ended() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\nlease = \"5m\"\n");
    bench.install("echo", "echo");
    let _: () = bench.redis("XGROUP", ("CREATE", "work", "tqhost", "0", "MKSTREAM"));
    for (n, host) in ["box-17-0123456789ab", "box-550e8400-e29b-41d4-8716-446655440000"].iter().enumerate() {
        bench.xadd("work", &[("n", &n.to_string())]);
        let _: redis::Value =
            bench.redis("XREADGROUP", ("GROUP", "tqhost", host, "COUNT", 1, "STREAMS", "work", ">"));
    }
    assert_eq!(out(&bench, &["--yes"]).code, 1);
    out(&bench, &["--yes", "--stopped"]).ok();
    let given: Vec<String> =
        consume(&mut bench).into_iter().map(|mut fields| fields.remove("n").expect("n")).collect();
    assert_eq!(given, ["0"], "what the other consumer runs stays with it");
}

#[test]
fn tasks_that_went_out_can_come_in_again() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\nlease = \"1s\"\n");
    bench.install("echo", "echo");
    let host = bench.host();
    let first = bench.xadd("work", &[("n", "1")]);
    bench.until("work", &first, "COMPLETED");
    host.stop();
    out(&bench, &["--yes"]).ok();
    let acked = bench.xadd("work", &[("n", "2")]);
    assert_eq!(consume(&mut bench).len(), 1);
    let _: u64 = bench.redis("XACK", ("work", "tqhost", &acked));
    let last = bench.xadd("work", &[("n", "3")]);
    bench.tqhost(&["adopt", "work", "--yes", "--stopped"]).ok();
    let host = bench.host();
    bench.until("work", &last, "COMPLETED");
    assert_eq!(bench.status("work", &acked, "status"), "", "the other one did it");
    let report = bench.tqhost(&["doctor", "work", "--json"]).ok().json();
    assert_eq!(report["findings"], serde_json::json!([]), "{report:#}");
    host.stop();
}

#[test]
fn tasks_that_found_a_service_down_or_wait_for_their_turn_go_back_too() {
    let web = Web::start();
    web.set_service(Service::Answers("429 Too Many Requests", "retry-after: 1000\r\n"));
    let url = format!("{}/service", web.origin());
    let asks = format!("[plugins.asks-a-service]\nallowed_hosts = [\"{}\"]\n", web.origin());
    let held = "hold = { after = 1, for = \"1h\" }";
    let serial = "serial = { field = \"key\" }";
    for (plugin, more, value) in [("asks-a-service", held, &*url), ("fails-twice", serial, "1")] {
        let backoff = "backoff = { delays = [\"1h\"] }";
        let queue = format!("[queues.work]\nplugin = \"{plugin}\"\n{backoff}\n{more}\n");
        let mut bench = Bench::new(&if more == held { queue + &asks } else { queue });
        bench.install(plugin, plugin);
        let host = bench.host();
        for n in ["a", "b", "c"] {
            bench.xadd("work", &[("n", n), ("key", "1"), ("url", value)]);
            // The first one fails, and is not charged or has the turn of its key.
            eventually("the first one waits", || (bench.places("work").delayed > 0).then_some(()));
        }
        if more == serial {
            eventually("the others are held", || (bench.places("work").delayed == 3).then_some(()));
        }
        host.stop();
        let told = out(&bench, &["--yes"]).ok().json();
        assert!(!kinds(&told).contains_key("timed"), "no producer delayed them: {told:#}");
        let mut names: Vec<String> =
            consume(&mut bench).into_iter().map(|mut fields| fields.remove("n").expect("a name")).collect();
        names.sort();
        assert_eq!(names, ["a", "b", "c"], "{told:#}");
        let keys: Vec<String> = bench.redis("KEYS", "tq:{work}:*");
        assert_eq!(keys, [""; 0], "{told:#}");
    }
}

/// A queue with a strict order in which one task waits for its retry, and three wait behind it.
fn strict(more: &str) -> Bench {
    let mut bench = Bench::new(&format!(
        "[queues.work]\nplugin = \"as-told\"\nmax_running = 1\norder = \"strict\"\n\
         backoff = {{ delays = [\"1h\"] }}\n{more}"
    ));
    bench.install("as-told", "as-told");
    for n in 1..=4 {
        match more {
            "" => drop(bench.xadd("work", &[("data", &item(n))])),
            _ => drop(bench.redis::<u64>("LPUSH", ("report:queue", item(n)))),
        }
    }
    bench
}

/// The first one fails once.
fn item(n: u64) -> String {
    format!("{{\"n\":\"{n}\",\"ms\":0,\"retries\":{},\"end\":\"ok\"}}", u64::from(n == 1))
}

#[test]
fn a_list_gets_a_strict_order_back() {
    let mut bench = strict("list = \"report:queue\"\n");
    let host = bench.host();
    eventually("three wait behind a retry", || (bench.places("work").delayed == 4).then_some(()));
    bench.tqhost(&["pause", "work"]).ok();
    for n in 5..=6 {
        let _: u64 = bench.redis("LPUSH", ("report:queue", item(n)));
    }
    eventually("they are tasks", || (!bench.redis::<bool>("EXISTS", "report:queue")).then_some(()));
    host.stop();
    let told = kinds(&out(&bench, &[]).ok().json());
    let count = |kind| told.get(kind).copied().unwrap_or(0);
    // The host may have read the last ones before it knew of the pause.
    assert_eq!((count("delayed"), count("held") + count("waiting"), count("timed")), (1, 5, 0), "{told:?}");
    out(&bench, &["--yes"]).ok();
    let items: Vec<String> = bench.redis("LRANGE", ("report:queue", 0, -1));
    assert_eq!(items, (1..=6).rev().map(item).collect::<Vec<_>>(), "BRPOP takes the first one first");
    let keys: Vec<String> = bench.redis("KEYS", "tq:{work}:*");
    assert_eq!(keys, [""; 0]);
}

#[test]
fn held_tasks_come_back_behind_the_one_that_they_waited_for() {
    let mut bench = strict("");
    let host = bench.host();
    eventually("three wait behind a retry", || (bench.places("work").delayed == 4).then_some(()));
    host.stop();
    let told = kinds(&out(&bench, &["--yes"]).ok().json());
    assert_eq!((told["delayed"], told["held"], told.get("timed")), (1, 3, None), "{told:?}");
    let items: Vec<String> =
        consume(&mut bench).into_iter().map(|mut fields| fields.remove("data").expect("data")).collect();
    assert_eq!(items, (1..=4).map(item).collect::<Vec<_>>());
    let keys: Vec<String> = bench.redis("KEYS", "tq:{work}:*");
    assert_eq!(keys, [""; 0]);
}

/// A queue without a host. A host has died with four tasks: one that goes back, two of a flow, and one that
/// was cancelled. Another program runs one task, and six wait. Gives the id of the cancelled one.
fn left_behind(list: &str) -> (Bench, String) {
    let mut bench = Bench::new(&format!("[queues.work]\nplugin = \"echo\"\nlease = \"5m\"\n{list}"));
    bench.install("echo", "echo");
    let _: () = bench.redis("XGROUP", ("CREATE", "work", "tqhost", "0", "MKSTREAM"));
    let flow = "tq:{work}:flow:f";
    bench.xadd("work", &[("data", "running")]);
    bench.xadd("work", &[("data", "child"), ("tq-id", "c"), ("tq-flow", &format!("1 {flow}"))]);
    bench.xadd("work", &[("data", "last"), ("tq-id", "f"), ("tq-joins", flow)]);
    let cancelled = bench.xadd("work", &[("data", "cancelled")]);
    let status = format!("tq:{{work}}:task:{cancelled}");
    let _: u64 =
        bench.redis("HSET", (&status, "status", "CANCELLED", "cancel", "1", "stops", cancelled.as_str()));
    let _: u64 = bench.redis("EXPIRE", (&status, 1000));
    bench.xadd("work", &[("data", "elsewhere")]);
    for (consumer, count) in [("box-17-0123456789ab", 4), ("plain", 1)] {
        let _: redis::Value =
            bench.redis("XREADGROUP", ("GROUP", "tqhost", consumer, "COUNT", count, "STREAMS", "work", ">"));
    }
    bench.xadd("work", &[("data", "waiting")]);
    bench.xadd("work", &[("data", "traced"), ("traceparent", "00-1-2-01")]);
    bench.xadd("work", &[("data", "second child"), ("tq-id", "d"), ("tq-flow", &format!("2 {flow}"))]);
    bench.xadd("work", &[("data", "timed"), ("tq-delay-ms", "36000000")]);
    bench.xadd("work", &[("data", "due"), ("tq-delay-ms", "0")]);
    bench.xadd("work", &[("data", "two fields"), ("priority", "1")]);
    (bench, cancelled)
}

/// The values of `data` in the stream, in their order.
fn data(bench: &mut Bench) -> Vec<String> {
    let entries: Vec<(String, HashMap<String, String>)> = bench.redis("XRANGE", ("work", "-", "+"));
    entries.into_iter().map(|(_, mut fields)| fields.remove("data").expect("data")).collect()
}

/// The fate of the tasks, as the last finding tells it.
fn outcome(report: &Value) -> &str {
    let what = report["found"].as_array().and_then(|found| found.last()?["what"].as_str()).expect("a text");
    what.rsplit_once('(').expect("an outcome").1
}

#[track_caller]
fn has_kinds(report: &Value, expected: &[(&str, u64)]) {
    let expected: HashMap<String, u64> =
        expected.iter().map(|(kind, count)| ((*kind).to_owned(), *count)).collect();
    assert_eq!(kinds(report), expected, "{report:#}");
}

#[test]
fn a_stream_keeps_what_a_plain_consumer_cannot_run() {
    let (mut bench, cancelled) = left_behind("");
    let told = out(&bench, &["--stopped"]).ok().json();
    let all = [
        ("waiting", 6),
        ("reserved", 3),
        ("running", 1),
        ("pending", 1),
        ("ended", 1),
        ("flow", 2),
        ("keys", 1),
    ];
    has_kinds(&told, &all);
    let done = out(&bench, &["--stopped", "--yes"]).ok().json();
    insta::assert_snapshot!(outcome(&done), @"1 tasks were given back, 3 were left)");
    let left = ["child", "last", "elsewhere"];
    let waiting = ["waiting", "traced", "second child", "timed", "due", "two fields", "running"];
    assert_eq!(data(&mut bench), [&left[..], &waiting].concat());
    assert_eq!(bench.places("work").pending, 3);
    assert_eq!(bench.status("work", &cancelled, "status"), "CANCELLED");
    let again = out(&bench, &["--stopped", "--yes"]).ok().json();
    insta::assert_snapshot!(outcome(&again), @"0 tasks were given back, 3 were left)");
}

#[test]
fn a_list_gets_what_its_consumer_can_run() {
    let (mut bench, cancelled) = left_behind("list = \"report:queue\"\n");
    let items = |bench: &mut Bench| -> Vec<String> { bench.redis("LRANGE", ("report:queue", 0, -1)) };
    let before = (data(&mut bench), bench.places("work"));
    let told = out(&bench, &["--stopped"]).ok().json();
    let all = [
        ("waiting", 3),
        ("running", 1),
        ("pending", 1),
        ("ended", 1),
        ("timed", 1),
        ("flow", 3),
        ("unfit", 1),
        ("keys", 1),
    ];
    has_kinds(&told, &all);
    assert_eq!((data(&mut bench), bench.places("work")), before, "looking changes nothing");
    let done = out(&bench, &["--stopped", "--yes"]).ok().json();
    insta::assert_snapshot!(outcome(&done), @"4 tasks were given back, 6 were left)");
    assert_eq!(items(&mut bench), ["due", "traced", "waiting", "running"], "BRPOP takes the oldest first");
    assert_eq!(data(&mut bench), ["child", "last", "elsewhere", "second child", "timed", "two fields"]);
    assert_eq!(bench.places("work").pending, 3);
    assert_eq!(bench.status("work", &cancelled, "status"), "CANCELLED");
    let early = out(&bench, &["--stopped", "--yes", "--early"]).ok().json();
    insta::assert_snapshot!(outcome(&early), @"1 tasks were given back, 5 were left)");
    assert_eq!(items(&mut bench).last().expect("an item"), "timed");
}

#[test]
fn a_task_that_was_cancelled_while_it_ran_stays_cancelled() {
    let held = Held::new();
    let mut bench = held.bench("[queues.work]\nplugin = \"fetches\"\nmax_running = 1\nlease = \"5m\"\n");
    let [url] = held.task();
    let host = bench.host();
    let id = bench.xadd("work", &[url]);
    bench.until("work", &id, "PROCESSING");
    // Its host cannot stop it any more.
    host.signal(Signal::SIGSTOP);
    bench.tqhost(&["cancel", "work", &id]).ok();
    assert_eq!(bench.status("work", &id, "cancel"), "1");
    host.kill();
    let announced: Vec<String> = bench.redis("ZRANGE", ("tq:hosts", 0, -1));
    let _: u64 = bench.redis("DEL", format!("tq:host:{}", announced[0]));
    let done = out(&bench, &["--yes", "--stopped"]).ok().json();
    assert_eq!(kinds(&done)["ended"], 1, "{done:#}");
    assert_eq!(bench.places("work").length, 0);
    assert_eq!(bench.status("work", &id, "status"), "CANCELLED");
    assert_eq!(bench.status("work", &id, "cancel"), "", "a later task with this id runs");
}

#[test]
fn a_host_that_gives_the_stream_another_name_is_seen() {
    let mut bench = Bench::new("[queues.theirs]\nplugin = \"echo\"\nstream = \"work\"\n");
    bench.install("echo", "echo");
    let host = bench.host();
    eventually("the host announces its queue", || {
        let view = bench.tqhost(&["queues", "theirs", "--json"]).ok().json();
        (view["hosts"].as_array()?.len() == 1).then_some(())
    });
    bench.xadd("work", &[("n", "1"), ("tq-delay-ms", "36000000")]);
    eventually("it is delayed", || (bench.places("work").delayed == 1).then_some(()));
    let ours = bench.dir.path().join("ours.toml");
    let text = format!(
        "[queues.work]\nplugin = \"echo\"\n[redis]\nurl = \"redis://127.0.0.1:{}\"\n",
        bench.redis.port
    );
    std::fs::write(&ours, text).expect("write a configuration");
    let refused = tqhost(&ours, &["adopt", "work", "--out", "--yes", "--early", "--json"]);
    assert_eq!((refused.code, kinds(&refused.json()).get("host")), (1, Some(&1)), "{refused:#?}");
    assert_eq!(bench.places("work").delayed, 1);
    let report = tqhost(&ours, &["doctor", "work", "--json"]).ok().json();
    let warnings = report["warnings"].as_array().expect("warnings");
    assert!(!warnings.iter().any(|warning| warning["kind"] == "no-host"), "{report:#}");
    host.stop();
}
