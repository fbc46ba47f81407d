//! Cancelling all that match, while tasks move from place to place.

use std::sync::{Arc, Condvar, Mutex};

use serde_json::{Value, json};

use super::{good, post};
use crate::support::application::{self, Application, Reply};
use crate::support::dead_letters::add_dead;
use crate::support::{Bench, eventually};

/// More than one request looks at, in pages that grow to 200.
const OTHERS: usize = 5_001;

#[test]
fn a_running_task_that_becomes_delayed_behind_the_walk_is_cancelled() {
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let opened = Arc::clone(&gate);
    let application = Application::start(move |_| {
        let (is_open, changed) = &*opened;
        let open = is_open.lock().expect("the gate");
        drop(changed.wait_while(open, |is_open| !*is_open).expect("the gate"));
        Reply::page(500, "", "")
    });
    let plugin = application::plugin(&application.origin(), "");
    let mut bench = Bench::new(&format!(
        "[queues.work]\nplugin = \"http-call\"\nbackoff = {{ delays = [\"1h\"] }}\n{plugin}"
    ));
    bench.install("http-call", "http-call");
    let host = bench.host();
    let others = bench.dir.path().join("others.jsonl");
    std::fs::write(&others, "{\"a\": \"another one\"}\n".repeat(OTHERS)).expect("write a file");
    let file = others.to_str().expect("a path");
    bench.tqhost(&["enqueue", "work", "--jsonl", file, "--delay", "2h"]).ok();
    let id = bench.xadd("work", &[("a", "this one")]);
    bench.until_running("work", 1);
    let mut body = json!({ "all": true, "text": "this one" });
    let cancel = |body: &Value| good(&post(&host, "/v1/queues/work/tasks/cancel", body), 200);
    let mut part = cancel(&body);
    assert_eq!((&part["succeeded"], part["next"].is_string()), (&json!(0), true), "{part}");
    *gate.0.lock().expect("the gate") = true;
    gate.1.notify_all();
    eventually("it waits for its next attempt", || {
        (bench.places("work").delayed == OTHERS as u64 + 1).then_some(())
    });
    let mut sum = 0;
    while part["next"].is_string() {
        body["cursor"] = part["next"].clone();
        part = cancel(&body);
        assert_eq!(part["skipped"], 0, "{part}");
        sum += part["succeeded"].as_u64().expect("a count");
    }
    assert_eq!((sum, bench.status("work", &id, "status")), (1, "CANCELLED".to_owned()));
    assert_eq!(bench.places("work").delayed, OTHERS as u64);
    host.stop();
}

#[test]
fn dead_letters_that_are_requeued_meanwhile_are_left_out() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    add_dead(&mut bench, 0..1);
    let (id, host) = ("id-0", bench.host());
    let others = bench.dir.path().join("others.jsonl");
    std::fs::write(&others, "{\"a\": \"another one\"}\n".repeat(OTHERS)).expect("write a file");
    let file = others.to_str().expect("a path");
    bench.tqhost(&["enqueue", "work", "--jsonl", file, "--delay", "2h"]).ok();
    let cancel = |body: &Value| good(&post(&host, "/v1/queues/work/tasks/cancel", body), 200);
    let mut body = json!({ "all": true, "text": id });
    let mut part = cancel(&body);
    assert_eq!((&part["succeeded"], part["next"].is_string()), (&json!(0), true), "{part}");
    // It was enqueued before the operation began, and comes back after that.
    let requeued = good(&post(&host, "/v1/queues/work/dead/requeue", &json!({ "ids": [id] })), 200);
    assert_eq!(requeued["succeeded"], 1, "{requeued}");
    let mut rounds = 1;
    while part["next"].is_string() {
        body["cursor"] = part["next"].clone();
        part = cancel(&body);
        assert_eq!((&part["succeeded"], &part["skipped"]), (&json!(0), &json!(0)), "{part}");
        rounds += 1;
    }
    assert!(rounds > 2, "the second round looks at the delayed tasks again");
    assert_eq!(bench.status("work", id, "status"), "PENDING");
    // An operation that begins now takes it.
    let now = good(&post(&host, "/v1/queues/work/tasks/cancel", &json!({ "ids": [id] })), 200);
    assert_eq!((&now["succeeded"], bench.status("work", id, "status")), (&json!(1), "CANCELLED".to_owned()));
    host.stop();
}
