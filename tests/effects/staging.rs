//! Children of a flow before its commit: those that are never committed do not stay, and an outage of Redis
//! ends no task.

use serde_json::{Value, json};
use tqhost::testing::queue::script;

use super::{bench, done, error, results, told};
use crate::support::proxy::Proxy;
use crate::support::{Bench, eventually};

const QUEUES: &str = "[defaults]\nplugin = \"effects\"\nbackoff = \"none\"\nmax_retries = 0\n\
     [queues.work]\nenqueue_to = [\"part\", \"join\"]\n\
     [queues.part]\n[queues.join]\n[plugins.effects]\nrecords = [\"kb:*\"]\n";

/// The call that starts a flow with this many children.
fn fan_out(children: usize) -> Value {
    let child = json!({ "queue": "part", "fields": { "do": [["fence"]] } });
    json!(["fan-out", vec![child; children], { "queue": "join", "fields": { "do": [["results"]] } }])
}

/// The lists of children that Redis holds.
fn staged(bench: &mut Bench) -> Vec<String> {
    bench.redis("KEYS", "*:children")
}

#[track_caller]
fn nothing_is_staged(bench: &mut Bench, what: &str) {
    eventually(&format!("no children are staged after: {what}"), || staged(bench).is_empty().then_some(()));
}

#[test]
fn a_flow_that_is_refused_stages_no_children() {
    let mut bench = bench(QUEUES);
    let host = bench.host();
    let mut calls: Vec<Value> = (0..1000).map(|n| json!(["set", n.to_string(), "x", 0])).collect();
    calls.push(fan_out(3));
    let seen = done(&mut bench, "work", json!(calls));
    insta::assert_snapshot!(error(&seen[1000]), @"
    TooLarge(\"a task has at most 1000 effects: tasks, values and records; divide the work among several \
    tasks, as a flow does\")
    ");
    assert_eq!(staged(&mut bench), Vec::<String>::new());
    host.stop();
}

#[test]
fn all_flows_of_a_task_together_have_a_bound() {
    let mut bench = bench(QUEUES);
    let host = bench.host();
    bench.tqhost(&["pause", "part"]).ok();
    let seen = done(&mut bench, "work", json!([fan_out(6000), fan_out(6000), fan_out(10)]));
    insta::assert_snapshot!(error(&seen[1]), @r#"
    TooLarge("the flows of a task have at most 10000 children, these have 12000")
    "#);
    assert!(seen[0].is_string() && seen[2].is_string(), "{} {}", seen[0], seen[2]);
    let flows: Vec<String> = bench.redis("KEYS", "tq:{join}:flow:*:results");
    assert!(flows.len() <= 2 && staged(&mut bench).len() <= 2, "{flows:?}");
    host.stop();
}

#[test]
fn an_attempt_that_fails_leaves_no_children() {
    let queues = QUEUES.replace("[queues.work]", "[queues.work]\ntimeout = \"2s\"");
    let mut bench = bench(&queues);
    let () = bench.redis("SET", ("kb:text", "x"));
    let host = bench.host();
    for last in [
        json!(["retry"]),
        json!(["reject"]),
        json!(["trap"]),
        json!(["sleep", 60_000]),
        json!(["put", "kb:text", { "x": 1 }]),
    ] {
        let id = told(&mut bench, "work", &json!([fan_out(150), fan_out(1), last]));
        bench.until("work", &id, "FAILED");
        nothing_is_staged(&mut bench, &last.to_string());
    }
    host.stop();
}

#[test]
fn a_task_that_is_cancelled_while_it_runs_leaves_no_children() {
    let mut bench = bench(QUEUES);
    let host = bench.host();
    let id = told(&mut bench, "work", &json!([fan_out(3), ["sleep", 60_000]]));
    eventually("the children are staged", || (staged(&mut bench).len() == 1).then_some(()));
    bench.tqhost(&["cancel", "work", &id]).ok();
    bench.until("work", &id, "CANCELLED");
    nothing_is_staged(&mut bench, "a cancellation");
    host.stop();
}

#[test]
fn the_children_that_a_dead_host_has_staged_expire() {
    let mut bench = bench(QUEUES);
    let host = bench.host();
    told(&mut bench, "work", &json!([fan_out(3), ["sleep", 60_000]]));
    let list = eventually("the children are staged", || staged(&mut bench).pop());
    host.kill();
    assert!(bench.redis::<i64>("TTL", &list) > 0);
}

/// A bench whose host reaches Redis through a proxy.
fn behind_proxy(queues: &str) -> (Bench, Proxy) {
    let bench = bench(queues);
    let proxy = Proxy::start(bench.redis.port);
    bench.configure_for(queues, proxy.port);
    (bench, proxy)
}

#[test]
fn network_26_stage() {
    let (mut bench, proxy) = behind_proxy(QUEUES);
    proxy.lose_replies(script::STAGE.sha1(), 3);
    let host = bench.host();
    let seen = done(&mut bench, "work", json!([fan_out(250)]));
    let id = seen[0].as_str().unwrap_or_else(|| panic!("{seen}")).to_owned();
    assert_eq!(proxy.hits(), 3);
    assert_eq!(results(&mut bench, "join", &id)[0], json!(vec![json!(["part", "[1]"]); 250]));
    host.stop();
}

#[test]
fn an_attempt_whose_children_redis_does_not_keep_in_time_is_tried_again() {
    let queues = QUEUES.replace("[queues.work]", "[queues.work]\ntimeout = \"3s\"\nmax_retries = 20");
    let (mut bench, proxy) = behind_proxy(&queues);
    proxy.lose_replies(script::STAGE.sha1(), usize::MAX);
    let host = bench.host();
    let id = told(&mut bench, "work", &json!([fan_out(3)]));
    let why = eventually("an attempt failed", || {
        Some(bench.status("work", &id, "error")).filter(|error| !error.is_empty())
    });
    assert!(why.starts_with("effects: ") && why.contains("did not answer"), "{why}");
    proxy.heal();
    let seen = results(&mut bench, "work", &id);
    let joined = seen[0].as_str().unwrap_or_else(|| panic!("{seen}")).to_owned();
    results(&mut bench, "join", &joined);
    nothing_is_staged(&mut bench, "an outage");
    host.stop();
}

#[test]
fn results_of_a_flow_are_read_again_when_redis_did_not_answer() {
    let queues = QUEUES.replace("[queues.join]", "[queues.join]\ntimeout = \"3s\"\nmax_retries = 20");
    let (mut bench, proxy) = behind_proxy(&queues);
    let host = bench.host();
    // A host that starts asks whether it may use this command.
    proxy.lose_replies("HSTRLEN", 2);
    let seen = done(&mut bench, "work", json!([fan_out(3)]));
    let id = seen[0].as_str().unwrap_or_else(|| panic!("{seen}")).to_owned();
    results(&mut bench, "join", &id);
    assert_eq!((proxy.hits(), bench.status("join", &id, "attempt").as_str()), (2, "1"));

    proxy.lose_replies("HSTRLEN", usize::MAX);
    let seen = done(&mut bench, "work", json!([fan_out(3)]));
    let id = seen[0].as_str().unwrap_or_else(|| panic!("{seen}")).to_owned();
    let why = eventually("an attempt failed", || {
        Some(bench.status("join", &id, "error")).filter(|error| !error.is_empty())
    });
    assert!(why.starts_with("effects: ") && why.contains("did not answer"), "{why}");
    proxy.heal();
    assert_eq!(results(&mut bench, "join", &id)[0], json!(vec![json!(["part", "[1]"]); 3]));
    host.stop();
}
