//! The outbox: tasks that are enqueued with the step that completes another one.

use serde_json::json;

use super::{bench, done, results, told};
use crate::support::eventually;
use crate::support::words::{element, text};

const QUEUES: &str = "[queues.work]\nplugin = \"effects\"\nbackoff = \"none\"\n\
     enqueue_to = [\"next\", \"work\"]\n\
     [queues.next]\nplugin = \"effects\"\nidempotency = { field = \"event\" }\n";

#[test]
fn a_task_of_the_outbox_is_a_task_like_any_other() {
    let mut bench = bench(QUEUES);
    let host = bench.host();
    let calls = json!([["enqueue", { "queue": "next", "fields": { "do": [["fence"]], "a": "1" } }]]);
    let seen = done(&mut bench, "work", calls);
    let id = seen[0].as_str().expect("an id").to_owned();
    assert_eq!(results(&mut bench, "next", &id), json!([1]));
    assert_eq!(bench.places("next").length, 0);
    host.stop();
}

#[test]
fn a_task_of_an_attempt_that_failed_is_never_enqueued() {
    let mut bench = bench(QUEUES);
    let host = bench.host();
    let next = json!({ "queue": "next", "fields": { "do": [["add", "n", 1]] } });
    let calls = json!([["enqueue", next], ["first", 1, ["trap"]], ["first", 2, ["retry"]]]);
    let seen = done(&mut bench, "work", calls);
    results(&mut bench, "next", seen[0].as_str().expect("an id"));
    bench.until_drained("next");
    assert_eq!(bench.redis::<String>("GET", "tq:{next}:state:effects:n"), "1");
    host.stop();
}

#[test]
fn a_delayed_task_of_the_outbox_comes_when_it_is_due() {
    let mut bench = bench(QUEUES);
    let host = bench.host();
    let next = json!({ "queue": "next", "fields": { "do": [["fence"]] }, "delay": 1500 });
    let seen = done(&mut bench, "work", json!([["enqueue", next]]));
    let id = seen[0].as_str().expect("an id").to_owned();
    assert_eq!((bench.places("next").delayed, bench.status("next", &id, "status").as_str()), (1, "PENDING"));
    results(&mut bench, "next", &id);
    let time = |bench: &mut crate::support::Bench, field| {
        bench.status("next", &id, field).parse::<u64>().expect("a time")
    };
    let waited = time(&mut bench, "started_at") - time(&mut bench, "enqueued_at");
    assert!(waited >= 1500, "{waited} ms");
    host.stop();
}

#[test]
fn of_tasks_with_one_key_the_first_runs() {
    let mut bench = bench(QUEUES);
    let host = bench.host();
    let next = |key: &str| json!({ "queue": "next", "fields": { "do": [["add", "n", 1]] }, "key": key });
    let first = done(&mut bench, "work", json!([["enqueue", next("k")]]))[0].as_str().expect("id").to_owned();
    results(&mut bench, "next", &first);
    let calls = json!([["enqueue", next("k")], ["enqueue", next("l")], ["enqueue", next("l")]]);
    let seen = done(&mut bench, "work", calls);
    let id = |n: usize| seen[n].as_str().expect("an id").to_owned();
    bench.until("next", &id(0), "CANCELLED");
    assert_eq!(bench.status("next", &id(0), "duplicate_of"), first);
    bench.until("next", &id(1), "COMPLETED");
    bench.until("next", &id(2), "CANCELLED");
    assert_eq!(bench.status("next", &id(2), "duplicate_of"), id(1));
    // The key may also be in the field that the queue names.
    let event = json!({ "queue": "next", "fields": { "do": [["add", "n", 1]], "event": "l" } });
    let seen = done(&mut bench, "work", json!([["enqueue", event]]));
    bench.until("next", seen[0].as_str().expect("an id"), "CANCELLED");
    assert_eq!(bench.redis::<String>("GET", "tq:{next}:state:effects:n"), "2");
    host.stop();
}

#[test]
fn a_full_target_is_looked_at_before_the_work_is_done() {
    let mut bench = bench(&QUEUES.replace("[queues.next]", "[queues.next]\nmax_backlog = 2"));
    bench.tqhost(&["pause", "next"]).ok();
    for _ in 0..2 {
        bench.xadd("next", &[("do", "[]")]);
    }
    let host = bench.host();
    let next = json!({ "queue": "next", "fields": { "do": [] } });
    let id =
        told(&mut bench, "work", &json!([["add", "n", 1], ["enqueue", next.clone()], ["enqueue", next]]));
    host.log("the queue that it enqueues to is full");
    assert_eq!((bench.places("work").pending, bench.status("work", &id, "status").as_str()), (0, ""));
    eventually("the state says it", || host.get("/readyz").body.contains("waiting-for-room").then_some(()));
    bench.tqhost(&["resume", "next"]).ok();
    // The commit may overshoot by its own effects.
    results(&mut bench, "work", &id);
    eventually("all ran", || (bench.places("next").length == 0).then_some(()));
    host.stop();
}

#[test]
fn a_completed_task_names_the_first_tasks_that_its_handler_enqueued() {
    let mut bench = bench(QUEUES);
    let host = bench.host();
    let next = |n: usize| {
        let fields = json!({ "do": [["fence"]], "n": n.to_string() });
        json!(["enqueue", { "queue": "next", "fields": fields }])
    };
    let calls: Vec<_> = (0..23).map(next).collect();
    let id = told(&mut bench, "work", &json!(calls));
    let seen = results(&mut bench, "work", &id);
    let view = bench.tqhost(&["status", "work", &id, "--json"]).ok().json();
    assert_eq!(view["enqueued"], 23, "{view}");
    let named: Vec<_> = (0..20).map(|n| json!({ "queue": "next", "id": seen[n] })).collect();
    assert_eq!(view["enqueued_tasks"], json!(named), "{view}");
    let sheet = bench.tqhost(&["status", "work", &id]).ok().stdout;
    let first = seen[0].as_str().expect("an id");
    assert!(sheet.contains(&format!("next {first}\n")) && sheet.contains("and 3 more"), "{sheet}");
    let page = crate::dashboard::Browser::new(&host).page(&format!("/queues/work/tasks/{id}"));
    let enqueued = element(&page, "aria-labelledby=\"enqueued\"");
    assert_eq!(enqueued.matches("/queues/next/tasks/").count(), 20, "{page}");
    insta::assert_snapshot!(text(element(enqueued, "class=\"note\"")), @r"
    They are 23, of which the first 20 are kept.
    ");
    host.stop();
}
