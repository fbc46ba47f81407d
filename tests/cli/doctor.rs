//! `tqhost doctor` finds and repairs every kind of damage to a queue, and leaves a working queue alone.

use std::collections::HashMap;

use serde_json::Value;
use tqhost::testing::doctor::mend;

use crate::support::{Bench, Producer, eventually};

const QUEUE: &str = "[queues.work]\nplugin = \"echo\"\nlease = \"1s\"\nevents = 100\n";

/// A queue with its group, and no host.
fn bench() -> Bench {
    let mut bench = Bench::new(QUEUE);
    bench.install("echo", "echo");
    let _: () = bench.redis("XGROUP", ("CREATE", "work", "tqhost", "0", "MKSTREAM"));
    // The history begins as a host creates it: nothing was done before.
    let _: u64 = bench.redis("HSET", ("tq:{work}:history", "tqhost", "0-0"));
    bench
}

/// Runs the doctor. Its exit code must agree with its report.
#[track_caller]
fn doctor(bench: &Bench, more: &[&str]) -> Value {
    let ran = bench.tqhost(&[&["doctor", "work", "--json"], more].concat());
    let report = ran.json();
    assert_eq!(ran.code, i32::from(report["ok"] != true), "{ran:#?}");
    report
}

/// The findings as `kind task`, sorted.
fn findings(report: &Value) -> Vec<String> {
    let text = |finding: &Value, name: &str| finding[name].as_str().unwrap_or("-").to_owned();
    let found = report["findings"].as_array().expect("findings");
    let mut all: Vec<String> =
        found.iter().map(|finding| text(finding, "kind") + " " + &text(finding, "task")).collect();
    all.sort();
    all
}

#[track_caller]
fn is_well(bench: &Bench) -> Value {
    let report = doctor(bench, &[]);
    assert_eq!((findings(&report), &report["ok"]), (vec![], &Value::Bool(true)), "{report:#}");
    report
}

/// The doctor must find exactly these problems, twice, because looking changes nothing. It must repair them
/// and find nothing afterwards.
#[track_caller]
fn found_and_mended(bench: &Bench, expected: &[String]) {
    for fix in [&[][..], &[], &["--fix"]] {
        let report = doctor(bench, fix);
        assert_eq!(findings(&report), expected, "{fix:?} {report:#}");
        let fixed = |finding: &Value| finding["fixed"] == !fix.is_empty();
        assert!(report["findings"].as_array().expect("findings").iter().all(fixed), "{report:#}");
    }
    is_well(bench);
}

fn enqueue(bench: &Bench, more: &[&str]) -> String {
    let ran = bench.tqhost(&[&["enqueue", "work", "n=1"], more].concat()).ok();
    ran.stdout.trim().to_owned()
}

fn read(bench: &mut Bench, count: usize) {
    let _: redis::Value =
        bench.redis("XREADGROUP", ("GROUP", "tqhost", "foreign", "COUNT", count, "STREAMS", "work", ">"));
}

fn task(id: &str) -> String {
    format!("tq:{{work}}:task:{id}")
}

const DELAYED: &str = "tq:{work}:delayed";
const PARKED: &str = "tq:{work}:parked";

#[test]
fn a_stream_that_a_producer_has_misspelt_is_told() {
    let mut bench = Bench::new("[queues.resume-score]\n[queues.resume-scan]\n[queues.a]\n");
    let is_told = |bench: &Bench, queue: &str| {
        let report = bench.tqhost(&["doctor", queue, "--json"]).ok().json();
        let notes = report["warnings"].as_array().expect("warnings").clone();
        let told = notes.iter().filter(|note| note["kind"] == "unread-stream");
        told.map(|note| note["what"].as_str().expect("a sentence").to_owned()).collect::<Vec<_>>()
    };
    for queue in ["resume-score", "resume-scan", "a"] {
        bench.tqhost(&["doctor", queue, "--fix"]).ok();
    }
    // Streams of other programs, and one without entries, are not meant.
    for stream in ["orders", "b", "resume-scores-of-2025"] {
        bench.xadd(stream, &[("n", "1")]);
    }
    let id = bench.xadd("resume-scor", &[("n", "1")]);
    let _: u64 = bench.redis("XDEL", ("resume-scor", id));
    assert!(is_told(&bench, "resume-score").is_empty());
    for _ in 0..3 {
        bench.xadd("resume-scores", &[("n", "1")]);
    }
    let told = is_told(&bench, "resume-score");
    insta::assert_snapshot!(
        told.join("\n"),
        @"the stream \"resume-scores\" has entries (3), and no queue reads it: if a producer means this \
          queue, its stream is \"resume-score\""
    );
    assert!(is_told(&bench, "resume-scan").is_empty() && is_told(&bench, "a").is_empty());
    let text = bench.tqhost(&["doctor", "--all"]).ok().stdout;
    assert!(text.matches("resume-scores").count() == 1 && text.contains("its stream is"), "{text}");
}

#[test]
fn a_healthy_queue_is_well_in_every_state() {
    let mut bench = bench();
    is_well(&bench);
    bench.xadd("work", &[("n", "1")]);
    enqueue(&bench, &[]);
    enqueue(&bench, &["--delay", "1h", "--key", "k"]);
    let report = is_well(&bench);
    assert_eq!(
        report["places"],
        serde_json::json!({ "queued": 2, "running": 0, "delayed": 1, "held": 0, "dead": 0, "ended": 0 })
    );
    assert_eq!(report["warnings"][0]["kind"], "no-host", "{report:#}");
    let text = bench.tqhost(&["doctor", "work"]).ok().stdout;
    assert!(text.contains("Nothing is wrong.") && text.contains("QUEUED"), "{text}");
    read(&mut bench, 1);
    is_well(&bench);
    let host = bench.host();
    eventually("the tasks run", || (bench.places("work").length == 0).then_some(()));
    let report = is_well(&bench);
    assert_eq!(
        (&report["places"]["ended"], &report["warnings"]),
        (&Value::from(2), &serde_json::json!([])),
        "{report:#}"
    );
    host.stop();
}

#[test]
fn an_entry_deleted_while_it_was_pending_is_lost() {
    let mut bench = bench();
    let plain = bench.xadd("work", &[("n", "1")]);
    let named = enqueue(&bench, &["--key", "k"]);
    read(&mut bench, 2);
    let _: u64 = bench.redis("XTRIM", ("work", "MAXLEN", 0));
    let pending: Vec<(String, String, u64, u64)> = bench.redis("XPENDING", ("work", "tqhost", "-", "+", 10));
    let entries: Vec<&str> = pending.iter().map(|(entry, ..)| entry.as_str()).collect();
    eventually("their leases are over", || {
        let report = doctor(&bench, &[]);
        assert_eq!(findings(&report).len(), 2, "{report:#}");
        let idle: Vec<redis::Value> = bench.redis("XPENDING", ("work", "tqhost", "IDLE", 1000, "-", "+", 10));
        (idle.len() == 2).then_some(())
    });
    let report = doctor(&bench, &["--fix"]);
    let mut expected: Vec<String> = entries.iter().map(|entry| format!("deleted-entry {entry}")).collect();
    // The doctor knows the id of the second task only from its status.
    expected.push(format!("lost-task {named}"));
    assert_eq!((findings(&report), &report["ok"]), (expected, &Value::Bool(true)), "{report:#}");
    is_well(&bench);
    for id in [&plain, &named] {
        assert_eq!(bench.status("work", id, "status"), "FAILED");
        assert!(bench.redis::<i64>("TTL", task(id)) > 0);
    }
    assert!(
        !bench.redis::<bool>("EXISTS", "tq:{work}:key:k"),
        "the key is free: nobody has done what it stands for"
    );
    assert_eq!(bench.places("work"), Default::default());
}

#[test]
fn an_entry_that_nobody_would_deliver_comes_back_and_runs() {
    let mut bench = bench();
    let plain = bench.xadd("work", &[("n", "1")]);
    let acked = enqueue(&bench, &[]);
    read(&mut bench, 2);
    let pending: Vec<(String, String, u64, u64)> = bench.redis("XPENDING", ("work", "tqhost", "-", "+", 10));
    for (entry, ..) in &pending {
        let _: u64 = bench.redis("XACK", ("work", "tqhost", entry));
    }
    let skipped = enqueue(&bench, &[]);
    let _: () = bench.redis("XGROUP", ("SETID", "work", "tqhost", "$"));
    let mut expected = [&plain, &acked, &skipped].map(|id| format!("undeliverable {id}"));
    expected.sort();
    found_and_mended(&bench, &expected);
    let events: Vec<(String, HashMap<String, String>)> =
        bench.redis("XRANGE", ("tq:{work}:events", "-", "+"));
    let mut noted: Vec<String> =
        events.iter().map(|(_, of)| format!("{} {} {}", of["id"], of["status"], of["attempt"])).collect();
    noted.sort();
    let mut back = [&plain, &acked, &skipped].map(|id| format!("{id} PENDING 1"));
    back.sort();
    assert_eq!(noted, back);
    let host = bench.host();
    bench.all_done("work", &[plain, acked, skipped]);
    is_well(&bench);
    host.stop();
}

/// Another consumer's group acknowledges entries and does not delete them.
#[test]
fn entries_acknowledged_before_tqhost_came_are_left_alone() {
    let mut bench = Bench::new(QUEUE);
    bench.install("echo", "echo");
    let _: () = bench.redis("XGROUP", ("CREATE", "work", "tqhost", "0", "MKSTREAM"));
    let done: Vec<String> = (0..3).map(|_| bench.xadd("work", &[("n", "1")])).collect();
    let left = bench.xadd("work", &[("n", "1")]);
    read(&mut bench, 4);
    let _: u64 = bench.redis("XACK", ("work", "tqhost", &done));
    let history = |bench: &Bench, more: &[&str]| {
        let report = doctor(bench, more);
        assert_eq!(findings(&report), [""; 0], "{report:#}");
        let notes = report["warnings"].as_array().expect("warnings");
        let note = notes.iter().find(|note| note["kind"] == "history").expect("a note");
        note["what"].as_str().expect("a text").to_owned()
    };
    assert!(history(&bench, &["--fix"]).starts_with("3 entries"), "no host has come yet");
    let host = bench.host();
    bench.until("work", &left, "COMPLETED");
    let new = bench.xadd("work", &[("n", "1")]);
    bench.until("work", &new, "COMPLETED");
    assert!(history(&bench, &["--fix"]).starts_with("3 entries"));
    host.stop();
    let note: String = bench.redis("HGET", ("tq:{work}:history", "tqhost"));
    assert_eq!(note, left, "what the group had been given last");

    let orphan = bench.xadd("work", &[("n", "1")]);
    read(&mut bench, 1);
    let _: u64 = bench.redis("XGROUP", ("DELCONSUMER", "work", "tqhost", "foreign"));
    let again = bench.host();
    again.until_ready();
    let report = doctor(&bench, &["--fix"]);
    assert_eq!(findings(&report), [format!("undeliverable {orphan}")], "{report:#}");
    bench.until("work", &orphan, "COMPLETED");
    again.stop();
    let note: String = bench.redis("HGET", ("tq:{work}:history", "tqhost"));
    let there: Vec<(String, redis::Value)> = bench.redis("XRANGE", ("work", "-", "+"));
    assert_eq!((note, there.into_iter().map(|(id, _)| id).collect::<Vec<_>>()), (left, done));
}

#[test]
fn a_group_that_a_host_made_has_no_history() {
    let mut bench = Bench::new(QUEUE);
    bench.install("echo", "echo");
    let note = |bench: &mut Bench| bench.redis::<String>("HGET", ("tq:{work}:history", "tqhost"));
    bench.host().stop();
    assert_eq!(note(&mut bench), "0-0");
    let acked = bench.xadd("work", &[("n", "1")]);
    read(&mut bench, 1);
    let _: u64 = bench.redis("XACK", ("work", "tqhost", &acked));
    // The next host finds the group and the history, and changes neither.
    bench.host().stop();
    assert_eq!(note(&mut bench), "0-0");
    found_and_mended(&bench, &[format!("undeliverable {acked}")]);
    // A group that is created anew gets all entries again.
    let _: u64 = bench.redis("HSET", ("tq:{work}:history", "tqhost", &acked));
    let _: u64 = bench.redis("XGROUP", ("DESTROY", "work", "tqhost"));
    bench.host().stop();
    assert_eq!(note(&mut bench), "0-0");
}

#[test]
fn an_entry_that_its_task_has_left_over_is_deleted() {
    let mut bench = bench();
    let id = enqueue(&bench, &[]);
    read(&mut bench, 1);
    let entry = bench.status("work", &id, "entry");
    let _: u64 = bench.redis("XACK", ("work", "tqhost", &entry));
    let _: u64 = bench.redis("HSET", (task(&id), "status", "COMPLETED"));
    let _: u64 = bench.redis("EXPIRE", (task(&id), 1000));
    let report = doctor(&bench, &[]);
    assert_eq!(findings(&report), [format!("ended-but-there {id}"), format!("undeliverable {id}")]);
    let report = doctor(&bench, &["--fix"]);
    assert_eq!(
        (findings(&report), &report["ok"]),
        (vec![format!("undeliverable {id}")], &Value::Bool(true)),
        "{report:#}"
    );
    is_well(&bench);
    assert_eq!(bench.places("work").length, 0);
}

#[test]
fn a_delayed_task_without_fields_is_lost() {
    let mut bench = bench();
    let id = enqueue(&bench, &["--delay", "1h", "--key", "k"]);
    let _: u64 = bench.redis("HDEL", (PARKED, format!("new/{id}")));
    found_and_mended(&bench, &[format!("delayed-without-fields {id}")]);
    assert_eq!(bench.status("work", &id, "status"), "FAILED");
    assert!(!bench.redis::<bool>("EXISTS", "tq:{work}:key:k"));
    assert_ne!(enqueue(&bench, &["--delay", "1h"]), id);
}

#[test]
fn a_lost_child_stays_where_it_is_until_its_flow_can_note_its_end() {
    let mut bench = bench();
    bench.configure_for(&format!("{QUEUE}enqueue_to = [\"work\"]\n"), bench.redis.port);
    let read_before = bench.xadd("work", &[("n", "1")]);
    read(&mut bench, 1);
    let known = [("status", "PROCESSING"), ("entry", read_before.as_str()), ("attempt", "1")];
    let _: u64 = bench.redis("HSET", (task(&read_before), &known));
    let (nowhere, delayed) = (enqueue(&bench, &[]), enqueue(&bench, &["--delay", "1h"]));
    let children = [&read_before, &nowhere, &delayed];
    for id in children {
        let _: u64 = bench.redis("HSET", (task(id), "flow", "0 tq:{work}:flow:f"));
    }
    // A key of the flow has another type. The flow has failed, so nothing else is wrong with it.
    let _: u64 = bench.redis("HSET", ("tq:{work}:flow:f", "left", "1", "total", "1", "failed_as", "1-1"));
    let _: () = bench.redis("SET", ("tq:{work}:flow:f:results", "x"));
    let entry = bench.status("work", &nowhere, "entry");
    assert_eq!(bench.redis::<u64>("XDEL", ("work", &read_before, entry)), 2);
    let _: u64 = bench.redis("HDEL", (PARKED, format!("new/{delayed}")));
    eventually("its lease is over", || {
        let idle: Vec<redis::Value> = bench.redis("XPENDING", ("work", "tqhost", "IDLE", 1000, "-", "+", 10));
        (idle.len() == 1).then_some(())
    });
    let expected = [
        format!("delayed-without-fields {delayed}"),
        format!("deleted-entry {read_before}"),
        format!("lost-task {nowhere}"),
    ];
    let report = doctor(&bench, &["--fix"]);
    assert_eq!(findings(&report), expected, "{report:#}");
    assert!(report["findings"].as_array().expect("findings").iter().all(|each| each["fixed"] == false));
    let places = bench.places("work");
    assert_eq!((places.pending, places.delayed), (1, 1), "they are where they were");
    let _: u64 = bench.redis("DEL", "tq:{work}:flow:f:results");
    found_and_mended(&bench, &expected);
    for id in children {
        assert_eq!(bench.status("work", id, "status"), "FAILED");
    }
}

#[test]
fn fields_that_nothing_makes_due_run() {
    let mut bench = bench();
    let id = enqueue(&bench, &["--delay", "1h"]);
    let _: u64 = bench.redis("ZREM", (DELAYED, format!("new/{id}")));
    found_and_mended(&bench, &[format!("fields-without-delay {id}")]);
    let host = bench.host();
    bench.all_done("work", std::slice::from_ref(&id));
    host.stop();
}

#[test]
fn fields_that_cannot_be_read_become_a_dead_letter() {
    let mut bench = bench();
    let id = enqueue(&bench, &["--delay", "1h"]);
    let _: u64 = bench.redis("HSET", (PARKED, format!("new/{id}"), "\u{1}broken"));
    found_and_mended(&bench, &[format!("unreadable-fields {id}")]);
    let host = bench.host();
    eventually("it is dead", || (bench.places("work").dead == 1).then_some(()));
    bench.until_drained("work");
    // Nobody can know that the entry was this task's. Its status stays until the doctor or the host's janitor
    // finds it.
    doctor(&bench, &["--fix"]);
    is_well(&bench);
    assert_eq!(bench.status("work", &id, "status"), "FAILED");
    host.stop();
}

#[test]
fn a_task_that_is_nowhere_is_lost() {
    let mut bench = bench();
    let queued = enqueue(&bench, &["--key", "k"]);
    let delayed = enqueue(&bench, &["--delay", "1h"]);
    let entry = bench.status("work", &queued, "entry");
    let _: u64 = bench.redis("XDEL", ("work", entry));
    let _: u64 = bench.redis("DEL", (DELAYED, PARKED));
    let running = enqueue(&bench, &[]);
    let _: u64 = bench.redis("HSET", (task(&running), "status", "PROCESSING"));
    let entry = bench.status("work", &running, "entry");
    read(&mut bench, 1);
    let _: u64 = bench.redis("XACK", ("work", "tqhost", &entry));
    let _: u64 = bench.redis("XDEL", ("work", &entry));
    let mut expected = [&queued, &delayed, &running].map(|id| format!("lost-task {id}"));
    expected.sort();
    found_and_mended(&bench, &expected);
    for id in [&queued, &delayed, &running] {
        assert_eq!(bench.status("work", id, "status"), "FAILED");
        assert!(bench.status("work", id, "error").starts_with("lost: "));
        assert!(bench.redis::<i64>("TTL", task(id)) > 0);
    }
    assert!(!bench.redis::<bool>("EXISTS", "tq:{work}:key:k"));
}

#[test]
fn a_task_that_was_promoted_is_found_behind_many_others() {
    let mut bench = bench();
    let mut pipe = redis::pipe();
    for n in 0..5000 {
        pipe.cmd("XADD").arg("work").arg("*").arg("n").arg(n).ignore();
    }
    pipe.query::<()>(&mut bench.db).expect("tasks");
    let id = enqueue(&bench, &["--delay", "1ms"]);
    let queue = queue(&bench);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    eventually("it is promoted", || {
        (runtime.block_on(queue.promote(10)).expect("promoted").moved == 1).then_some(())
    });
    is_well(&bench);
    let tended = runtime
        .block_on(mend::tend(&queue, vec![task(&id).into_bytes()], std::time::Duration::ZERO))
        .expect("a look");
    assert_eq!(tended.lost, Vec::<String>::new());
    assert_eq!(bench.status("work", &id, "status"), "PENDING");
}

/// The queue of the library, on the test's Redis.
fn queue(bench: &Bench) -> tqhost::testing::queue::Queue {
    let config = tqhost::testing::config::Config::load(&bench.config()).expect("a configuration");
    let redis = tqhost::testing::queue::Redis::open(&bench.redis.url()).expect("a URL");
    tqhost::testing::queue::Queue::new(config.queues[0].clone(), redis.link())
}

#[test]
fn keys_that_would_be_kept_for_ever_expire() {
    let mut bench = bench();
    let _: u64 = bench.redis("HSET", (task("a"), "status", "COMPLETED"));
    let _: u64 = bench.redis("HSET", (task("b"), "progress", "50"));
    found_and_mended(&bench, &["no-expiry a".to_owned(), "no-expiry b".to_owned()]);
    assert!(bench.redis::<i64>("TTL", task("a")) > 0 && bench.redis::<i64>("TTL", task("b")) > 0);
}

#[test]
fn a_key_that_is_held_for_nobody_is_freed() {
    let mut bench = bench();
    let _: () = bench.redis("SET", ("tq:{work}:key:gone", "gone"));
    let _: u64 = bench.redis("HSET", (task("ended"), "status", "FAILED"));
    let _: u64 = bench.redis("EXPIRE", (task("ended"), 1000));
    let _: () = bench.redis("SET", ("tq:{work}:key:ended", "ended"));
    // This task is still queued, although somebody deleted its status.
    let id = enqueue(&bench, &["--key", "held"]);
    let _: u64 = bench.redis("DEL", task(&id));
    found_and_mended(&bench, &["orphaned-key ended".to_owned(), "orphaned-key gone".to_owned()]);
    for (key, is_free) in [("gone", true), ("ended", true), ("held", false)] {
        assert_eq!(bench.redis::<i64>("TTL", format!("tq:{{work}}:key:{key}")) > 0, is_free, "{key}");
    }
}

#[test]
fn a_task_in_two_places_is_told() {
    let mut bench = bench();
    let id = enqueue(&bench, &["--delay", "1h"]);
    let at = bench.status("work", &id, "enqueued_at");
    let dead =
        ["tq:{work}:dead", "*", "tq-id", &id, "tq-reason", "rejected", "tq-enqueued-at"].map(str::to_owned);
    let _: String = bench.redis("XADD", [&dead[..], &[at]].concat());
    // Another task with the same id died before.
    let _: String = bench.redis("XADD", [&dead[..], &["7".to_owned()]].concat());
    let report = doctor(&bench, &["--fix"]);
    assert_eq!(
        (findings(&report), &report["ok"]),
        (vec![format!("dead-but-alive {id}")], &Value::Bool(false)),
        "{report:#}"
    );
    let _: u64 = bench.redis("HSET", (task(&id), "status", "COMPLETED"));
    let _: u64 = bench.redis("EXPIRE", (task(&id), 1000));
    let report = doctor(&bench, &[]);
    assert_eq!(
        findings(&report),
        [format!("dead-but-alive {id}"), format!("ended-but-there {id}")],
        "{report:#}"
    );
    bench.tqhost(&["dead", "purge", "work", "--all", "--yes"]).ok();
    assert_eq!(findings(&doctor(&bench, &[])), [format!("ended-but-there {id}")]);
}

#[test]
fn a_missing_group_is_made() {
    let mut bench = Bench::new(QUEUE);
    bench.install("echo", "echo");
    is_well(&bench);
    let id = bench.xadd("work", &[("n", "1")]);
    found_and_mended(&bench, &["no-group -".to_owned()]);
    let host = bench.host();
    bench.all_done("work", &[id]);
    host.stop();
}

#[test]
fn keys_of_another_type_are_named() {
    let mut bench = bench();
    let _: () = bench.redis("SET", (task("x"), "1"));
    let _: u64 = bench.redis("LPUSH", ("tq:{work}:key:y", "1"));
    let report = doctor(&bench, &["--fix"]);
    assert_eq!(findings(&report), ["wrong-type -", "wrong-type -"], "{report:#}");
    let _: u64 = bench.redis("DEL", (task("x"), "tq:{work}:key:y"));
    is_well(&bench);
    let _: () = bench.redis("SET", (DELAYED, "1"));
    let report = doctor(&bench, &["--fix"]);
    assert_eq!(
        (findings(&report), &report["findings"][0]["key"]),
        (vec!["wrong-type -".to_owned()], &Value::from(DELAYED))
    );
    insta::assert_snapshot!(bench.tqhost(&["doctor", "work"]).stdout, @"
    QUEUE  QUEUED  RUNNING  DELAYED  HELD  DEAD  ENDED
    work        0        0        0     0     0      0

    wrong-type: another program uses this key; rename or delete it
      wrong  tq:{work}:delayed: it holds a string, not a zset

    1 finding; --fix can repair none of them.
    ");
}

#[test]
fn a_queue_of_another_stream_is_not_looked_at() {
    let mut bench = Bench::new("[queues.work]\nstream = \"a*[b]\"\nplugin = \"echo\"\n");
    let _: u64 = bench.redis("HSET", ("tq:{a*[b]}:task:mine", "status", "FAILED"));
    let _: u64 = bench.redis("HSET", ("tq:{axb}:task:other", "status", "FAILED"));
    assert_eq!(findings(&doctor(&bench, &[])), ["no-expiry mine"]);
}

#[test]
fn many_findings_are_counted_and_twenty_thousand_tasks_are_walked_in_pages() {
    let mut bench = bench();
    let mut pipe = redis::pipe();
    for n in 0..20_000 {
        pipe.cmd("XADD").arg("work").arg("*").arg("tq-id").arg(format!("t{n}")).arg("n").arg(n).ignore();
        if n % 2 == 0 {
            pipe.cmd("HSET")
                .arg(task(&format!("t{n}")))
                .arg(("status", "PENDING"))
                .arg(("attempt", 1))
                .ignore();
        }
    }
    pipe.query::<()>(&mut bench.db).expect("tasks");
    let report = is_well(&bench);
    assert_eq!(report["places"]["queued"], 20_000);
    let _: () = bench.redis("XGROUP", ("SETID", "work", "tqhost", "$"));
    let report = doctor(&bench, &[]);
    assert_eq!(report["findings"].as_array().map(Vec::len), Some(100));
    assert_eq!(report["more"], serde_json::json!({ "undeliverable": 19_900 }));
    let report = doctor(&bench, &["--fix"]);
    assert_eq!(
        (&report["ok"], &report["more"]),
        (&Value::Bool(true), &serde_json::json!({ "undeliverable": 19_900 }))
    );
    assert_eq!(is_well(&bench)["places"]["queued"], 20_000);
}

#[test]
fn a_queue_that_stands_still_beside_a_ready_host_is_told() {
    let mut bench = bench();
    let claimed = bench.xadd("work", &[("n", "1")]);
    read(&mut bench, 1);
    let delayed = enqueue(&bench, &["--delay", "1h"]);
    let host = bench.host();
    host.until_ready();
    // From now on the host may neither reclaim nor promote.
    let _: () = bench.redis("ACL", ("SETUSER", "test", "on", "nopass", "~*", "+@all"));
    let _: () = bench.redis("AUTH", ("test", ""));
    let _: () = bench.redis("ACL", ("SETUSER", "default", "-xclaim", "-xadd"));
    is_well(&bench);
    let _: redis::Value =
        bench.redis("XCLAIM", ("work", "tqhost", "foreign", 0, &claimed, "IDLE", 60_000, "JUSTID"));
    let _: u64 = bench.redis("ZADD", (DELAYED, 1, format!("new/{delayed}")));
    eventually("the host says that it is ready", || {
        let report = doctor(&bench, &["--fix"]);
        (findings(&report) == [format!("stuck-claim {claimed}"), format!("stuck-delayed {delayed}")])
            .then_some(())
    });
    let _: () = bench.redis("ACL", ("SETUSER", "default", "+@all"));
    bench.all_done("work", &[claimed, delayed]);
    is_well(&bench);
    host.stop();
}

#[test]
fn an_id_that_comes_again_after_a_failure_is_well() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"rejects\"\n");
    bench.install("rejects", "rejects");
    let host = bench.host();
    for times in 1..=2 {
        bench.xadd("work", &[("tq-id", "twin")]);
        host.until_ended_as("work", "rejected", times);
        is_well(&bench);
    }
    assert_eq!(bench.places("work").dead, 2);
    host.stop();
}

#[test]
fn the_janitor_of_a_host_finds_what_is_orphaned() {
    let mut bench = bench();
    let never_ran = enqueue(&bench, &["--key", "k"]);
    let entry = bench.status("work", &never_ran, "entry");
    let _: u64 = bench.redis("XDEL", ("work", entry));
    let delayed = enqueue(&bench, &["--delay", "1h"]);
    let _: u64 = bench.redis("HSET", (task("ran"), &[("status", "PROCESSING"), ("entry", "1-0")]));
    let _: () = bench.redis("SET", ("tq:{work}:key:gone", "gone"));
    let _: u64 = bench.redis("HSET", (task("ended"), "status", "COMPLETED"));
    let mut pipe = redis::pipe();
    for n in 0..3000 {
        pipe.cmd("SET").arg(format!("foreign:{n}")).arg(n).ignore();
    }
    pipe.query::<()>(&mut bench.db).expect("keys");
    let hosts = [bench.host(), bench.host()];
    bench.until("work", &never_ran, "FAILED");
    bench.until("work", "ran", "FAILED");
    for key in [task("ended"), task("ran"), "tq:{work}:key:gone".to_owned()] {
        eventually(&format!("{key} expires"), || (bench.redis::<i64>("TTL", &key) > 0).then_some(()));
    }
    assert!(!bench.redis::<bool>("EXISTS", "tq:{work}:key:k"), "the lost task gave its key back");
    assert_eq!(bench.status("work", &delayed, "status"), "PENDING");
    eventually("the one that never ran is counted", || {
        let counted: u64 = hosts.iter().map(|host| host.count("tqhost_lost_entries_total", "work")).sum();
        (counted == 1).then_some(())
    });
    eventually("it is told", || {
        hosts.iter().any(|host| !host.logged("tasks are lost").is_empty()).then_some(())
    });
    is_well(&bench);
    hosts.into_iter().for_each(|host| host.stop());
}

#[test]
fn a_queue_at_work_is_well() {
    for (guest, fields) in [("flaky", &[("failUntil", "3")][..]), ("defers", &[("afterMs", "100")])] {
        let bench = Bench::new(
            "[queues.work]\nplugin = \"guest\"\nlease = \"2s\"\nbackoff = { delays = [\"20ms\"] }\n\
             max_deferrals = 3\nconcurrency = 20\n",
        );
        bench.install(guest, "guest");
        let hosts = [bench.host(), bench.host()];
        let producer = Producer::start(&bench.redis.url(), fields);
        producer.produce(50);
        for _ in 0..20 {
            is_well(&bench);
        }
        producer.stop();
        hosts.into_iter().for_each(|host| host.stop());
        is_well(&bench);
    }
}

#[test]
fn a_queue_whose_hosts_are_killed_is_well() {
    let bench = Bench::new(
        "[queues.work]\nplugin = \"flaky\"\nlease = \"1s\"\nbackoff = { delays = [\"20ms\"] }\n\
         max_crashes = 100\nconcurrency = 20\n",
    );
    bench.install("flaky", "flaky");
    let producer = Producer::start(&bench.redis.url(), &[("failUntil", "2"), ("tq-delay-ms", "50")]);
    for _ in 0..4 {
        let host = bench.host();
        producer.produce(100);
        is_well(&bench);
        host.kill();
        for _ in 0..3 {
            is_well(&bench);
        }
    }
    let ids = producer.stop();
    let host = bench.host();
    let mut bench = bench;
    bench.all_done("work", &ids);
    is_well(&bench);
    host.stop();
}
