//! Jobs: work on all tasks that match, which goes on when the process that carries it out dies.

use std::collections::HashSet;

use redis::Value as Reply;
use serde_json::{Value, json};

use super::{JOBS, ask, good, job, post, problem, start, until_over};
use crate::support::bench::tqhost;
use crate::support::dead_letters::add_dead;
use crate::support::http::send;
use crate::support::proxy::Proxy;
use crate::support::{Bench, Host, eventually};

/// The ids of the tasks in the stream.
fn queued(bench: &mut Bench) -> Vec<String> {
    let entries: Vec<(String, Vec<String>)> = bench.redis("XRANGE", ("work", "-", "+"));
    let id = |fields: Vec<String>| {
        let at = fields.iter().position(|field| field == "tq-id").expect("tq-id");
        fields[at + 1].clone()
    };
    entries.into_iter().map(|(_, fields)| id(fields)).collect()
}

#[test]
fn a_job_goes_on_when_its_host_dies_and_does_each_task_once() {
    let all = std::env::var("TQHOST_JOB").ok().and_then(|count| count.parse().ok()).unwrap_or(6_000);
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    add_dead(&mut bench, 0..all);
    let mut host = bench.host();
    let body = json!({ "do": "requeue", "rate": format!("{}/s", all / 6), "why": "the model is back" });
    let id = start(&host, &body);
    // These die after it has begun.
    add_dead(&mut bench, all..all + 5);
    for deaths in 1..=2 {
        eventually("a part is done", || {
            let done = job(&host, &id)["done"].as_u64().expect("a count") as usize;
            (done * 4 > all * deaths).then_some(())
        });
        host.kill();
        host = bench.host();
    }
    let over = until_over(&host, &id);
    assert_eq!((&over["state"], &over["why"]), (&json!("done"), &json!("the model is back")), "{over}");
    let ids = queued(&mut bench);
    assert_eq!(ids.len(), all, "{over}");
    assert_eq!(ids.into_iter().collect::<HashSet<_>>().len(), all, "each came back once");
    assert_eq!(bench.redis::<usize>("XLEN", "tq:{work}:dead"), 5, "those that died later are left");
    // The steps that the hosts did not live to write are not counted.
    let done = over["done"].as_u64().expect("a count") as usize;
    assert!(done <= all && done * 10 >= all * 7, "{over}");
    host.stop();
}

#[test]
fn a_job_is_paused_and_stopped_from_everywhere() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    add_dead(&mut bench, 0..400);
    let hosts = [bench.host(), bench.host()];
    let id = start(&hosts[0], &json!({ "do": "requeue", "rate": "20/s" }));
    let config = bench.config();
    let command = |args: &[&str]| tqhost(&config, &[&["jobs"], args, &["--json"]].concat()).ok().json();
    eventually("some are back", || (job(&hosts[1], &id)["done"].as_u64() > Some(3)).then_some(()));
    assert_eq!(command(&["pause", &id])["state"], "paused");
    let paused =
        eventually("its last step is written", || Some(job(&hosts[1], &id)).filter(|job| job["host"] == ""));
    assert_eq!(paused["done"], bench.redis::<u64>("XLEN", "work"));
    good(&post(&hosts[1], &format!("/v1/jobs/{id}/resume"), &json!({})), 200);
    eventually("more are back", || {
        (job(&hosts[0], &id)["done"].as_u64() > paused["done"].as_u64()).then_some(())
    });
    assert_eq!(good(&ask(&hosts[0], "DELETE", &format!("/v1/jobs/{id}")), 200)["state"], "stopped");
    let stopped =
        eventually("its last step is written", || Some(job(&hosts[1], &id)).filter(|job| job["host"] == ""));
    let back = bench.redis::<u64>("XLEN", "work");
    assert!(stopped["done"] == back && back < 400, "{stopped}: {back}");
    let why = problem(&post(&hosts[1], &format!("/v1/jobs/{id}/resume"), &json!({})), 409, "not-running");
    assert!(why.contains("stopped already"), "{why}");
    let again = good(&ask(&hosts[1], "DELETE", &format!("/v1/jobs/{id}")), 200);
    assert_eq!((&again["state"], &again["ended_at"]), (&json!("stopped"), &stopped["ended_at"]));
    let list = good(&ask(&hosts[0], "GET", "/v1/jobs"), 200);
    assert_eq!((&list["jobs"][0]["id"], &list["jobs"][0]["who"]), (&json!(id), &json!("anybody")));
    assert_eq!(command(&[])[0]["id"], json!(id));
    Host::stop_all(hosts);
}

#[test]
fn a_job_that_is_paused_in_its_last_step_does_not_begin_anew() {
    const QUEUES: &str = "[queues.work]\nplugin = \"missing\"\n";
    let mut bench = Bench::new(QUEUES);
    add_dead(&mut bench, 0..3);
    let way = Proxy::start(bench.redis.port);
    bench.configure_for(QUEUES, way.port);
    let host = bench.host();
    way.delay(300..301);
    let id = start(&host, &json!({ "do": "purge" }));
    // The reply to its last step is under way, and does not arrive before the job is paused.
    eventually("all are deleted", || (bench.redis::<u64>("XLEN", "tq:{work}:dead") == 0).then_some(()));
    way.part();
    bench.configure_for(QUEUES, bench.redis.port);
    assert_eq!(bench.tqhost(&["jobs", "pause", &id, "--json"]).ok().json()["state"], "paused");
    way.heal();
    eventually("its step is written", || Some(job(&host, &id)).filter(|job| job["host"] == ""));
    // These die after it.
    add_dead(&mut bench, 3..5);
    let resumed = post(&host, &format!("/v1/jobs/{id}/resume"), &json!({}));
    let over = until_over(&host, &id);
    assert_eq!((&over["state"], &over["done"]), (&json!("done"), &json!(3)), "{resumed:?}");
    assert_eq!(bench.redis::<u64>("XLEN", "tq:{work}:dead"), 2);
    host.stop();
}

#[test]
fn two_operators_who_begin_the_same_job_do_each_task_once() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    add_dead(&mut bench, 0..3000);
    let hosts = [bench.host(), bench.host()];
    let body = json!({ "do": "requeue", "reason": "rejected" }).to_string();
    let ids = std::thread::scope(|scope| {
        let order =
            |address| send(address, "POST", JOBS, &[("content-type", "application/json")], Some(&body));
        let starts = hosts.each_ref().map(|host| host.admin()).map(|at| scope.spawn(move || order(at)));
        starts.map(|start| {
            good(&start.join().expect("an answer"), 202)["id"].as_str().expect("an id").to_owned()
        })
    });
    let jobs = ids.map(|id| until_over(&hosts[0], &id));
    let done: u64 = jobs.iter().map(|job| job["done"].as_u64().expect("a count")).sum();
    let back = queued(&mut bench);
    assert_eq!((done, back.len()), (1500, 1500), "{jobs:?}");
    assert_eq!(back.into_iter().collect::<HashSet<_>>().len(), 1500);
    Host::stop_all(hosts);
}

#[test]
fn a_count_begins_a_job_on_what_was_counted() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let add = |bench: &mut Bench, count: usize| {
        for n in 0..count {
            bench.xadd("work", &[("tenant", if n % 2 == 0 { "acme" } else { "other" })]);
        }
    };
    add(&mut bench, 20);
    let host = bench.host();
    let counted = good(&post(&host, JOBS, &json!({ "do": "drain", "text": "acme", "dry_run": true })), 200);
    assert_eq!((&counted["matched"], &counted["next"]), (&json!(10), &Value::Null), "{counted}");
    add(&mut bench, 2);
    let id = start(&host, &json!({ "do": "drain", "text": "acme", "begin": counted["begin"] }));
    let over = until_over(&host, &id);
    assert_eq!((&over["done"], &over["skipped"]), (&json!(10), &json!(0)), "{over}");
    assert_eq!(bench.redis::<u64>("XLEN", "work"), 12);
    // Ages count to the beginning of the job, so that it takes none that grow old meanwhile.
    let aged = start(&host, &json!({ "do": "drain", "older_than": "1h" }));
    let aged = until_over(&host, &aged);
    assert_eq!((&aged["done"], &aged["filter"]["as_of_ms"]), (&json!(0), &aged["started_at"]), "{aged}");
    // A wrong place, a reason that is too long, a state where it has no meaning.
    for (body, told) in [
        (json!({ "do": "drain", "begin": "nonsense" }), "cursor"),
        (json!({ "do": "drain", "why": "w".repeat(201) }), "why"),
        (json!({ "do": "purge", "state": "queued" }), "state"),
        (json!({ "do": "purge", "dry_run": true, "cursor": counted["begin"] }), "begin"),
        (json!({ "do": "drain", "rate": "5/s" }), "rate"),
        (json!({ "do": "drain", "text": "t".repeat(9000) }), "8192 bytes"),
    ] {
        let why = problem(&post(&host, JOBS, &body), 422, "invalid");
        assert!(why.contains(told), "{told}: {why}");
    }
    problem(&ask(&host, "GET", "/v1/jobs/nothing"), 404, "not-found");
    host.stop();
}

#[test]
fn hosts_keep_few_jobs() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let host = bench.host();
    let all = || good(&ask(&host, "GET", "/v1/jobs"), 200)["jobs"].as_array().expect("jobs").len();
    for _ in 0..25 {
        let id = start(&host, &json!({ "do": "drain" }));
        assert_eq!(until_over(&host, &id)["state"], "done");
    }
    assert_eq!(all(), 20);
    // None of these ends: each brings one back at first.
    add_dead(&mut bench, 0..60);
    let slow = json!({ "do": "requeue", "rate": "1/h" });
    let under_way: Vec<String> = (0..20).map(|_| start(&host, &slow)).collect();
    let why = problem(&post(&host, JOBS, &slow), 503, "busy");
    insta::assert_snapshot!(
        why,
        @"20 jobs are under way: wait for one, or stop it with `tqhost jobs stop ID`"
    );
    for id in under_way {
        good(&ask(&host, "DELETE", &format!("/v1/jobs/{id}")), 200);
    }
    start(&host, &json!({ "do": "drain" }));
    let fields: Vec<Reply> = bench.redis("HKEYS", "tq:hosts:orders");
    assert!(fields.len() <= 25, "{fields:?}");
    host.stop();
}
