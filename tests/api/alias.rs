//! Tasks by their aliases (`id` of a queue): shown, watched, cancelled, requeued and purged.

use serde_json::{Value, json};

use super::{ask, good, post, problem};
use crate::support::dead_letters::dead_with_aliases;
use crate::support::http::{Event, Events};
use crate::support::{Held, Host, eventually};

const TASKS: &str = "/v1/queues/work/tasks";

/// The task that this name means, and its status. The name is a part of a path.
#[track_caller]
fn shown(host: &Host, name: &str) -> (Value, Value) {
    let task = good(&ask(host, "GET", &format!("{TASKS}/{name}")), 200);
    (task["id"].clone(), task["status"].clone())
}

#[test]
fn a_task_is_shown_watched_and_cancelled_by_its_alias() {
    let held = Held::new();
    let mut bench = held.bench("[queues.work]\nplugin = \"fetches\"\nid = { field = \"resumeId\" }\n");
    let [url] = held.task();
    let host = bench.host();
    // A name may have characters that a path must escape.
    let (alias, name) = ("é 7/a", "%C3%A9%207%2Fa");
    let running = bench.xadd("work", &[("resumeId", alias), url]);
    bench.until("work", &running, "PROCESSING");
    assert_eq!(shown(&host, name), (json!(running), json!("PROCESSING")));
    good(&post(&host, "/v1/queues/work/pause", &json!({})), 200);
    eventually("the pause is seen", || host.get("/readyz").body.contains("paused").then_some(()));
    // No host has seen this one, and it is the newest.
    let waiting = bench.xadd("work", &[("resumeId", alias), url]);
    assert_eq!(shown(&host, name), (json!(waiting), json!("PENDING")));
    let cancel = |name: &str| {
        let done = good(&ask(&host, "DELETE", &format!("{TASKS}/{name}")), 200);
        (done["id"].clone(), done["before"].clone())
    };
    assert_eq!(cancel(name), (json!(waiting), json!("PENDING")));
    assert_eq!(shown(&host, name), (json!(waiting), json!("CANCELLED")));
    let events: Vec<Event> = Events::open(host.admin(), &format!("{TASKS}/{name}/events"), &[]).collect();
    let last = events.last().expect("the end");
    assert_eq!((&last.data["id"], &last.data["status"]), (&json!(waiting), &json!("CANCELLED")));
    assert_eq!(cancel(name), (json!(running), json!("PROCESSING")), "the newest that has not ended");
    bench.until("work", &running, "CANCELLED");
    // Many at once, one of them delayed and enqueued by the API.
    let body = json!({ "fields": { "resumeId": "8" }, "delay": "1h" });
    let delayed = good(&post(&host, TASKS, &body), 202)["id"].clone();
    let many = good(&post(&host, &format!("{TASKS}/cancel"), &json!({ "ids": ["8", "nobody"] })), 200);
    assert_eq!((&many["succeeded"], &many["skipped"]), (&json!(1), &json!(1)), "{many}");
    assert_eq!(shown(&host, "8"), (delayed, json!("CANCELLED")));
    for (method, path) in [("GET", "nobody"), ("DELETE", "nobody"), ("GET", "nobody/events")] {
        problem(&ask(&host, method, &format!("{TASKS}/{path}")), 404, "unknown-task");
    }
    host.stop();
}

#[test]
fn a_dead_letter_is_requeued_and_purged_by_its_alias() {
    let (mut bench, host, [old, new, other]) = dead_with_aliases();
    good(&post(&host, "/v1/queues/work/pause", &json!({})), 200);
    eventually("the pause is seen", || host.get("/readyz").body.contains("paused").then_some(()));
    let change = |what: &str, ids: Value| {
        let done = good(&post(&host, &format!("/v1/queues/work/dead/{what}"), &json!({ "ids": ids })), 200);
        (done["succeeded"].clone(), done["skipped"].clone())
    };
    for what in ["requeue", "purge"] {
        let body = json!({ "ids": [new, "7"], "dry_run": true });
        let told = good(&post(&host, &format!("/v1/queues/work/dead/{what}"), &body), 200);
        assert_eq!((&told["succeeded"], &told["skipped"]), (&json!(1), &json!(1)), "both name one: {told}");
    }
    assert_eq!(change("requeue", json!(["7", "9"])), (json!(1), json!(1)));
    assert_eq!(shown(&host, &new), (json!(new), json!("PENDING")));
    assert_eq!(shown(&host, "7"), (json!(new), json!("PENDING")));
    assert_eq!(shown(&host, &old).1, "FAILED", "only the newest dead one was meant");
    assert_eq!(change("purge", json!(["8"])), (json!(1), json!(0)));
    let left: Vec<String> = bench.dead("work").iter().map(|letter| letter["tq-id"].clone()).collect();
    assert_eq!(left, [old], "{other} is purged");
    host.stop();
}
