//! Idempotency keys: duplicates run once, and a crash between start and end loses nothing.

use std::collections::HashSet;

use serde_json::json;

use crate::support::{Bench, Held, Places, eventually};

const NOTHING: Places = Places { length: 0, pending: 0, delayed: 0, parked: 0, dead: 0 };
const EVENTS: &str = "[queues.events]\nplugin = \"sleeps\"\nlease = \"1s\"\n\
    idempotency = { field = \"eventId\", window = \"3s\" }\n";

#[test]
fn duplicates_of_an_event_run_once() {
    let mut bench = Bench::new(EVENTS);
    bench.install("sleeps", "sleeps");
    let event = |bench: &mut Bench, id: &str| bench.xadd("events", &[("eventId", id), ("ms", "300")]);
    let first = event(&mut bench, "a");
    let again: Vec<String> = (0..5).map(|_| event(&mut bench, "a")).collect();
    let other = event(&mut bench, "b");
    let host = bench.host();
    bench.until("events", &first, "COMPLETED");
    bench.until("events", &other, "COMPLETED");
    for id in &again {
        bench.until("events", id, "CANCELLED");
        assert_eq!(bench.status("events", id, "duplicate_of"), first);
    }
    // The first task has ended, and the window is open.
    let late = event(&mut bench, "a");
    bench.until("events", &late, "CANCELLED");
    let marker = "tq:{events}:key:a";
    assert_eq!(bench.redis::<String>("GET", marker), first);
    assert!((1..=3000).contains(&bench.redis::<i64>("PTTL", marker)));
    eventually("all are counted", || (host.ended_as("events", "duplicate") == 6).then_some(()));
    // The window is over.
    eventually("the window is over", || (!bench.redis::<bool>("EXISTS", marker)).then_some(()));
    let anew = event(&mut bench, "a");
    bench.until("events", &anew, "COMPLETED");
    assert_eq!(bench.places("events"), NOTHING);
    host.stop();
}

#[test]
fn a_crash_between_start_and_end_does_not_lose_the_task() {
    let mut bench = Bench::new(EVENTS);
    bench.install("sleeps", "sleeps");
    let id = bench.xadd("events", &[("eventId", "a"), ("ms", "1000")]);
    let host = bench.host();
    bench.until("events", &id, "PROCESSING");
    assert_eq!(
        bench.redis::<i64>("PTTL", "tq:{events}:key:a"),
        -1,
        "the marker is held while the task lives"
    );
    host.kill();
    let duplicate = bench.xadd("events", &[("eventId", "a"), ("ms", "1000")]);
    let host = bench.host();
    bench.until("events", &id, "COMPLETED");
    bench.until("events", &duplicate, "CANCELLED");
    assert_eq!(bench.status("events", &duplicate, "duplicate_of"), id);
    host.stop();
}

#[test]
fn a_task_keeps_its_key_through_retries_and_gives_it_back_in_the_end() {
    let mut bench = Bench::new(
        "[queues.work]\nplugin = \"always-fails\"\nmax_retries = 2\nbackoff = { delays = [\"50ms\"] }\n",
    );
    bench.install("always-fails", "always-fails");
    let host = bench.host();
    let id = bench.xadd("work", &[("tq-key", "k"), ("n", "1")]);
    bench.until("work", &id, "FAILED");
    assert_eq!(
        bench.status("work", &id, "attempt"),
        "3",
        "its own key does not make it a duplicate of itself"
    );
    assert!(bench.redis::<i64>("PTTL", "tq:{work}:key:k") > 0);
    // A requeued task is the same task.
    bench.tqhost(&["dead", "requeue", "work", &id]).ok();
    eventually("it fails again", || (bench.places("work").dead == 1).then_some(()));
    bench.until("work", &id, "FAILED");
    host.stop();
}

#[test]
fn data_34_a_thousand_enqueues_of_one_key_at_once_are_one_task() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\n");
    let mut same: HashSet<String> = HashSet::new();
    std::thread::scope(|scope| {
        let bench = &bench;
        let calls: Vec<_> = (0..20)
            .map(|_| scope.spawn(move || bench.tqhost(&["enqueue", "work", "n=1", "--key", "k"]).ok().stdout))
            .collect();
        same.extend(calls.into_iter().map(|call| call.join().expect("a call")));
    });
    assert_eq!(same.len(), 1, "all are told the same id");
    // The rest are XADDs in one pipeline, as producers send them, and the host finds the duplicates.
    let mut pipe = redis::pipe();
    for n in 0..980 {
        pipe.cmd("XADD").arg("work").arg("*").arg("tq-key").arg("k").arg("n").arg(n).ignore();
    }
    pipe.query::<()>(&mut bench.db).expect("XADD");
    bench.install("echo", "echo");
    let host = bench.host();
    bench.until_drained("work");
    let count = |outcome| host.metric(&format!("tqhost_tasks_total{{queue=\"work\",outcome=\"{outcome}\"}}"));
    eventually("all are settled", || (count("completed") + count("duplicate") > 980.5).then_some(()));
    assert!((count("completed") - 1.0).abs() < 0.1);
    host.stop();
}

/// A producer that gets no reply to its XADD sends it again.
#[test]
fn data_46_one_producers_xadd_three_times_with_id_and_key_is_one_task() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"sleeps\"\nconcurrency = 3\n");
    let add = |bench: &mut Bench, id: &str, ms: &str| {
        bench.xadd("work", &[("tq-id", id), ("tq-key", "k"), ("ms", ms)])
    };
    for _ in 0..3 {
        add(&mut bench, "order-7", "300");
    }
    bench.install("sleeps", "sleeps");
    let host = bench.host();
    bench.until("work", "order-7", "COMPLETED");
    host.until_ended_as("work", "duplicate", 2);
    add(&mut bench, "order-7", "0");
    host.until_ended_as("work", "duplicate", 3);
    assert_eq!(
        bench.status("work", "order-7", "status"),
        "COMPLETED",
        "a duplicate leaves the status as it is"
    );
    host.until_ended_as("work", "completed", 1);
    assert_eq!(bench.places("work"), NOTHING);
    // The id of a cancelled task may be used again.
    let id = bench.xadd("work", &[("tq-id", "order-8"), ("ms", "60000")]);
    bench.until("work", "order-8", "PROCESSING");
    bench.tqhost(&["cancel", "work", "order-8"]).ok();
    assert_ne!(bench.xadd("work", &[("tq-id", "order-8"), ("ms", "0")]), id);
    bench.until("work", "order-8", "COMPLETED");
    host.stop();
}

/// The second task with the same id is set aside at its delivery: it must not take the place of the first.
#[test]
fn an_id_that_comes_again_with_a_delay_while_its_task_runs_is_a_duplicate() {
    let held = Held::new();
    let mut bench = held.bench("[queues.work]\nplugin = \"fetches\"\nconcurrency = 3\n");
    let host = bench.host();
    let [url] = held.task();
    let first = bench.xadd("work", &[("tq-id", "order-9"), url]);
    bench.until("work", "order-9", "PROCESSING");
    bench.xadd("work", &[("tq-id", "order-9"), ("tq-delay-ms", "1"), url]);
    eventually("the second one has ended", || {
        (bench.places("work") == Places { length: 1, pending: 1, ..NOTHING }).then_some(())
    });
    assert_eq!(bench.status("work", "order-9", "status"), "PROCESSING");
    assert_eq!(bench.status("work", "order-9", "entry"), first);
    held.end();
    bench.until("work", "order-9", "COMPLETED");
    bench.until_drained("work");
    host.until_ended_as("work", "completed", 1);
    host.stop();
}

#[test]
fn data_47_a_lost_task_gives_its_key_back_to_the_next_one() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\n");
    let lost = bench.tqhost(&["enqueue", "work", "n=1", "--key", "k"]).ok().stdout.trim().to_owned();
    let entry = bench.status("work", &lost, "entry");
    let _: u64 = bench.redis("XDEL", ("work", entry));
    // A duplicate from a command, and one from a producer.
    let second = bench.tqhost(&["enqueue", "work", "n=2", "--key", "k"]).ok().stdout.trim().to_owned();
    assert_eq!(bench.status("work", &lost, "status"), "FAILED");
    let entry = bench.status("work", &second, "entry");
    let _: u64 = bench.redis("XDEL", ("work", entry));
    let third = bench.xadd("work", &[("tq-key", "k"), ("n", "3")]);
    bench.install("echo", "echo");
    let host = bench.host();
    bench.until("work", &third, "COMPLETED");
    assert_eq!(bench.status("work", &second, "status"), "FAILED");
    assert_eq!(bench.redis::<String>("GET", "tq:{work}:key:k"), third);
    host.stop();
}

/// Somebody deletes the entry of a running task. The task may still end, so neither its key nor its id is
/// free.
#[test]
fn a_task_that_runs_without_its_entry_keeps_its_key_and_its_id() {
    let held = Held::new();
    let mut bench = held.bench("[queues.work]\nplugin = \"fetches\"\nlease = \"1s\"\nconcurrency = 4\n");
    let host = bench.host();
    let [url] = held.task();
    bench.xadd("work", &[("tq-id", "first"), ("tq-key", "k"), url]);
    bench.until("work", "first", "PROCESSING");
    let _: u64 = bench.redis("XTRIM", ("work", "MAXLEN", 0));
    host.until_count("tqhost_lost_entries_total", "work", 1);
    let by_key = bench.xadd("work", &[("tq-key", "k"), url]);
    bench.until("work", &by_key, "CANCELLED");
    bench.xadd("work", &[("tq-id", "first"), url]);
    host.until_ended_as("work", "duplicate", 2);
    let enqueued = bench.tqhost(&["enqueue", "work", "n=1", "--key", "k", "--json"]).ok().json();
    assert_eq!(enqueued, json!({"id": "first", "duplicate": true}));
    assert_eq!(bench.status("work", "first", "status"), "PROCESSING");
    held.end();
    bench.until("work", "first", "COMPLETED");
    host.until_ended_as("work", "completed", 1);
    host.stop();
}

#[test]
fn a_repeated_key_is_told_the_first_id() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\nidempotency = { field = \"order\" }\n");
    let first = bench.tqhost(&["enqueue", "work", "order=7", "--json"]).ok().json()["id"].clone();
    let again = bench.tqhost(&["enqueue", "work", "order=7", "--json"]).ok().json();
    assert_eq!(again, json!({"id": first, "duplicate": true}));
    let other = bench.tqhost(&["enqueue", "work", "order=7", "--key", "another", "--json"]).ok().json();
    assert_ne!(other["id"], first, "a key of its own comes before the field");
    assert_eq!(bench.redis::<u64>("XLEN", "work"), 2);
    // A cancelled task gives its key back after the window.
    bench.tqhost(&["cancel", "work", first.as_str().expect("an id")]).ok();
    assert!(bench.redis::<i64>("PTTL", "tq:{work}:key:7") > 0);
    let empty = bench.tqhost(&["enqueue", "work", "n=1", "--key", ""]).ends_with(2);
    insta::assert_snapshot!(
        empty.stderr,
        @"tqhost: an idempotency key has at least one byte, this one is empty"
    );
}

/// A command, a producer and a handler of another queue make the same key of the same values, also where the
/// key is far too long to stand in Redis as it is.
#[test]
fn all_ways_into_a_queue_agree_about_a_key() {
    let long = "é".repeat(5000);
    let event = |text: &str| format!("{{\"type\": \"paid\", \"id\": \"{text}\"}}");
    let queues = "[queues.work]\nplugin = \"effects\"\nenqueue_to = [\"pair\", \"json\"]\n\
                  [queues.pair]\nplugin = \"effects\"\nidempotency = { fields = [\"a\", \"b\"] }\n\
                  [queues.json]\nplugin = \"effects\"\n\
                  idempotency = { field = \"data\", json = [\"/type\", \"/id\"] }\n";
    let mut bench = Bench::new(queues);
    bench.install("effects", "effects");
    let pair = |bench: &Bench, a: &str, b: &str| {
        let [a, b] = [format!("a={a}"), format!("b={b}")];
        bench.tqhost(&["enqueue", "pair", "do=[]", &a, &b, "--json"]).ok().json()
    };
    let first = pair(&bench, "1", &long);
    assert_eq!(pair(&bench, "1", &long), json!({"id": first["id"], "duplicate": true}));
    // Other values, although they look alike in a row.
    assert_ne!(pair(&bench, "1", "23")["id"], pair(&bench, "12", "3")["id"]);
    let spaced = event(&long).replace(' ', "  ");
    let data = format!("data={}", event(&long));
    let paid = bench.tqhost(&["enqueue", "json", "do=[]", &data, "--json"]).ok().json();
    let by_producers = [
        ("pair", bench.xadd("pair", &[("do", "[]"), ("b", &long), ("a", "1")])),
        ("json", bench.xadd("json", &[("do", "[]"), ("data", &spaced)])),
    ];
    let calls = json!([
        ["enqueue", { "queue": "pair", "fields": { "do": [], "a": "1", "b": long } }],
        ["enqueue", { "queue": "json", "fields": { "do": [], "data": spaced } }],
    ]);
    // A part of the key is missing, so these are no duplicates.
    let keyless =
        [bench.xadd("pair", &[("do", "[]"), ("a", "1")]), bench.xadd("pair", &[("do", "[]"), ("a", "1")])];
    let host = bench.host();
    let by_handler = bench.xadd("work", &[("do", &calls.to_string())]);
    bench.until("work", &by_handler, "COMPLETED");
    let result: serde_json::Value =
        serde_json::from_str(&bench.status("work", &by_handler, "result")).expect("JSON");
    let by_handler = [("pair", result[0].clone()), ("json", result[1].clone())];
    let by_handler = by_handler.map(|(queue, id)| (queue, id.as_str().expect("an id").to_owned()));
    for (queue, id) in by_producers.iter().chain(&by_handler) {
        bench.until(queue, id, "CANCELLED");
        let first = if *queue == "pair" { &first["id"] } else { &paid["id"] };
        assert_eq!(bench.status(queue, id, "duplicate_of"), first.as_str().expect("an id"), "{queue}");
    }
    bench.all_done("pair", &keyless);
    let markers: Vec<String> = bench.redis("KEYS", "tq:{*}:key:*");
    assert!(markers.len() == 4 && markers.iter().all(|marker| marker.len() < 100), "{markers:?}");
    for queue in ["pair", "json"] {
        bench.until_drained(queue);
        bench.tqhost(&["doctor", queue]).ok();
    }
    host.stop();
}

#[test]
fn a_thousand_events_with_one_id_in_their_json_are_one_task() {
    let queue = "[queues.work]\nplugin = \"echo\"\nidempotency = { field = \"data\", json = \"/eventId\" }\n";
    let mut bench = Bench::new(queue);
    let told: HashSet<String> = std::thread::scope(|scope| {
        let enqueue = || bench.tqhost(&["enqueue", "work", "data={\"eventId\": 7}"]).ok().stdout;
        let calls: Vec<_> = (0..10).map(|_| scope.spawn(enqueue)).collect();
        calls.into_iter().map(|call| call.join().expect("a call")).collect()
    });
    assert_eq!(told.len(), 1, "all are told the same id");
    let mut pipe = redis::pipe();
    for n in 0..990 {
        let data = format!("{{\"n\": {n}, \"eventId\": 7}}");
        pipe.cmd("XADD").arg("work").arg("*").arg("data").arg(data).ignore();
    }
    pipe.query::<()>(&mut bench.db).expect("XADD");
    bench.install("echo", "echo");
    let hosts = [bench.host(), bench.host()];
    bench.until_drained("work");
    let count = |outcome: &str| hosts.iter().map(|host| host.ended_as("work", outcome)).sum::<u64>();
    eventually("all are settled", || (count("completed") + count("duplicate") == 991).then_some(()));
    assert_eq!(count("completed"), 1);
    bench.tqhost(&["doctor", "work"]).ok();
    crate::support::Host::stop_all(hosts);
}

/// Without `release_on`, a user who submits again after a failure would silently be a duplicate.
#[test]
fn a_key_is_free_at_once_when_its_task_fails_or_is_cancelled() {
    let mut bench = Bench::new(
        "[queues.work]\nplugin = \"as-told\"\nlease = \"1s\"\nmax_retries = 1\nbackoff = \"none\"\n\
         idempotency = { field = \"resumeId\", release_on = \"failure\" }\n",
    );
    bench.install("as-told", "as-told");
    let submit = |bench: &Bench, resume: &str, data: serde_json::Value| {
        let [resume, data] = [format!("resumeId={resume}"), format!("data={data}")];
        let told = bench.tqhost(&["enqueue", "work", &resume, &data, "--json"]).ok().json();
        (told["id"].as_str().expect("an id").to_owned(), told["duplicate"] == true)
    };
    let marker = |bench: &mut Bench, resume: &str| {
        bench.redis::<Option<String>>("GET", format!("tq:{{work}}:key:{resume}"))
    };
    // Rejected, and with no attempts left.
    let host = bench.host();
    for (resume, fails) in [("1", json!({ "n": 1, "end": "reject" })), ("2", json!({ "n": 1, "retries": 9 }))]
    {
        let (failed, _) = submit(&bench, resume, fails);
        bench.until("work", &failed, "FAILED");
        assert_eq!(marker(&mut bench, resume), None);
        let (again, is_duplicate) = submit(&bench, resume, json!({ "n": 2, "end": "ok" }));
        assert!(!is_duplicate && again != failed);
        bench.until("work", &again, "COMPLETED");
        // A completed task holds its key for the window.
        assert_eq!(submit(&bench, resume, json!({ "n": 3, "end": "ok" })), (again.clone(), true));
        assert_eq!(marker(&mut bench, resume), Some(again.clone()));
        // The failed one comes back, and is a duplicate by now.
        bench.tqhost(&["dead", "requeue", "work", &failed]).ok();
        bench.until("work", &failed, "CANCELLED");
        assert_eq!(bench.status("work", &failed, "duplicate_of"), again);
        assert_eq!(marker(&mut bench, resume), Some(again), "the end of a duplicate frees nothing");
    }
    // Cancelled while it is queued.
    bench.tqhost(&["pause", "work"]).ok();
    eventually("the pause is seen", || host.get("/readyz").body.contains("paused").then_some(()));
    let (cancelled, _) = submit(&bench, "3", json!({ "n": 1, "end": "ok" }));
    bench.tqhost(&["cancel", "work", &cancelled]).ok();
    assert_eq!(marker(&mut bench, "3"), None);
    assert!(!submit(&bench, "3", json!({ "n": 1, "end": "ok" })).1);
    bench.tqhost(&["resume", "work"]).ok();
    // Its host dies between start and end: the key stays with the task until the next host ends it.
    let (crashed, _) = submit(&bench, "4", json!({ "n": 1, "ms": 1000, "end": "reject" }));
    bench.until("work", &crashed, "PROCESSING");
    host.kill();
    assert_eq!(submit(&bench, "4", json!({ "n": 1, "end": "ok" })), (crashed.clone(), true));
    let host = bench.host();
    bench.until("work", &crashed, "FAILED");
    assert_eq!(marker(&mut bench, "4"), None);
    bench.until_drained("work");
    bench.tqhost(&["doctor", "work"]).ok();
    host.stop();
}
