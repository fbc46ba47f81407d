//! Flows that cannot go on: keys that others have used, deleted or broken. Nothing is lost, and the doctor
//! tells what waits in vain.

use serde_json::{Value, json};

use super::{bench, done, results};
use crate::support::redis_server::denies;
use crate::support::{Bench, Host, eventually};

const QUEUES: &str = "[defaults]\nbackoff = \"none\"\nmax_retries = 0\n\
     [queues.work]\nplugin = \"effects\"\nenqueue_to = [\"part\", \"join\"]\n\
     [queues.part]\nplugin = \"effects\"\nmax_backlog = 2\n\
     [queues.join]\nplugin = \"effects\"\n";

fn child(calls: &Value) -> Value {
    json!({ "queue": "part", "fields": { "do": calls } })
}

/// Starts a flow, and gives the id of the task that joins it.
#[track_caller]
fn start(bench: &mut Bench, children: &[Value], then: &Value) -> String {
    let seen = done(bench, "work", json!([["fan-out", children, then]]));
    seen[0].as_str().unwrap_or_else(|| panic!("{seen}")).to_owned()
}

fn then() -> Value {
    json!({ "queue": "join", "fields": { "do": [["results"]] } })
}

/// A host, and a flow whose first children wait in a paused queue: at most two, as the queue has no more
/// room. Gives the flow's id and the ids of these children.
fn waiting(children: usize) -> (Bench, Host, String, Vec<String>) {
    let mut bench = bench(QUEUES);
    bench.tqhost(&["pause", "part"]).ok();
    let host = bench.host();
    let id = start(&mut bench, &vec![child(&json!([["fence"]])); children], &then());
    let room = children.min(2);
    eventually("the children wait", || (bench.places("part").length == room as u64).then_some(()));
    let mut ids: Vec<String> = bench.redis("KEYS", "tq:{part}:task:*");
    ids.sort();
    (bench, host, id, ids.into_iter().map(|key| key["tq:{part}:task:".len()..].to_owned()).collect())
}

fn status(queue: &str, id: &str) -> String {
    format!("tq:{{{queue}}}:task:{id}")
}

fn flow(id: &str) -> String {
    format!("tq:{{join}}:flow:{id}")
}

/// The doctor must find this twice, and say what to do; it must mend it, and find nothing afterwards.
#[track_caller]
fn found_and_mended(bench: &Bench, expected: &str) {
    for fix in [&[][..], &[], &["--fix"]] {
        let ran = bench.tqhost(&[&["doctor", "join", "--json"], fix].concat());
        let report = ran.json();
        let found = report["findings"].as_array().expect("findings").iter();
        let found: Vec<String> = found
            .map(|one| {
                format!("{} {}", one["kind"].as_str().unwrap_or("-"), one["task"].as_str().unwrap_or("-"))
            })
            .collect();
        assert_eq!(found, [expected], "{report:#}");
        assert_eq!((report["ok"] == true, ran.code == 0), (!fix.is_empty(), !fix.is_empty()), "{report:#}");
        if fix.is_empty() {
            let text = bench.tqhost(&["doctor", "join"]).stdout;
            assert!(text.contains("--fix "), "{text}");
        }
    }
    bench.tqhost(&["doctor", "join"]).ok();
}

#[test]
fn a_child_whose_key_was_used_within_the_window_is_a_duplicate_and_fails_its_flow() {
    let mut bench = bench(QUEUES);
    let host = bench.host();
    bench.tqhost(&["enqueue", "part", "do=[[\"add\",\"n\",1]]", "--key", "k", "--wait"]).ok();
    let keys: Vec<String> = bench.redis("KEYS", "tq:{part}:task:*");
    let first = keys[0]["tq:{part}:task:".len()..].to_owned();
    let mut keyed = child(&json!([["add", "n", 1]]));
    keyed["key"] = json!("k");
    let id = start(&mut bench, &[keyed, child(&json!([["fence"]]))], &then());
    bench.until("join", &id, "FAILED");
    let letter = bench.dead("join").remove(0);
    assert_eq!(letter["tq-reason"], "flow-failed");
    assert!(letter["tq-error"].ends_with(&format!(": duplicate of {first}")), "{letter:?}");
    let child = letter["tq-error"]["child ".len()..].split(':').next().unwrap_or_default().to_owned();
    assert_eq!(bench.status("part", &child, "status"), "CANCELLED");
    assert_eq!(bench.status("part", &child, "duplicate_of"), first);
    bench.until_drained("part");
    assert_eq!(bench.redis::<String>("GET", "tq:{part}:state:effects:n"), "1", "it ran once");
    for queue in ["part", "join"] {
        bench.tqhost(&["doctor", queue]).ok();
    }
    host.stop();
}

#[test]
fn the_last_task_of_a_flow_is_a_duplicate_if_its_key_was_used_within_the_window() {
    let mut bench = bench(QUEUES);
    let host = bench.host();
    bench.tqhost(&["enqueue", "join", "do=[]", "--key", "k", "--wait"]).ok();
    let mut last = then();
    last["key"] = json!("k");
    let id = start(&mut bench, &[child(&json!([["fence"]]))], &last);
    bench.until("join", &id, "CANCELLED");
    assert!(bench.status("join", &id, "error").starts_with("duplicate of "));
    assert_eq!(bench.places("join").length, 0);
    assert!(bench.redis::<i64>("TTL", flow(&id)) > 0, "the flow expires");
    bench.tqhost(&["doctor", "join"]).ok();
    host.stop();
}

#[test]
fn a_child_is_settled_once_its_flow_can_be_joined() {
    let (mut bench, host, id, children) = waiting(1);
    let _: u64 = bench.redis("DEL", "join");
    let _: () = bench.redis("SET", ("join", "somebody else's"));
    bench.tqhost(&["resume", "part"]).ok();
    eventually("the settlement is refused", || {
        let says = |line: &Value| {
            let error = line["error"].to_string();
            error.contains("TQTYPE join ") && error.contains(" string")
        };
        host.logged("a call to Redis failed").iter().any(says).then_some(())
    });
    eventually("the child has run", || (bench.places("part").pending == 1).then_some(()));
    assert_ne!(bench.status("part", &children[0], "status"), "COMPLETED");
    let _: u64 = bench.redis("DEL", "join");
    assert_eq!(results(&mut bench, "join", &id), json!([[["part", "[1]"]]]));
    bench.until("part", &children[0], "COMPLETED");
    for queue in ["part", "join"] {
        bench.tqhost(&["doctor", queue]).ok();
    }
    host.stop();
}

#[test]
fn the_doctor_finds_a_child_that_was_deleted_with_its_status() {
    let (mut bench, host, id, children) = waiting(1);
    let _: u64 = bench.redis("DEL", ("part", status("part", &children[0])));
    found_and_mended(&bench, &format!("lost-child {}", children[0]));
    bench.until("join", &id, "FAILED");
    let error = bench.status("join", &id, "error").replace(&children[0], "ID");
    insta::assert_snapshot!(error, @"child ID: lost: its status was deleted");
    host.stop();
}

#[test]
fn the_doctor_finds_children_that_the_flow_has_forgotten() {
    let (mut bench, host, id, _) = waiting(1);
    // Without a host, nobody but the doctor can find that the child is lost.
    host.stop();
    let _: u64 = bench.redis("DEL", ("part", flow(&id) + ":results"));
    found_and_mended(&bench, &format!("lost-child {id}#0"));
    let host = bench.host();
    bench.until("join", &id, "FAILED");
    host.stop();
}

#[test]
fn the_doctor_finds_a_child_whose_end_is_not_counted() {
    for has_ended in [false, true] {
        let (mut bench, host, id, children) = waiting(1);
        if has_ended {
            // A host that knows no flows has completed it.
            let entry = bench.status("part", &children[0], "entry");
            let _: u64 = bench.redis("XDEL", ("part", entry));
            let fields = ("status", "COMPLETED", "result", "[1]", "finished_at", "1");
            let _: u64 = bench.redis("HSET", (status("part", &children[0]), fields));
            let _: u64 = bench.redis("PEXPIRE", (status("part", &children[0]), 3_600_000));
        } else {
            let _: u64 = bench.redis("DEL", status("part", &children[0]));
        }
        found_and_mended(&bench, &format!("uncounted-child {}", children[0]));
        bench.tqhost(&["resume", "part"]).ok();
        assert_eq!(results(&mut bench, "join", &id), json!([[["part", "[1]"]]]));
        host.stop();
    }
}

#[test]
fn the_doctor_finds_a_child_whose_settlement_was_refused_in_its_middle() {
    let (mut bench, host, id, children) = waiting(1);
    // A child is counted after it was acknowledged. Somebody takes this command from a host that works.
    let _: () = bench.redis("ACL", ("SETUSER", "default", "-hincrby"));
    bench.tqhost(&["resume", "part"]).ok();
    let line = host.log("its flow or the next task of its key was not told");
    assert_eq!(line["task"], json!(children[0]));
    let _: () = bench.redis("ACL", ("SETUSER", "default", "+hincrby"));
    eventually("the child was acknowledged", || (bench.places("part").pending == 0).then_some(()));
    found_and_mended(&bench, &format!("unjoined-flow {id}"));
    assert_eq!(results(&mut bench, "join", &id), json!([[["part", "[1]"]]]));
    assert_eq!(bench.places("part").length, 0);
    bench.tqhost(&["doctor", "part"]).ok();
    assert_eq!(bench.status("part", &children[0], "status"), "COMPLETED");
    assert!(denies(&bench.status("part", &children[0], "unfinished")));
    host.stop();
}

#[test]
fn the_doctor_finds_children_that_nothing_releases() {
    let (mut bench, host, id, _) = waiting(3);
    let _: u64 = bench.redis("ZREM", ("tq:{join}:delayed", format!("flow/{id}")));
    let _: u64 = bench.redis("HDEL", ("tq:{join}:parked", format!("flow/{id}")));
    found_and_mended(&bench, &format!("unreleased-children {id}"));
    bench.tqhost(&["resume", "part"]).ok();
    let expected = json!(["part", "[1]"]);
    assert_eq!(results(&mut bench, "join", &id), json!([[expected, expected, expected]]));
    host.stop();
}

#[test]
fn the_doctor_finds_children_without_their_flow() {
    let (mut bench, host, id, _) = waiting(3);
    let _: u64 = bench.redis("DEL", (flow(&id), flow(&id) + ":results", status("join", &id)));
    let _: u64 = bench.redis("ZREM", ("tq:{join}:delayed", format!("flow/{id}")));
    let _: u64 = bench.redis("HDEL", ("tq:{join}:parked", format!("flow/{id}")));
    found_and_mended(&bench, &format!("unreleased-children {id}"));
    assert_eq!(bench.redis::<u64>("EXISTS", flow(&id) + ":children"), 0);
    host.stop();
}

#[test]
fn the_doctor_finds_a_flow_that_was_not_joined() {
    for (left, after) in [(2, 1), (1, 0)] {
        let (mut bench, host, id, children) = waiting(1);
        let _: u64 = bench.redis("HSET", (flow(&id), "left", left));
        if after == 0 {
            // The last child was counted, and the task that joins the flow was not enqueued.
            let _: () = bench.redis("RENAME", (flow(&id), "aside"));
        }
        bench.tqhost(&["resume", "part"]).ok();
        bench.until("part", &children[0], "COMPLETED");
        if after == 0 {
            let _: () = bench.redis("RENAME", ("aside", flow(&id)));
            let _: u64 = bench.redis("HSET", (flow(&id), "left", 0));
            let note = format!("COMPLETED part {}", children[0]);
            let _: u64 = bench.redis("HSET", (flow(&id) + ":results", "0", note, "0:value", "[1]"));
        }
        found_and_mended(&bench, &format!("unjoined-flow {id}"));
        assert_eq!(results(&mut bench, "join", &id), json!([[["part", "[1]"]]]));
        host.stop();
    }
}

#[test]
fn the_doctor_finds_a_flow_whose_last_task_has_no_status() {
    let (mut bench, host, id, _) = waiting(1);
    let _: u64 = bench.redis("DEL", status("join", &id));
    found_and_mended(&bench, &format!("flow-without-task {id}"));
    assert_eq!(bench.status("join", &id, "status"), "PENDING");
    bench.tqhost(&["resume", "part"]).ok();
    assert_eq!(results(&mut bench, "join", &id), json!([[["part", "[1]"]]]));
    host.stop();
}
