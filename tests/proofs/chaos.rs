//! The short form of the chaos test, and tests of its judge: each fault that the judge must find is made by
//! hand.

#[path = "../chaos/harness/mod.rs"]
mod harness;

use std::collections::HashMap;
use std::time::Duration;

use serde_json::json;
use tqhost::testing::queue::script;

use self::harness::effects::{self, Seen};
use self::harness::faults::{Done, Loss, now_ms};
use self::harness::judge::{Case, Verdict, judge};
use self::harness::load::Sent;
use self::harness::orders::{Kind, Order};
use self::harness::plan::{Fault, Keeps};
use self::harness::{LEASE, Wish, bench, run};
use crate::support::{Bench, eventually};

/// Each run has other faults. The table names the seed, with which `make chaos` repeats their plan.
#[track_caller]
fn is_good(seconds: u64, keeps: Keeps) {
    let (seed, duration) = (fastrand::u64(0..1_000_000), Duration::from_secs(seconds));
    let verdict = run(Wish { seed, duration, pause: Duration::from_millis(20), keeps, keep: false });
    println!("{}", verdict.table);
    assert!(verdict.is_good(), "{}", verdict.table);
}

/// Long enough for nearly every kind of fault, and short enough for each run of the tests.
#[test]
fn proof_chaos_short_form() {
    is_good(20, Keeps::All);
}

#[test]
fn proof_chaos_with_a_redis_that_forgets_its_last_second() {
    is_good(10, Keeps::AllButASecond);
}

#[test]
fn proof_chaos_with_a_failover() {
    is_good(10, Keeps::WhatItsReplicaHas);
}

/// A bench with four completed tasks. Its host has stopped.
fn quiet() -> (Bench, Sent) {
    let mut bench = bench(Keeps::All);
    let host = bench.host();
    let mut sent = Sent::default();
    for number in 0..4 {
        let name = format!("plain-{number}");
        add(&mut bench, &name);
        sent.accepted.insert(name, (0, 0));
    }
    eventually("all are done", || {
        (0..4)
            .all(|number| bench.status("plain", &format!("plain-{number}"), "status") == "COMPLETED")
            .then_some(())
    });
    host.stop();
    (bench, sent)
}

fn add(bench: &mut Bench, name: &str) -> String {
    add_with(bench, name, "")
}

/// `told` are further fields for the handler.
fn add_with(bench: &mut Bench, name: &str, told: &str) -> String {
    let data = format!("{{\"n\":\"{name}\",\"ms\":0,\"retries\":0,\"end\":\"ok\"{told}}}");
    bench.xadd("plain", &[("data", &data), ("tq-id", name), ("pad", "1234")])
}

/// Deletes the entry of a task by hand. Writes `status` as its end, if there is one.
fn end(bench: &mut Bench, name: &str, entry: &str, status: Option<&str>) {
    let script = "redis.call('XDEL', KEYS[1], ARGV[1]); \
        if ARGV[2] then redis.call('HSET', KEYS[2], 'status', ARGV[2]) end";
    let status_key = format!("tq:{{plain}}:task:{name}");
    let _: redis::Value = bench.redis("EVAL", (script, 2, "plain", status_key, entry, status));
}

fn verdict(bench: &mut Bench, sent: &Sent) -> Verdict {
    verdict_after(bench, sent, &[])
}

/// The verdict if the processes 10 and 11 were the hosts 0 and 1.
fn verdict_after(bench: &mut Bench, sent: &Sent, faults: &[Done]) -> Verdict {
    let logs = bench.dir.path().join("logs");
    std::fs::create_dir_all(&logs).expect("create a folder");
    judge(Case {
        append_only_file: &bench.redis.append_only_file(),
        db: &mut bench.db,
        logs: &logs,
        sent,
        faults,
        pids: &HashMap::from([(10, 0), (11, 1)]),
        wrong: Vec::new(),
    })
}

fn mentions(verdict: &Verdict, what: &str) -> bool {
    verdict.wrong.iter().any(|line| line.contains(what))
}

#[test]
fn chaos_the_judge_finds_nothing_where_nothing_is() {
    let (mut bench, sent) = quiet();
    let verdict = verdict(&mut bench, &sent);
    assert!(verdict.is_good(), "{}{:?}", verdict.table, verdict.wrong);
}

#[test]
fn chaos_the_judge_finds_a_second_commit() {
    let (mut bench, sent) = quiet();
    // The script lacks its guard against an entry that was settled before.
    let careless = script::SETTLE.source.replace("group, entry) == 1", "group, entry) >= 0");
    assert_ne!(careless, script::SETTLE.source);
    let keys = ["plain", "d", "p", "l", "tq:{plain}:settled:host-1-x:0", "tq:{plain}:task:plain-2", "plain"];
    let call = ["tqhost", "86400000", "1000", "host-1-x", "1", "0", "0", "0", "0", "0", ""];
    let attempt = [
        "COMPLETED",
        "",
        "",
        "1-1",
        "1",
        "p",
        "1",
        "0",
        "plain-2",
        "",
        "",
        "0",
        "2",
        "result",
        "{}",
        "0",
        "",
    ];
    let arguments = [&call[..], &attempt, &["", "plain", ""]].concat();
    let not_done: Vec<redis::Value> = bench.redis("EVAL", (&careless, keys.len(), &keys, &arguments));
    assert_eq!(not_done, []);
    let verdict = verdict(&mut bench, &sent);
    assert_eq!(verdict.twice, ["plain-2"], "{}", verdict.table);
    assert!(
        mentions(&verdict, "plain-2: COMPLETED without an ack")
            && mentions(&verdict, "with the ends [COMPLETED, COMPLETED]"),
        "{:?}",
        verdict.wrong
    );
    let writes = verdict.evidence.matches("COMPLETED").count();
    assert!(
        writes == 2 && verdict.evidence.contains("XADD plain"),
        "its history is shown: {}",
        verdict.evidence
    );
}

#[test]
fn chaos_the_judge_finds_what_is_lost() {
    let (mut bench, mut sent) = quiet();
    let entry = add(&mut bench, "plain-4");
    let _: u64 = bench.redis("XDEL", ("plain", entry));
    sent.accepted.insert("plain-5".to_owned(), (0, 0));
    let mut lost = verdict(&mut bench, &sent).lost;
    lost.sort();
    assert_eq!(lost, ["plain-4", "plain-5"], "deleted; accepted and never written");
}

#[test]
fn chaos_the_judge_finds_what_is_stuck_or_in_two_places() {
    let (mut bench, sent) = quiet();
    add(&mut bench, "plain-4");
    add(&mut bench, "plain-3");
    let verdict = verdict(&mut bench, &sent);
    assert_eq!(verdict.stuck, ["plain-4"]);
    assert!(mentions(&verdict, "plain-3: in 1 places, with the ends [COMPLETED]"), "{:?}", verdict.wrong);
    assert!(mentions(&verdict, "plain: 2 in the stream"), "{:?}", verdict.wrong);
}

#[test]
fn chaos_the_judge_finds_a_wrong_end() {
    let (mut bench, sent) = quiet();
    let _: u64 = bench.redis("HSET", ("tq:{plain}:task:plain-0", "attempt", "2"));
    let _: u64 = bench.redis("HSET", ("tq:{plain}:task:plain-1", "status", "FAILED"));
    let _: u64 = bench.redis("HSET", ("tq:{plain}:task:plain-3", "status", "PROCESSING", "attempt", "1"));
    let verdict = verdict(&mut bench, &sent);
    for what in [
        "plain-0: ended on attempt 2",
        "plain-1: FAILED without a dead letter",
        "plain-3: began after its end",
        "plain-3: PROCESSING, attempt 1, by , which had no such delivery",
    ] {
        assert!(mentions(&verdict, what), "{what}: {:?}", verdict.wrong);
    }
}

/// Adds a task and gives it to process 10. Gives it to process 11 after a whole lease, or at once if
/// `in_haste`.
fn take_over(bench: &mut Bench, name: &str, in_haste: bool) {
    let entry = add(bench, name);
    let read = ("GROUP", "tqhost", "host-10-x", "COUNT", 1, "STREAMS", "plain", ">");
    let _: redis::Value = bench.redis("XREADGROUP", read);
    let idle = if in_haste { 0 } else { LEASE.as_millis() as u64 };
    let _: redis::Value =
        bench.redis("XCLAIM", ("plain", "tqhost", "host-10-x", 0, &entry, "IDLE", idle, "JUSTID"));
    let _: redis::Value = bench.redis("XCLAIM", ("plain", "tqhost", "host-11-y", idle, &entry));
    let _: u64 = bench.redis("XACK", ("plain", "tqhost", &entry));
    // Times are in milliseconds, and the next step must have a later one.
    let now = now_ms();
    while now_ms() == now {}
}

fn stopped(host: usize, from_ms: u64) -> Done {
    Done { fault: Fault::HostStopped, host: Some(host), from_ms, to_ms: now_ms(), loss: None }
}

#[test]
fn chaos_the_judge_finds_a_run_that_is_repeated_without_a_cause() {
    let (mut bench, sent) = quiet();
    let before = now_ms() - 2 * LEASE.as_millis() as u64;
    take_over(&mut bench, "plain-4", false);
    let unexplained = "plain-4: run (0, 1, 0) is repeated and no fault explains it";
    for faults in [vec![], vec![stopped(1, before)], vec![Done { to_ms: before, ..stopped(0, before) }]] {
        let verdict = verdict_after(&mut bench, &sent, &faults);
        assert!(
            mentions(&verdict, unexplained),
            "none, of another host, or over before: {:?}",
            verdict.wrong
        );
        assert!(!mentions(&verdict, "after it was kept"), "{:?}", verdict.wrong);
    }
    let verdict = verdict_after(&mut bench, &sent, &[stopped(0, before)]);
    assert!(!mentions(&verdict, "is repeated"), "the host that had it was stopped: {:?}", verdict.wrong);
}

#[test]
fn chaos_the_judge_finds_what_is_taken_from_a_living_host() {
    let (mut bench, sent) = quiet();
    let before = now_ms();
    take_over(&mut bench, "plain-4", true);
    let verdict = verdict_after(&mut bench, &sent, &[stopped(0, before)]);
    assert!(mentions(&verdict, "plain-4: taken from host-10-x by host-11-y"), "{:?}", verdict.wrong);
    assert!(!mentions(&verdict, "is repeated"), "{:?}", verdict.wrong);
}

#[test]
fn chaos_the_judge_finds_a_fault_that_explains_too_much() {
    let (mut bench, sent) = quiet();
    let before = now_ms() - 2 * LEASE.as_millis() as u64;
    // The host has one task at a time.
    take_over(&mut bench, "plain-4", false);
    take_over(&mut bench, "plain-5", false);
    let verdict = verdict_after(&mut bench, &sent, &[stopped(0, before)]);
    assert!(mentions(&verdict, "2 runs were repeated, and 1 were in hand"), "{:?}", verdict.wrong);
}

fn order(kind: Kind, name: &str, from_ms: u64) -> Order {
    Order { kind, name: name.to_owned(), from_ms, to_ms: now_ms(), is_done: true }
}

#[test]
fn chaos_the_judge_finds_what_nobody_ordered() {
    let (mut bench, mut sent) = quiet();
    let before = now_ms();
    add(&mut bench, "plain-4");
    bench.tqhost(&["cancel", "plain", "plain-4"]).ok();
    bench.tqhost(&["pause", "plain"]).ok();
    let dead = "tq:{plain}:dead";
    let letter = bench.xadd(dead, &[("data", "{\"n\":\"plain-3\"}"), ("tq-reason", "rejected")]);
    let _: u64 = bench.redis("XDEL", (dead, letter));
    let findings = [
        "plain-4: is CANCELLED, and nobody cancelled it then",
        "plain-3: was requeued 1 times by 0 orders",
        "and nobody ordered it",
    ];
    let early = |kind, name| Order { to_ms: before - 1, ..order(kind, name, before - 1) };
    for orders in [
        vec![],
        vec![
            early(Kind::Cancel, "plain-4"),
            order(Kind::Requeue, "plain-4", before),
            early(Kind::Pause, "plain"),
        ],
    ] {
        sent.orders = orders;
        let verdict = verdict(&mut bench, &sent);
        findings
            .iter()
            .for_each(|finding| assert!(mentions(&verdict, finding), "{finding}: {:?}", verdict.wrong));
    }
    sent.orders = vec![
        order(Kind::Cancel, "plain-4", before),
        order(Kind::Requeue, "plain-3", before),
        order(Kind::Pause, "plain", before),
    ];
    let verdict = verdict(&mut bench, &sent);
    findings
        .iter()
        .for_each(|finding| assert!(!mentions(&verdict, finding), "{finding}: {:?}", verdict.wrong));
}

#[test]
fn chaos_the_judge_finds_what_was_ordered_and_not_done() {
    let (mut bench, mut sent) = quiet();
    sent.orders = vec![
        order(Kind::Cancel, "plain-0", now_ms()),
        order(Kind::Requeue, "plain-1", 0),
        order(Kind::Pause, "plain", 0),
    ];
    let verdict = verdict(&mut bench, &sent);
    for what in [
        "plain-0: was cancelled, and ended as",
        "plain-1: was requeued 0 times by 1 orders",
        "and Redis knows nothing of it",
    ] {
        assert!(mentions(&verdict, what), "{what}: {:?}", verdict.wrong);
    }
}

#[test]
fn chaos_the_judge_finds_a_claim_while_the_queue_is_paused() {
    let (mut bench, sent) = quiet();
    let before = now_ms();
    let _: () = bench.redis("SET", ("tq:{plain}:paused", before - 5000));
    take_over(&mut bench, "plain-4", false);
    let _: u64 = bench.redis("DEL", "tq:{plain}:paused");
    take_over(&mut bench, "plain-5", false);
    let claims = |verdict: &Verdict| {
        verdict.wrong.iter().filter(|line| line.contains("claimed a task of plain at")).count()
    };
    assert_eq!(claims(&verdict(&mut bench, &sent)), 2, "that of plain-4, by each host");
    let verdict = verdict_after(&mut bench, &sent, &[stopped(0, before)]);
    assert_eq!(claims(&verdict), 1, "one of the hosts was stopped: {:?}", verdict.wrong);
}

#[test]
fn chaos_the_judge_finds_a_loss_that_is_older_or_newer_than_what_redis_may_forget() {
    let (mut bench, mut sent) = quiet();
    sent.accepted.insert("plain-4".to_owned(), (1000, 1010));
    let cut = |from_ms, to_ms| Done {
        loss: Some((from_ms, to_ms)),
        fault: Fault::RedisCutShort,
        host: None,
        from_ms: 0,
        to_ms: 9000,
    };
    for (loss, lost) in [((1010, 2000), 0), ((500, 1000), 0), ((1011, 2000), 1), ((500, 999), 1)] {
        let verdict = verdict_after(&mut bench, &sent, &[cut(loss.0, loss.1)]);
        assert_eq!(verdict.lost.len(), lost, "{loss:?}: {}", verdict.table);
    }
}

#[test]
fn chaos_the_judge_finds_a_task_that_was_sent_twice_and_ends_twice_or_never() {
    let (mut bench, sent) = quiet();
    for (name, ends) in [
        ("plain-4", [Some("COMPLETED"), Some("COMPLETED")]),
        ("plain-5", [None, None]),
        ("plain-6", [None, Some("COMPLETED")]),
    ] {
        let entries = [0, 1].map(|_| add_with(&mut bench, name, ",\"again\":true"));
        entries.iter().zip(ends).for_each(|(entry, status)| end(&mut bench, name, entry, status));
    }
    let verdict = verdict(&mut bench, &sent);
    assert_eq!(
        (verdict.twice, verdict.lost),
        (vec!["plain-4".to_owned()], vec!["plain-5".to_owned()]),
        "{:?}",
        verdict.wrong
    );
}

#[test]
fn chaos_the_judge_finds_two_tasks_of_one_key_and_a_payload_that_is_cut() {
    let (mut bench, sent) = quiet();
    for name in ["plain-4", "plain-5"] {
        let entry = add_with(&mut bench, name, ",\"key\":\"k\",\"pad\":5");
        end(&mut bench, name, &entry, Some("COMPLETED"));
    }
    let verdict = verdict(&mut bench, &sent);
    for what in ["of the 2 tasks with the key k, 2 were run", "plain-4: has 4 bytes of its payload of 5"] {
        assert!(mentions(&verdict, what), "{what}: {:?}", verdict.wrong);
    }
}

/// Adds a task to a queue with turns.
fn add_to_row(bench: &mut Bench, queue: &str, name: &str, row: &str) -> String {
    let data = payload_in(name, row);
    bench.xadd(queue, &[("data", &data), ("tq-id", name), ("row", row)])
}

fn payload_in(name: &str, row: &str) -> String {
    format!("{{\"n\":\"{name}\",\"ms\":0,\"retries\":0,\"end\":\"ok\",\"row\":\"{row}\"}}")
}

/// Gives the next entries of a queue to process 10.
fn deliver(bench: &mut Bench, queue: &str, count: usize) {
    let read = ("GROUP", "tqhost", "host-10-x", "COUNT", count, "STREAMS", queue, ">");
    let _: redis::Value = bench.redis("XREADGROUP", read);
}

/// Delivers the next entry of `serial` or `shared`, and puts it aside in the same step.
fn hold(bench: &mut Bench, queue: &str, name: &str, entry: &str) {
    let script = "redis.call('XREADGROUP', 'GROUP', 'tqhost', 'host-10-x', 'COUNT', 1, \
            'STREAMS', KEYS[1], '>') \
        redis.call('HSET', KEYS[2], 't/h/1/' .. ARGV[1], ARGV[2]) \
        redis.call('XACK', KEYS[1], 'tqhost', ARGV[1]) redis.call('XDEL', KEYS[1], ARGV[1])";
    let (parked, data) = (format!("tq:{{{queue}}}:parked"), payload_in(name, "row-0"));
    let _: redis::Value = bench.redis("EVAL", (script, 2, queue, parked, entry, data));
}

/// Marks a task of `serial` as PROCESSING by process 10, and writes a fence if there is one.
fn mark(bench: &mut Bench, name: &str, entry: &str, started_ms: u64, fence: Option<u32>) {
    let script = "redis.call('HSET', KEYS[1], 'status', 'PROCESSING', 'attempt', '1', \
            'consumer', 'host-10-x', 'entry', ARGV[1], 'started_at', ARGV[2]) \
        if ARGV[3] then redis.call('HSET', KEYS[1], 'fence', ARGV[3]) end";
    let status = format!("tq:{{serial}}:task:{name}");
    let _: redis::Value = bench.redis("EVAL", (script, 1, status, entry, started_ms, fence));
}

#[test]
fn chaos_the_judge_finds_two_owners_of_a_row() {
    let (mut bench, sent) = quiet();
    for (queue, limit) in [("strict", 1), ("serial", 1), ("shared", 2)] {
        (0..=limit).for_each(|n| drop(add_to_row(&mut bench, queue, &format!("{queue}-{n}"), "row-0")));
        deliver(&mut bench, queue, limit);
        let found = format!("{queue}-{limit}: two owners: {} tasks of row-0", limit + 1);
        let before = verdict(&mut bench, &sent);
        assert!(!mentions(&before, &format!("of {queue} run at once")), "as many as may: {:?}", before.wrong);
        deliver(&mut bench, queue, 1);
        let after = verdict(&mut bench, &sent);
        assert!(mentions(&after, &found), "{found}: {:?}", after.wrong);
    }
    // With these, the queue has too many, and their row has not.
    (3..6).for_each(|n| drop(add_to_row(&mut bench, "shared", &format!("shared-{n}"), &format!("row-{n}"))));
    deliver(&mut bench, "shared", 3);
    let verdict = verdict(&mut bench, &sent);
    assert!(mentions(&verdict, "1 tasks of row-5 and 6 of shared run at once"), "{:?}", verdict.wrong);
}

#[test]
fn chaos_the_judge_finds_a_task_that_begins_again_under_a_lease_that_is_over() {
    let (mut bench, sent) = quiet();
    let lease = LEASE.as_millis() as u64;
    let before = now_ms() - 2 * lease;
    let mut delivered_ms = 0;
    // The host stops the handler and begins anew, and another host takes the task over: at once, or after a
    // whole lease.
    for (name, began_ms) in [("serial-0", now_ms()), ("serial-1", now_ms() - lease)] {
        let entry = add_to_row(&mut bench, "serial", name, name);
        delivered_ms = now_ms();
        deliver(&mut bench, "serial", 1);
        mark(&mut bench, name, &entry, before, None);
        let own = ("serial", "tqhost", "host-10-x", 0, &entry, "IDLE", lease, "JUSTID");
        let _: redis::Value = bench.redis("XCLAIM", own);
        mark(&mut bench, name, &entry, began_ms, Some(2));
        let _: redis::Value = bench.redis("XCLAIM", ("serial", "tqhost", "host-11-y", 0, &entry));
    }
    let found = verdict(&mut bench, &sent);
    assert!(mentions(&found, "serial-0: two owners: host-10-x began it again"), "{:?}", found.wrong);
    assert!(!mentions(&found, "serial-1: two owners"), "{:?}", found.wrong);
    assert!(mentions(&found, "serial-1: began again at"), "no fault explains it: {:?}", found.wrong);
    // This one was silent for a whole lease, claims the entry from itself, and begins anew.
    let entry = add_to_row(&mut bench, "serial", "serial-2", "serial-2");
    deliver(&mut bench, "serial", 1);
    mark(&mut bench, "serial-2", &entry, before, None);
    for idle in [2 * lease, 0, 0] {
        let own = ("serial", "tqhost", "host-10-x", 0, &entry, "IDLE", idle, "JUSTID");
        let _: redis::Value = bench.redis("XCLAIM", own);
    }
    mark(&mut bench, "serial-2", &entry, now_ms(), Some(2));
    // A heartbeat that was prepared before the stop may renew the lease a moment after it.
    for (to_ms, is_explained) in [(now_ms(), true), (delivered_ms, true), (delivered_ms - 1001, false)] {
        let fault = Done { to_ms, ..stopped(0, before) };
        let verdict = verdict_after(&mut bench, &sent, &[fault]);
        assert_eq!(!mentions(&verdict, "serial-1: began again at"), is_explained, "{:?}", verdict.wrong);
        assert!(!mentions(&verdict, "serial-2: began again at"), "{:?}", verdict.wrong);
    }
    let found = verdict(&mut bench, &sent);
    assert!(mentions(&found, "serial-2: began again at"), "{:?}", found.wrong);
    // With the one that began again, and the one of the other host, these are three runs.
    for (runs, is_found) in [(3, false), (4, true)] {
        say(&bench, &vec![("runs", now_ms()); runs]);
        let verdict = verdict_after(&mut bench, &sent, &[stopped(0, before)]);
        assert_eq!(
            mentions(&verdict, &format!("serial-0: ran {runs} times")),
            is_found,
            "{:?}",
            verdict.wrong
        );
    }
}

/// Writes the log of host 0, in which the handler of `serial-0` says this, at these times.
fn say(bench: &Bench, said: &[(&str, u64)]) {
    let line = |(message, at_ms): &(&str, u64)| {
        let at_ms = i64::try_from(*at_ms).expect("a time");
        let time = jiff::Timestamp::from_millisecond(at_ms).expect("a time").to_string();
        let line = json!({
            "timestamp": time, "target": "guest", "queue": "serial", "task": "serial-0", "message": message
        });
        format!("{line}\n")
    };
    let logs = bench.dir.path().join("logs");
    std::fs::create_dir_all(&logs).expect("create a folder");
    std::fs::write(logs.join("host-0-000.log"), said.iter().map(line).collect::<String>()).expect("a log");
}

#[test]
fn chaos_the_judge_finds_a_handler_that_runs_after_its_lease() {
    let (mut bench, sent) = quiet();
    let before = now_ms();
    let entry = add_to_row(&mut bench, "serial", "serial-0", "row-0");
    deliver(&mut bench, "serial", 1);
    let _: redis::Value = bench.redis("XCLAIM", ("serial", "tqhost", "host-11-y", 0, &entry));
    let after = now_ms();
    let late = after + LEASE.as_millis() as u64;
    let found = |bench: &mut Bench, said_ms: u64, faults: &[Done]| {
        say(bench, &[("has run", said_ms)]);
        mentions(&verdict_after(bench, &sent, faults), "serial-0: two owners: host 0 runs it")
    };
    assert!(!found(&mut bench, after, &[]), "at the moment when another host took it over");
    assert!(found(&mut bench, late, &[]));
    assert!(found(&mut bench, before - 1000, &[]), "it was not even delivered");
    let stop = Done { to_ms: late, ..stopped(0, before) };
    assert!(!found(&mut bench, late, std::slice::from_ref(&stop)), "its process was stopped");
    assert!(found(&mut bench, late, &[Done { host: Some(1), ..stop }]), "another process was stopped");
    let cut = |loss| Done { loss: Some(loss), fault: Fault::RedisCutShort, host: None, ..stopped(0, before) };
    assert!(!found(&mut bench, late, &[cut((before, before))]), "Redis forgot the delivery");
    assert!(found(&mut bench, late, &[cut((0, before - 60_000))]), "Redis forgot something long before");
}

#[test]
fn chaos_the_judge_finds_a_row_out_of_order() {
    let (mut bench, sent) = quiet();
    for (queue, is_ordered) in [("serial", true), ("shared", false)] {
        let names = [0, 1].map(|n| format!("{queue}-{n}"));
        let first = add_to_row(&mut bench, queue, &names[0], "row-0");
        hold(&mut bench, queue, &names[0], &first);
        add_to_row(&mut bench, queue, &names[1], "row-0");
        deliver(&mut bench, queue, 1);
        let verdict = verdict(&mut bench, &sent);
        let found = format!("{}: out of order: it begins before {}", names[1], names[0]);
        assert_eq!(mentions(&verdict, &found), is_ordered, "{found}: {:?}", verdict.wrong);
    }
    // A task that has ended joins the tail when it is requeued.
    let dead = add_to_row(&mut bench, "serial", "serial-2", "row-2");
    deliver(&mut bench, "serial", 1);
    let script = "redis.call('XACK', KEYS[1], 'tqhost', ARGV[1]) redis.call('XDEL', KEYS[1], ARGV[1])";
    let _: redis::Value = bench.redis("EVAL", (script, 1, "serial", dead));
    for name in ["serial-3", "serial-2"] {
        add_to_row(&mut bench, "serial", name, "row-2");
    }
    deliver(&mut bench, "serial", 1);
    let in_order = verdict(&mut bench, &sent);
    assert!(!mentions(&in_order, "serial-3: out of order"), "{:?}", in_order.wrong);
    deliver(&mut bench, "serial", 1);
    let too_early = verdict(&mut bench, &sent);
    let found = "serial-2: out of order: it begins before serial-3";
    assert!(mentions(&too_early, found), "{:?}", too_early.wrong);
}

#[test]
fn chaos_the_judge_finds_a_row_that_starves() {
    let (mut bench, sent) = quiet();
    add_to_row(&mut bench, "serial", "serial-1", "row-1");
    let waits = add_to_row(&mut bench, "serial", "serial-0", "row-0");
    deliver(&mut bench, "serial", 1);
    // Nobody has its turn, and it is put aside.
    hold(&mut bench, "serial", "serial-0", &waits);
    let early = verdict(&mut bench, &sent);
    assert!(!mentions(&early, "starves"), "one task was in front of it: {:?}", early.wrong);
    add_to_row(&mut bench, "serial", "serial-2", "row-2");
    deliver(&mut bench, "serial", 1);
    let late = verdict(&mut bench, &sent);
    assert!(mentions(&late, "serial-0: starves: 1 tasks were in front of it"), "{:?}", late.wrong);
}

#[test]
fn chaos_the_judge_finds_effects_that_are_missing_or_too_many() {
    let mut bench = bench(Keeps::All);
    let host = bench.host();
    let count = json!(["add", "n", 1]);
    let task = |queue: &str| json!({ "queue": queue, "fields": { "do": [count, ["results"]] } });
    let record = json!({ "a": "1", "b": "1", "c": "1" });
    let calls = json!([
        count,
        ["drop", "kb:0"],
        ["put", "kb:0", record],
        ["enqueue", task("after")],
        ["fan-out", [task("part"), task("part"), task("part")], task("joined")]
    ]);
    let id = bench.xadd("counted", &[("do", &calls.to_string())]);
    eventually("all ends are told", || {
        let all = bench.places_but_dead("told") == Default::default();
        let told: Option<u64> = bench.redis("GET", "tq:{told}:state:effects:n");
        (all && told == Some(5)).then_some(())
    });
    host.stop();
    let mut seen = Seen::default();
    seen.accepted.push((id.clone(), (0, 0)));
    let judged_with = |bench: &mut Bench, seen: &Seen, losses: &[Loss]| {
        let file = bench.redis.append_only_file();
        effects::judge(&mut bench.db, &file, seen, losses).0
    };
    let judged = |bench: &mut Bench, seen: &Seen| judged_with(bench, seen, &[]);
    assert_eq!(judged(&mut bench, &seen), Vec::<String>::new());
    let flow: Vec<String> = bench.redis("KEYS", "tq:{joined}:task:*");
    let after: Vec<String> = bench.redis("KEYS", "tq:{after}:task:*");
    let child: Vec<String> = bench.redis("KEYS", "tq:{part}:task:*");
    let now = now_ms();
    let at = now.to_string();
    let ghost =
        vec!["tq:{after}:task:ghost", "status", "FAILED", "error", "lost: its entry", "finished_at", &at];
    let lost = ["told", "*", "end.id", &id, "end.queue", "counted", "end.status", "FAILED"];
    let lost = [&lost[..], &["end.error", "lost: its entry", "end.finished_at", &at]].concat();
    let faults: [(&str, Vec<&str>, &str); 10] = [
        (
            "INCR",
            vec!["tq:{counted}:state:effects:n"],
            "1 tasks that count completed, and the counter is Some(2)",
        ),
        ("HSET", vec!["kb:0", "b", "2"], "the record kb:0 is written by half"),
        (
            "SET",
            vec!["tq:{values}:state:effects:v-9", "9"],
            "values: v-9 is there, although its task did not",
        ),
        ("HSET", ghost, "after: nobody enqueued ghost: FAILED lost: its entry"),
        ("DEL", vec![&after[0]], " did not complete: None"),
        ("HSET", vec![&flow[0], "status", "FAILED"], "the flow "),
        ("DEL", vec![&child[0]], " has 2 children"),
        ("HSET", vec![&child[1], "status", "CANCELLED"], "part: nobody was told that"),
        (
            "XADD",
            vec!["told", "*", "end.id", &id, "end.queue", "counted", "end.status", "COMPLETED"],
            "told 2 times",
        ),
        ("XADD", lost, "told 1 times: (\"counted\""),
    ];
    for (command, args, finding) in &faults {
        let has = |wrong: &[String]| wrong.iter().any(|line| line.contains(finding));
        assert!(!has(&judged(&mut bench, &seen)), "{finding}, before it was made");
        let _: redis::Value = bench.redis(command, args);
        let wrong = judged(&mut bench, &seen);
        assert!(has(&wrong), "{finding}: {wrong:?}");
    }
    // A loss explains the task that nobody enqueued, and the end that was told as lost.
    let unexplained = |wrong: Vec<String>| {
        wrong
            .iter()
            .filter(|line| line.contains("ghost") || line.contains("told 1 times: (\"counted\""))
            .count()
    };
    let long_before = judged_with(&mut bench, &seen, &[(0, now - 60_000)]);
    assert_eq!(unexplained(long_before), 2, "forgotten long before");
    assert_eq!(unexplained(judged_with(&mut bench, &seen, &[(now, now)])), 0, "Redis forgot them");
    seen.accepted.push(("another".to_owned(), (0, 0)));
    assert!(judged(&mut bench, &seen).iter().any(|line| line.contains("another was accepted and is lost")));
}
