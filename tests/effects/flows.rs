//! Flows: children whose results another task joins, exactly once.

use serde_json::{Value, json};

use super::{bench, done, error, results, told};
use crate::support::{Bench, eventually};

const QUEUES: &str = "[defaults]\nbackoff = \"none\"\nmax_retries = 0\n\
     [queues.work]\nplugin = \"effects\"\nmax_retries = 2\nenqueue_to = [\"part\", \"join\"]\n\
     [queues.part]\nplugin = \"effects\"\nenqueue_to = [\"part\", \"join\"]\n\
     [queues.join]\nplugin = \"effects\"\nenqueue_to = [\"part\", \"join\"]\n";

/// The call that starts a flow: each child makes some calls, and the last task the others.
fn fan_out(children: &[Value], then: &Value) -> Value {
    let children: Vec<Value> =
        children.iter().map(|calls| json!({ "queue": "part", "fields": { "do": calls } })).collect();
    json!(["fan-out", children, { "queue": "join", "fields": { "do": then } }])
}

/// Starts a flow, and gives the id of the task that joins it.
#[track_caller]
fn start(bench: &mut Bench, children: &[Value], then: &Value) -> String {
    let seen = done(bench, "work", json!([fan_out(children, then)]));
    seen[0].as_str().unwrap_or_else(|| panic!("{seen}")).to_owned()
}

/// The ids of the children, in the order in which they were enqueued.
fn children(bench: &mut Bench) -> Vec<String> {
    let keys: Vec<String> = bench.redis("KEYS", "tq:{part}:task:*");
    let mut ids: Vec<String> = keys.iter().map(|key| key["tq:{part}:task:".len()..].to_owned()).collect();
    ids.sort();
    ids
}

#[track_caller]
fn doctor_is_silent(bench: &Bench) {
    for queue in ["work", "part", "join"] {
        bench.tqhost(&["doctor", queue]).ok();
    }
}

#[test]
fn the_last_child_that_completes_releases_the_task_that_joins_them() {
    let mut bench = bench(QUEUES);
    let host = bench.host();
    let parts = [json!([["sleep", 600], ["fence"]]), json!([["add", "n", 1]]), json!([["get", "none"]])];
    let id = start(&mut bench, &parts, &json!([["results"], ["results"]]));
    assert_eq!(bench.status("join", &id, "status"), "PENDING");
    doctor_is_silent(&bench);
    let expected = json!([["part", "[null,1]"], ["part", "[1]"], ["part", "[null]"]]);
    assert_eq!(results(&mut bench, "join", &id), json!([expected, expected]));
    assert_eq!(
        done(&mut bench, "work", json!([["results"]])),
        json!([[]]),
        "a task without a flow joins none"
    );
    doctor_is_silent(&bench);
    let left: i64 = bench.redis("TTL", format!("tq:{{join}}:flow:{id}"));
    assert!(left > 0, "the flow expires, in {left} s");
    assert_eq!(bench.places("join").delayed, 0);
    host.stop();
}

#[test]
fn an_attempt_that_fails_starts_no_flow() {
    let mut bench = bench(QUEUES);
    let host = bench.host();
    let flow = fan_out(&[json!([["add", "n", 1]])], &json!([["results"]]));
    let seen = done(&mut bench, "work", json!([flow, ["first", 1, ["retry"]], ["first", 2, ["trap"]]]));
    results(&mut bench, "join", seen[0].as_str().expect("an id"));
    assert_eq!(bench.redis::<String>("GET", "tq:{part}:state:effects:n"), "1");
    host.stop();
}

#[test]
fn a_child_that_dies_fails_the_flow_and_its_requeueing_heals_it() {
    let mut bench = bench(QUEUES);
    let host = bench.host();
    let id = start(&mut bench, &[json!([["need", "key"]]), json!([["fence"]])], &json!([["results"]]));
    bench.until("join", &id, "FAILED");
    let letter = bench.dead("join").remove(0);
    assert_eq!((letter["tq-id"].as_str(), letter["tq-reason"].as_str()), (id.as_str(), "flow-failed"));
    let child = bench.dead("part").remove(0)["tq-id"].clone();
    insta::assert_snapshot!(letter["tq-error"].replace(&child, "ID"), @"child ID: key is needed: Ok(None)");
    doctor_is_silent(&bench);
    done(&mut bench, "part", json!([["set", "key", "1", 0]]));
    bench.tqhost(&["dead", "requeue", "part", &child]).ok();
    assert_eq!(results(&mut bench, "join", &id), json!([[["part", "[null]"], ["part", "[1]"]]]));
    assert_eq!((bench.dead("join").len(), bench.dead("part").len()), (0, 0));
    doctor_is_silent(&bench);
    host.stop();
}

#[test]
fn an_operator_may_run_the_last_task_of_a_failed_flow_or_throw_it_away() {
    let mut bench = bench(QUEUES);
    let host = bench.host();
    for action in ["requeue", "purge"] {
        done(&mut bench, "part", json!([["delete", "key"]]));
        let id = start(&mut bench, &[json!([["need", "key"]]), json!([["fence"]])], &json!([["results"]]));
        bench.until("join", &id, "FAILED");
        bench.tqhost(&["dead", action, "join", &id]).ok();
        if action == "requeue" {
            let seen = results(&mut bench, "join", &id);
            assert_eq!((&seen[0][0][1], &seen[0][1][1]), (&json!(null), &json!("[1]")), "{seen}");
        }
        done(&mut bench, "part", json!([["set", "key", "1", 0]]));
        bench.tqhost(&["dead", "requeue", "part", "--all"]).ok();
        bench.until_drained("part");
        bench.until_drained("join");
        assert_eq!(bench.dead("join").len(), 0, "it is not released a second time");
    }
    host.stop();
}

#[test]
fn a_child_that_is_cancelled_or_lost_fails_the_flow() {
    let mut bench = bench(QUEUES);
    let host = bench.host();
    let id = start(&mut bench, &[json!([["sleep", 60_000]])], &json!([]));
    bench.until_pending("part", 1);
    let child = children(&mut bench).remove(0);
    bench.tqhost(&["cancel", "part", &child]).ok();
    bench.until("join", &id, "FAILED");
    assert_eq!(bench.status("join", &id, "error"), format!("child {child}: cancelled"));
    bench.tqhost(&["pause", "part"]).ok();
    eventually("the pause is known", || {
        host.get("/readyz").body.contains("\"queue\":\"part\",\"state\":\"paused\"").then_some(())
    });
    let id = start(&mut bench, &[json!([])], &json!([]));
    eventually("the child waits", || (bench.places("part").length == 1).then_some(()));
    let _: u64 = bench.redis("DEL", "part");
    bench.tqhost(&["resume", "part"]).ok();
    eventually("the doctor finds it", || {
        bench.tqhost(&["doctor", "part", "--fix"]);
        bench.status("join", &id, "error").contains("lost: ").then_some(())
    });
    bench.until("join", &id, "FAILED");
    host.stop();
}

#[test]
fn a_flow_does_not_wait_for_the_room_that_its_own_last_task_takes() {
    let mut bench = bench(&QUEUES.replace("[queues.part]", "[queues.part]\nmax_backlog = 1"));
    let host = bench.host();
    let task = |calls: Value| json!({ "queue": "part", "fields": { "do": calls } });
    let children = [task(json!([])), task(json!([]))];
    let seen = done(&mut bench, "work", json!([["fan-out", children, task(json!([["add", "n", 1]]))]]));
    let id = seen[0].as_str().expect("an id").to_owned();
    bench.until("part", &id, "COMPLETED");
    doctor_is_silent(&bench);
    host.stop();
}

#[test]
fn lists_have_the_task_that_waits_for_its_flow() {
    let mut bench = bench(&QUEUES.replace("[queues.part]", "[queues.part]\nmax_backlog = 3"));
    let host = bench.host();
    let id = start(&mut bench, &vec![json!([["sleep", 60_000]]); 5], &json!([]));
    eventually("three children run, and two are not released", || {
        (bench.places("part").pending == 3).then_some(())
    });
    let listed = bench.tqhost(&["tasks", "join", "--state", "delayed", "--json"]).ok().json();
    assert_eq!(listed["tasks"][0]["id"], json!(id), "{listed}");
    // The flow has its fields, so no file can have them.
    let file = bench.dir.path().join("join.jsonl");
    let out = ["drain", "join", "--yes", "--json", "--out", file.to_str().expect("UTF-8")];
    let drained = bench.tqhost(&out).ok().json();
    assert_eq!((&drained["written"], &drained["succeeded"]), (&json!(0), &json!(0)));
    assert_eq!(bench.status("join", &id, "status"), "PENDING");
    let drained = bench.tqhost(&["drain", "join", "--yes", "--no-undo", "--json"]).ok().json();
    assert_eq!((&drained["succeeded"], &drained["children"]), (&json!(1), &json!(3)));
    assert_eq!(bench.status("join", &id, "status"), "CANCELLED");
    eventually("all have stopped", || (bench.places("part").length == 0).then_some(()));
    doctor_is_silent(&bench);
    host.stop();
}

#[test]
fn cancelling_the_task_that_joins_a_flow_cancels_its_children() {
    let mut bench = bench(&QUEUES.replace("[queues.part]", "[queues.part]\nmax_backlog = 3"));
    let host = bench.host();
    let mut parts = vec![json!([["sleep", 60_000]]); 5];
    parts.insert(0, json!([]));
    let id = start(&mut bench, &parts, &json!([]));
    eventually("one child has completed, and three run", || {
        let view = bench.tqhost(&["status", "join", &id, "--json"]).ok().json();
        let open = view["open_children"].as_array().expect("a list");
        let running = open.iter().filter(|child| child["status"] == "PROCESSING").count();
        (json!([view["children"], view["children_completed"], running]) == json!([6, 1, 3])).then_some(())
    });
    let sheet = bench.tqhost(&["status", "join", &id]).ok().stdout;
    assert!(sheet.contains("1 of 6 completed") && sheet.contains("and 2 tasks more"), "{sheet}");
    let view = bench.tqhost(&["status", "join", &id, "--json"]).ok().json();
    let open = view["open_children"].as_array().expect("a list");
    assert_eq!(open.len(), 3, "{view:#}");
    for child in open {
        let id = child["id"].as_str().expect("an id");
        assert!(sheet.contains(&format!("part {id}  PROCESSING")), "{sheet}");
        let of_child = bench.tqhost(&["status", "part", id, "--json"]).ok().json();
        assert_eq!(of_child["child_of"], json!({ "queue": "join", "id": view["id"] }));
    }
    assert_eq!(bench.tqhost(&["cancel", "join", &id, "--json"]).ok().json()["children"], 3);
    eventually("all have stopped", || (bench.places("part").length == 0).then_some(()));
    eventually("the rest of the flow is gone", || (bench.places("join").delayed == 0).then_some(()));
    assert_eq!(bench.status("join", &id, "status"), "CANCELLED");
    doctor_is_silent(&bench);
    host.stop();
}

#[test]
fn proof_38_flows_whose_last_children_end_at_the_same_moment_are_joined_once() {
    let mut bench = bench(&QUEUES.replace("[queues.part]", "[queues.part]\nconcurrency = 50"));
    let part = || json!([["sleep", 50]]);
    for _ in 0..100 {
        told(&mut bench, "work", &json!([fan_out(&[part(), part()], &json!([["add", "joined", 1]]))]));
    }
    let hosts = [bench.host(), bench.host()];
    eventually("all flows are joined", || {
        let joined: Option<String> = bench.redis("GET", "tq:{join}:state:effects:joined");
        (joined.as_deref() == Some("100")).then_some(())
    });
    for queue in ["work", "part", "join"] {
        bench.until_drained(queue);
    }
    let (dead, joined) =
        (bench.dead("join").len(), bench.redis::<String>("GET", "tq:{join}:state:effects:joined"));
    assert_eq!((dead, joined.as_str()), (0, "100"));
    doctor_is_silent(&bench);
    crate::support::Host::stop_all(hosts);
}

#[test]
fn proof_38_flows_are_joined_once_while_hosts_are_killed() {
    const SMALL: usize = 100;
    const LARGE: usize = 10_000;
    const KILLS: usize = 6;
    let mut bench = bench(
        &QUEUES
            .replace("[defaults]", "[defaults]\nlease = \"1s\"\nmax_crashes = 100\ntimeout = \"5m\"")
            .replace("[queues.part]", "[queues.part]\nconcurrency = 50"),
    );
    let children = |count| vec![json!([["add", "n", 1]]); count];
    let then = json!([["add", "joined", 1]]);
    told(&mut bench, "work", &json!([fan_out(&children(LARGE), &then)]));
    for _ in 0..SMALL {
        told(&mut bench, "work", &json!([fan_out(&children(100), &then)]));
    }
    let count = |bench: &mut Bench, queue: &str, name: &str| -> usize {
        bench.redis::<Option<usize>>("GET", &format!("tq:{{{queue}}}:state:effects:{name}")).unwrap_or(0)
    };
    let all = LARGE + 100 * SMALL;
    let mut hosts = vec![bench.host(), bench.host()];
    for kill in 1..=KILLS {
        // The kills are spread over the work.
        eventually("some children more are done", || {
            (count(&mut bench, "part", "n") >= kill * all / (KILLS + 1)).then_some(())
        });
        hosts.remove(0).kill();
        hosts.push(bench.host());
    }
    eventually("all flows are joined", || (count(&mut bench, "join", "joined") == SMALL + 1).then_some(()));
    for queue in ["work", "part", "join"] {
        bench.until_drained(queue);
    }
    let counts = (count(&mut bench, "part", "n"), count(&mut bench, "join", "joined"));
    assert_eq!(counts, (all, SMALL + 1));
    assert_eq!((bench.dead("part").len(), bench.dead("join").len()), (0, 0));
    doctor_is_silent(&bench);
    crate::support::Host::stop_all(hosts);
}

#[test]
fn flows_may_be_nested() {
    let mut bench = bench(QUEUES);
    let host = bench.host();
    let inner =
        fan_out(&[json!([["add", "n", 1]]), json!([["add", "n", 1]])], &json!([["add", "joined", 1]]));
    let outer = json!([["results"], fan_out(&[json!([["add", "n", 1]])], &json!([["add", "joined", 1]]))]);
    let id = start(&mut bench, &[json!([inner.clone()]), json!([inner])], &outer);
    results(&mut bench, "join", &id);
    eventually("all flows are joined", || {
        let joined: Option<String> = bench.redis("GET", "tq:{join}:state:effects:joined");
        (joined.as_deref() == Some("3")).then_some(())
    });
    assert_eq!(bench.redis::<String>("GET", "tq:{part}:state:effects:n"), "5");
    doctor_is_silent(&bench);
    host.stop();
}

#[test]
fn the_tree_of_a_task_is_shown_and_cancelled_as_a_whole() {
    let mut bench = bench(QUEUES);
    let host = bench.host();
    let runs = || json!([["sleep", 60_000]]);
    let inner = fan_out(&[runs(), json!([])], &json!([]));
    let starter = told(&mut bench, "work", &json!([fan_out(&[json!([inner]), runs()], &json!([]))]));
    let view = eventually("both flows go on", || {
        let view = bench.tqhost(&["status", "work", &starter, "--json"]).ok().json();
        let outer = &view["flows"][0];
        let (of_inner, of_outer) = (&outer["open_children"][0], &outer["open_children"][1]);
        let inner = &of_inner["flows"][0];
        let seen = json!([
            [outer["status"], outer["children"], outer["children_completed"]],
            [of_inner["status"], of_outer["status"], outer["open_children"][2]],
            [inner["status"], inner["children"], inner["children_completed"]],
            [inner["open_children"][0]["status"], inner["open_children"][1]],
        ]);
        let expected = json!([
            ["PENDING", 2, 1],
            ["COMPLETED", "PROCESSING", null],
            ["PENDING", 2, 1],
            ["PROCESSING", null],
        ]);
        (seen == expected).then_some(view)
    });
    let outer = &view["flows"][0];
    let inner = outer["open_children"][0]["flows"][0]["id"].as_str().expect("an id");
    let outer = outer["id"].as_str().expect("an id");
    let sheet = bench.tqhost(&["status", "join", outer]).ok().stdout;
    for line in ["├ part ", &format!("│ └ join {inner}  PENDING  1 of 2 completed"), "│   └ part ", "└ part "]
    {
        assert!(sheet.contains(line), "{line}: {sheet}");
    }

    let refused = bench.tqhost(&["cancel", "work", &starter]);
    assert!(refused.stderr.contains(&format!("`tqhost cancel join {outer}`")), "{refused:?}");
    let ran = bench.tqhost(&["cancel", "join", outer]).ok();
    insta::assert_snapshot!(ran.stdout.replace(outer, "ID"), @r"
    ID is cancelled, and 3 tasks of its flow with it; it was PENDING
    ");
    eventually("all have stopped", || (bench.places("part").length == 0).then_some(()));
    assert_eq!([outer, inner].map(|id| bench.status("join", id, "status")), ["CANCELLED", "CANCELLED"]);
    let again = bench.tqhost(&["cancel", "join", outer, "--json"]).ok().json();
    assert_eq!(again["children"], 0);
    doctor_is_silent(&bench);
    host.stop();
}

#[test]
fn children_are_released_as_their_queue_has_room() {
    let mut bench =
        bench(&QUEUES.replace("[queues.part]", "[queues.part]\nmax_backlog = 20\nconcurrency = 5"));
    let host = bench.host();
    let parts: Vec<Value> = (0..150).map(|n| json!([["sleep", 5], ["add", "n", n]])).collect();
    let id = start(&mut bench, &parts, &json!([["results"]]));
    let mut most = 0;
    eventually("the flow is joined", || {
        most = most.max(bench.places("part").length);
        (bench.status("join", &id, "status") == "COMPLETED").then_some(())
    });
    assert!((1..=20).contains(&most), "{most} waited at once");
    assert_eq!(bench.redis::<String>("GET", "tq:{part}:state:effects:n"), (0..150).sum::<u32>().to_string());
    host.stop();
}

#[test]
fn results_that_do_not_fit_into_the_memory_of_the_last_task_are_not_read() {
    let queues = QUEUES.replace("[queues.join]\nplugin = \"effects\"", "[queues.join]\nplugin = \"small\"");
    let mut bench = bench(&format!("{queues}[plugins.small]\nmemory = \"4MiB\"\n"));
    bench.install("effects", "small");
    let host = bench.host();
    done(&mut bench, "part", json!([["set", "large", "x".repeat(900 << 10), 0]]));
    let id = start(&mut bench, &vec![json!([["get", "large"]]); 5], &json!([["results"]]));
    bench.until("join", &id, "FAILED");
    let error = bench.status("join", &id, "error").replace(|c: char| c.is_ascii_digit(), "");
    insta::assert_snapshot!(error, @r"
    trap: the results of the flow do not fit into the  bytes of memory that the handler has left
    ");
    host.stop();
}

#[test]
fn a_flow_of_ten_thousand_children_is_joined_and_one_of_more_is_refused() {
    let mut bench = bench(&QUEUES.replace("[queues.join]", "[queues.join]\ntimeout = \"5m\""));
    let host = bench.host();
    let parts = vec![json!([]); 10_001];
    let seen = done(&mut bench, "work", json!([fan_out(&parts, &json!([]))]));
    assert!(error(&seen[0]).contains("at most 10000 children"), "{seen}");
    let id = start(&mut bench, &parts[1..], &json!([["results"]]));
    let seen = results(&mut bench, "join", &id);
    assert_eq!(seen[0].as_array().map(Vec::len), Some(10_000));
    assert!(seen[0].as_array().into_iter().flatten().all(|one| *one == json!(["part", "[]"])));
    host.stop();
}
