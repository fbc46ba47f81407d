//! Flows that failed, and what an operator does about them: a child is requeued, the last task is requeued or
//! cancelled. And what Redis still holds of a flow afterwards.

use serde_json::{Value, json};

use super::{bench, done, results};
use crate::support::words::masked;
use crate::support::{Bench, eventually};

const QUEUES: &str = "[defaults]\nbackoff = \"none\"\nmax_retries = 0\n\
     [queues.work]\nplugin = \"effects\"\nenqueue_to = [\"part\", \"join\"]\n\
     [queues.part]\nplugin = \"effects\"\n\
     [queues.join]\nplugin = \"effects\"\n";

/// Starts a flow of children that make these calls, and gives the id of the task that joins it.
#[track_caller]
fn start(bench: &mut Bench, children: &[Value], then: &Value) -> String {
    let child = |calls: &Value| json!({ "queue": "part", "fields": { "do": calls } });
    let children: Vec<Value> = children.iter().map(child).collect();
    let then = json!({ "queue": "join", "fields": { "do": then } });
    let seen = done(bench, "work", json!([["fan-out", children, then]]));
    seen[0].as_str().unwrap_or_else(|| panic!("{seen}")).to_owned()
}

/// How long (s) the flow and its results are kept: -1 without an end, -2 when they are gone.
fn lives(bench: &mut Bench, id: &str) -> [i64; 2] {
    ["", ":results"].map(|what| bench.redis("TTL", format!("tq:{{join}}:flow:{id}{what}")))
}

#[test]
fn a_flow_that_was_healed_expires_although_its_queue_keeps_no_statuses() {
    let mut bench = bench(&QUEUES.replace("[queues.join]", "[queues.join]\nretention = \"0s\""));
    let host = bench.host();
    let id = start(&mut bench, &[json!([["need", "key"]])], &json!([["add", "joined", 1]]));
    eventually("the last task is dead", || (bench.dead("join").len() == 1).then_some(()));
    done(&mut bench, "part", json!([["set", "key", "1", 0]]));
    bench.tqhost(&["dead", "requeue", "part", "--all"]).ok();
    eventually("the flow is joined", || {
        bench.redis::<Option<String>>("GET", "tq:{join}:state:effects:joined").map(drop)
    });
    bench.until_drained("join");
    let lives = lives(&mut bench, &id);
    assert!(lives.iter().all(|left| *left > 0), "{lives:?}");
    host.stop();
}

#[test]
fn a_flow_expires_after_the_end_of_a_last_task_without_a_status() {
    for calls in [json!([["results"], ["sleep", 600]]), json!([["sleep", 600], ["reject"]])] {
        let mut bench = bench(QUEUES);
        let host = bench.host();
        let id = start(&mut bench, &[json!([])], &calls);
        bench.until("join", &id, "PROCESSING");
        let _: u64 = bench.redis("DEL", format!("tq:{{join}}:task:{id}"));
        bench.until_drained("join");
        let lives = lives(&mut bench, &id);
        assert!(lives.iter().all(|left| *left > 0), "{lives:?}");
        host.stop();
    }
}

#[test]
fn cancelling_the_last_task_of_a_failed_flow_cancels_the_rest_of_it() {
    let queues = QUEUES.replace("[queues.part]", "[queues.part]\nmax_backlog = 2");
    // The last task is dead, or waits in a paused queue to be buried.
    for is_paused in [false, true] {
        let mut bench = bench(&queues);
        let host = bench.host();
        let parts = vec![json!([["sleep", 60_000]]); 20];
        let parts = [vec![json!([["reject"]])], parts].concat();
        if is_paused {
            bench.tqhost(&["pause", "join"]).ok();
            eventually("the pause is known", || {
                host.get("/readyz").body.contains("\"queue\":\"join\",\"state\":\"paused\"").then_some(())
            });
        }
        let id = start(&mut bench, &parts, &json!([["results"]]));
        if is_paused {
            eventually("the last task waits", || (bench.places("join").length == 1).then_some(()));
        } else {
            bench.until("join", &id, "FAILED");
        }
        bench.until_pending("part", 2);
        let ran = bench.tqhost(&["cancel", "join", &id]).ok();
        let told = if is_paused {
            "is cancelled, and 2 tasks of its flow with it"
        } else {
            "stays FAILED; this cancelled 2 tasks of its flow"
        };
        assert!(ran.stdout.contains(told), "{ran:?}");
        eventually("the rest of the flow is gone", || {
            (bench.places("join").delayed == 0 && bench.places("part").length == 0).then_some(())
        });
        assert_eq!(bench.redis::<u64>("EXISTS", format!("tq:{{join}}:flow:{id}:children")), 0);
        let again = bench.tqhost(&["cancel", "join", &id, "--json"]).ok().json();
        let status = if is_paused { "CANCELLED" } else { "FAILED" };
        assert_eq!([&again["status"], &again["children"]], [&json!(status), &json!(0)]);
        assert_eq!(bench.status("join", &id, "status"), status);
        for queue in ["work", "part", "join"] {
            bench.tqhost(&["doctor", queue]).ok();
        }
        host.stop();
    }
}

#[test]
fn a_dead_last_task_is_cancelled_by_its_own_name_although_its_queue_keeps_no_statuses() {
    let queues = QUEUES
        .replace("[queues.part]", "[queues.part]\nmax_backlog = 2")
        .replace("[queues.join]", "[queues.join]\nretention = \"0s\"\nid = { field = \"report\" }");
    let mut bench = bench(&queues);
    let host = bench.host();
    let child = |calls: Value| json!({ "queue": "part", "fields": { "do": calls } });
    let children = [vec![child(json!([["reject"]]))], vec![child(json!([["sleep", 60_000]])); 20]].concat();
    let then = json!({ "queue": "join", "fields": { "do": [["results"]], "report": "r7" } });
    let id = done(&mut bench, "work", json!([["fan-out", children, then]]))[0].as_str().unwrap().to_owned();
    eventually("the last task is dead", || (bench.dead("join").len() == 1).then_some(()));
    bench.until_pending("part", 2);
    let ran = bench.tqhost(&["cancel", "join", "r7"]).ok();
    insta::assert_snapshot!(masked(&ran.stdout, &[(&id, "ID")]), @r"
    ID stays FAILED; this cancelled 2 tasks of its flow
    ");
    eventually("the rest of the flow is gone", || {
        (bench.places("join").delayed == 0 && bench.places("part").length == 0).then_some(())
    });
    assert_eq!(bench.redis::<u64>("EXISTS", format!("tq:{{join}}:flow:{id}:children")), 0);
    let again = bench.tqhost(&["cancel", "join", "r7", "--json"]).ok().json();
    assert_eq!([&again["status"], &again["children"]], [&json!("FAILED"), &json!(0)]);
    assert_eq!(bench.dead("join").len(), 1, "the dead letter stays");
    for queue in ["work", "part", "join"] {
        bench.tqhost(&["doctor", queue]).ok();
    }
    host.stop();
}

#[test]
fn a_last_task_that_failed_by_itself_cannot_be_cancelled() {
    let mut bench = bench(QUEUES);
    let host = bench.host();
    let id = start(&mut bench, &[json!([])], &json!([["reject"]]));
    bench.until("join", &id, "FAILED");
    let ran = bench.tqhost(&["cancel", "join", &id]);
    assert_eq!(ran.code, 1, "{ran:?}");
    insta::assert_snapshot!(masked(&ran.stderr, &[(&id, "ID")]), @r#"
    tqhost: task "ID" cannot be cancelled: it is FAILED already
    "#);
    host.stop();
}

#[test]
fn a_flow_is_healed_long_after_it_failed() {
    const DAY: i64 = 24 * 3600;
    let mut bench = bench(QUEUES);
    let host = bench.host();
    let id = start(&mut bench, &[json!([["need", "key"]]), json!([["fence"]])], &json!([["results"]]));
    bench.until("join", &id, "FAILED");
    let kept = lives(&mut bench, &id);
    assert!(kept.iter().all(|left| *left > 29 * DAY), "{kept:?}");
    // The status of the last task has expired, and the flow is about to.
    let _: u64 = bench.redis("DEL", format!("tq:{{join}}:task:{id}"));
    for what in ["", ":results"] {
        let _: u64 = bench.redis("EXPIRE", (format!("tq:{{join}}:flow:{id}{what}"), 600));
    }
    done(&mut bench, "part", json!([["set", "key", "1", 0]]));
    let ran = bench.tqhost(&["dead", "requeue", "part", "--all", "--json"]).ok();
    assert_eq!(ran.json(), json!({ "succeeded": 1, "skipped": 0 }));
    assert_eq!(results(&mut bench, "join", &id), json!([[["part", "[null]"], ["part", "[1]"]]]));
    let kept = lives(&mut bench, &id);
    assert!(kept.iter().all(|left| (1..=DAY).contains(left)), "{kept:?}");
    host.stop();
}

#[test]
fn a_last_task_whose_flow_has_expired_does_not_take_it_for_an_empty_one() {
    let mut bench = bench(QUEUES);
    let host = bench.host();
    let id = start(&mut bench, &[json!([["need", "key"]]), json!([["fence"]])], &json!([["results"]]));
    bench.until("join", &id, "FAILED");
    let _: u64 =
        bench.redis("DEL", (format!("tq:{{join}}:flow:{id}"), format!("tq:{{join}}:flow:{id}:results")));
    let mut expected = json!({ "succeeded": 1, "skipped": 0, "without_flow": 1, "dry_run": true });
    let ran = bench.tqhost(&["dead", "requeue", "part", "--all", "--dry-run", "--json"]).ok();
    assert_eq!(ran.json(), expected);
    let ran = bench.tqhost(&["dead", "requeue", "part", "--all", "--json"]).ok();
    expected.as_object_mut().expect("an object").remove("dry_run");
    assert_eq!(ran.json(), expected);
    let ran = bench.tqhost(&["dead", "requeue", "join", &id]).ok();
    insta::assert_snapshot!(masked(&ran.stdout, &[(&id, "ID")]), @"
    1 dead letter requeued, 0 skipped. The flow of 1 of them has expired: its results are gone, and nothing \
    joins its children
    ");
    let error = eventually("it is dead again", || {
        let letters = bench.dead("join");
        let error = letters.first()?["tq-error"].clone();
        (!error.starts_with("child ")).then_some(error)
    });
    insta::assert_snapshot!(error, @r"
    effects: the flow has expired, so the results of its children are gone: start the flow again
    ");
    host.stop();
}

#[test]
fn the_fence_of_a_healed_task_goes_on_growing() {
    let mut bench = bench(QUEUES);
    let host = bench.host();
    let id = start(&mut bench, &[json!([["need", "key"]])], &json!([["fence"], ["need", "go"]]));
    eventually("the last task is dead", || (bench.dead("join").len() == 1).then_some(()));
    bench.tqhost(&["dead", "requeue", "join", &id]).ok();
    let before: u64 = eventually("it has run, and is dead again", || {
        bench.dead("join").first().filter(|letter| letter["tq-reason"] == "rejected")?["tq-fence"]
            .parse()
            .ok()
    });
    for queue in ["part", "join"] {
        let key = if queue == "part" { "key" } else { "go" };
        done(&mut bench, queue, json!([["set", key, "1", 0]]));
    }
    bench.tqhost(&["dead", "requeue", "part", "--all"]).ok();
    let seen = results(&mut bench, "join", &id);
    assert!(seen[0].as_u64() > Some(before), "{seen} after {before}");
    host.stop();
}

#[test]
fn a_flow_is_healed_also_if_its_last_task_died_into_another_stream() {
    let mut bench = bench(QUEUES);
    // A host that starts looks at pauses before it claims.
    bench.tqhost(&["pause", "part"]).ok();
    let host = bench.host();
    let id = start(&mut bench, &[json!([["need", "key"]])], &json!([]));
    host.stop();
    bench.configure_for(
        &QUEUES.replace("[queues.join]", "[queues.join]\ndead_letter = \"join:dead\""),
        bench.redis.port,
    );
    let host = bench.host();
    bench.tqhost(&["resume", "part"]).ok();
    eventually("the last task is dead", || (bench.redis::<u64>("XLEN", "join:dead") == 1).then_some(()));
    done(&mut bench, "part", json!([["set", "key", "1", 0]]));
    bench.tqhost(&["dead", "requeue", "part", "--all"]).ok();
    bench.until("join", &id, "COMPLETED");
    assert_eq!(bench.redis::<u64>("XLEN", "join:dead"), 0);
    host.stop();
}
