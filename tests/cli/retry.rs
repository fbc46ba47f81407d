//! `tqhost retry`: delayed tasks run now, and what does not wait for its time stays as it is.

use serde_json::{Value, json};

use crate::support::{Bench, Held, Host, eventually};

/// The output as JSON of a command that must end with this exit code.
#[track_caller]
fn retried(bench: &Bench, queue: &str, ids: &[&str], code: i32) -> Value {
    let ran = bench.tqhost(&[&["retry", queue, "--json"], ids].concat());
    assert_eq!(ran.code, code, "{ran:?}");
    ran.json()
}

/// The text on stderr of a command that refuses the one task that it was for.
#[track_caller]
fn refusal(bench: &Bench, queue: &str, id: &str, code: &str) -> String {
    let view = retried(bench, queue, &[id], 1);
    let refused = &view["refused"][0];
    assert_eq!((&view["tasks"], &refused["id"], &refused["code"]), (&json!([]), &json!(id), &json!(code)));
    let ran = bench.tqhost(&["retry", queue, id]);
    let expected = format!("tqhost: {}\n", refused["why"].as_str().expect("a text"));
    assert_eq!((ran.code, ran.stdout.as_str(), &ran.stderr), (1, "", &expected));
    expected
}

fn waits_delayed(bench: &mut Bench, queue: &str) {
    eventually("it is delayed", || (bench.places(queue).delayed == 1).then_some(()));
}

#[test]
fn a_task_that_was_enqueued_for_later_runs_now() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\nid = { field = \"order\" }\nevents = 10\n");
    bench.install("echo", "echo");
    let hosts: Vec<Host> = (0..2).map(|_| bench.host()).collect();
    let enqueue = |order: &str| {
        let field = format!("order={order}");
        bench.tqhost(&["enqueue", "work", &field, "--delay", "2h"]).ok().stdout.trim().to_owned()
    };
    let [first, second, third] = ["7", "8", "9"].map(enqueue);
    let ran = bench.tqhost(&["retry", "work", &first]).ok();
    let (told, _minutes) = ran.stdout.rsplit_once(" in 1h ").expect("when it was due");
    insta::assert_snapshot!(told.replace(&first, "ID"), @"ID runs now, as attempt 1; it was due");
    bench.until("work", &first, "COMPLETED");
    // By an alias, two at once, one of which has ended.
    let view = retried(&bench, "work", &["8", &first, "9"], 1);
    let ids: Vec<&str> =
        view["tasks"].as_array().expect("a list").iter().filter_map(|task| task["id"].as_str()).collect();
    assert_eq!((ids, &view["refused"][0]["code"]), (vec![&*second, &*third], &json!("task-ended")));
    for id in [&second, &third] {
        bench.until("work", id, "COMPLETED");
    }
    assert_eq!(bench.places("work").delayed, 0);
    bench.tqhost(&["doctor", "work"]).ok();
    Host::stop_all(hosts);
}

#[test]
fn a_producers_delay_is_over_and_the_age_counts_from_now() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\nexpire_after = \"1h\"\n");
    bench.install("echo", "echo");
    let host = bench.host();
    let id = bench.xadd("work", &[("a", "1"), ("tq-delay-ms", "7200000")]);
    waits_delayed(&mut bench, "work");
    bench.tqhost(&["retry", "work", &id]).ok();
    bench.until("work", &id, "COMPLETED");
    // It did not wait for a time that has not come.
    let waited = host.metric("tqhost_task_wait_seconds_sum{queue=\"work\"}");
    assert!((0.0..600.0).contains(&waited), "{waited}");
    host.stop();
}

#[test]
fn a_retry_that_waits_runs_now_with_the_attempts_that_it_has() {
    let mut bench =
        Bench::new("[queues.twice]\nplugin = \"fails-twice\"\nbackoff = { delays = [\"2h\", \"3h\"] }\n");
    bench.install("fails-twice", "fails-twice");
    let host = bench.host();
    let id = bench.xadd("twice", &[("a", "1")]);
    for attempt in [2, 3] {
        waits_delayed(&mut bench, "twice");
        let view = retried(&bench, "twice", &[&id], 0);
        let task = &view["tasks"][0];
        assert_eq!((&task["id"], &task["attempt"]), (&json!(id), &json!(attempt)), "{view}");
        assert!(task["was_due_at"].is_u64(), "{view}");
        if attempt == 2 {
            eventually("the second attempt has failed", || {
                (bench.status("twice", &id, "attempt") == "3").then_some(())
            });
        }
    }
    bench.until("twice", &id, "COMPLETED");
    assert_eq!(bench.status("twice", &id, "attempt"), "3");
    bench.tqhost(&["doctor", "twice"]).ok();
    host.stop();
}

#[test]
fn a_task_keeps_its_turn_when_its_retry_runs_now() {
    let mut bench = Bench::new(
        "[queues.twice]\nplugin = \"fails-twice\"\nserial = { field = \"key\" }\n\
         backoff = { delays = [\"2h\"] }\n",
    );
    bench.install("fails-twice", "fails-twice");
    let host = bench.host();
    let first = bench.xadd("twice", &[("key", "a")]);
    waits_delayed(&mut bench, "twice");
    let second = bench.xadd("twice", &[("key", "a")]);
    for attempt in ["2", "3"] {
        eventually("one waits for its backoff, and the other for its turn", || {
            let is_next = bench.status("twice", &first, "attempt") == attempt;
            (is_next && bench.places("twice").delayed == 2).then_some(())
        });
        assert!(refusal(&bench, "twice", &second, "not-delayed").contains("it is held"));
        assert_eq!(retried(&bench, "twice", &[&first], 0)["refused"], json!([]));
    }
    bench.until("twice", &first, "COMPLETED");
    eventually("the other has begun", || (bench.status("twice", &second, "attempt") == "2").then_some(()));
    bench.tqhost(&["doctor", "twice"]).ok();
    host.stop();
}

#[test]
fn a_task_that_does_not_wait_for_its_time_stays_as_it_is() {
    let held = Held::new();
    let mut bench = held.bench(
        "[queues.track]\nplugin = \"fetches\"\nserial = { field = \"key\" }\n\
         [queues.bad]\nplugin = \"rejects\"\n[queues.waits]\nplugin = \"missing\"\n",
    );
    bench.install("rejects", "rejects");
    let host = bench.host();
    let [task] = held.task();
    let runs = bench.xadd("track", &[task, ("key", "a")]);
    bench.until_running("track", 1);
    let waits_for_turn = bench.xadd("track", &[task, ("key", "a")]);
    waits_delayed(&mut bench, "track");
    let dead = bench.xadd("bad", &[("a", "1")]);
    bench.until("bad", &dead, "FAILED");
    let queued = bench.xadd("waits", &[("a", "1")]);
    let gone = bench.xadd("waits", &[("a", "2")]);
    bench.tqhost(&["cancel", "waits", &gone]).ok();
    let places =
        |bench: &mut Bench| ["track", "bad", "waits"].map(|queue| format!("{:?}", bench.places(queue)));
    let before = places(&mut bench);
    let told = [
        ("track", runs.as_str(), "not-delayed"),
        ("track", &waits_for_turn, "not-delayed"),
        ("waits", &queued, "not-delayed"),
        ("waits", &gone, "task-ended"),
        ("bad", &dead, "task-ended"),
        ("bad", "nobody", "unknown-task"),
    ]
    .map(|(queue, id, code)| refusal(&bench, queue, id, code).replace(id, "ID"));
    insta::assert_snapshot!(told.concat(), @"
    tqhost: task \"ID\" cannot be told to run now: it is running already
    tqhost: task \"ID\" cannot be told to run now: it is held: it waits for its turn, and runs when the \
        tasks before it have ended; `tqhost tasks track --state running` and `--state delayed` show them
    tqhost: task \"ID\" cannot be told to run now: it is queued already, and runs when a host has room; \
        `tqhost queues waits` shows what hosts do
    tqhost: task \"ID\" is CANCELLED already: enqueue a new one to run it again
    tqhost: task \"ID\" is dead, so it does not wait for another attempt: `tqhost dead requeue bad ID` \
        brings it back
    tqhost: queue bad knows no task \"ID\": it was never there, it ended more than 1d ago (the queue's \
        retention), or it lies behind the 5,000 entries or 64 MiB that a search reads
    ");
    assert_eq!(places(&mut bench), before, "nothing has changed");
    held.end();
    bench.until("track", &waits_for_turn, "COMPLETED");
    host.stop();
}

#[test]
fn a_task_that_waits_for_its_flow_says_so() {
    let mut bench = Bench::new(
        "[queues.work]\nplugin = \"effects\"\nenqueue_to = [\"part\", \"join\"]\n\
         [queues.part]\nplugin = \"missing\"\n[queues.join]\nplugin = \"effects\"\n",
    );
    bench.install("effects", "effects");
    let host = bench.host();
    let child = json!({ "queue": "part", "fields": { "do": [] } });
    let calls = json!([["fan-out", [child], { "queue": "join", "fields": { "do": [] } }]]);
    let work = bench.xadd("work", &[("do", &calls.to_string())]);
    bench.until("work", &work, "COMPLETED");
    let result: Value = serde_json::from_str(&bench.status("work", &work, "result")).expect("JSON");
    let join = result[0].as_str().expect("an id");
    insta::assert_snapshot!(
        refusal(&bench, "join", join, "not-delayed").replace(join, "ID"),
        @"tqhost: task \"ID\" cannot be told to run now: it is waiting for the tasks of its flow; `tqhost \
          status join ID` shows them, and those that are delayed can be told to run"
    );
    assert_eq!(bench.status("join", join, "status"), "PENDING");
    host.stop();
}
