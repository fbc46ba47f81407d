//! A delayed task is told to run now, by the API.

use serde_json::json;

use super::{ask, good, post, problem};
use crate::support::{Bench, eventually};

#[test]
fn a_delayed_task_runs_now_and_others_stay_as_they_are() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\nid = { field = \"order\" }\n");
    bench.install("echo", "echo");
    let host = bench.host();
    let path = |name: &str| format!("/v1/queues/work/tasks/{name}/retry");
    let task = json!({ "fields": { "order": "a/7" }, "delay": "1h" });
    let id = good(&post(&host, "/v1/queues/work/tasks", &task), 202)["id"].clone();
    let id = id.as_str().expect("an id");
    let shown = good(&ask(&host, "GET", &format!("/v1/queues/work/tasks/{id}")), 200);
    good(&post(&host, "/v1/queues/work/pause", &json!({})), 200);
    eventually("the pause is seen", || host.get("/readyz").body.contains("paused").then_some(()));
    // By its alias. It needs no body.
    let retried = good(&ask(&host, "POST", &path("a%2F7")), 200);
    assert_eq!(retried, json!({ "id": id, "attempt": 1, "was_due_at": shown["due_at"] }));
    let now = good(&ask(&host, "GET", &format!("/v1/queues/work/tasks/{id}")), 200);
    let due = |task: &serde_json::Value| task["due_at"].as_u64().expect("a time");
    assert!(due(&now) < due(&shown) && now["status"] == "PENDING" && now["attempt"] == 1, "{now}");
    // A client whose answer was lost asks again.
    let why = problem(&ask(&host, "POST", &path(id)), 409, "not-delayed");
    insta::assert_snapshot!(
        why.replace(id, "ID"),
        @"task \"ID\" cannot be told to run now: it is queued already, and runs when a host has room; \
          `tqhost queues work` shows what hosts do"
    );
    assert_eq!(bench.places("work").length, 1);
    good(&post(&host, "/v1/queues/work/resume", &json!({})), 200);
    bench.until("work", id, "COMPLETED");
    problem(&ask(&host, "POST", &path(id)), 409, "task-ended");
    problem(&ask(&host, "POST", &path("nobody")), 404, "unknown-task");
    // The task, the pause and its end have lines, too.
    let mut audited = host.until_logged("audit: a change was asked for", 3 + 4);
    audited.retain(|line| line["path"].as_str().is_some_and(|path| path.ends_with("/retry")));
    let told: Vec<_> = audited.iter().map(|line| (&line["status"], &line["ids"])).collect();
    let expected = [(200, "a/7"), (409, id), (409, id), (404, "nobody")];
    let expected = expected.map(|(status, id)| (json!(status), json!(id)));
    assert_eq!(told, expected.iter().map(|(status, id)| (status, id)).collect::<Vec<_>>());
    host.stop();
}
