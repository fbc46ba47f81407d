//! Tasks: enqueue, show, list by state, cancel one and many.

use serde_json::{Value, json};

use super::{ask, good, post, post_with, problem, texts};
use crate::support::words::masked;
use crate::support::{Bench, Held, Host, eventually};

const TASKS: &str = "/v1/queues/work/tasks";

#[test]
fn a_task_from_enqueue_to_its_end() {
    let bench = Bench::new("[queues.work]\nplugin = \"echo\"\n");
    bench.install("echo", "echo");
    let host = bench.host();
    let fields = json!({ "text": "é", "number": 12.50, "bytes": { "base64": "aGk=" }, "list": [1, 2] });
    let answer = post(&host, TASKS, &json!({ "fields": fields }));
    let id = good(&answer, 202)["id"].as_str().expect("an id").to_owned();
    let place = answer.header("location").expect("a place").to_owned();
    let task = eventually("it ends", || {
        Some(good(&ask(&host, "GET", &place), 200)).filter(|task| task["status"] == "COMPLETED")
    });
    let expected = json!({ "text": "é", "number": "12.5", "bytes": "hi", "list": "[1,2]" });
    assert_eq!((&task["id"], &task["result"]["fields"]), (&json!(id), &expected));
    assert_eq!(
        task,
        bench.tqhost(&["status", "work", &id, "--json"]).ok().json(),
        "the command shows the same"
    );
    problem(&ask(&host, "GET", "/v1/queues/work/tasks/nobody"), 404, "unknown-task");
    host.stop();
}

#[test]
fn a_repeated_key_gives_the_first_task() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let host = bench.host();
    let body = json!({ "fields": { "a": "1" } });
    let key = [("idempotency-key", "k 1")];
    let first = good(&post_with(&host, TASKS, &body, &key), 202);
    let again = good(&post_with(&host, TASKS, &body, &key), 200);
    assert_eq!(again, json!({ "id": first["id"], "duplicate": true }));
    let of_body = good(&post(&host, TASKS, &json!({ "fields": { "a": "1" }, "key": "k 1" })), 200);
    assert_eq!(of_body, again);
    let both = json!({ "fields": { "a": "1" }, "key": "k 2" });
    problem(&post_with(&host, TASKS, &both, &key), 422, "invalid");
    assert_eq!(bench.redis::<u64>("XLEN", "work"), 1);
    host.stop();
}

#[test]
fn a_full_queue_refuses() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\nmax_backlog = 2\n");
    let host = bench.host();
    let body = json!({ "fields": { "a": "1" }, "delay": "1h" });
    for _ in 0..2 {
        good(&post(&host, TASKS, &body), 202);
    }
    let answer = post(&host, TASKS, &body);
    let why = problem(&answer, 429, "queue-full");
    assert!(why.contains("max_backlog") && answer.header("retry-after").is_some(), "{answer:?}");
    assert_eq!(bench.redis::<u64>("ZCARD", "tq:{work}:delayed"), 2);
    host.stop();
}

/// A host whose queue `work` runs one task and has two more queued, two delayed, one dead and one ended.
fn busy() -> (Held, Bench, Host) {
    let held = Held::new();
    let queues = "[queues.work]\nplugin = \"fetches\"\nconcurrency = 1\nevents = 100\n";
    let mut bench = held.bench(queues);
    let host = bench.host();
    // It has no url, and is rejected.
    let dead = bench.xadd("work", &[("name", "dead one")]);
    bench.until("work", &dead, "FAILED");
    let [task] = held.task();
    bench.xadd("work", &[task, ("name", "runs")]);
    bench.until_running("work", 1);
    bench.xadd("work", &[task, ("name", "first")]);
    bench.xadd("work", &[task, ("name", "second")]);
    for (name, delay) in [("later", "2h"), ("late", "1h")] {
        good(&post(&host, TASKS, &json!({ "fields": { "name": name }, "delay": delay })), 202);
    }
    (held, bench, host)
}

/// The value of the field `name` of each task.
fn names(list: &Value) -> Vec<String> {
    let tasks = list["tasks"].as_array().expect("tasks").iter();
    let name = |task: &Value| {
        let fields = task["fields"].as_array().expect("fields");
        let field = fields.iter().find(|field| field["name"] == "name").expect("the field");
        field["value"].as_str().expect("text").to_owned()
    };
    tasks.map(name).collect()
}

#[test]
fn tasks_are_listed_by_state() {
    let (held, bench, host) = busy();
    let list = |query: &str| good(&ask(&host, "GET", &format!("{TASKS}?fields=true&state={query}")), 200);
    assert_eq!(names(&list("queued")), ["first", "second"]);
    assert_eq!(names(&list("delayed")), ["late", "later"], "by the time when they are due");
    assert_eq!(names(&list("dead")), ["dead one"]);
    let running = list("running");
    assert_eq!(names(&running), ["runs"]);
    let task = &running["tasks"][0];
    assert!(
        task["consumer"].is_string() && task["idle_ms"].is_u64() && task["status"] == "PROCESSING",
        "{task}"
    );
    let dead = &list("dead")["tasks"][0];
    assert_eq!((&dead["reason"], &dead["status"]), (&json!("rejected"), &json!("FAILED")));
    let ended = good(&ask(&host, "GET", &format!("{TASKS}?state=ended")), 200);
    assert_eq!(
        (texts(&ended["tasks"], "id"), texts(&ended["tasks"], "status")),
        (vec![dead["id"].as_str().expect("an id").to_owned()], vec!["FAILED".to_owned()])
    );
    assert_eq!(list("held")["tasks"], json!([]));
    // Filters, and pages of one.
    assert_eq!(names(&list("queued&text=second")), ["second"]);
    assert_eq!(names(&list("queued&text=nothing")), Vec::<String>::new());
    assert_eq!(
        names(&list("delayed&from=2000-01-01T00:00:00Z&to=2001-01-01T00:00:00Z")),
        Vec::<String>::new()
    );
    let host_name = task["consumer"].as_str().expect("a host");
    assert_eq!(names(&list(&format!("running&host={host_name}"))), ["runs"]);
    assert_eq!(names(&list("dead&error=nothing+like+this")), Vec::<String>::new());
    let version = dead["plugin"].as_str().expect("a version");
    assert_eq!(names(&list(&format!("dead&version={version}"))), ["dead one"]);
    for state in ["queued", "delayed"] {
        let first = list(&format!("{state}&limit=1"));
        let next = first["next"].as_str().expect("a cursor");
        let second = list(&format!("{state}&limit=1&cursor={next}"));
        let all = names(&list(state));
        assert_eq!([names(&first), names(&second)].concat(), all, "{state}");
        problem(&ask(&host, "GET", &format!("{TASKS}?state=dead&cursor={next}")), 422, "invalid");
    }
    // The command line lists the same.
    let shown = bench.tqhost(&["tasks", "work", "--state", "queued", "--json"]).ok().json();
    let mut listed = good(&ask(&host, "GET", &format!("{TASKS}?state=queued")), 200);
    assert_eq!(shown["tasks"], listed["tasks"].take());
    let table = bench.tqhost(&["tasks", "work", "--state", "running"]).ok().stdout;
    assert!(table.contains(task["id"].as_str().expect("an id")), "{table}");
    held.end();
    host.stop();
}

#[test]
fn ended_tasks_need_events() {
    let bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let host = bench.host();
    let why = problem(&ask(&host, "GET", &format!("{TASKS}?state=ended")), 409, "no-events");
    assert!(why.contains("`events`"), "{why}");
    host.stop();
}

#[test]
fn one_task_is_cancelled() {
    let (held, mut bench, host) = busy();
    let list = good(&ask(&host, "GET", &format!("{TASKS}?state=running")), 200);
    let id = list["tasks"][0]["id"].as_str().expect("an id").to_owned();
    let cancelled = good(&ask(&host, "DELETE", &format!("{TASKS}/{id}")), 200);
    let expected = json!({ "id": id, "before": "PROCESSING", "status": "CANCELLED", "children": 0 });
    assert_eq!(cancelled, expected);
    bench.until("work", &id, "CANCELLED");
    assert_eq!(good(&ask(&host, "DELETE", &format!("{TASKS}/{id}")), 200)["before"], "CANCELLED");
    let dead = good(&ask(&host, "GET", &format!("{TASKS}?state=dead")), 200);
    let dead = dead["tasks"][0]["id"].as_str().expect("an id");
    problem(&ask(&host, "DELETE", &format!("{TASKS}/{dead}")), 409, "task-ended");
    problem(&ask(&host, "DELETE", &format!("{TASKS}/nobody")), 404, "unknown-task");
    held.end();
    host.stop();
}

#[test]
fn many_tasks_are_cancelled_by_ids_and_by_filter() {
    let (held, mut bench, host) = busy();
    let cancel = |body: Value| good(&post(&host, &format!("{TASKS}/cancel"), &body), 200);
    let counts =
        |done: &Value| [done["succeeded"].as_u64(), done["skipped"].as_u64()].map(|n| n.expect("a count"));
    let queued = good(&ask(&host, "GET", &format!("{TASKS}?state=queued")), 200);
    let ids = texts(&queued["tasks"], "id");
    let ids: Vec<&str> = ids.iter().map(String::as_str).chain(["nobody"]).collect();
    assert_eq!(counts(&cancel(json!({ "ids": ids, "dry_run": true }))), [2, 1]);
    let twice = [&ids[..], &ids[..1]].concat();
    assert_eq!(counts(&cancel(json!({ "ids": twice, "dry_run": true }))), [2, 2], "one is there twice");
    assert_eq!(bench.places("work").length, 3, "a dry run changes nothing");
    assert_eq!(counts(&cancel(json!({ "ids": twice }))), [2, 2]);
    assert_eq!(counts(&cancel(json!({ "ids": ids }))), [0, 3], "they are cancelled already");
    assert_eq!(counts(&cancel(json!({ "all": true, "text": "nothing" }))), [0, 0]);
    assert_eq!(counts(&cancel(json!({ "all": true, "dry_run": true }))), [3, 0]);
    assert_eq!(counts(&cancel(json!({ "all": true, "state": "delayed", "text": "later" }))), [1, 0]);
    // The command line does the same.
    let dry =
        bench.tqhost(&["cancel", "work", "--all", "--state", "running", "--dry-run", "--json"]).ok().json();
    assert_eq!(counts(&dry), [1, 0]);
    let dry = bench.tqhost(&["dead", "purge", "work", "--all", "--dry-run", "--json"]).ok().json();
    assert_eq!(counts(&dry), [1, 0]);
    let asked = bench.tqhost(&["cancel", "work", "--all"]).ends_with(2);
    insta::assert_snapshot!(masked(&asked.stderr, &[]), @"
      ID  name=late
      ID  url=http://127.0.0.1:PORT/held  name=runs
    tqhost: Cancel 2 tasks of work? Nobody can be asked here: add --yes
    ");
    let some = ["cancel", "work", "--all", "--match", "nothing like this", "--yes", "--json"];
    assert_eq!(bench.tqhost(&some).ok().json()["succeeded"], 0);
    let done = cancel(json!({ "all": true }));
    assert_eq!((counts(&done), &done["next"]), ([2, 0], &Value::Null));
    bench.until_drained("work");
    let audit = host.until_logged("audit: a change was asked for", 2 + 8);
    let last = audit.last().expect("a line");
    assert_eq!(
        (&last["queue"], &last["succeeded"], &last["who"]),
        (&json!("work"), &json!(2), &json!("anybody"))
    );
    assert_eq!(last["filter"], "{\"all\":true}");
    held.end();
    host.stop();
}

#[test]
fn a_drain_leaves_what_runs() {
    let (held, mut bench, host) = busy();
    let path = "/v1/queues/work/drain";
    let drain = |body: Value| good(&post(&host, path, &body), 200);
    let counts =
        |done: &Value| [done["succeeded"].as_u64(), done["skipped"].as_u64()].map(|n| n.expect("a count"));
    for wrong in [json!({}), json!({ "ids": ["1"] }), json!({ "all": true, "state": "running" })] {
        problem(&post(&host, path, &wrong), 422, "invalid");
    }
    assert_eq!(counts(&drain(json!({ "all": true, "dry_run": true }))), [4, 0]);
    assert_eq!(counts(&drain(json!({ "all": true, "text": "second" }))), [1, 0]);
    let done = drain(json!({ "all": true }));
    assert_eq!((counts(&done), &done["next"]), ([3, 0], &Value::Null));
    let places = bench.places("work");
    assert_eq!((places.length, places.pending, places.delayed), (1, 1, 0));
    let audit = host.until_logged("audit: a change was asked for", 2 + 6);
    let last = audit.last().expect("a line");
    assert_eq!((&last["path"], &last["succeeded"]), (&json!(path), &json!(3)));
    held.end();
    bench.until_drained("work");
    host.stop();
}

/// A paused queue with two delayed and five held tasks: one and three of them were enqueued long ago.
fn old_and_young() -> (Bench, Host) {
    let mut bench = Bench::new(
        "[queues.work]\nplugin = \"as-told\"\nserial = { field = \"key\" }\n\
         backoff = { delays = [\"1h\"] }\n",
    );
    bench.install("as-told", "as-told");
    // The first one fails once, and the others wait behind it.
    for (n, entry) in ["1000-1", "1000-2", "1000-3", "1000-4", "*", "*"].into_iter().enumerate() {
        let data = json!({ "n": n.to_string(), "ms": 0, "retries": u64::from(n == 0), "end": "ok" });
        let _: String = bench.redis("XADD", ("work", entry, "key", "a", "data", data.to_string()));
    }
    let host = bench.host();
    eventually("five wait behind a retry", || (bench.places("work").delayed == 6).then_some(()));
    bench.tqhost(&["pause", "work"]).ok();
    good(&post(&host, TASKS, &json!({ "fields": { "data": "later" }, "delay": "2h" })), 202);
    (bench, host)
}

#[test]
fn the_age_of_a_delayed_or_held_task_is_the_time_since_it_was_enqueued() {
    let (bench, host) = old_and_young();
    let list = |query: &str| -> usize {
        let list = good(&ask(&host, "GET", &format!("{TASKS}?state={query}")), 200);
        list["tasks"].as_array().expect("tasks").len()
    };
    for (state, old, young) in [("held", 3, 2), ("delayed", 1, 1)] {
        assert_eq!(list(&format!("{state}&older_than=1h")), old, "{state}");
        assert_eq!(list(&format!("{state}&newer_than=1h")), young, "{state}");
        let count = |age: &str| -> usize {
            let args = ["tasks", "work", "--state", state, age, "1h", "--json"];
            bench.tqhost(&args).ok().json()["tasks"].as_array().expect("tasks").len()
        };
        assert_eq!((count("--older-than"), count("--newer-than")), (old, young), "{state}");
    }
    // The time of a held task is that of its enqueueing, and that of a delayed one the time when it is due.
    assert_eq!((list("held&to=2001-01-01T00:00:00Z"), list("held&from=2001-01-01T00:00:00Z")), (3, 2));
    assert_eq!((list("delayed&to=2001-01-01T00:00:00Z"), list("delayed&from=2001-01-01T00:00:00Z")), (0, 2));
    let chosen = |args: &[&str]| -> usize {
        let ran = bench.tqhost(&[&["tasks", "work", "--state", "held", "--json"], args].concat());
        ran.ok().json()["tasks"].as_array().expect("tasks").len()
    };
    assert_eq!((chosen(&["--to", "2001-01-01T00:00:00Z"]), chosen(&["--from", "1000000000000"])), (3, 2));
    assert_eq!((chosen(&["--id", "1000-2"]), chosen(&["--id", "1000"])), (1, 0));
    let wrong = bench.tqhost(&["tasks", "work", "--from", "yesterday"]);
    insta::assert_snapshot!(
        wrong.ends_with(2).stderr.lines().next().unwrap_or_default(),
        @"error: invalid value 'yesterday' for '--from <TIME>': \"yesterday\" is no time like \
          2026-11-25T03:00:00Z, and no number of milliseconds since 1970"
    );

    let count = |path: &str, body: Value| {
        good(&post(&host, path, &body), 200)["succeeded"].as_u64().expect("a count")
    };
    let cancel = format!("{TASKS}/cancel");
    let drain = "/v1/queues/work/drain";
    for path in [cancel.as_str(), drain] {
        let age = |name: &str, age: &str| count(path, json!({ "all": true, "dry_run": true, name: age }));
        assert_eq!((age("older_than", "1h"), age("newer_than", "1h")), (4, 3), "{path}");
        assert_eq!(age("older_than", "100000d"), 0, "{path}");
    }
    assert_eq!(count(&cancel, json!({ "all": true, "state": "held", "older_than": "1h" })), 3);
    let drained = |age: &str| {
        let ran = bench.tqhost(&["drain", "work", "--yes", "--json", age, "1h"]);
        ran.ok().json()["succeeded"].clone()
    };
    assert_eq!(["--older-than", "--older-than", "--newer-than"].map(drained), [1, 0, 3].map(Value::from));
    host.stop();
}

#[test]
fn cancelling_many_is_taken_up_where_it_ended() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let host = bench.host();
    let mut pipe = redis::pipe();
    for n in 0..12_000 {
        pipe.cmd("XADD").arg("work").arg("*").arg("n").arg(n).ignore();
    }
    pipe.query::<()>(&mut bench.db).expect("add tasks");
    let (mut cursor, mut succeeded, mut steps) = (Value::Null, 0, 0);
    loop {
        let mut body = json!({ "all": true, "dry_run": true, "text": "1" });
        if !cursor.is_null() {
            body["cursor"] = cursor;
        }
        let done = good(&post(&host, &format!("{TASKS}/cancel"), &body), 200);
        assert!(done["examined"].as_u64().expect("a count") < 6_000, "{done}");
        succeeded += done["succeeded"].as_u64().expect("a count");
        (cursor, steps) = (done["next"].clone(), steps + 1);
        if cursor.is_null() {
            break;
        }
    }
    let expected = (0..12_000).filter(|n| n.to_string().contains('1')).count() as u64;
    assert!(steps >= 2, "it came in {steps} steps");
    // The text may also stand in an entry's id.
    assert!(succeeded >= expected, "{succeeded} of at least {expected}");
    host.stop();
}

#[test]
fn cancelling_many_unknown_ids_is_taken_up_where_it_ended() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let host = bench.host();
    let mut pipe = redis::pipe();
    for n in 0..10_000 {
        pipe.cmd("XADD").arg("work").arg("*").arg("n").arg(n).arg("more").arg("x".repeat(2_000)).ignore();
    }
    pipe.query::<()>(&mut bench.db).expect("add tasks");
    let known: Vec<(String, Vec<String>)> = bench.redis("XRANGE", ("work", "-", "+", "COUNT", 1));
    // Each of the others is looked for in the whole stream.
    let unknown = (1..1000).map(|n| format!("no-{n}"));
    let ids: Vec<String> = known.into_iter().map(|(id, _)| id).chain(unknown).collect();
    let cancel = |body: Value| post(&host, &format!("{TASKS}/cancel"), &body);
    let part = good(&cancel(json!({ "ids": ids })), 200);
    let count = |part: &Value, name: &str| part[name].as_u64().expect("a count");
    assert_eq!(count(&part, "succeeded"), 1, "{part}");
    let examined = count(&part, "examined");
    assert!((1..1000).contains(&examined) && count(&part, "skipped") == examined - 1, "{part}");
    let next = part["next"].as_str().expect("a cursor");
    problem(&cancel(json!({ "ids": ["1"], "cursor": next })), 422, "invalid");
    let _: u64 = bench.redis("DEL", "work");
    let rest = good(&cancel(json!({ "ids": ids, "cursor": next })), 200);
    assert_eq!((count(&rest, "skipped"), &rest["next"]), (1000 - examined, &Value::Null));
    host.stop();
}

#[test]
fn cancelling_many_says_how_far_it_came_when_it_fails() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n[queues.other]\nplugin = \"missing\"\n");
    let host = bench.host();
    let [ids, _] = ["work", "other"].map(|queue| {
        let ids: Vec<String> = (0..5).map(|_| bench.xadd(queue, &[("n", "1")])).collect();
        // A key of another type stands in the place of its status.
        let _: String = bench.redis("SET", (format!("tq:{{{queue}}}:task:{}", ids[2]), "x"));
        ids
    });
    let cancel = |body: Value| problem(&post(&host, &format!("{TASKS}/cancel"), &body), 409, "queue-unfit");
    insta::assert_snapshot!(
        masked(&cancel(json!({ "all": true })), &[]),
        @"a key of the queue work has another type: `tqhost adopt work` says which one and what can be \
          done, and `tqhost doctor work` if it is the key of a task; 2 tasks cancelled, not all of them: \
          job HEX is failed"
    );
    insta::assert_snapshot!(
        masked(&cancel(json!({ "ids": [&ids[3], &ids[2], &ids[4]] })), &[]),
        @"a key of the queue work has another type: `tqhost adopt work` says which one and what can be \
          done, and `tqhost doctor work` if it is the key of a task; 1 were done before, and perhaps those \
          of the last step. The request may be repeated: it skips what is done"
    );
    let ran = bench.tqhost(&["cancel", "other", "--all", "--yes"]).ends_with(1);
    insta::assert_snapshot!(
        masked(&ran.stderr, &[]),
        @"tqhost: at least 2 tasks cancelled, not all of them; run the command again to go on: a key of \
          the queue other has another type: `tqhost adopt other` says which one and what can be done, and \
          `tqhost doctor other` if it is the key of a task"
    );
    host.stop();
}

#[test]
fn delayed_tasks_are_cancelled_before_they_can_become_due_behind_the_walk() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let host = bench.host();
    let mut pipe = redis::pipe();
    for n in 0..6_000 {
        pipe.cmd("XADD").arg("work").arg("*").arg("n").arg(n).ignore();
    }
    pipe.query::<()>(&mut bench.db).expect("add tasks");
    good(&post(&host, TASKS, &json!({ "fields": { "name": "later" }, "delay": "2h" })), 202);
    // One request does not count all that is queued.
    let body = json!({ "all": true, "text": "later", "dry_run": true });
    let done = good(&post(&host, &format!("{TASKS}/cancel"), &body), 200);
    assert_eq!((&done["succeeded"], done["next"].is_string()), (&json!(1), true), "{done}");
    host.stop();
}
