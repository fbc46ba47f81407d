//! POSTs on all that match: each begins a job, waits for its end, and says with `next` how to wait on.

use std::collections::HashSet;
use std::io::Write;
use std::net::TcpStream;
use std::sync::{Arc, Condvar, Mutex};

use serde_json::{Value, json};

use super::{ask, good, post, problem};
use crate::support::application::{self, Application, Reply};
use crate::support::dead_letters::add_dead;
use crate::support::{Bench, Host, eventually};

const REQUEUE: &str = "/v1/queues/work/dead/requeue";

fn counts(part: &Value) -> [u64; 2] {
    ["succeeded", "skipped"].map(|name| part[name].as_u64().unwrap_or_else(|| panic!("a count: {part}")))
}

/// The ids of the tasks in the stream.
fn queued(bench: &mut Bench) -> Vec<String> {
    let entries: Vec<(String, Vec<String>)> = bench.redis("XRANGE", ("work", "-", "+"));
    let at = |fields: &[String]| fields.iter().position(|field| field == "tq-id").expect("tq-id") + 1;
    entries.into_iter().map(|(_, fields)| fields[at(&fields)].clone()).collect()
}

#[test]
fn the_answers_of_a_loop_add_up_and_each_task_is_done_once() {
    const ALL: u64 = 23;
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n[queues.other]\nplugin = \"missing\"\n");
    add_dead(&mut bench, 0..ALL as usize);
    let hosts = [bench.host(), bench.host()];
    // At this rate it takes longer than one request.
    let mut body = json!({ "all": true, "rate": "1/s", "why": "the model is back" });
    let (mut sum, mut parts) = ([0, 0], 0);
    loop {
        let part = good(&post(&hosts[parts % 2], REQUEUE, &body), 200);
        let [succeeded, skipped] = counts(&part);
        sum = [sum[0] + succeeded, sum[1] + skipped];
        if parts == 0 {
            // This one dies after the job has begun.
            add_dead(&mut bench, ALL as usize..ALL as usize + 1);
            body["cursor"] = part["next"].clone();
            for path in ["/v1/queues/other/dead/requeue", "/v1/queues/work/drain"] {
                let wrong = json!({ "all": true, "cursor": part["next"] });
                assert!(problem(&post(&hosts[0], path, &wrong), 422, "invalid").starts_with("cursor"));
            }
            let job = part["job"].as_str().expect("a job");
            let job = good(&ask(&hosts[1], "GET", &format!("/v1/jobs/{job}")), 200);
            assert_eq!((&job["state"], &job["why"]), (&json!("running"), &body["why"]), "{job}");
        }
        parts += 1;
        let Some(next) = part["next"].as_str() else { break };
        body["cursor"] = json!(next);
    }
    assert_eq!((sum, parts > 1), ([ALL, 0], true), "{parts} answers");
    let ids = queued(&mut bench);
    assert_eq!(ids.len() as u64, ALL);
    assert_eq!(ids.into_iter().collect::<HashSet<_>>().len() as u64, ALL, "each came back once");
    // An answer that got lost is asked for again.
    let again = good(&post(&hosts[0], REQUEUE, &body), 200);
    assert!(again["succeeded"].as_u64() > Some(0) && again["next"] == Value::Null, "{again}");
    let jobs = good(&ask(&hosts[0], "GET", "/v1/jobs"), 200);
    assert_eq!(jobs["jobs"].as_array().map(Vec::len), Some(1), "{jobs}");
    let changes = good(&ask(&hosts[0], "GET", "/v1/changes?queue=work"), 200);
    assert_eq!(
        (&changes["changes"][0]["who"], &changes["changes"][0]["why"]),
        (&json!("anybody"), &json!("the model is back")),
        "{changes}"
    );
    Host::stop_all(hosts);
}

#[test]
fn a_slow_rate_says_when_it_goes_on_and_a_job_that_was_stopped_is_told() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    add_dead(&mut bench, 0..6);
    let host = bench.host();
    let wait = |part: &Value| part["wait_ms"].as_u64().expect("a time to wait");
    let mut body = json!({ "all": true, "reason": "rejected", "rate": "1/m" });
    let first = good(&post(&host, REQUEUE, &body), 200);
    assert_eq!(counts(&first), [1, 0], "{first}");
    assert!((30_001..=60_000).contains(&wait(&first)), "{first}");
    // The next request comes too early, and says it again.
    body["cursor"] = first["next"].clone();
    let early = good(&post(&host, REQUEUE, &body), 200);
    assert_eq!(counts(&early), [0, 0], "{early}");
    assert!(early["next"].is_string() && wait(&early) <= wait(&first), "{early}");
    let id = first["job"].as_str().expect("a job");
    good(&ask(&host, "DELETE", &format!("/v1/jobs/{id}")), 200);
    let why = problem(&post(&host, REQUEUE, &body), 409, "not-running");
    insta::assert_snapshot!(
        why.replace(id, "ID"),
        @"1 dead letter requeued, not all of them: job ID is stopped"
    );
    assert_eq!(bench.redis::<u64>("XLEN", "work"), 1);
    host.stop();
}

#[test]
fn a_job_goes_on_when_its_client_goes_away() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    add_dead(&mut bench, 0..40);
    let host = bench.host();
    let body = json!({ "all": true, "rate": "20/s" }).to_string();
    let mut client = TcpStream::connect(host.admin()).expect("connect");
    let head = format!(
        "POST {REQUEUE} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        host.admin(),
        body.len()
    );
    client.write_all((head + &body).as_bytes()).expect("send");
    eventually("some are back", || (bench.redis::<u64>("XLEN", "work") > 3).then_some(()));
    drop(client);
    eventually("all are back", || (bench.redis::<u64>("XLEN", "work") == 40).then_some(()));
    eventually("the job is done", || {
        let jobs = good(&ask(&host, "GET", "/v1/jobs"), 200);
        (jobs["jobs"][0]["state"] == "done" && jobs["jobs"][0]["done"] == 40).then_some(())
    });
    host.stop();
}

/// More than one step of a job looks at.
const OTHERS: usize = 30_000;

#[test]
fn tasks_that_move_while_a_job_is_at_work_are_cancelled_unless_they_came_back_from_the_dead() {
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let opened = Arc::clone(&gate);
    let application = Application::start(move |_| {
        let (is_open, changed) = &*opened;
        let open = is_open.lock().expect("the gate");
        drop(changed.wait_while(open, |is_open| !*is_open).expect("the gate"));
        Reply::page(500, "", "")
    });
    let plugin = application::plugin(&application.origin(), "");
    let mut bench = Bench::new(&format!(
        "[queues.work]\nplugin = \"http-call\"\nconcurrency = 1\nbackoff = {{ delays = [\"1h\"] }}\n{plugin}"
    ));
    bench.install("http-call", "http-call");
    let host = bench.host();
    let others = bench.dir.path().join("others.jsonl");
    std::fs::write(&others, "{\"a\": \"another one\"}\n".repeat(OTHERS)).expect("write a file");
    let file = others.to_str().expect("a path");
    bench.tqhost(&["enqueue", "work", "--jsonl", file, "--delay", "2h"]).ok();
    let id = bench.xadd("work", &[("a", "this one")]);
    bench.until_running("work", 1);
    add_dead(&mut bench, 0..1);
    // It was enqueued before the job begins, and comes back after that.
    let filter = json!({ "do": "cancel", "where": ["a!=another one"] });
    let job = good(&post(&host, "/v1/queues/work/jobs", &filter), 202);
    let job = format!("/v1/jobs/{}", job["id"].as_str().expect("an id"));
    good(&post(&host, &format!("{job}/pause"), &json!({})), 200);
    let look = || good(&ask(&host, "GET", &job), 200);
    let paused = eventually("its last step is written", || Some(look()).filter(|job| job["host"] == ""));
    assert!(
        paused["state"] == "paused" && paused["examined"].as_u64() < Some(OTHERS as u64),
        "it is in the middle: {paused}"
    );
    *gate.0.lock().expect("the gate") = true;
    gate.1.notify_all();
    eventually("it waits for its next attempt", || {
        (bench.places("work").delayed == OTHERS as u64 + 1).then_some(())
    });
    let requeued = good(&post(&host, REQUEUE, &json!({ "ids": ["id-0"] })), 200);
    assert_eq!(requeued["succeeded"], 1, "{requeued}");
    good(&post(&host, &format!("{job}/resume"), &json!({})), 200);
    let over = eventually("it is over", || Some(look()).filter(|job| job["state"] != "running"));
    assert_eq!((&over["done"], &over["skipped"]), (&json!(1), &json!(0)), "{over}");
    assert_eq!(bench.status("work", &id, "status"), "CANCELLED");
    let places = bench.places("work");
    assert_eq!(places.delayed + places.length, OTHERS as u64 + 1, "{places:?}");
    // A request that comes now takes it.
    let body = json!({ "all": true, "id": "id-0" });
    let now = good(&post(&host, "/v1/queues/work/tasks/cancel", &body), 200);
    assert_eq!((counts(&now), bench.status("work", "id-0", "status")), ([1, 0], "CANCELLED".to_owned()));
    host.stop();
}
