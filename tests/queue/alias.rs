//! Aliases (`id` of a queue): clients find a task under a name from its own data, wherever the task is.

use serde_json::{Value, json};

use crate::support::dead_letters::dead_with_aliases;
use crate::support::{Bench, Held, eventually};

const WORK: &str = "[queues.work]\nplugin = \"fetches\"\nlease = \"2s\"\nid = { field = \"resumeId\" }\n";

/// The status of a task as `tqhost status` tells it.
#[track_caller]
fn status(bench: &Bench, queue: &str, name: &str) -> Value {
    bench.tqhost(&["status", queue, name, "--json"]).ok().json()
}

#[track_caller]
fn assert_status(bench: &Bench, name: &str, id: &str, state: &str) {
    let seen = status(bench, "work", name);
    assert_eq!((&seen["id"], &seen["status"]), (&json!(id), &json!(state)), "{seen}");
}

#[track_caller]
fn doctor_is_silent(bench: &Bench, queue: &str) {
    bench.tqhost(&["doctor", queue]).ok();
}

#[test]
fn a_task_is_found_by_its_alias_from_its_xadd_to_its_end() {
    let held = Held::new();
    let mut bench = held.bench(WORK);
    let [url] = held.task();
    let id = bench.xadd("work", &[("resumeId", "7"), url]);
    assert_status(&bench, "7", &id, "PENDING");
    let host = bench.host();
    bench.until("work", &id, "PROCESSING");
    assert_status(&bench, "7", &id, "PROCESSING");
    // The host dies. The alias leads to the task until another host has ended it.
    host.kill();
    assert_status(&bench, "7", &id, "PROCESSING");
    let host = bench.host();
    bench.until("work", &id, "PROCESSING");
    held.end();
    let watched = bench.tqhost(&["status", "work", "7", "--watch"]).ok().stdout;
    assert!(watched.contains("COMPLETED"), "{watched}");
    assert_status(&bench, "7", &id, "COMPLETED");
    assert_status(&bench, &id, &id, "COMPLETED");
    let unknown = bench.tqhost(&["status", "work", "8"]);
    assert!(unknown.code == 1 && unknown.stderr.contains("knows no task \"8\""), "{unknown:?}");
    let lives: i64 = bench.redis("TTL", "tq:{work}:alias:7");
    assert!((24 * 3600..48 * 3600).contains(&lives), "it expires a while after the status: in {lives} s");
    // The newest task comes first, also while nobody has seen it.
    host.stop();
    let newest = bench.xadd("work", &[("resumeId", "7"), url]);
    assert_status(&bench, "7", &newest, "PENDING");
    // A task with an id of its producer is found in the same way.
    bench.xadd("work", &[("tq-id", "mine"), ("resumeId", "77"), url]);
    assert_status(&bench, "77", "mine", "PENDING");
    // A task's own id comes before an alias.
    bench.xadd("work", &[("tq-id", "7"), ("resumeId", "9"), url]);
    assert_status(&bench, "7", "7", "PENDING");
    doctor_is_silent(&bench, "work");
}

#[test]
fn cancel_by_alias_finds_the_newest_task_that_has_not_ended() {
    let held = Held::new();
    let mut bench = held.bench(WORK);
    let [url] = held.task();
    let host = bench.host();
    let running = bench.xadd("work", &[("resumeId", "7"), url]);
    bench.until("work", &running, "PROCESSING");
    bench.tqhost(&["pause", "work"]).ok();
    eventually("the pause is seen", || host.get("/readyz").body.contains("paused").then_some(()));
    let waiting = bench.xadd("work", &[("resumeId", "7"), url]);
    let cancel = |bench: &Bench, name: &str| bench.tqhost(&["cancel", "work", name, "--json"]).ok().json();
    let first = cancel(&bench, "7");
    assert_eq!((&first["id"], &first["before"]), (&json!(waiting), &json!("PENDING")));
    assert_status(&bench, "7", &waiting, "CANCELLED");
    let second = cancel(&bench, "7");
    assert_eq!((&second["id"], &second["before"]), (&json!(running), &json!("PROCESSING")));
    assert_eq!(cancel(&bench, "7")["id"], json!(waiting), "all have ended, and it is the newest");
    // One that a command enqueued, and that is delayed.
    let enqueue = ["enqueue", "work", "resumeId=8", "--delay", "1h"];
    let delayed = bench.tqhost(&enqueue).ok().stdout.trim().to_owned();
    assert_status(&bench, "8", &delayed, "PENDING");
    assert_eq!(cancel(&bench, "8")["id"], json!(delayed));
    assert_status(&bench, "8", &delayed, "CANCELLED");
    // A producer's own delay.
    bench.tqhost(&["resume", "work"]).ok();
    let parked = bench.xadd("work", &[("resumeId", "9"), ("tq-delay-ms", "3600000"), url]);
    eventually("it is parked", || (bench.places("work").delayed == 1).then_some(()));
    assert_eq!(cancel(&bench, "9")["id"], json!(parked));
    let unknown = bench.tqhost(&["cancel", "work", "10"]);
    assert!(unknown.code == 1 && unknown.stderr.contains("knows no task \"10\""), "{unknown:?}");
    doctor_is_silent(&bench, "work");
    host.stop();
}

#[test]
fn a_task_that_is_held_is_the_newest_of_its_alias() {
    let held = Held::new();
    for place in ["field = \"resumeId\"", "field = \"data\", json = \"/resume\""] {
        let mut bench = held.bench(&format!(
            "[queues.work]\nplugin = \"fetches\"\nserial = {{ field = \"resumeId\" }}\nid = {{ {place} }}\n"
        ));
        let [url] = held.task();
        let host = bench.host();
        let task = [("resumeId", "7"), ("data", "{\"resume\":7}"), url];
        let running = bench.xadd("work", &task);
        bench.until("work", &running, "PROCESSING");
        let waiting: Vec<String> = (0..2).map(|_| bench.xadd("work", &task)).collect();
        eventually("they are held", || (bench.places("work").delayed == 2).then_some(()));
        eventually("they have their alias", || {
            (bench.redis::<u64>("ZCARD", "tq:{work}:alias:7") == 3).then_some(())
        });
        assert_status(&bench, "7", &waiting[1], "PENDING");
        let cancelled = |bench: &Bench| {
            bench.tqhost(&["cancel", "work", "7", "--json"]).ok().json()["id"]
                .as_str()
                .expect("an id")
                .to_owned()
        };
        assert_eq!([cancelled(&bench), cancelled(&bench)], [waiting[1].clone(), waiting[0].clone()]);
        assert_status(&bench, "7", &waiting[1], "CANCELLED");
        assert_eq!(cancelled(&bench), running, "no other one lives");
        bench.until_drained("work");
        doctor_is_silent(&bench, "work");
        host.stop();
    }
}

#[test]
fn an_alias_may_be_in_the_json_of_a_field_and_long() {
    let mut bench = Bench::new(
        "[queues.work]\nplugin = \"as-told\"\nlist = \"items\"\n\
         id = { field = \"data\", json = \"/order/id\" }\n",
    );
    bench.install("as-told", "as-told");
    let item = |id: &str| format!("{{ \"order\": {{ \"id\": {id} }}, \"n\": 1, \"end\": \"ok\" }}");
    let number = "12345678901234567890123";
    let long = "x".repeat(2000);
    let waiting = bench.xadd("work", &[("data", &item("\"soon\""))]);
    assert_status(&bench, "soon", &waiting, "PENDING");
    let _: u64 = bench.redis("LPUSH", ("items", item(number), item(&format!("\"{long}\""))));
    // These have no alias, and run all the same.
    let none: Vec<String> =
        [item("true"), item("null"), item("[\"soon\"]"), "{\"n\": 1, \"end\": \"ok\"}".into()]
            .map(|data| bench.xadd("work", &[("data", &data)]))
            .into();
    // A key of another type is in the way.
    let _: () = bench.redis("SET", ("tq:{work}:alias:soon", "x"));
    let host = bench.host();
    bench.all_done("work", &none);
    bench.until_drained("work");
    assert_status(&bench, "soon", &waiting, "COMPLETED");
    for name in [number, &long] {
        assert_eq!(status(&bench, "work", name)["status"], "COMPLETED", "{name}");
    }
    assert_eq!(status(&bench, "work", number)["result"]["n"], 1);
    let aliases: Vec<String> = bench.redis("KEYS", "tq:{work}:alias:*");
    assert_eq!(aliases.len(), 3, "{aliases:?}");
    assert!(aliases.iter().all(|key| key.len() < 200), "a long name is hashed: {aliases:?}");
    for key in &aliases {
        assert!(bench.redis::<i64>("TTL", key) > 0, "{key} expires");
    }
    doctor_is_silent(&bench, "work");
    host.stop();
}

#[test]
fn dead_letters_are_found_by_alias_and_counted_as_asked_for() {
    let (mut bench, host, [old, new, other]) = dead_with_aliases();
    host.stop();
    let dead = |bench: &Bench, args: &[&str]| {
        let ran = bench.tqhost(&[&["dead"], args, &["--json"]].concat());
        let told = ran.json();
        ran.ends_with(i32::from(told["skipped"].as_u64() > Some(0)));
        told
    };
    assert_eq!(dead(&bench, &["show", "work", "7"])["id"], json!(new));
    assert!(bench.tqhost(&["dead", "export", "work", "7"]).ok().stdout.contains(&new));
    assert_eq!(dead(&bench, &["show", "work", &old])["id"], json!(old));
    // Nothing is known of them any more but their dead letters.
    for id in [&old, &new, &other] {
        let _: u64 = bench.redis("DEL", format!("tq:{{work}}:task:{id}"));
    }
    let _: u64 = bench.redis("DEL", vec!["tq:{work}:alias:7", "tq:{work}:alias:8"]);
    assert_status(&bench, "7", &new, "FAILED");
    let counts = |succeeded: u64, skipped: u64| json!({ "succeeded": succeeded, "skipped": skipped });
    assert_eq!(dead(&bench, &["requeue", "work", "7", "8", "9"]), counts(2, 1));
    assert_status(&bench, "7", &new, "PENDING");
    assert_status(&bench, "8", &other, "PENDING");
    // The other task with this alias is still dead; then none is.
    assert_eq!(dead(&bench, &["purge", "work", "7", &old]), counts(1, 1), "both names mean one dead letter");
    assert_eq!(dead(&bench, &["requeue", "work", "7"]), counts(0, 1));
    let host = bench.host();
    bench.until("work", &new, "FAILED");
    bench.until("work", &other, "FAILED");
    assert_eq!(bench.places("work").dead, 2);
    doctor_is_silent(&bench, "work");
    host.stop();
}

#[test]
fn an_alias_leads_to_its_newest_tasks_however_many_have_it() {
    let mut bench =
        Bench::new("[queues.work]\nplugin = \"echo\"\nid = { field = \"user\" }\nretention = \"1h\"\n");
    bench.install("echo", "echo");
    let ids: Vec<String> = (0..250).map(|_| bench.xadd("work", &[("user", "u")])).collect();
    let newest = ids.last().expect("an id");
    assert_status(&bench, "u", newest, "PENDING");
    let host = bench.host();
    bench.all_done("work", &ids);
    assert_status(&bench, "u", newest, "COMPLETED");
    assert_eq!(bench.redis::<u64>("ZCARD", "tq:{work}:alias:u"), 100);
    let first: Vec<String> = bench.redis("ZRANGE", ("tq:{work}:alias:u", -1, -1));
    assert_eq!(&first[0], newest);
    doctor_is_silent(&bench, "work");
    host.stop();
}

#[test]
fn a_handlers_tasks_have_the_aliases_of_their_queue() {
    let mut bench = Bench::new(
        "[queues.work]\nplugin = \"effects\"\nenqueue_to = [\"next\"]\n\
         [queues.next]\nplugin = \"effects\"\nid = { field = \"resumeId\" }\n",
    );
    bench.install("effects", "effects");
    let host = bench.host();
    let next = json!({ "queue": "next", "fields": { "do": [], "resumeId": "7" }, "delay": 3_600_000 });
    let id = bench.xadd("work", &[("do", &json!([["enqueue", next]]).to_string())]);
    bench.until("work", &id, "COMPLETED");
    let result: Value = serde_json::from_str(&bench.status("work", &id, "result")).expect("JSON");
    eventually("it has its alias", || bench.redis::<bool>("EXISTS", "tq:{next}:alias:7").then_some(()));
    let seen = status(&bench, "next", "7");
    assert_eq!((&seen["id"], &seen["status"]), (&result[0], &json!("PENDING")));
    assert_eq!(bench.tqhost(&["cancel", "next", "7", "--json"]).ok().json()["id"], result[0]);
    doctor_is_silent(&bench, "next");
    host.stop();
}
