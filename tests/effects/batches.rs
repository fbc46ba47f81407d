//! Effects of tasks that come in one call: each commits with its own task.

use serde_json::{Value, json};

use crate::support::{Bench, eventually};

const QUEUES: &str = "[defaults]\nbackoff = \"none\"\n\
     [queues.work]\nplugin = \"effects-together\"\nbatch = { max_tasks = 3, max_wait = \"1m\" }\n\
     enqueue_to = [\"next\"]\n\
     [queues.next]\nplugin = \"effects-together\"\nbatch = { max_tasks = 1 }\n";

/// A host that gets three tasks in one step, each with these calls, and the ids of the tasks. The first task
/// also has the field `first`.
fn together(calls: &[Value; 3], first: &str) -> (Bench, crate::support::Host, Vec<String>) {
    let mut bench = Bench::new(QUEUES);
    bench.install("effects-together", "effects-together");
    let host = bench.host();
    let mut pipe = redis::pipe();
    pipe.atomic();
    for (calls, field) in calls.iter().zip([first, "other", "other"]) {
        pipe.cmd("XADD").arg(&["work", "*", "do", &calls.to_string(), field, "1"]);
    }
    let ids = pipe.query(&mut bench.db).expect("XADD");
    (bench, host, ids)
}

/// The result of a completed task.
#[track_caller]
fn result(bench: &mut Bench, stream: &str, id: &str) -> Value {
    bench.until(stream, id, "COMPLETED");
    serde_json::from_str(&bench.status(stream, id, "result")).expect("the result is JSON")
}

#[test]
fn each_task_of_a_batch_commits_its_own_effects() {
    let next = json!({ "queue": "next", "fields": { "do": [["fence"]] } });
    let calls = [
        json!([["add", "n", 1], ["set", "first", "x", 0], ["enqueue", next]]),
        json!([["add", "n", 10], ["set", "second", "x", 0], ["enqueue", next], ["reject"]]),
        json!([["add", "n", 100], ["get", "first"], ["fence"]]),
    ];
    let (mut bench, host, ids) = together(&calls, "other");
    let first = result(&mut bench, "work", &ids[0]);
    assert_eq!((&first["together"], &first["results"][0]), (&json!(3), &json!(1)));
    bench.until("work", &ids[1], "FAILED");
    // A task sees neither the writes of the others nor their counts.
    let third = result(&mut bench, "work", &ids[2]);
    assert_eq!(third, json!({ "together": 3, "results": [100, null, 1] }));
    let id = first["results"][2].as_str().expect("an id").to_owned();
    assert_eq!(result(&mut bench, "next", &id)["results"], json!([1]));
    let value = |bench: &mut Bench, key: &str| -> Option<String> {
        bench.redis("GET", format!("tq:{{work}}:state:effects-together:{key}"))
    };
    assert_eq!(value(&mut bench, "n").as_deref(), Some("101"), "the rejected task has added nothing");
    assert_eq!((value(&mut bench, "first"), value(&mut bench, "second")), (Some("x".into()), None));
    let statuses: Vec<String> = bench.redis("KEYS", "tq:{next}:task:*");
    assert_eq!(statuses, [format!("tq:{{next}}:task:{id}")], "the rejected task has enqueued nothing");
    host.stop();
}

#[test]
fn a_call_before_a_task_is_selected_ends_the_call_and_each_task_runs_again_alone() {
    let calls = [1, 10, 100].map(|n| json!([["add", "n", n]]));
    let (mut bench, host, ids) = together(&calls, "unselected");
    for (id, n) in ids.iter().zip([1, 10, 100]) {
        let seen = result(&mut bench, "work", id);
        assert_eq!((&seen["together"], seen["results"][0].as_i64() >= Some(n)), (&json!(1), true), "{seen}");
    }
    let line = eventually("the reason is logged", || {
        host.logged("a batch failed").into_iter().find(|line| line["tasks"] == 3)
    });
    insta::assert_snapshot!(line["error"].as_str().expect("an error"), @r"
    the call has several tasks: call `select` of tqhost:extensions/delivery first
    ");
    // The first task needed no `select` when it ran alone, and made its call twice.
    assert_eq!(bench.redis::<String>("GET", "tq:{work}:state:effects-together:n"), "112");
    host.stop();
}

#[test]
fn a_flow_before_a_task_is_selected_stages_no_children() {
    let task = json!({ "queue": "next", "fields": { "do": [["fence"]] } });
    let calls = [json!([["fan-out", [task], task]]), json!([]), json!([])];
    let (mut bench, host, ids) = together(&calls, "unselected");
    let seen = result(&mut bench, "work", &ids[0]);
    assert_eq!(seen["together"], 1);
    let joined = seen["results"][0].as_str().unwrap_or_else(|| panic!("{seen}")).to_owned();
    bench.until("next", &joined, "COMPLETED");
    bench.until_drained("next");
    assert_eq!(bench.redis::<Vec<String>>("KEYS", "*:children"), Vec::<String>::new());
    host.stop();
}
