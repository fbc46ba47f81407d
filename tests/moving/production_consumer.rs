//! `examples/5-production-consumer`: jobs with two priorities on two streams. The old consumer runs ten at a
//! time, retries by itself, and lets the application add a failed job again with a count.
//!
//! Not here: priorities of more queues (`queue::capacity`).

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};

use super::{OldConsumer, configuration, has_the_series_of, secret};
use crate::support::application::{Application, Call, Reply, SECRET};
use crate::support::{Bench, eventually};

const HIGH: &str = "jobs:high";
const LOW: &str = "jobs:low";
const GROUP: &str = "job-workers";
const DEAD: &str = "jobs:high:failed";
const QUEUES: [&str; 2] = ["jobs-high", "jobs-low"];

const EXAMPLE: &str = include_str!("../../examples/5-production-consumer/tqhost.toml");
const README: &str = include_str!("../../examples/5-production-consumer/README.md");
const JOB: &str = include_str!("../../examples/5-production-consumer/job.json");

/// For each job how it ended, and before that how its attempts did.
type Ends = BTreeMap<String, Vec<String>>;

/// The example's job, with another id and another type.
fn job(id: &str, kind: &str, count: u64) -> String {
    let mut job: Value = serde_json::from_str(JOB).expect("the example's job");
    (job["jobId"], job["type"], job["retryCount"]) = (json!(id), json!(kind), json!(count));
    job.to_string()
}

/// Adds jobs, given as id and type, in one step: nobody finds some of them alone.
fn add(bench: &mut Bench, streams: &[(&str, &[(String, &str)])]) {
    let mut pipe = redis::pipe();
    pipe.atomic();
    for (stream, jobs) in streams {
        for (id, kind) in *jobs {
            pipe.cmd("XADD").arg(stream).arg("*").arg("payload").arg(job(id, kind, 0)).ignore();
        }
    }
    pipe.query::<()>(&mut bench.db).expect("XADD");
}

fn jobs(from: &str, count: usize, kind: &'static str) -> Vec<(String, &'static str)> {
    (0..count).map(|n| (format!("{from}-{n}"), kind)).collect()
}

fn one(id: &str, kind: &'static str) -> Vec<(String, &'static str)> {
    vec![(id.to_owned(), kind)]
}

/// How the application answers a call: what the test calls it, and the reply. `again` adds the job once more.
fn outcome(call: &Call) -> (String, Reply) {
    let job: Value = serde_json::from_slice(&call.body).expect("a job");
    let count = job["retryCount"].as_u64().expect("a count");
    match job["type"].as_str() {
        Some("again") if count < 3 => (format!("again {count}"), Reply::page(204, "", "")),
        Some("refused") => ("refused".into(), Reply::page(422, "content-type: text/plain\r\n", "no address")),
        Some("unsteady") if call.before == 0 => ("failed".into(), Reply::page(500, "", "")),
        Some("later") => ("later".into(), Reply::page(500, "retry-after: 3600\r\n", "")),
        _ => ("done".into(), Reply::page(204, "", "")),
    }
}

fn answer(db: &Mutex<redis::Connection>, call: &Call) -> Reply {
    let (what, reply) = outcome(call);
    if what.starts_with("again") {
        let mut job: Value = serde_json::from_slice(&call.body).expect("a job");
        job["retryCount"] = json!(job["retryCount"].as_u64().expect("a count") + 1);
        let stream = if call.header("tqhost-queue") == QUEUES[0] { HIGH } else { LOW };
        let mut xadd = redis::cmd("XADD");
        xadd.arg(&[stream, "*", "payload", &job.to_string()]);
        xadd.query::<String>(&mut *db.lock().expect("a connection")).expect("XADD");
    }
    // The work takes a moment, so that more jobs wait than run.
    std::thread::sleep(Duration::from_millis(20));
    reply
}

fn id_of(call: &Call) -> String {
    let job: Value = serde_json::from_slice(&call.body).expect("a job");
    job["jobId"].as_str().expect("an id").to_owned()
}

/// Counts what the old consumer did, then what the application answered.
fn ends(old: &[(&str, Vec<String>)], calls: &[Call]) -> Ends {
    let mut ends = Ends::new();
    for (what, ids) in old {
        for id in ids {
            ends.entry(id.clone()).or_default().push((*what).to_owned());
        }
    }
    for call in calls {
        ends.entry(id_of(call)).or_default().push(outcome(call).0);
    }
    ends
}

fn pending(bench: &mut Bench) -> [u64; 2] {
    [HIGH, LOW].map(|stream| {
        let (pending, ..): (u64, redis::Value, redis::Value, redis::Value) =
            bench.redis("XPENDING", (stream, GROUP));
        pending
    })
}

fn adopt(bench: &Bench, queue: &str, more: &[&str]) -> Value {
    let report = bench.tqhost(&[&["adopt", queue, "--json"], more].concat()).ok().json();
    assert_eq!(report["ok"], true, "{report:#}");
    report
}

fn count(report: &Value, kind: &str) -> u64 {
    let items = report["found"].as_array().expect("findings");
    items.iter().find(|item| item["kind"] == kind).map_or(0, |item| item["count"].as_u64().expect("a count"))
}

/// Asserts that jobs of both priorities began two to one, within a tenth, while both had jobs.
#[track_caller]
fn are_two_to_one(is_high: &[bool]) {
    let begun = |wanted: bool| is_high.iter().position(|high| *high == wanted).unwrap_or(is_high.len());
    // One queue may begin a moment earlier, and then has all for itself.
    let from = begun(true).max(begun(false)) + 20;
    let high = is_high[from..from + 150].iter().filter(|high| **high).count();
    assert!((90..=110).contains(&high), "{high} of 150 had the high priority: {is_high:?}");
}

#[test]
fn tasks_of_the_old_consumer_are_taken_over_and_every_job_has_one_end() {
    let mut bench = Bench::new("[queues.jobs-high]\n");
    let db = Mutex::new(bench.redis.connection());
    let application = Application::start(move |call| answer(&db, call));
    let (theirs, ours) = secret(SECRET);
    // The times are shorter than the example's.
    let changes = [
        ("http://127.0.0.1:3000", &*application.origin()),
        (theirs, &ours),
        ("base = \"1s\"", "base = \"10ms\""),
        ("lease = \"30s\"", "lease = \"1s\""),
    ];
    bench.configure(&configuration(EXAMPLE, &bench, &changes));
    bench.install("http-call", "http-call");
    let mut expected = Ends::new();
    let mut expect = |jobs: &[(String, &str)], ends: &[&str]| {
        let ends: Vec<String> = ends.iter().map(|&end| end.to_owned()).collect();
        expected.extend(jobs.iter().map(|(id, _)| (id.clone(), ends.clone())));
    };

    // 1. The old consumer works: 30 jobs are done, and one has failed for good, four times four attempts.
    let old = OldConsumer::start("production_consumer.mjs", bench.redis.port, "worker-1", &[]);
    for (stream, done) in [(HIGH, jobs("old-high", 20, "mail")), (LOW, jobs("old-low", 10, "mail"))] {
        add(&mut bench, &[(stream, &done)]);
        expect(&done, &["old"]);
    }
    add(&mut bench, &[(HIGH, &one("old-broken", "broken"))]);
    expect(&one("old-broken", "broken"), &["buried", "done"]);
    eventually("all are done", || (old.said("processed").len() == 30).then_some(()));
    eventually("one has failed", || (old.said("failed").len() == 1).then_some(()));

    // 2. It is killed in the middle: ten run, of which one waits for its next attempt; one was added again.
    let high = [
        one("again", "again"),
        one("busy", "busy"),
        jobs("slow-high", 8, "slow"),
        jobs("new-high", 10, "mail"),
        one("unsteady", "unsteady"),
        one("refused", "refused"),
    ];
    let low = [jobs("slow-low", 5, "slow"), jobs("new-low", 10, "mail")];
    add(&mut bench, &[(HIGH, &high.concat()), (LOW, &low.concat())]);
    expect(&[high.concat(), low.concat()].concat(), &["done"]);
    expect(&high[0], &["again 1", "again 2", "done"]);
    expect(&high[4], &["failed", "done"]);
    expect(&high[5], &["refused"]);
    eventually("ten run", || {
        let (hang, wait) = (old.said("began").len(), old.said("waits").len());
        ((hang, wait) == (9, 1)).then_some(())
    });
    let before = [("old", old.said("processed")), ("buried", old.said("failed"))];
    old.kill();
    assert_eq!(pending(&mut bench).iter().sum::<u64>(), 10);

    // 3. tqhost takes over. First it only tells.
    let told = adopt(&bench, "jobs-high", &["--stopped"]);
    let kinds = ["acked", "dead-foreign"].map(|kind| count(&told, kind));
    assert_eq!((kinds, &told["acted"]), ([25, 1], &json!(false)), "{told:#}");
    assert_eq!(count(&told, "retry-count"), 4, "two jobs were added again: {told:#}");
    for queue in QUEUES {
        let adopted = adopt(&bench, queue, &["--stopped", "--delete-acked", "--yes"]);
        assert_eq!(adopted["acted"], true, "{adopted:#}");
    }
    let host = bench.host();
    let drained = |bench: &mut Bench| [HIGH, LOW].iter().for_each(|stream| bench.until_drained(stream));
    drained(&mut bench);
    let letters = bench.tqhost(&["dead", "list", "jobs-high", "--reason", "foreign", "--json"]).ok().json();
    assert!(letters["dead"][0]["error"] == "no handler for broken", "the old reason is shown: {letters}");
    let requeue = ["dead", "requeue", "jobs-high", "--all", "--reason", "foreign", "--json"];
    let requeued = bench.tqhost(&requeue).ok().json();
    assert_eq!((&requeued["succeeded"], &requeued["skipped"]), (&json!(1), &json!(0)), "{requeued}");
    drained(&mut bench);

    // 4. The counts: each job has one end, by the old consumer or by the application.
    assert_eq!(json!(ends(&before, &application.calls())), json!(expected));
    assert_eq!(bench.redis::<u64>("XLEN", DEAD), 1, "the one that was refused");
    let status = bench.tqhost(&["status", "jobs-high", "again", "--json"]).ok().json();
    assert_eq!(status["status"], "COMPLETED", "the newest task of the job: {status}");
    for queue in QUEUES {
        bench.tqhost(&["doctor", queue]).ok();
    }
    has_the_series_of(README, &host);
    host.stop();

    // 5. Under load the priorities share the ten places by two to one. The host is stopped in the middle.
    let seen = application.count();
    let load = [one("later", "later"), jobs("load-high", 500, "mail")].concat();
    add(&mut bench, &[(HIGH, &load), (LOW, &jobs("load-low", 500, "mail"))]);
    let host = bench.host();
    eventually("some of the load is done", || (application.count() >= seen + 400).then_some(()));
    host.stop();
    assert_eq!(pending(&mut bench), [0, 0], "the attempts that ran have ended");
    let calls = application.calls().split_off(seen);
    let is_high: Vec<bool> = calls.iter().map(|call| call.header("tqhost-queue") == "jobs-high").collect();
    are_two_to_one(&is_high);

    // 6. The way back: the old consumer goes on with what is left, and shares in the same way.
    for queue in QUEUES {
        let back = adopt(&bench, queue, &["--out", "--yes"]);
        assert_eq!((count(&back, "running"), count(&back, "timed")), (0, 0), "{back:#}");
        assert_eq!(count(&back, "delayed"), u64::from(queue == "jobs-high"), "{back:#}");
    }
    let old = OldConsumer::start("production_consumer.mjs", bench.redis.port, "worker-2", &[]);
    let done = calls.iter().filter(|call| outcome(call).0 == "done").count();
    eventually("all is done", || (old.said("processed").len() + done == 1001).then_some(()));
    eventually("all is acknowledged", || (pending(&mut bench) == [0, 0]).then_some(()));
    let processed = old.said("processed");
    old.kill();
    are_two_to_one(&processed.iter().map(|id| id.contains("high")).collect::<Vec<_>>());
    for (id, found) in ends(&[("old", processed)], &calls) {
        // The application put this one off, and the old consumer has done it.
        let expected = if id == "later" { vec!["old", "later"] } else { vec![&*found[0]] };
        assert_eq!(found, expected, "{id}");
    }
}
