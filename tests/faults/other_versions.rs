//! Hosts of several versions on the same keys: a host understands what an older one left, and keeps fields
//! that only a newer one knows.
//!
//! The data is written here in the form that it has in Redis, because older versions cannot be built here.
//! docs/laboratory.md has the results of two versions that ran beside each other.

use std::collections::HashMap;

use serde_json::json;

use crate::support::{Bench, Places, eventually};

const WORK: &str = "[queues.work]\nplugin = \"work\"\nlease = \"1s\"\nbackoff = { delays = [\"50ms\"] }\n\
    idempotency = { field = \"key\" }\n";
/// The time at which older hosts took these tasks.
const THEN: &str = "1700000000000";

/// Writes a delayed task as `settle.lua` and `enqueue.lua` do: its time is over, and its fields are
/// MessagePack.
fn park(bench: &mut Bench, member: &str, fields: &[&str]) {
    const PARK: &str = "redis.call('ZADD', KEYS[1], 1, ARGV[1]) \
        return redis.call('HSET', KEYS[2], ARGV[1], cmsgpack.pack({ unpack(ARGV, 2) }))";
    let _: i64 = bench.redis("EVAL", (PARK, 2, "tq:{work}:delayed", "tq:{work}:parked", member, fields));
}

/// Writes a status with these fields and no others.
fn status(bench: &mut Bench, id: &str, fields: &[&str]) {
    let _: i64 = bench.redis("HSET", (format!("tq:{{work}}:task:{id}"), fields));
}

#[test]
fn proof_44_what_an_older_host_left_is_done_by_a_newer_one() {
    let mut bench = Bench::new(WORK);
    bench.install("fails-twice", "work");
    let _: () = bench.redis("XGROUP", ("CREATE", "work", "tqhost", "0", "MKSTREAM"));
    // This task ran when its host died: it was delivered once, and its status does not name its entry.
    let lost: String = bench.redis("XADD", ("work", "*", "n", "lost"));
    let _: redis::Value =
        bench.redis("XREADGROUP", ("GROUP", "tqhost", "older-host", "STREAMS", "work", ">"));
    status(
        &mut bench,
        &lost,
        &[
            "status",
            "PROCESSING",
            "attempt",
            "1",
            "consumer",
            "older-host",
            "plugin",
            "work@0",
            "progress",
            "50",
        ],
    );
    // Queued tasks: one on its second attempt, with a status that says nothing more; and one that is marked
    // as cancelled, because its place was not known.
    let _: String = bench
        .redis("XADD", ("work", "*", "n", "2", "tq-id", "queued", "tq-attempt", "2", "tq-enqueued-at", THEN));
    status(&mut bench, "queued", &["status", "PENDING"]);
    let _: String = bench.redis("XADD", ("work", "*", "n", "3", "tq-id", "cancelled", "tq-attempt", "2"));
    status(&mut bench, "cancelled", &["status", "PENDING", "attempt", "2"]);
    // Delayed tasks: one under its entry after a failure, and a new one under its id.
    park(
        &mut bench,
        "1700000000000-5",
        &["n", "4", "tq-id", "delayed", "tq-attempt", "3", "tq-enqueued-at", THEN],
    );
    park(&mut bench, "new/fresh", &["n", "5", "tq-id", "fresh"]);
    status(&mut bench, "delayed", &["status", "PENDING", "attempt", "3", "error", "retry: busy"]);
    // A key is held, but its task's status does not say so. The task finds the key again.
    let _: () = bench.redis("SET", ("tq:{work}:key:k", "keyed"));
    let _: String = bench.redis("XADD", ("work", "*", "key", "k", "tq-id", "keyed"));
    // Dead tasks: one with the reasons, and one with the producer's fields only.
    let reasons = [
        "tq-queue",
        "work",
        "tq-reason",
        "retries-exhausted",
        "tq-error",
        "retry: busy",
        "tq-attempts",
        "4",
        "tq-failed-at",
        THEN,
    ];
    let _: String = bench.redis(
        "XADD",
        ("tq:{work}:dead", "*", "n", "6", "tq-id", "dead", "tq-enqueued-at", THEN, &reasons[..]),
    );
    let bare = format!("foreign-{}", bench.xadd("tq:{work}:dead", &[("n", "7")]));
    status(
        &mut bench,
        "dead",
        &["status", "FAILED", "attempt", "4", "error", "retry: busy", "finished_at", THEN],
    );

    for id in [&lost, "queued", "delayed", "dead"] {
        let shown = bench.tqhost(&["status", "work", id, "--json"]).ok().json();
        assert_eq!(shown["id"], id, "{shown}");
    }
    bench.tqhost(&["cancel", "work", "cancelled"]).ok();
    let listed = bench.tqhost(&["dead", "list", "work", "--json"]).ok().json()["dead"].clone();
    assert_eq!(
        (&listed[1]["id"], &listed[1]["attempts"], &listed[0]["id"], &listed[0]["reason"]),
        (&json!("dead"), &json!(4), &json!(bare), &json!("foreign"))
    );
    let told = bench.tqhost(&["dead", "requeue", "work", "dead", &bare, "--json"]).ok().json();
    assert_eq!(told, json!({"succeeded": 2, "skipped": 0}));

    let host = bench.host();
    for id in [&lost, "queued", "delayed", "fresh", "keyed", "dead", &bare] {
        bench.until("work", id, "COMPLETED");
        assert_eq!(bench.status("work", id, "attempt"), "3", "{id}");
    }
    for id in ["queued", "delayed", "dead"] {
        assert_eq!(bench.status("work", id, "enqueued_at"), THEN, "{id}");
    }
    bench.until_drained("work");
    assert_eq!(
        (bench.places("work"), bench.status("work", "cancelled", "status").as_str()),
        (Places::default(), "CANCELLED")
    );
    host.until_ended_as("work", "completed", 7);
    host.until_count("tqhost_reclaimed_total", "work", 1);
    assert_eq!(host.count("tqhost_lost_entries_total", "work"), 0);
    host.stop();
}

#[test]
fn proof_44_what_only_a_newer_host_knows_is_carried_along() {
    let mut bench = Bench::new(WORK);
    bench.install("always-fails", "work");
    let host = bench.host();
    let id = "newer".to_owned();
    status(&mut bench, &id, &["status", "PENDING", "later", "kept"]);
    let _: String = bench.redis("XADD", ("work", "*", "n", "1", "tq-id", &id, "tq-future", "kept"));
    bench.until("work", &id, "FAILED");
    let kept = |fields: &HashMap<String, String>| fields.get("tq-future").map(String::as_str) == Some("kept");
    assert!(kept(&bench.dead("work")[0]), "through three delays and its death");
    assert_eq!(bench.status("work", &id, "later"), "kept");
    // This version does not know the reason.
    let letter = [
        "n",
        "2",
        "tq-id",
        "other",
        "tq-reason",
        "flow-failed",
        "tq-error",
        "another part failed",
        "tq-attempts",
        "1",
        "tq-future",
        "kept",
    ];
    let _: String = bench.redis("XADD", ("tq:{work}:dead", "*", &letter[..]));
    assert!(bench.tqhost(&["dead", "list", "work"]).ok().stdout.contains("flow-failed"));
    bench.install("echo", "work");
    eventually("the other plugin is there", || (host.logged("plugin loaded").len() == 2).then_some(()));
    assert_eq!(
        bench.tqhost(&["dead", "requeue", "work", "--all", "--json"]).ok().json(),
        json!({"succeeded": 2, "skipped": 0})
    );
    for id in [&id, "other"] {
        bench.until("work", id, "COMPLETED");
    }
    assert_eq!(bench.places("work"), Places::default());
    host.stop();
}
