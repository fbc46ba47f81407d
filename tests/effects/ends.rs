//! Ends that are told: one task for each end of a task, however it ended; and the events of a queue.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::{bench, told};
use crate::support::words::masked;
use crate::support::{Bench, eventually};

const QUEUES: &str = "[queues.work]\nplugin = \"effects\"\nmax_retries = 1\nbackoff = \"none\"\n\
     on_end = \"told\"\nlease = \"1s\"\n\
     idempotency = { field = \"event\" }\n[queues.told]\nplugin = \"missing\"\n";

/// The tasks that tell of ends, by the id of the ended task. Each end is told once.
fn ends(bench: &mut Bench, stream: &str) -> HashMap<String, HashMap<String, String>> {
    let entries: Vec<(String, Vec<String>)> = bench.redis("XRANGE", (stream, "-", "+"));
    let mut ends = HashMap::new();
    for (_, fields) in entries {
        let fields: HashMap<String, String> =
            fields.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
        let before = ends.insert(fields["end.id"].clone(), fields);
        assert!(before.is_none(), "told twice: {before:?}");
    }
    ends
}

/// Waits until the end of a task is told.
#[track_caller]
fn end_of(bench: &mut Bench, stream: &str, id: &str) -> HashMap<String, String> {
    eventually(&format!("the end of {id} is told"), || ends(bench, stream).remove(id))
}

#[track_caller]
fn says(end: &HashMap<String, String>, expected: &Value) {
    let expected = expected.as_object().expect("an object");
    let found: serde_json::Map<String, Value> =
        expected.keys().map(|name| (name.clone(), json!(end.get(name)))).collect();
    assert_eq!(&found, expected, "{end:?}");
}

#[test]
fn every_end_is_told_once_with_the_fields_of_its_task() {
    let mut bench = bench(QUEUES);
    let host = bench.host();
    let done = bench.xadd("work", &[("do", "[[\"fence\"]]"), ("own", "1"), ("end.id", "x"), ("event", "e")]);
    let end = end_of(&mut bench, "told", &done);
    says(
        &end,
        &json!({
            "own": "1", "do": "[[\"fence\"]]", "end.queue": "work", "end.status": "COMPLETED",
            "end.reason": "", "end.error": "", "end.result": "[1]", "end.attempts": "1"
        }),
    );
    assert!(end["end.finished_at"].parse::<u64>().is_ok() && end["end.enqueued_at"].parse::<u64>().is_ok());

    let rejected = told(&mut bench, "work", &json!([["reject"]]));
    let end = end_of(&mut bench, "told", &rejected);
    says(&end, &json!({ "end.status": "FAILED", "end.reason": "rejected", "end.error": "as told" }));

    let trapped = told(&mut bench, "work", &json!([["trap"]]));
    let end = end_of(&mut bench, "told", &trapped);
    says(&end, &json!({ "end.status": "FAILED", "end.reason": "retries-exhausted", "end.attempts": "2" }));
    assert!(end["end.error"].starts_with("trap: "), "{end:?}");

    let again = bench.xadd("work", &[("do", "[]"), ("event", "e")]);
    let end = end_of(&mut bench, "told", &again);
    says(&end, &json!({ "end.status": "CANCELLED", "end.reason": "duplicate", "event": "e" }));

    let stopped = told(&mut bench, "work", &json!([["sleep", 60_000]]));
    bench.until_running("work", 1);
    bench.tqhost(&["cancel", "work", &stopped]).ok();
    let end = end_of(&mut bench, "told", &stopped);
    says(&end, &json!({ "end.status": "CANCELLED", "do": "[[\"sleep\",60000]]" }));

    let deleted = told(&mut bench, "work", &json!([["sleep", 3000]]));
    bench.until_running("work", 1);
    let _: u64 = bench.redis("XDEL", ("work", &deleted));
    let end = end_of(&mut bench, "told", &deleted);
    says(&end, &json!({ "end.status": "COMPLETED", "do": null }));
    host.stop();
    assert_eq!(ends(&mut bench, "told").len(), 6);
}

#[test]
fn a_task_that_is_cancelled_before_it_ran_is_told_too() {
    let mut bench = bench(QUEUES);
    bench.tqhost(&["pause", "work"]).ok();
    let host = bench.host();
    let queued = bench.xadd("work", &[("own", "1")]);
    let ran = bench.tqhost(&["enqueue", "work", "own=2", "--delay", "1h", "--json"]).ok();
    let delayed = ran.json()["id"].as_str().expect("an id").to_owned();
    for id in [&queued, &delayed] {
        bench.tqhost(&["cancel", "work", id]).ok();
    }
    says(&end_of(&mut bench, "told", &queued), &json!({ "end.status": "CANCELLED", "own": "1" }));
    says(&end_of(&mut bench, "told", &delayed), &json!({ "end.status": "CANCELLED", "own": "2" }));
    host.stop();
}

#[test]
fn ends_go_to_the_queue_of_their_outcome_even_if_it_is_full_or_keeps_no_statuses() {
    let mut bench = bench(
        "[queues.work]\nplugin = \"effects\"\nretention = \"0s\"\non_end = { dead = \"failed\" }\n\
         [queues.failed]\nplugin = \"missing\"\nmax_backlog = 1\n",
    );
    let host = bench.host();
    let done = told(&mut bench, "work", &json!([]));
    let rejected = [(); 3].map(|()| told(&mut bench, "work", &json!([["reject"]])));
    for id in &rejected {
        says(&end_of(&mut bench, "failed", id), &json!({ "end.reason": "rejected" }));
    }
    bench.until_drained("work");
    assert!(!ends(&mut bench, "failed").contains_key(&done));
    host.stop();
}

#[test]
fn an_end_is_told_with_the_fields_that_the_queue_names() {
    let mut bench = bench(
        "[queues.work]\nplugin = \"effects\"\nmax_retries = 0\n\
         on_end = { queue = \"told\", dead = \"failed\", fields = [\"own\", \"none\"] }\n\
         [queues.told]\nplugin = \"missing\"\n[queues.failed]\nplugin = \"missing\"\n",
    );
    let host = bench.host();
    let names = |end: HashMap<String, String>| {
        let mut names: Vec<String> = end.into_keys().filter(|name| !name.starts_with("end.")).collect();
        names.sort();
        names
    };
    let done = bench.xadd("work", &[("do", "[]"), ("own", "1"), ("other", "2")]);
    assert_eq!(names(end_of(&mut bench, "told", &done)), ["own"]);
    let dead = bench.xadd("work", &[("do", "[[\"reject\"]]"), ("other", "2")]);
    assert_eq!(names(end_of(&mut bench, "failed", &dead)), Vec::<String>::new());
    assert!(!ends(&mut bench, "told").contains_key(&dead));
    host.stop();
}

#[test]
fn ends_are_told_of_tasks_that_crash_their_host() {
    let mut bench = bench(&QUEUES.replace("lease = \"1s\"", "lease = \"1s\"\nmax_crashes = 1"));
    let id = told(&mut bench, "work", &json!([["sleep", 60_000]]));
    // The first crash is one of a host with other tasks, so the task runs again, alone.
    for deliveries in 1..=2 {
        let host = bench.host();
        eventually("it runs again", || {
            let pending: Vec<(String, String, u64, u64)> =
                bench.redis("XPENDING", ("work", "tqhost", "-", "+", 1));
            let noted = bench.status("work", &id, "alone");
            (pending.first()?.3 == deliveries && (deliveries == 1 || !noted.is_empty())).then_some(())
        });
        host.kill();
    }
    let host = bench.host();
    says(&end_of(&mut bench, "told", &id), &json!({ "end.status": "FAILED", "end.reason": "crashed" }));
    host.stop();
}

#[test]
fn ends_in_a_circle_are_a_problem_of_the_configuration() {
    let bench = bench(
        "[queues.a]\nplugin = \"effects\"\non_end = \"b\"\n[queues.b]\nplugin = \"effects\"\n\
         on_end = { dead = \"a\" }\n[queues.c]\nplugin = \"effects\"\non_end = \"nowhere\"\n",
    );
    let ran = bench.tqhost(&["check"]);
    assert_eq!(ran.code, 78, "{ran:?}");
    insta::assert_snapshot!(masked(&ran.stderr, &[(&bench.config().display().to_string(), "FILE")]), @"
    tqhost: FILE: 3 problems
      line 3: queues.a.on_end: leads back to this queue, so that one end would be told for ever: name a \
      queue that tells no other one
      line 6: queues.b.on_end: leads back to this queue, so that one end would be told for ever: name a \
      queue that tells no other one
      line 9: queues.c.on_end: \"nowhere\" is not a queue: add a table [queues.nowhere], or take the name out
    ");
}

/// The status and the attempt of each event of a task of `work`.
fn events_of(bench: &mut Bench, id: &str) -> Vec<String> {
    let events: Vec<(String, HashMap<String, String>)> =
        bench.redis("XRANGE", ("tq:{work}:events", "-", "+"));
    let own = events.into_iter().filter(|(_, event)| event["id"] == id);
    own.map(|(_, event)| format!("{} {}", event["status"], event["attempt"])).collect()
}

#[test]
fn a_queue_keeps_as_many_events_as_it_is_told_to() {
    let mut bench = bench(
        "[queues.work]\nplugin = \"effects\"\nbackoff = \"none\"\nevents = 100\n\
         [queues.none]\nplugin = \"effects\"\n",
    );
    let host = bench.host();
    let id = told(&mut bench, "work", &json!([["first", 1, ["retry"]]]));
    bench.until("work", &id, "COMPLETED");
    assert_eq!(events_of(&mut bench, &id), ["PENDING 2", "COMPLETED 2"]);

    let ran = bench.tqhost(&["enqueue", "work", "do=[]", "--delay", "1ms", "--json"]).ok();
    let delayed = ran.json()["id"].as_str().expect("an id").to_owned();
    bench.until("work", &delayed, "COMPLETED");
    assert_eq!(events_of(&mut bench, &delayed), ["PENDING 1", "COMPLETED 1"]);

    let rejected = told(&mut bench, "work", &json!([["reject"]]));
    bench.until("work", &rejected, "FAILED");
    bench.tqhost(&["dead", "requeue", "work", &rejected]).ok();
    eventually("the requeued task has failed", || {
        (events_of(&mut bench, &rejected) == ["FAILED 1", "PENDING 1", "FAILED 1"]).then_some(())
    });
    // Tasks with an id of their producer have an entry each.
    for n in 0..600 {
        bench.xadd("work", &[("do", "[]"), ("tq-id", &format!("own-{n}"))]);
    }
    let other = told(&mut bench, "none", &json!([]));
    bench.until("none", &other, "COMPLETED");
    bench.until_drained("work");
    let kept: u64 = bench.redis("XLEN", "tq:{work}:events");
    assert!((100..=250).contains(&kept), "{kept}");
    assert_eq!(bench.redis::<u64>("EXISTS", "tq:{none}:events"), 0);
    host.stop();
}

#[test]
fn the_end_of_a_cancelled_task_tells_what_its_status_said() {
    let mut bench = Bench::new(
        "[queues.work]\nplugin = \"as-told\"\nbackoff = { delays = [\"1h\"] }\non_end = \"told\"\n\
         [queues.told]\nplugin = \"missing\"\n",
    );
    bench.install("as-told", "as-told");
    let host = bench.host();
    let data = "{\"n\":\"a\",\"ms\":1,\"retries\":5,\"end\":\"ok\"}";
    let retried = bench.xadd("work", &[("data", data)]);
    eventually("its retry waits", || (bench.places("work").delayed == 1).then_some(()));
    host.stop();
    // The second one was not seen by any host.
    let queued = bench.xadd("work", &[("data", data)]);
    for id in [&retried, &queued] {
        bench.tqhost(&["cancel", "work", id]).ok();
    }
    let told: Vec<(String, HashMap<String, String>)> = bench.redis("XRANGE", ("told", "-", "+"));
    let errors: Vec<&str> = told.iter().map(|(_, fields)| &*fields["end.error"]).collect();
    assert_eq!(errors, ["retry: attempt 1 of \"a\"", ""]);
    for ((_, fields), id) in told.iter().zip([&retried, &queued]) {
        assert_eq!(Some(&*fields["end.enqueued_at"]), id.split('-').next());
    }
}

#[test]
fn the_end_of_a_task_with_a_name_that_is_no_text_is_told() {
    let mut bench = bench(
        "[queues.work]\nplugin = \"effects\"\nmax_retries = 0\non_end = \"told\"\n\
         [queues.told]\nplugin = \"effects\"\n",
    );
    let host = bench.host();
    let _: String = bench.redis("XADD", ("work", "*", b"\xff", "v", "do", "[]"));
    bench.until_drained("work");
    bench.until_drained("told");
    assert_eq!((bench.places("work").dead, bench.places("told").dead), (1, 0));
    host.stop();
}

#[test]
fn the_end_of_a_task_with_as_many_fields_as_it_may_have_is_told() {
    let mut bench = bench(
        "[queues.work]\nplugin = \"effects\"\nmax_retries = 0\non_end = \"told\"\n\
         [queues.told]\nplugin = \"effects\"\n",
    );
    let host = bench.host();
    let names: Vec<String> = (0..999).map(|n| format!("f{n}")).collect();
    let with = |calls: &'static str| -> Vec<(&str, &str)> {
        names.iter().map(|name| (name.as_str(), "")).chain([("do", calls)]).collect()
    };
    let done = bench.xadd("work", &with("[]"));
    let rejected = bench.xadd("work", &with("[[\"reject\"]]"));
    let mut more = with("[]");
    more.push(("one", "more"));
    let refused = bench.xadd("work", &more);
    let reserved: Vec<String> = (0..51).map(|n| format!("tq-x{n}")).collect();
    let reserved: Vec<(&str, &str)> = reserved.iter().map(|name| (name.as_str(), "")).collect();
    let forged = bench.xadd("work", &reserved);
    bench.until("work", &done, "COMPLETED");
    for (id, error) in [
        (&rejected, "as told"),
        (&refused, "the task has 1001 fields; at most 1000 are taken"),
        (&forged, "the task has 51 fields whose names begin with tq-; at most 50 are taken"),
    ] {
        bench.until("work", id, "FAILED");
        assert_eq!(bench.status("work", id, "error"), error);
    }
    // The tasks that tell of the first two can be read, and end as these did.
    bench.until_drained("told");
    let reasons: Vec<String> = bench.dead("told").iter().map(|letter| letter["tq-error"].clone()).collect();
    assert!(reasons.contains(&"as told".to_owned()), "{reasons:?}");
    assert!(reasons.iter().all(|why| !why.contains("are taken")), "{reasons:?}");
    assert_eq!(bench.redis::<Vec<String>>("KEYS", "tq:{told}:task:*").len(), 4);
    host.stop();
}

#[test]
fn tasks_of_other_queues_can_be_cancelled_while_their_items_lie_in_a_list() {
    let forms = [
        ("celery", "letters", r#"{"body": "", "headers": {"task": "t", "id": "ID"}}"#),
        ("sidekiq", "queue:work", r#"{"class": "T", "args": [], "jid": "ID"}"#),
    ];
    for ((items, list, form), retention) in forms.into_iter().zip(["1h", "0s"]) {
        let mut bench = bench(&format!(
            "[queues.work]\nlist = {{ key = \"{list}\", items = \"{items}\" }}\nplugin = \"echo\"\n\
             retention = \"{retention}\"\non_end = \"told\"\n[queues.told]\nplugin = \"missing\"\n"
        ));
        bench.install("echo", "echo");
        // While no item waits, nothing is known of such a task.
        assert_eq!(bench.tqhost(&["cancel", "work", "first"]).code, 1, "{items}");
        for id in ["first", "second"] {
            let _: u64 = bench.redis("LPUSH", (list, form.replace("ID", id)));
        }
        let dead = [("tq-id", "dead"), ("tq-reason", "rejected"), ("data", "[]")];
        bench.xadd("tq:{work}:dead", &dead);
        assert_eq!(bench.tqhost(&["cancel", "work", "dead"]).code, 1, "{items}");
        let dry = bench.tqhost(&["cancel", "work", "first", "--dry-run", "--json"]).ok().json();
        assert_eq!(dry["before"], "PENDING", "{items}: {dry}");
        for before in ["PENDING", "CANCELLED"] {
            let done = bench.tqhost(&["cancel", "work", "first", "--json"]).ok().json();
            assert_eq!(done["before"], before, "{items}: {done}");
        }
        let host = bench.host();
        says(&end_of(&mut bench, "told", "first"), &json!({ "end.status": "CANCELLED" }));
        says(&end_of(&mut bench, "told", "second"), &json!({ "end.status": "COMPLETED" }));
        bench.until_drained("work");
        let requeued = bench.tqhost(&["dead", "requeue", "work", "dead", "--json"]).ok().json();
        assert_eq!(requeued["succeeded"], 1, "{items}: {requeued}");
        // The task that was cancelled is over, so its id is free.
        let _: u64 = bench.redis("LPUSH", (list, form.replace("ID", "third")));
        says(&end_of(&mut bench, "told", "third"), &json!({ "end.status": "COMPLETED" }));
        host.stop();
    }
}
