//! Fields that are hidden (`mask` in `[admin]`): no answer of the API and no page shows their values, and no
//! filter finds a task by them. The command line shows them of a single task.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{ask, good, post};
use crate::support::{Bench, Host, eventually, http};

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
    // A file hides them, too, and says so, so that nothing is brought back without them.
    let export = ask(&host, "GET", "/v1/queues/bad/dead/export").body;
    let [copied, taken] = ["export", "purge"].map(|deed| {
        let job = good(&post(&host, "/v1/queues/bad/jobs", &json!({ "do": deed })), 202);
        let path = format!("/v1/jobs/{}", job["id"].as_str().expect("an id"));
        eventually("the job is over", || {
            (good(&ask(&host, "GET", &path), 200)["state"] == "done").then_some(())
        });
        ask(&host, "GET", &format!("{path}/file")).body
    });
    let mut told = BTreeSet::new();
    for file in [export, copied, taken] {
        let lines: Vec<&str> = file.lines().filter(|line| line.starts_with('{')).collect();
        assert!(lines.len() == 2 && lines[1].contains("\"masked\":true"), "{file}");
        assert!(!file.contains(EMAIL) && !file.contains("reserved") && file.contains("[masked]"), "{file}");
        let path = bench.dir.path().join("masked.jsonl");
        std::fs::write(&path, lines.join("\n")).expect("write");
        let ran = bench.tqhost(&["dead", "import", "bad", path.to_str().expect("a path")]);
        told.insert(ran.ends_with(1).stderr.replace(path.to_str().expect("a path"), "FILE"));
    }
    insta::assert_snapshot!(
        Vec::from_iter(told).concat(),
        @"tqhost: FILE line 1: fields are hidden in this file (mask in [admin]), so nothing can be brought \
          back from it: write it with `tqhost jobs file` or `tqhost dead export --out`"
    );
    // The command line reads Redis itself.
    let shown = bench.tqhost(&["status", "work", &done, "--json"]).ok().stdout;
    assert!(shown.contains(EMAIL), "{shown}");
    host.stop();
}

#[test]
fn hidden_fields_stay_hidden_however_they_are_written() {
    let mut bench = bench();
    let host = bench.host();
    let plain = json!({ "email": EMAIL }).to_string();
    let utf16: Vec<u8> = format!("\u{feff}{plain}").encode_utf16().flat_map(u16::to_le_bytes).collect();
    let base64 = STANDARD.encode(&plain);
    let written: [(&str, Vec<u8>); 8] = [
        ("mark", format!("\u{feff}{plain}").into()),
        ("guard", format!(")]}}',\n{plain}").into()),
        ("utf-16", utf16),
        ("form", format!("n=1&email={EMAIL}").into()),
        ("list", format!("[{{\"name\":\"Email\",\"value\":\"{EMAIL}\"}}]").into()),
        ("pairs", format!("[[\"phone\",\"{EMAIL}\"]]").into()),
        ("base64", base64.clone().into()),
        ("inner", json!({ "data": base64 }).to_string().into()),
    ];
    let id: String = bench.redis("XADD", ("waits", "*", written.to_vec()));
    let list = good(&ask(&host, "GET", "/v1/queues/waits/tasks?state=queued&fields=true"), 200);
    let fields = list["tasks"][0]["fields"].as_array().expect("fields");
    assert_eq!(fields.len(), written.len());
    for field in fields {
        let shown = field["value"].to_string();
        assert!(shown.contains("[masked]") && !shown.contains(EMAIL) && !shown.contains(&base64), "{field}");
    }
    let page = ask(&host, "GET", &format!("/queues/waits/tasks/{id}")).body;
    assert!(!page.contains(EMAIL) && !page.contains(&base64), "{page}");
    host.stop();
}

#[test]
fn a_hidden_field_stays_hidden_in_json_that_is_no_utf_8() {
    let mut bench = bench();
    let host = bench.host();
    let body = [&b"{\"email\": \""[..], EMAIL.as_bytes(), b"\", \"name\": \"\xff\"}"].concat();
    let id: String = bench.redis("XADD", ("waits", "*", "body", body));
    let list = good(&ask(&host, "GET", "/v1/queues/waits/tasks?state=queued&fields=true"), 200);
    let hidden = json!([{ "name": "body", "value": "[masked]" }]);
    assert_eq!(list["tasks"][0]["fields"], hidden, "{list}");
    let page = ask(&host, "GET", &format!("/queues/waits/tasks/{id}"));
    assert!(page.body.contains("[masked]") && !page.body.contains("Binary, "), "{page:?}");
    let list = bench.tqhost(&["tasks", "waits", "--fields", "--json"]).ok().json();
    assert_eq!(list["tasks"][0]["fields"], hidden, "{list}");
    host.stop();
}

/// How many tasks an answer or an output with this list has.
fn found(list: &Value, name: &str) -> usize {
    list[name].as_array().unwrap_or_else(|| panic!("a list: {list}")).len()
}

#[test]
fn no_filter_finds_a_task_by_what_is_hidden() {
    let mut bench = Bench::new("");
    let redis = bench.redis.port;
    let config = |mask: &str| {
        format!(
            "[queues.bad]\nplugin = \"rejects\"\n[queues.waits]\nplugin = \"missing\"\n\
             [redis]\nurl = \"redis://127.0.0.1:{redis}\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
             token = \"all\"\nread_token = \"read\"\n{mask}\n"
        )
    };
    bench.configure(&config("mask = [\"email\", \"Phone\"]"));
    bench.install("rejects", "rejects");
    let host = bench.host();
    let send = |method: &str, path: &str, token: &str, body: Option<Value>| {
        let bearer = format!("Bearer {token}");
        let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
        http::send(host.admin(), method, path, &headers, body.map(|body| body.to_string()).as_deref())
    };
    let inner = json!({ "PHONE": EMAIL, "n": 7 }).to_string();
    let body = json!({ "user": { "Email": EMAIL }, "inner": inner, "city": "London" });
    let task = json!({ "fields": { "email": EMAIL, "body": body, "text": "in-the-open" } });
    for queue in ["bad", "waits"] {
        let path = format!("/v1/queues/{queue}/tasks");
        let id = good(&send("POST", &path, "all", Some(task.clone())), 202)["id"].clone();
        if queue == "bad" {
            bench.until("bad", id.as_str().expect("an id"), "FAILED");
        }
    }
    let hidden = "lovelace";
    let (lists, matching) = (
        [
            ("/v1/queues/waits/tasks?state=queued&", "tasks"),
            ("/v1/queues/bad/tasks?state=dead&", "tasks"),
            ("/v1/queues/bad/dead?", "dead"),
            ("/v1/queues/bad/dead/groups?", "groups"),
        ],
        [(hidden, 0), ("in-the-open", 1), ("London", 1)],
    );
    for (path, name) in lists {
        for (text, count) in matching {
            let list = good(&send("GET", &format!("{path}text={text}"), "read", None), 200);
            assert_eq!(found(&list, name), count, "{path} {text}: {list}");
        }
    }
    for path in ["waits/tasks/cancel", "waits/drain", "bad/dead/requeue", "bad/dead/purge"] {
        for (text, count) in matching {
            let body = json!({ "all": true, "dry_run": true, "text": text });
            let counted = good(&send("POST", &format!("/v1/queues/{path}"), "all", Some(body)), 200);
            assert_eq!(counted["succeeded"], count, "{path} {text}: {counted}");
        }
    }
    // A filter selects the same tasks on the command line, which says so.
    let commands: [(&[&str], &str); 7] = [
        (&["tasks", "waits"], "tasks"),
        (&["tasks", "bad", "--state", "dead"], "tasks"),
        (&["dead", "list", "bad"], "dead"),
        (&["cancel", "waits", "--all", "--dry-run"], "succeeded"),
        (&["drain", "waits", "--dry-run"], "succeeded"),
        (&["dead", "requeue", "bad", "--all", "--dry-run"], "succeeded"),
        (&["dead", "purge", "bad", "--all", "--dry-run"], "succeeded"),
    ];
    let run =
        |command: &[&str], text: &str| bench.tqhost(&[command, &["--json", "--match", text]].concat()).ok();
    let count = |list: &Value, name: &str| match list[name].as_u64() {
        Some(count) => usize::try_from(count).expect("a count"),
        None => found(list, name),
    };
    let mut told = BTreeSet::new();
    for (command, name) in commands {
        for (text, expected) in matching {
            let done = run(command, text);
            let list: Value = serde_json::from_str(&done.stdout).expect("JSON");
            assert_eq!(count(&list, name), expected, "{command:?} {text}: {list}");
            told.insert(done.stderr);
        }
    }
    insta::assert_snapshot!(
        Vec::from_iter(told).concat(),
        @"--match does not look at the values that [admin] mask hides"
    );
    // Without the mask, the same filter finds them.
    bench.configure(&config(""));
    for (command, name) in commands {
        let done = run(command, hidden);
        let list: Value = serde_json::from_str(&done.stdout).expect("JSON");
        assert_eq!((count(&list, name), done.stderr.as_str()), (1, ""), "{command:?}: {list}");
    }
    host.stop();
}
