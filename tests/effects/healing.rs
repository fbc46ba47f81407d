//! Flows that failed, and what an operator does about them: a child is requeued, the last task is requeued or
//! cancelled. And what Redis still holds of a flow afterwards.

use serde_json::{Value, json};

use super::{bench, done};
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
