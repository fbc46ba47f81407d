//! Ids that producers choose (`tq-id`) and send more than once: an id belongs to one task at a time.
//!
//! Not here: the duplicates of an idempotency key (`idempotency`), ids of dead letters (`faults::data`).

use std::collections::HashMap;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{Bench, Host, Places, eventually};

const LONG: u32 = 600_000;

/// A bench where handlers do as their tasks tell.
fn told(queues: &str) -> Bench {
    let bench = Bench::new(queues);
    bench.install("as-told", "as-told");
    bench
}

/// Adds an entry with this id and key, whose attempt takes `ms` and ends in this way.
fn send(bench: &mut Bench, queue: &str, (id, key): (&str, &str), n: &str, ms: u32, end: &str) -> String {
    let data = json!({ "n": n, "ms": ms, "retries": 0, "end": end }).to_string();
    bench.xadd(queue, &[("tq-id", id), ("key", key), ("data", &data)])
}

fn members(bench: &mut Bench, key: &str) -> u64 {
    bench.redis("HLEN", key)
}

/// The ends that the events of a queue tell of a task.
fn ends(bench: &mut Bench, queue: &str, id: &str) -> Vec<String> {
    let entries: Vec<(String, HashMap<String, String>)> =
        bench.redis("XRANGE", (format!("tq:{{{queue}}}:events"), "-", "+"));
    let of_task = entries.into_iter().filter(|(_, fields)| fields.get("id").is_some_and(|of| of == id));
    let ends = of_task.map(|(_, fields)| fields["status"].clone());
    ends.filter(|status| ["COMPLETED", "FAILED", "CANCELLED"].contains(&status.as_str())).collect()
}

#[track_caller]
fn counts(ran: &Value) -> (u64, u64) {
    (ran["succeeded"].as_u64().expect("a count"), ran["skipped"].as_u64().expect("a count"))
}

#[test]
fn a_repeated_id_gives_no_turn_away() {
    let mut bench =
        told("[queues.track]\nplugin = \"as-told\"\nserial = { field = \"key\" }\nconcurrency = 10\n");
    for id in ["x", "x", "y"] {
        send(&mut bench, "track", (id, "1"), id, LONG, "ok");
    }
    let host = bench.host();
    host.until_ended_as("track", "duplicate", 1);
    bench.until("track", "x", "PROCESSING");
    bench.until("track", "y", "PENDING");
    insta::assert_snapshot!(bench.status("track", "y", "note"), @"waits for its turn");
    bench.tqhost(&["cancel", "track", "x"]).ok();
    bench.until("track", "y", "PROCESSING");
    bench.tqhost(&["cancel", "track", "y"]).ok();
    bench.until_drained("track");
    assert_eq!(members(&mut bench, "tq:{track}:owners"), 0);
    bench.tqhost(&["doctor", "track"]).ok();
    host.stop();
}

#[test]
fn a_dead_letter_is_not_requeued_beside_the_task_that_took_its_id() {
    let mut bench = told("[queues.work]\nplugin = \"as-told\"\n");
    let host = bench.host();
    let requeue = |bench: &Bench| {
        let command = ["dead", "requeue", "work", "r", "--json"];
        let [would_be, done] = [&["--dry-run"][..], &[]]
            .map(|more| bench.tqhost(&[&command[..], more].concat()))
            .map(|ran| (counts(&ran.json()), ran.code));
        assert_eq!(would_be, done, "a dry run says what the command does");
        let (counts, code) = done;
        assert_eq!(i32::from(counts.1 > 0), code);
        counts
    };
    send(&mut bench, "work", ("r", ""), "first", 1, "reject");
    bench.until("work", "r", "FAILED");
    send(&mut bench, "work", ("r", ""), "second", LONG, "ok");
    bench.until("work", "r", "PROCESSING");
    assert_eq!(requeue(&bench), (0, 1), "it runs");
    bench.tqhost(&["cancel", "work", "r"]).ok();
    bench.until_drained("work");
    assert_eq!(requeue(&bench), (1, 0), "it was cancelled");
    bench.until("work", "r", "FAILED");
    send(&mut bench, "work", ("r", ""), "third", 1, "ok");
    bench.until("work", "r", "COMPLETED");
    assert_eq!(requeue(&bench), (0, 1), "it has completed");
    assert_eq!(bench.places("work"), Places { dead: 1, ..Places::default() });
    host.stop();
}

#[test]
fn a_cancelled_task_that_is_still_being_stopped_takes_nothing_from_the_next_one_with_its_id() {
    let mut bench =
        told("[queues.few]\nplugin = \"as-told\"\nmax_running = 3\nlease = \"2s\"\nevents = 1000\n");
    let stopped = bench.host();
    send(&mut bench, "few", ("c", ""), "first", LONG, "ok");
    bench.until("few", "c", "PROCESSING");
    stopped.signal(Signal::SIGSTOP);
    bench.tqhost(&["cancel", "few", "c"]).ok();
    send(&mut bench, "few", ("c", ""), "second", 1, "ok");
    let host = bench.host();
    bench.until("few", "c", "COMPLETED");
    bench.until_drained("few");
    let result: Value = serde_json::from_str(&bench.status("few", "c", "result")).expect("JSON");
    assert_eq!(result["n"], "second");
    assert_eq!(ends(&mut bench, "few", "c"), ["CANCELLED", "COMPLETED"]);
    stopped.signal(Signal::SIGCONT);
    Host::stop_all([host, stopped]);
}

#[test]
fn a_status_does_not_expire_while_its_task_is_delayed_or_held() {
    let mut bench = told(
        "[queues.track]\nplugin = \"as-told\"\nserial = { field = \"key\" }\nretention = \"1h\"\n\
         concurrency = 10\n",
    );
    let host = bench.host();
    for id in ["delayed", "held"] {
        send(&mut bench, "track", (id, id), "first", 1, "reject");
        bench.until("track", id, "FAILED");
    }
    send(&mut bench, "track", ("long", "1"), "long", LONG, "ok");
    bench.until("track", "long", "PROCESSING");
    send(&mut bench, "track", ("held", "1"), "second", 1, "ok");
    bench.xadd("track", &[("tq-id", "delayed"), ("key", "2"), ("tq-delay-ms", "3600000")]);
    for id in ["delayed", "held"] {
        bench.until("track", id, "PENDING");
        let status = format!("tq:{{track}}:task:{id}");
        assert_eq!(bench.redis::<i64>("PTTL", &status), -1, "{id}");
        let of_the_end: [Option<String>; 2] = bench.redis("HMGET", (&status, "finished_at", "dead"));
        assert_eq!(of_the_end, [None, None], "{id}");
        bench.tqhost(&["cancel", "track", id]).ok();
    }
    bench.tqhost(&["cancel", "track", "long"]).ok();
    bench.until_drained("track");
    host.stop();
}

#[test]
fn a_task_sent_twice_is_drained_as_a_whole() {
    let mut bench =
        told("[queues.track]\nplugin = \"as-told\"\nserial = { field = \"key\" }\nconcurrency = 10\n");
    for _ in 0..3 {
        send(&mut bench, "track", ("d", "1"), "d", 1, "ok");
    }
    let drained = bench.tqhost(&["drain", "track", "--yes", "--json"]).ok().json();
    assert_eq!(counts(&drained), (3, 0));
    assert_eq!(bench.places("track"), Places::default());
    // Tasks that are held are drained in the same way.
    let host = bench.host();
    send(&mut bench, "track", ("long", "1"), "long", LONG, "ok");
    bench.until("track", "long", "PROCESSING");
    for _ in 0..2 {
        send(&mut bench, "track", ("h", "1"), "h", 1, "ok");
    }
    eventually("both are held", || (bench.places("track").delayed == 2).then_some(()));
    let drained = bench.tqhost(&["drain", "track", "--yes", "--json"]).ok().json();
    assert_eq!(counts(&drained), (2, 0));
    assert_eq!(bench.places("track").delayed, 0);
    bench.tqhost(&["cancel", "track", "long"]).ok();
    bench.until_drained("track");
    assert_eq!(host.ended_as("track", "completed"), 0);
    bench.tqhost(&["doctor", "track"]).ok();
    host.stop();
}

#[test]
fn a_cancel_that_is_repeated_finds_the_task_also_where_no_statuses_are_kept() {
    let mut bench = told("[queues.work]\nplugin = \"as-told\"\nretention = \"0s\"\n");
    send(&mut bench, "work", ("z", ""), "z", 1, "ok");
    let cancel = |bench: &Bench| bench.tqhost(&["cancel", "work", "z", "--json"]).ok().json();
    assert_eq!(cancel(&bench)["before"], "PENDING");
    assert_eq!(cancel(&bench)["before"], "CANCELLED");
    // An entry that is sent again meanwhile is another task.
    send(&mut bench, "work", ("z", ""), "z", 1, "ok");
    assert_eq!(cancel(&bench)["before"], "PENDING");
    assert_eq!(bench.places("work"), Places::default());
    assert_eq!(bench.tqhost(&["cancel", "work", "unknown"]).code, 1);
}

#[test]
fn an_id_that_is_no_text_takes_no_turn() {
    let mut bench = told("[queues.line]\nplugin = \"as-told\"\nmax_running = 1\norder = \"strict\"\n");
    let data = "{\"n\":\"good\",\"ms\":1,\"retries\":0,\"end\":\"ok\"}";
    let _: String = bench.redis("XADD", ("line", "*", "tq-id", b"\xff".as_slice(), "data", data));
    // If there are two ids, the last one counts everywhere.
    let two = ["line", "*", "tq-id", "a", "tq-id", "b", "tq-attempt", "none", "data", data];
    let _: String = bench.redis("XADD", &two[..]);
    let text = send(&mut bench, "line", ("grüße-\u{10348}", ""), "text", 1, "ok");
    let host = bench.host();
    eventually("the bad ones are dead", || (bench.places("line").dead == 2).then_some(()));
    bench.until("line", "grüße-\u{10348}", "COMPLETED");
    assert_eq!(members(&mut bench, "tq:{line}:owners"), 0, "{text}");
    let list = bench.tqhost(&["dead", "list", "line", "--json"]).ok().json();
    let dead = list["dead"].as_array().expect("a list").iter();
    let reasons: Vec<&str> = dead.map(|letter| letter["reason"].as_str().expect("a reason")).collect();
    assert_eq!(reasons, ["malformed", "malformed"]);
    host.stop();
}

#[test]
fn a_task_whose_entry_was_deleted_is_cancelled_once_and_its_id_is_free() {
    let mut bench =
        told("[queues.work]\nplugin = \"as-told\"\non_end = \"told\"\n[queues.told]\nplugin = \"missing\"\n");
    let host = bench.host();
    let entry = send(&mut bench, "work", ("d", ""), "first", LONG, "ok");
    bench.until("work", "d", "PROCESSING");
    assert_eq!(bench.redis::<u64>("XDEL", ("work", &entry)), 1);
    bench.tqhost(&["cancel", "work", "d"]).ok();
    assert_eq!(bench.redis::<u64>("XLEN", "told"), 1, "its end is told");
    send(&mut bench, "work", ("d", ""), "second", 1, "ok");
    bench.until("work", "d", "COMPLETED");
    assert_eq!(bench.redis::<u64>("XLEN", "told"), 2);
    host.stop();
}

#[test]
fn an_entry_that_is_no_task_is_kept_beside_the_task_with_its_id() {
    let mut bench = told("[queues.work]\nplugin = \"as-told\"\n");
    let host = bench.host();
    send(&mut bench, "work", ("m", ""), "first", LONG, "ok");
    bench.until("work", "m", "PROCESSING");
    bench.xadd("work", &[("tq-id", "m"), ("tq-attempt", "abc"), ("data", "precious")]);
    eventually("it is dead", || (bench.places("work").dead == 1).then_some(()));
    let letters = bench.dead("work");
    assert_eq!((&*letters[0]["tq-reason"], &*letters[0]["data"]), ("malformed", "precious"));
    assert_eq!(bench.status("work", "m", "status"), "PROCESSING");
    bench.tqhost(&["cancel", "work", "m"]).ok();
    bench.until_drained("work");
    host.stop();
}

#[test]
fn a_task_that_waits_for_a_cancelled_run_is_not_lost_if_the_limit_is_taken_away() {
    let limited = "[queues.few]\nplugin = \"as-told\"\nmax_running = 3\nlease = \"2s\"\n";
    let mut bench = told(limited);
    let host = bench.host();
    send(&mut bench, "few", ("c", ""), "first", LONG, "ok");
    bench.until("few", "c", "PROCESSING");
    host.kill();
    bench.tqhost(&["cancel", "few", "c"]).ok();
    send(&mut bench, "few", ("c", ""), "second", 1, "ok");
    bench.configure_for(&limited.replace("max_running = 3\n", ""), bench.redis.port);
    let host = bench.host();
    bench.until("few", "c", "COMPLETED");
    let result: Value = serde_json::from_str(&bench.status("few", "c", "result")).expect("JSON");
    assert_eq!(result["n"], "second");
    bench.until_drained("few");
    host.stop();
}

#[test]
fn a_drain_counts_entries_behind_a_dead_task_and_behind_one_that_runs() {
    let mut bench = told("[queues.one]\nplugin = \"as-told\"\nconcurrency = 1\n");
    let drained = |bench: &Bench| counts(&bench.tqhost(&["drain", "one", "--yes", "--json"]).ok().json());
    let host = bench.host();
    send(&mut bench, "one", ("f", ""), "first", 1, "reject");
    bench.until("one", "f", "FAILED");
    send(&mut bench, "one", ("x", ""), "first", LONG, "ok");
    bench.until("one", "x", "PROCESSING");
    for id in ["f", "x"] {
        send(&mut bench, "one", (id, ""), "second", 1, "ok");
    }
    assert_eq!(drained(&bench), (2, 0));
    assert_eq!((&*bench.status("one", "f", "status"), bench.places("one").length), ("CANCELLED", 1));
    assert_eq!(bench.status("one", "x", "status"), "PROCESSING");
    bench.tqhost(&["cancel", "one", "x"]).ok();
    bench.until_drained("one");
    host.stop();
}

#[test]
fn a_cancel_of_a_run_can_be_repeated_where_no_statuses_are_kept() {
    let mut bench = told("[queues.few]\nplugin = \"as-told\"\nmax_running = 3\nretention = \"0s\"\n");
    let host = bench.host();
    send(&mut bench, "few", ("c", ""), "first", LONG, "ok");
    bench.until("few", "c", "PROCESSING");
    let cancel = |bench: &Bench| bench.tqhost(&["cancel", "few", "c", "--json"]).ok().json();
    assert_eq!(cancel(&bench)["before"], "PROCESSING");
    bench.until_drained("few");
    assert_eq!(cancel(&bench)["before"], "CANCELLED");
    host.stop();
}
