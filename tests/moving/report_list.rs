//! `examples/2-report-list`: reports of a Redis list, whose old consumer loses what it has in its hands, and
//! keeps dead letters in a list. The status of a report is in the table of the application.
//!
//! Not here: the guarantees of such a consumer as properties (`queue::report_queue`), the limits over all
//! hosts under faults (`faults::turns`).

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{OldConsumer, configuration, secret};
use crate::support::application::SECRET;
use crate::support::{Bench, eventually, http};

const LIST: &str = "report:queue";
const DEAD: &str = "report:queue:dead";
const EXAMPLE: &str = include_str!("../../examples/2-report-list/tqhost.toml");
const MESSAGE: &str = include_str!("../../examples/2-report-list/message.json");
/// The statuses of records.
const GENERATING: u64 = 2;
const GENERATED: u64 = 3;
const FAILED: u64 = 5;

/// The team's application, in a process of its own.
struct Application {
    process: OldConsumer,
    address: String,
}

impl Application {
    /// Starts it on this port (0: a free one).
    fn start(bench: &Bench, port: &str) -> Application {
        let env = [("WEBHOOK_SECRET", SECRET), ("PORT", port)];
        let process = start(bench, "report_application.py", &env);
        let port = eventually("the application listens", || process.said("port").pop());
        Application { process, address: format!("127.0.0.1:{port}") }
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let response = http::post(&self.address, path, &body.to_string());
        assert!(response.status < 300, "{path}: {response:?}");
        serde_json::from_str(&response.body).expect("JSON")
    }

    /// Adds a record, as a user does. Its first `fails` attempts fail (-1: all), the next `hangs` never end.
    fn add(&self, record: u64, fails: i64, hangs: u64) {
        self.post("/reports", &json!({ "id": record, "fails": fails, "hangs": hangs }));
    }

    /// The table, by the number of the record.
    fn table(&self) -> BTreeMap<u64, Value> {
        let rows: Vec<Value> = serde_json::from_str(&http::get(&self.address, "/").body).expect("rows");
        rows.into_iter().map(|row| (row["id"].as_u64().expect("a number"), row)).collect()
    }

    fn has(&self, record: u64, status: u64) -> bool {
        self.table()[&record]["status"] == status
    }

    /// Asserts that each record has this status, and was generated so many times.
    #[track_caller]
    fn assert_all(&self, records: impl IntoIterator<Item = u64>, status: u64, generated: u64) {
        let table = self.table();
        for record in records {
            let row = &table[&record];
            assert_eq!((&row["status"], &row["generated"]), (&json!(status), &json!(generated)), "{row}");
        }
    }

    /// The attempts so far, in their order. Asserts that each ended before the next one began.
    fn attempts(&self) -> Vec<(u64, u64)> {
        let lines = self.process.lines.lock().expect("the lines").clone();
        let number = |value: &Value| value.as_str().and_then(|text| text.parse().ok());
        let mut runs: Option<u64> = None;
        let mut attempts = Vec::new();
        for line in &lines {
            if let Some(record) = number(&line["began"]) {
                assert_eq!(runs.replace(record), None, "two at once: {lines:#?}");
                attempts.push((record, number(&line["retry_count"]).expect("a count") + 1));
            } else if let Some(record) = number(&line["broke"]).or_else(|| number(&line["generated"])) {
                assert_eq!(runs.take(), Some(record), "{lines:#?}");
            }
        }
        attempts
    }
}

fn port_of(address: &str) -> &str {
    address.split(':').nth(1).expect("a port")
}

/// Starts a program of the team, which knows its table.
fn start(bench: &Bench, program: &str, env: &[(&str, &str)]) -> OldConsumer {
    let table = bench.dir.path().join("reports.sqlite");
    OldConsumer::start(program, bench.redis.port, table.to_str().expect("UTF-8"), env)
}

/// The example's configuration for a test's Redis and application. Its times are shorter.
fn configured(bench: &Bench, application: &Application, delays: &str) -> String {
    let (theirs, ours) = secret(SECRET);
    let changes = [
        ("127.0.0.1:3000", &*application.address),
        (theirs, &ours),
        ("[\"10s\", \"30s\", \"60s\"]", delays),
        ("for = \"30s\"", "for = \"1s\""),
    ];
    configuration(EXAMPLE, bench, &changes)
}

/// The items of a list, the oldest first.
fn items(bench: &mut Bench, list: &str) -> Vec<Value> {
    let items: Vec<String> = bench.redis("LRANGE", (list, 0, -1));
    items.into_iter().rev().map(|item| serde_json::from_str(&item).expect("a message")).collect()
}

fn records(items: &[Value]) -> Vec<u64> {
    items.iter().map(|item| item["RecordId"].as_u64().expect("a number")).collect()
}

/// The kinds of what `adopt` found, with their counts.
pub fn kinds(report: &Value) -> BTreeMap<&str, u64> {
    let count = |item: &Value| item["count"].as_u64().expect("a count");
    let found = report["found"].as_array().expect("findings").iter();
    found.map(|item| (item["kind"].as_str().expect("a kind"), count(item))).collect()
}

#[test]
fn reports_of_a_list_move_in_and_out_again_and_each_has_one_end() {
    let mut bench = Bench::new("[queues.reports]\n");
    let application = Application::start(&bench, "0");
    bench.configure(&configured(&bench, &application, "[\"10ms\", \"20ms\", \"40ms\"]"));
    bench.install("http-call", "http-call");
    let push = |bench: &mut Bench, item: &str| bench.redis::<u64>("LPUSH", (LIST, item));

    // 1. The old consumer works: it makes six reports, one at its second attempt, buries one, and drops one.
    let old = start(&bench, "report_list.py", &[("DELAYS", "0.01,0.02,0.03")]);
    for record in 1..=5 {
        application.add(record, 0, 0);
    }
    application.add(6, 1, 0);
    application.add(7, -1, 0);
    push(&mut bench, "{\"RecordId\":");
    eventually("the record has failed", || application.has(7, FAILED).then_some(()));
    eventually("the rest is done", || {
        (old.said("dropped").len() == 1 && application.has(6, GENERATED)).then_some(())
    });
    application.assert_all(1..=6, GENERATED, 1);
    old.kill();
    let dead = items(&mut bench, DEAD);
    assert_eq!((records(&dead), &dead[0]["RetryCount"]), (vec![7], &json!(3)));
    // It is killed while a report waits for its retry, and in the middle of another one.
    let old = start(&bench, "report_list.py", &[("DELAYS", "3600")]);
    application.add(8, 1, 0);
    eventually("it waits", || (old.said("waits") == ["8"]).then_some(()));
    old.kill();
    let old = start(&bench, "report_list.py", &[]);
    application.add(9, 0, 1);
    eventually("it is in the middle of one", || (old.said("hangs") == ["9"]).then_some(()));
    for record in 10..=20 {
        let fails = match record {
            12 => 2,
            13 => -1,
            _ => 0,
        };
        application.add(record, fails, 0);
    }
    old.kill();
    let left = items(&mut bench, LIST);
    assert_eq!(records(&left), (10..=20).collect::<Vec<_>>(), "what it had in its hands is lost");
    let names = |item: &Value| item.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&left[0]), names(&serde_json::from_str(MESSAGE).expect("the example's message")));

    // 2. The two are stuck in the table. The application pushes them again; a record that is done is skipped.
    assert!(application.has(8, GENERATING) && application.has(9, GENERATING));
    let answer = application.post("/regenerate", &json!({ "ids": [8, 9, 1] }));
    assert_eq!(answer, json!({ "SuccessCount": 2, "SkippedCount": 1 }));
    push(&mut bench, "{\"RecordId\":");
    push(&mut bench, "{\"RecordId\":99,\"RetryCount\":0,\"EnqueueTime\":\"2026-11-24T08:00:00Z\"}");

    // 3. tqhost takes over.
    let told = bench.tqhost(&["adopt", "reports", "--json"]).ok().json();
    let expected = [("dead-list", 1), ("list-items", 15), ("retry-count", 0)];
    assert_eq!((kinds(&told), &told["acted"]), (BTreeMap::from(expected), &json!(false)), "{told:#}");
    let adopted = bench.tqhost(&["adopt", "reports", "--yes", "--json"]).ok().json();
    assert_eq!((&adopted["acted"], &adopted["ok"]), (&json!(true), &json!(true)), "{adopted:#}");
    // The application is away for a while. The queue waits, and nothing is charged.
    let Application { process, address } = application;
    process.kill();
    let host = bench.host();
    eventually("the queue is held", || {
        let shown = bench.tqhost(&["queues", "reports", "--json"]).ok().json();
        (!shown["held"].is_null()).then_some(())
    });
    let application = Application::start(&bench, port_of(&address));
    eventually("all ends are told", || {
        let told = application.process.said("ended").len() == 3;
        let waits: u64 = bench.redis("EXISTS", LIST);
        let left = ["report:tasks", "report:ends"].map(|stream| bench.redis::<u64>("XLEN", stream));
        (told && (waits, left) == (0, [0, 0])).then_some(())
    });
    let twelve = (1..=3).map(|attempt| (12, attempt));
    let thirteen = (1..=4).map(|attempt| (13, attempt));
    let first = |record| (record, 1);
    let expected = [10, 11].map(first).into_iter().chain(twelve).chain(thirteen);
    let expected: Vec<_> = expected.chain((14..=20).map(first)).chain([8, 9].map(first)).collect();
    assert_eq!(application.attempts(), expected, "one at a time, in the order of the list");
    application.assert_all((1..=20).filter(|record| ![7, 13].contains(record)), GENERATED, 1);
    application.assert_all([7, 13], FAILED, 0);
    insta::assert_snapshot!(
        application.table()[&13]["error"],
        @r#""retry: the application failed (500): report 13 has no data""#
    );
    let status = bench.tqhost(&["status", "reports", "13", "--json"]).ok().json();
    assert_eq!((&status["status"], &status["attempt"]), (&json!("FAILED"), &json!(4)), "{status:#}");
    let mut reasons = application.process.said("reason");
    reasons.sort();
    assert_eq!(reasons, ["malformed", "rejected", "retries-exhausted"]);
    assert_eq!(bench.redis::<u64>("XLEN", DEAD), 4, "these, and the one that the old consumer buried");
    for queue in ["reports", "report-ends"] {
        bench.tqhost(&["doctor", queue]).ok();
    }

    // 4. An administrator asks for four records again, by their numbers. Two of them have failed.
    for record in [7, 13] {
        application.post("/change", &json!({ "id": record, "fails": 0 }));
    }
    let requeue = ["dead", "requeue", "reports", "7", "13", "1", "100", "--json"];
    let told = bench.tqhost(&requeue).ends_with(1).json();
    assert_eq!(told, json!({ "succeeded": 2, "skipped": 2 }));
    eventually("both are done", || [7, 13].iter().all(|one| application.has(*one, GENERATED)).then_some(()));
    let again: Vec<_> = application.attempts().split_off(expected.len());
    assert_eq!(again, [first(7), first(13)], "from the first attempt on");
    application.assert_all(1..=20, GENERATED, 1);
    host.stop();

    // 5. The team goes back while the application is away. A report waits for it, and the others for that
    // one.
    bench.configure(&configured(&bench, &application, "[\"1h\"]"));
    for record in 21..=25 {
        application.add(record, 0, 0);
    }
    let Application { process, address } = application;
    process.kill();
    let host = bench.host();
    eventually("all wait", || (bench.redis::<u64>("ZCARD", "tq:{report:tasks}:delayed") == 5).then_some(()));
    host.stop();
    let back = bench.tqhost(&["adopt", "reports", "--out", "--yes", "--json"]).ok().json();
    let found = kinds(&back);
    let counts = (found["delayed"], found["held"], found["dead"]);
    assert_eq!((&back["ok"], counts), (&json!(true), (1, 4, 2)), "{back:#}");
    assert_eq!(records(&items(&mut bench, LIST)), (21..=25).collect::<Vec<_>>());
    let application = Application::start(&bench, port_of(&address));
    let kept = format!("{DEAD}:tqhost");
    let _: () = bench.redis("RENAME", (DEAD, &kept));
    let old = start(&bench, "report_list.py", &[("DELAYS", "0.01,0.02,0.03")]);
    application.add(26, -1, 0);
    eventually("the old consumer goes on", || application.has(26, FAILED).then_some(()));
    old.kill();
    application.assert_all(1..=25, GENERATED, 1);
    application.assert_all([26], FAILED, 0);
    assert_eq!(records(&items(&mut bench, DEAD)), [26]);
    // The dead letters of tqhost can still be read.
    bench.configure(&configured(&bench, &application, "[\"1h\"]").replace(DEAD, &kept));
    let letters = bench.tqhost(&["dead", "list", "reports", "--json"]).ok().json();
    assert_eq!(letters["dead"].as_array().map(Vec::len), Some(2), "{letters:#}");
}
