//! `expire_after`: a task that waited too long for its first attempt is dead instead of run.

use serde_json::Value;

use crate::support::{Bench, Held, Places, eventually};

const NOTHING: Places = Places { length: 0, pending: 0, delayed: 0, parked: 0, dead: 0 };
const MINUTE: u64 = 60_000;

/// Redis's clock, in ms.
fn now(bench: &mut Bench) -> u64 {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut bench.db).expect("TIME");
    seconds * 1000 + micros / 1000
}

/// Adds a task as if that had happened so many minutes ago. The stream must have no later entry.
fn xadd_before(bench: &mut Bench, minutes: u64, fields: &[(&str, &str)]) -> String {
    let id = format!("{}-0", now(bench) - minutes * MINUTE);
    let mut command = redis::cmd("XADD");
    command.arg("work").arg(&id);
    for (name, value) in fields {
        command.arg(name).arg(value);
    }
    command.query(&mut bench.db).expect("XADD")
}

/// Waits until a task that is enqueued now would have waited for too long.
fn until_expired(bench: &mut Bench) {
    let begin = now(bench);
    eventually("the time is over", || (now(bench) > begin + 1000).then_some(()));
}

#[track_caller]
fn assert_expired(bench: &mut Bench, id: &str, waited: &str) {
    bench.until("work", id, "FAILED");
    let error = bench.status("work", id, "error");
    assert!(error.contains(waited) && error.contains("(expire_after)"), "{error}");
    assert_eq!(bench.status("work", id, "started_at"), "", "it was not run");
}

#[track_caller]
fn doctor_is_silent(bench: &Bench) {
    bench.tqhost(&["doctor", "work"]).ok();
}

#[test]
fn a_task_that_waited_too_long_is_dead_and_its_end_is_told() {
    let mut bench = Bench::new(
        "[queues.work]\nplugin = \"echo\"\nexpire_after = \"1h\"\non_end = \"ends\"\nid = { field = \"n\" }\n\
         idempotency = { field = \"n\", release_on = \"failure\" }\n[queues.ends]\nplugin = \"echo\"\n",
    );
    bench.install("echo", "echo");
    let old = xadd_before(&mut bench, 120, &[("n", "1")]);
    xadd_before(&mut bench, 90, &[("n", "2"), ("tq-id", "mine")]);
    let young = xadd_before(&mut bench, 30, &[("n", "3")]);
    let fresh = bench.tqhost(&["enqueue", "work", "n=4"]).ok().stdout.trim().to_owned();
    let host = bench.host();
    assert_expired(&mut bench, &old, "it waited 2h");
    assert_expired(&mut bench, "mine", "it waited 1h30m");
    bench.until("work", &young, "COMPLETED");
    bench.until("work", &fresh, "COMPLETED");
    host.until_ended_as("work", "expired", 2);
    let letters = bench.dead("work");
    assert_eq!(letters.len(), 2);
    assert_eq!((letters[0]["tq-id"].as_str(), letters[0]["tq-reason"].as_str()), (old.as_str(), "expired"));
    assert!(bench.tqhost(&["dead", "list", "work", "--reason", "expired"]).ok().stdout.contains(&old));
    assert_eq!(bench.tqhost(&["status", "work", "1", "--json"]).ok().json()["id"], old, "it has its alias");
    assert!(!bench.redis::<bool>("EXISTS", "tq:{work}:key:1"), "its key is free");
    // The ends of all four are told.
    host.until_ended_as("ends", "completed", 4);
    let told: Vec<String> = bench.redis("KEYS", "tq:{ends}:task:*");
    let reasons = told.iter().filter(|key| {
        let result: String = bench.redis("HGET", (key, "result"));
        let task: Value = serde_json::from_str(&result).expect("JSON");
        task["fields"]["end.reason"] == "expired"
    });
    assert_eq!(reasons.count(), 2);
    doctor_is_silent(&bench);
    host.stop();
}

#[test]
fn tasks_of_a_paused_queue_expire_when_it_is_resumed_and_a_requeue_starts_anew() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\nexpire_after = \"1s\"\n");
    bench.install("echo", "echo");
    let host = bench.host();
    bench.tqhost(&["pause", "work"]).ok();
    eventually("the pause is seen", || host.get("/readyz").body.contains("paused").then_some(()));
    let ids: Vec<String> = (0..3).map(|n| bench.xadd("work", &[("n", &n.to_string())])).collect();
    until_expired(&mut bench);
    bench.tqhost(&["resume", "work"]).ok();
    for id in &ids {
        assert_expired(&mut bench, id, "it waited ");
    }
    assert_eq!(bench.places("work"), Places { dead: 3, ..NOTHING });
    host.until_ended_as("work", "expired", 3);
    bench.tqhost(&["dead", "requeue", "work", "--all"]).ok();
    bench.all_done("work", &ids);
    assert_eq!(bench.places("work"), NOTHING);
    doctor_is_silent(&bench);
    host.stop();
    // A requeued task waits anew, and may expire again.
    let again = bench.xadd("work", &[("n", "again")]);
    until_expired(&mut bench);
    let host = bench.host();
    assert_expired(&mut bench, &again, "it waited ");
    host.stop();
    bench.tqhost(&["dead", "requeue", "work", &again]).ok();
    until_expired(&mut bench);
    let host = bench.host();
    host.until_ended_as("work", "expired", 1);
    assert_eq!(bench.places("work"), Places { dead: 1, ..NOTHING });
    host.stop();
}

#[test]
fn a_delayed_task_waits_from_when_it_is_due() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\nexpire_after = \"1h\"\n");
    bench.install("echo", "echo");
    // It was due an hour and a half ago, and the other one a minute ago.
    let late = xadd_before(&mut bench, 120, &[("tq-delay-ms", &(30 * MINUTE).to_string()), ("n", "1")]);
    let due = xadd_before(&mut bench, 119, &[("tq-delay-ms", &(118 * MINUTE).to_string()), ("n", "2")]);
    let host = bench.host();
    assert_expired(&mut bench, &late, "it waited 1h30m");
    bench.until("work", &due, "COMPLETED");
    host.stop();
    // Commands, and tasks of handlers, take the same way as this one.
    let queue = "[queues.work]\nplugin = \"echo\"\nexpire_after = \"1s\"\n";
    bench.configure_for(queue, bench.redis.port);
    let host = bench.host();
    let delayed = bench.tqhost(&["enqueue", "work", "n=3", "--delay", "1500ms", "--wait"]).ok();
    assert!(delayed.stdout.contains("COMPLETED"), "{delayed:?}");
    host.stop();
    let delayed = bench.tqhost(&["enqueue", "work", "n=4", "--delay", "1ms"]).ok().stdout.trim().to_owned();
    until_expired(&mut bench);
    let host = bench.host();
    assert_expired(&mut bench, &delayed, "it waited ");
    doctor_is_silent(&bench);
    host.stop();
}

#[test]
fn a_task_that_had_an_attempt_does_not_expire() {
    let held = Held::new();
    let mut bench = held.bench(
        "shutdown_grace = \"0s\"\n\
         [queues.work]\nplugin = \"fetches\"\nlease = \"2s\"\nexpire_after = \"1s\"\n",
    );
    let [url] = held.task();
    let host = bench.host();
    let released = bench.xadd("work", &[url]);
    bench.until("work", &released, "PROCESSING");
    host.stop();
    eventually("it is given back", || (bench.places("work").pending == 0).then_some(()));
    until_expired(&mut bench);
    let host = bench.host();
    bench.until("work", &released, "PROCESSING");
    // Its host dies, and it is taken over after its lease.
    host.kill();
    until_expired(&mut bench);
    held.end();
    let host = bench.host();
    bench.until("work", &released, "COMPLETED");
    host.stop();
    // A retry that waits for longer than a first attempt may.
    bench.configure_for(
        "[queues.work]\nplugin = \"fails-twice\"\nbackoff = { delays = [\"1500ms\"] }\n\
         expire_after = \"1s\"\n",
        bench.redis.port,
    );
    bench.install("fails-twice", "fails-twice");
    let host = bench.host();
    let retried = bench.xadd("work", &[("n", "1")]);
    bench.until("work", &retried, "COMPLETED");
    assert_eq!(bench.places("work"), NOTHING);
    doctor_is_silent(&bench);
    host.stop();
}

#[test]
fn a_task_that_is_held_for_too_long_expires_whoever_gave_it_its_id() {
    let held = Held::new();
    let mut bench = held
        .bench("[queues.work]\nplugin = \"fetches\"\nexpire_after = \"1s\"\nserial = { field = \"key\" }\n");
    let [url] = held.task();
    let host = bench.host();
    let first = bench.xadd("work", &[("key", "k"), url]);
    bench.until("work", &first, "PROCESSING");
    let plain = bench.xadd("work", &[("key", "k"), url]);
    bench.xadd("work", &[("key", "k"), ("tq-id", "mine"), url]);
    // A host has tried it, as its status says.
    let _: u64 = bench.redis("HSET", ("tq:{work}:task:tried", "status", "PENDING"));
    bench.xadd("work", &[("key", "k"), ("tq-id", "tried"), ("tq-attempt", "2"), url]);
    eventually("they are held", || (bench.places("work").delayed == 3).then_some(()));
    until_expired(&mut bench);
    held.end();
    bench.until("work", &first, "COMPLETED");
    assert_expired(&mut bench, &plain, "it waited ");
    assert_expired(&mut bench, "mine", "it waited ");
    bench.until("work", "tried", "COMPLETED");
    doctor_is_silent(&bench);
    host.stop();
}
