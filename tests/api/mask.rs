//! Fields that are hidden (`mask` in `[admin]`): no answer of the API and no page shows their values, and the
//! command line does.

use serde_json::{Value, json};

use super::{ask, good, post, problem};
use crate::support::{Bench, Host, eventually};

const EMAIL: &str = "ada@lovelace.example";

fn bench() -> Bench {
    let bench = Bench::new("");
    let redis = bench.redis.port;
    bench.configure(&format!(
        "[queues.work]\nplugin = \"echo\"\nevents = 100\n[queues.bad]\nplugin = \"rejects\"\nevents = 100\n\
         [queues.waits]\nplugin = \"missing\"\n[redis]\nurl = \"redis://127.0.0.1:{redis}\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\nmask = [\"email\", \"Phone\"]\n"
    ));
    bench.install("echo", "echo");
    bench.install("rejects", "rejects");
    bench
}

/// A task with the value in a field, and twice in the JSON of another one.
fn add(host: &Host, queue: &str) -> String {
    let inner = json!({ "PHONE": EMAIL, "n": 7 }).to_string();
    let body = json!({ "user": { "Email": EMAIL }, "inner": inner });
    let task = json!({ "fields": { "email": EMAIL, "body": body, "text": "in-the-open" } });
    let path = format!("/v1/queues/{queue}/tasks");
    good(&post(host, &path, &task), 202)["id"].as_str().expect("an id").to_owned()
}

#[test]
fn no_answer_and_no_page_shows_what_is_hidden() {
    let mut bench = bench();
    let host = bench.host();
    let [done, dead, waits] = ["work", "bad", "waits"].map(|queue| add(&host, queue));
    bench.until("work", &done, "COMPLETED");
    bench.until("bad", &dead, "FAILED");
    let stream = |id: &str| host.get(&format!("/v1/queues/work/tasks/{id}/events")).body;
    eventually("the answers have what is not hidden", || stream(&done).contains("in-the-open").then_some(()));
    for (path, is_shown) in [
        (format!("/v1/queues/work/tasks/{done}"), true),
        (format!("/v1/queues/work/tasks/{done}/events"), true),
        (format!("/queues/work/tasks/{done}"), true),
        ("/v1/queues/waits/tasks?state=queued&fields=true".to_owned(), true),
        (format!("/queues/waits/tasks/{waits}"), true),
        ("/queues/waits?state=queued".to_owned(), false),
        ("/v1/queues/bad/tasks?state=dead&fields=true".to_owned(), true),
        ("/v1/queues/bad/dead?fields=true".to_owned(), true),
        ("/v1/queues/bad/dead/groups?by=error".to_owned(), false),
        (format!("/queues/bad/tasks/{dead}"), true),
        ("/queues/bad/dead".to_owned(), false),
    ] {
        let answer = ask(&host, "GET", &path);
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        assert!(!answer.body.contains(EMAIL), "{path}: {answer:?}");
        assert_eq!(answer.body.contains("in-the-open"), is_shown, "{path}: {answer:?}");
        assert_eq!(answer.body.contains("[masked]"), is_shown, "{path}: {answer:?}");
    }
    let task = good(&ask(&host, "GET", &format!("/v1/queues/work/tasks/{done}")), 200);
    let fields = &task["result"]["fields"];
    assert_eq!((&fields["email"], &fields["text"]), (&json!("[masked]"), &json!("in-the-open")));
    let body: Value = serde_json::from_str(fields["body"].as_str().expect("a text")).expect("JSON");
    let inner: Value = serde_json::from_str(body["inner"].as_str().expect("a text")).expect("JSON");
    assert_eq!(
        (&body["user"]["Email"], &inner),
        (&json!("[masked]"), &json!({ "PHONE": "[masked]", "n": 7 }))
    );
    // A file would show them, or lose them.
    let why = problem(&ask(&host, "GET", "/v1/queues/bad/dead/export"), 403, "masked");
    assert!(why.contains("tqhost dead purge --out"), "{why}");
    assert_eq!(ask(&host, "GET", "/queues/bad/dead/export").status, 403);
    assert!(!ask(&host, "GET", "/queues/bad/dead").body.contains("/export"));
    assert!(!ask(&host, "GET", "/queues/bad/dead/confirm?what=purge").body.contains("/export"));
    // The command line reads Redis itself.
    let shown = bench.tqhost(&["status", "work", &done, "--json"]).ok().stdout;
    assert!(shown.contains(EMAIL), "{shown}");
    host.stop();
}
