//! The life of a task: every outcome of a handler, and what a client sees of it.

use std::collections::HashMap;

use serde_json::Value;

use crate::support::{Bench, Places, eventually};

const NOTHING: Places = Places { length: 0, pending: 0, delayed: 0, parked: 0, dead: 0 };

#[test]
fn a_producer_that_knows_only_xadd_gets_its_task_done() {
    let mut bench = Bench::new(
        "[queues.work]\nstream = \"resume:analyze:stream\"\ngroup = \"analyze-group\"\nplugin = \"echo\"\n",
    );
    bench.install("echo", "echo");
    // The task is added before the first start of the host, when there is no group yet. No entry is skipped.
    let id = bench.xadd(
        "resume:analyze:stream",
        &[("resumeId", "7"), ("content", "…"), ("traceparent", "00-abc-def-01")],
    );
    let host = bench.host();
    bench.until("resume:analyze:stream", &id, "COMPLETED");
    let result: Value = serde_json::from_str(&bench.status("resume:analyze:stream", &id, "result"))
        .expect("the result is JSON");
    assert_eq!(result["id"], id);
    assert_eq!(result["queue"], "work");
    assert_eq!((&result["attempt"], &result["max-attempts"]), (&1.into(), &4.into()));
    assert_eq!((&result["fields"]["resumeId"], &result["fields"]["content"]), (&"7".into(), &"…".into()));
    assert_eq!(result["traceparent"], "00-abc-def-01");
    let ttl: i64 = bench.redis("TTL", format!("tq:{{resume:analyze:stream}}:task:{id}"));
    assert!((86_000..=86_400).contains(&ttl), "the status expires after 24h, not {ttl}s");
    for time in ["enqueued_at", "started_at", "finished_at"] {
        assert!(bench.status("resume:analyze:stream", &id, time).parse::<u64>().is_ok(), "{time} is a time");
    }
    assert!(bench.status("resume:analyze:stream", &id, "plugin").starts_with("echo@"));
    host.stop();
}

#[test]
fn ten_thousand_tasks_leave_ten_thousand_results_and_nothing_else() {
    let mut bench = Bench::new("[queues.many]\nplugin = \"empty\"\nconcurrency = 50\n");
    bench.install("empty", "empty");
    let mut pipe = redis::pipe();
    for n in 0..10_000 {
        pipe.cmd("XADD").arg("many").arg("*").arg("n").arg(n).ignore();
    }
    pipe.query::<()>(&mut bench.db).expect("XADD");
    let host = bench.host();
    bench.until_drained("many");
    assert_eq!(bench.places("many"), NOTHING);
    host.until_ended_as("many", "completed", 10_000);
    host.stop();
    let mut keys: HashMap<String, usize> = HashMap::new();
    let mut cursor = 0u64;
    loop {
        let (next, found): (u64, Vec<String>) = bench.redis("SCAN", (cursor, "COUNT", 1000));
        for key in found {
            let kind = match &key {
                key if key.contains(":task:") => "task status".to_owned(),
                // A host that stops folds the minutes into the steps of a day and of a week.
                key if key.contains(":minutes:10m:") || key.contains(":minutes:1h:") => {
                    "longer steps".to_owned()
                }
                key if key.contains(":minutes:") => "history of an hour".to_owned(),
                key => key.clone(),
            };
            *keys.entry(kind.clone()).or_default() += 1;
            if kind == "history of an hour" || kind == "longer steps" {
                assert!(bench.redis::<i64>("TTL", &key) > 0, "{key} expires");
            }
            if kind == "task status" {
                assert!(bench.redis::<i64>("TTL", &key) > 0, "{key} expires");
                assert_eq!(bench.redis::<String>("HGET", (&key, "status")), "COMPLETED");
            }
        }
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    assert_eq!(keys.remove("task status"), Some(10_000));
    assert!(keys.remove("history of an hour").is_some_and(|hours| hours <= 2));
    assert!(keys.remove("longer steps").is_none_or(|steps| steps <= 4));
    let mut left: Vec<String> = keys.into_keys().filter(|key| !key.starts_with("tq:host")).collect();
    left.sort();
    assert_eq!(
        left,
        ["many", "tq:{many}:history"],
        "only the empty stream with its group is left, and what that had been given before"
    );
    let consumers: Vec<redis::Value> = bench.redis("XINFO", ("CONSUMERS", "many", "tqhost"));
    assert_eq!(consumers.len(), 0, "a host that stops leaves no consumer behind");
}

#[test]
fn a_handler_that_fails_twice_succeeds_on_attempt_3_after_the_configured_delays() {
    let mut bench = Bench::new(
        "[queues.twice]\nplugin = \"fails-twice\"\nbackoff = { delays = [\"300ms\", \"700ms\"] }\n",
    );
    bench.install("fails-twice", "fails-twice");
    let host = bench.host();
    let id = bench.xadd("twice", &[("a", "1")]);
    eventually("the first delay", || (bench.places("twice").delayed == 1).then_some(()));
    assert_eq!(bench.status("twice", &id, "status"), "PENDING");
    assert!(bench.status("twice", &id, "error").starts_with("retry: "));
    bench.until("twice", &id, "COMPLETED");
    assert_eq!(bench.status("twice", &id, "attempt"), "3");
    let time = |bench: &mut Bench, field| bench.status("twice", &id, field).parse::<u64>().expect("a time");
    let took = time(&mut bench, "finished_at") - time(&mut bench, "enqueued_at");
    assert!(took >= 1000, "both delays passed, 300 and 700 ms, before the {took} ms were over");
    assert_eq!(bench.status("twice", &id, "error"), "", "no error is left on a completed task");
    assert_eq!(bench.places("twice"), NOTHING);
    host.stop();
}

#[test]
fn a_handler_that_always_fails_is_dead_after_its_attempts_with_every_field() {
    let mut bench = Bench::new(
        "[queues.bad]\nplugin = \"always-fails\"\nmax_retries = 2\nbackoff = \"none\"\n\
         dead_letter = \"bad:dead\"\n",
    );
    bench.install("always-fails", "always-fails");
    let host = bench.host();
    let id = bench.xadd("bad", &[("a", "1"), ("b", "two"), ("tq-key", "k")]);
    bench.until("bad", &id, "FAILED");
    let dead: Vec<(String, Vec<String>)> = bench.redis("XRANGE", ("bad:dead", "-", "+"));
    assert_eq!(dead.len(), 1);
    let fields: HashMap<&str, &str> =
        dead[0].1.chunks(2).map(|pair| (pair[0].as_str(), pair[1].as_str())).collect();
    assert_eq!((fields["a"], fields["b"], fields["tq-key"]), ("1", "two", "k"));
    assert_eq!(
        (fields["tq-id"], fields["tq-queue"], fields["tq-reason"]),
        (id.as_str(), "bad", "retries-exhausted")
    );
    assert_eq!(fields["tq-attempts"], "3");
    assert!(fields["tq-error"].starts_with("retry: "), "{}", fields["tq-error"]);
    assert!(fields["tq-plugin"].starts_with("always-fails@"));
    assert!(!fields["tq-consumer"].is_empty());
    let (enqueued, failed): (u64, u64) =
        (fields["tq-enqueued-at"].parse().expect("ms"), fields["tq-failed-at"].parse().expect("ms"));
    assert_eq!(id.split('-').next(), Some(fields["tq-enqueued-at"]));
    assert!(failed >= enqueued);
    assert_eq!(bench.places("bad"), NOTHING);
    host.stop();
}

#[test]
fn a_rejected_task_is_dead_at_once() {
    let mut bench = Bench::new("[queues.no]\nplugin = \"rejects\"\n");
    bench.install("rejects", "rejects");
    let host = bench.host();
    let id = bench.xadd("no", &[("a", "1")]);
    bench.until("no", &id, "FAILED");
    assert_eq!(bench.status("no", &id, "attempt"), "1");
    assert_eq!(bench.places("no"), Places { dead: 1, ..NOTHING });
    host.until_ended_as("no", "rejected", 1);
    host.stop();
}

#[test]
fn a_deferral_uses_no_attempt_and_ends_after_max_deferrals() {
    let mut bench = Bench::new("[queues.later]\nplugin = \"defers\"\nmax_deferrals = 3\n");
    bench.install("defers", "defers");
    let host = bench.host();
    let id = bench.xadd("later", &[("afterMs", "50")]);
    bench.until("later", &id, "FAILED");
    assert_eq!(bench.status("later", &id, "attempt"), "1");
    let dead: Vec<(String, Vec<String>)> = bench.redis("XRANGE", ("tq:{later}:dead", "-", "+"));
    assert!(dead[0].1.contains(&"deferrals-exhausted".to_owned()), "{dead:?}");
    host.until_ended_as("later", "deferred", 3);
    host.stop();
}

#[test]
fn a_handlers_own_wait_is_kept_up_to_a_day_whatever_the_backoff_is() {
    const HOUR_MS: u64 = 3_600_000;
    let mut bench = Bench::new(
        "[queues.after]\nplugin = \"retry-after\"\nmax_retries = 1\n\
         backoff = { base = \"1ms\", max = \"200ms\" }\n",
    );
    bench.install("retry-after", "retry-after");
    let host = bench.host();
    let now = |bench: &mut Bench| -> u64 {
        let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut bench.db).expect("TIME");
        seconds * 1000 + micros / 1000
    };
    for (asked, kept) in [(HOUR_MS, HOUR_MS), (1000 * HOUR_MS, 24 * HOUR_MS)] {
        let before = now(&mut bench);
        bench.xadd("after", &[("afterMs", &asked.to_string())]);
        let due = eventually("it waits", || {
            let due: Vec<(String, u64)> = bench.redis("ZRANGE", ("tq:{after}:delayed", 0, -1, "WITHSCORES"));
            due.into_iter().map(|(_, due)| due).find(|due| *due >= before + kept)
        });
        assert!(due <= now(&mut bench) + kept, "{asked}: {due}");
    }
    host.stop();
}

#[test]
fn an_entry_that_is_no_task_is_set_aside_and_the_batch_goes_on() {
    let mut bench = Bench::new("[queues.mixed]\nplugin = \"echo\"\n");
    bench.install("echo", "echo");
    let bad = bench.xadd("mixed", &[("tq-attempt", "many"), ("a", "1")]);
    let binary: String = redis::cmd("XADD")
        .arg("mixed")
        .arg("*")
        .arg(&[0xff_u8, 0x00][..])
        .arg("x")
        .query(&mut bench.db)
        .expect("XADD");
    let mut many = redis::cmd("XADD");
    many.arg("mixed").arg("*");
    for n in 0..5000 {
        many.arg(format!("f{n}")).arg(n);
    }
    let wide: String = many.query(&mut bench.db).expect("XADD");
    let good = bench.xadd("mixed", &[("a", "1")]);
    let host = bench.host();
    bench.until("mixed", &good, "COMPLETED");
    for id in [&bad, &binary, &wide] {
        bench.until("mixed", id, "FAILED");
    }
    assert_eq!(bench.places("mixed"), Places { dead: 3, ..NOTHING });
    host.until_ended_as("mixed", "malformed", 3);
    host.stop();
}

#[test]
fn without_retention_nothing_is_kept() {
    let mut bench = Bench::new("[queues.quiet]\nplugin = \"echo\"\nretention = \"0s\"\n");
    bench.install("echo", "echo");
    let host = bench.host();
    let ids: Vec<String> = (0..20).map(|n| bench.xadd("quiet", &[("n", &n.to_string())])).collect();
    bench.until_drained("quiet");
    host.until_ended_as("quiet", "completed", 20);
    for id in ids {
        assert_eq!(bench.status("quiet", &id, "status"), "");
    }
    host.stop();
}

#[test]
fn progress_shows_while_the_handler_runs() {
    let mut bench = Bench::new("[queues.slow]\nplugin = \"progress\"\n");
    bench.install("progress", "progress");
    let host = bench.host();
    let id = bench.xadd("slow", &[("ms", "3000")]);
    eventually("10 percent", || (bench.status("slow", &id, "progress") == "10").then_some(()));
    assert_eq!(bench.status("slow", &id, "status"), "PROCESSING");
    eventually("50 percent", || (bench.status("slow", &id, "progress") == "50").then_some(()));
    eventually("200 percent, clamped", || (bench.status("slow", &id, "progress") == "100").then_some(()));
    bench.until("slow", &id, "COMPLETED");
    host.stop();
}
