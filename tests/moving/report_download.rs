//! `examples/4-report-download`: reports in stages, whose old consumer takes messages from another broker and
//! keeps the lists of a job in a hash of Redis. What it left half done is started again as a flow.
//!
//! Not here: each answer of a source, and the join (`handlers::reports`), flows under faults (`effects`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::report_list::kinds;
use super::{OldConsumer, configuration};
use crate::support::application::{Application, Reply};
use crate::support::words::masked;
use crate::support::{Bench, eventually};

const BROKER: &str = "broker:download";
const EXAMPLE: &str = include_str!("../../examples/4-report-download/tqhost.toml");
const TABLES: &str = include_str!("../../examples/4-report-download/tables.json");
const QUEUES: [&str; 4] = ["report-plan", "report-query", "report-assemble", "report-ends"];
const USERS: &str = "id,sum,name\r\n1,10,\r\n2,20,Ada\r\n";

/// A team with an application that has the tables, and a Redis.
struct Team {
    bench: Bench,
    application: Application,
    pages: Arc<Mutex<BTreeMap<String, Page>>>,
}

/// A table that is not as it should be.
enum Page {
    /// So many requests find it not ready.
    Late(usize),
    /// Requests get no answer.
    Silent,
}

impl Team {
    /// `defer_seconds` stands in place of the example's minute.
    fn new(defer_seconds: &str) -> Team {
        let pages: Arc<Mutex<BTreeMap<String, Page>>> = Arc::default();
        let known = pages.clone();
        let application = Application::start(move |call| {
            let name = call.path().strip_prefix("/tables/").unwrap_or_default();
            match known.lock().expect("the pages").get_mut(name) {
                Some(Page::Silent) => return Reply::Silence,
                Some(Page::Late(left)) if *left > 0 => {
                    *left -= 1;
                    return Reply::page(404, "", "");
                }
                _ => {}
            }
            let csv = "content-type: text/csv\r\n";
            match name {
                "orders" => Reply::page(200, csv, "id,sum\r\n1,10\r\n2,20\r\n"),
                "users" => {
                    let json = "content-type: application/json\r\n";
                    Reply::page(200, json, r#"[{"id": 2, "name": "Ada"}]"#)
                }
                other => Reply::page(200, csv, &format!("id,{other}\r\n1,{other} of 1\r\n")),
            }
        });
        let bench = Bench::new("[queues.report-plan]\n");
        let changes = [
            ("http://127.0.0.1:3000", &*application.origin()),
            ("defer_seconds = \"60\"", &format!("defer_seconds = \"{defer_seconds}\"")),
        ];
        bench.configure(&configuration(EXAMPLE, &bench, &changes));
        for handler in ["report-plan", "report-query", "report-assemble"] {
            bench.install(handler, handler);
        }
        Team { bench, application, pages }
    }

    /// From now on a table is as this page says. None: as it should be.
    fn turn(&self, table: &str, page: Option<Page>) {
        let mut pages = self.pages.lock().expect("the pages");
        match page {
            Some(page) => pages.insert(table.to_owned(), page),
            None => pages.remove(table),
        };
    }

    /// How often a table was asked for.
    fn asked(&self, table: &str) -> usize {
        let path = format!("/tables/{table}");
        self.application.calls().iter().filter(|call| call.path() == path).count()
    }

    /// The tables of a report, in the form of the example.
    fn tables(&self, names: &[&str]) -> Value {
        let url = |name: &str| format!("{}/tables/{name}", self.application.origin());
        Value::from_iter(names.iter().map(|name| json!({ "name": name, "url": url(name) })))
    }

    /// Starts the old consumer, which asks for a table that is not ready again after so many seconds.
    fn old(&self, defer_seconds: &str) -> OldConsumer {
        let folder = self.bench.dir.path().to_str().expect("UTF-8");
        let env = [("DEFER_SECONDS", defer_seconds)];
        OldConsumer::start("report_download.py", self.bench.redis.port, folder, &env)
    }

    /// Adds a record and publishes its message, as the application did.
    fn publish(&mut self, record: &str, names: &[&str]) {
        let mut tables = self.tables(names);
        for table in tables.as_array_mut().expect("a list") {
            // The tables of the second stage.
            table["sub"] = json!(table["name"].as_str().is_some_and(|name| name.starts_with("sub-")));
        }
        let message =
            json!({ "stage": "plan", "record": record, "tables": tables, "key": "id", "deferrals": 0 });
        let _: u64 = self.bench.redis("HSET", (format!("download:record:{record}"), "status", "PENDING"));
        let _: u64 = self.bench.redis("ZADD", (BROKER, 0, message.to_string()));
    }

    /// Starts a report as the application does now.
    fn add(&mut self, record: &str, tables: &str) {
        self.bench.xadd("download:plan", &[("reportId", record), ("key", "id"), ("tables", tables)]);
    }

    /// A field of a record; empty if it is not there.
    fn record(&mut self, record: &str, field: &str) -> String {
        let value: Option<String> = self.bench.redis("HGET", (format!("download:record:{record}"), field));
        value.unwrap_or_default()
    }

    #[track_caller]
    fn until(&mut self, record: &str, status: &str) {
        eventually(&format!("record {record} is {status}"), || {
            (self.record(record, "status") == status).then_some(())
        });
    }

    /// The content of the file that a record names.
    #[track_caller]
    fn file(&mut self, record: &str) -> String {
        let url = self.record(record, "url");
        let path = url.strip_prefix("file://").unwrap_or_else(|| panic!("record {record}: {url:?}"));
        std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// The records with one of these statuses.
    fn records(&mut self, statuses: &[&str]) -> Vec<String> {
        let keys: BTreeSet<String> = self.bench.redis("KEYS", "download:record:*");
        let numbers = keys.iter().filter_map(|key| key.strip_prefix("download:record:"));
        numbers.filter(|one| statuses.contains(&&*self.record(one, "status"))).map(str::to_owned).collect()
    }
}

#[test]
fn jobs_that_were_half_done_are_started_again_and_each_has_one_end() {
    let mut team = Team::new("0");
    let example: Value = serde_json::from_str(TABLES).expect("the example's tables");
    let ours = team.tables(&["orders", "users"]).to_string();
    assert_eq!(example.to_string(), ours.replace(&team.application.origin(), "http://127.0.0.1:3000"));

    // 1. The old consumer works: it makes one report, and another one fails, whose table is never ready.
    team.turn("never", Some(Page::Late(usize::MAX)));
    let old = team.old("0.01");
    team.publish("1", &["orders", "users"]);
    team.publish("2", &["orders", "never"]);
    team.until("1", "COMPLETED");
    team.until("2", "FAILED");
    // Its status is written before its message is acknowledged. One that is not would be taken again.
    eventually("both are acknowledged", || (team.bench.redis::<u64>("ZCARD", BROKER) == 0).then_some(()));
    assert_eq!((team.file("1").as_str(), team.asked("never")), (USERS, 7));
    old.kill();
    // It is killed while a job waits for a table, and in the middle of another one. Two have not begun.
    team.turn("late", Some(Page::Late(usize::MAX)));
    team.turn("slow", Some(Page::Silent));
    let old = team.old("3600");
    team.publish("3", &["orders", "late"]);
    eventually("the job waits", || (old.said("deferred") == ["3"]).then_some(()));
    old.kill();
    let old = team.old("3600");
    team.publish("4", &["orders", "slow"]);
    eventually("it is in the middle of one", || (team.asked("slow") == 1).then_some(()));
    team.publish("5", &["orders", "users"]);
    team.publish("6", &["orders", "sub-refunds"]);
    old.kill();
    let messages: Vec<String> = team.bench.redis("ZRANGE", (BROKER, 0, -1));
    let record = |message: &String| {
        let message: Value = serde_json::from_str(message).expect("a message");
        message["record"].as_str().expect("a record").to_owned()
    };
    let left = team.records(&["PENDING", "GENERATING"]);
    assert_eq!(left, ["3", "4", "5", "6"]);
    assert_eq!(messages.iter().map(record).collect::<BTreeSet<_>>(), left.iter().cloned().collect());
    let seconds: i64 = team.bench.redis("TTL", "download:job:3");
    let done: String = team.bench.redis("HGET", ("download:job:3", "queryDoneCount"));
    assert!((1..=600).contains(&seconds) && done == "1", "{seconds} {done}");

    // 2. Its messages are purged, and a line for each record that has not ended goes to tqhost.
    let _: u64 = team.bench.redis("DEL", BROKER);
    for queue in QUEUES {
        let adopted = team.bench.tqhost(&["adopt", queue, "--yes", "--json"]).ok().json();
        assert_eq!((&adopted["found"], &adopted["ok"]), (&json!([]), &json!(true)), "{adopted:#}");
    }
    team.turn("late", Some(Page::Late(3)));
    team.turn("slow", None);
    let of = |record: &str| match record {
        "3" => team.tables(&["orders", "late"]),
        "4" => team.tables(&["orders", "slow"]),
        "5" => team.tables(&["orders", "users"]),
        _ => team.tables(&["orders", "sub-refunds"]),
    };
    let line =
        |record: &String| format!("{}\n", json!({ "reportId": record, "key": "id", "tables": of(record) }));
    let jobs = team.bench.dir.path().join("jobs.jsonl");
    std::fs::write(&jobs, left.iter().map(line).collect::<String>()).expect("write the jobs");
    let enqueue = ["enqueue", "report-plan", "--jsonl", jobs.to_str().expect("UTF-8")];
    team.bench.tqhost(&enqueue).ok();
    let tables = team.tables(&["orders", "never"]).to_string();
    team.add("7", &tables);
    team.add("8", "[{]");
    let host = team.bench.host();
    for record in &left {
        team.until(record, "COMPLETED");
    }
    team.until("7", "FAILED");
    team.until("8", "FAILED");

    // 3. The counts: each record has one end, and shows why it failed.
    host.until_ended_as("report-assemble", "completed", 4);
    assert_eq!(team.records(&["COMPLETED"]), ["1", "3", "4", "5", "6"]);
    assert_eq!(team.records(&["FAILED"]), ["2", "7", "8"]);
    assert_eq!(team.file("5"), USERS, "the same file as the old consumer's");
    assert_eq!(team.file("3"), "id,sum,late\r\n1,10,late of 1\r\n2,20,\r\n");
    assert_eq!(team.file("6"), "id,sum,sub-refunds\r\n1,10,sub-refunds of 1\r\n2,20,\r\n");
    assert_eq!(team.asked("never"), 7 + 7, "six deferrals");
    insta::assert_snapshot!(
        masked(&team.record("7", "error"), &[]),
        @"flow-failed: child ID: the source of the table `never` is not ready (404)"
    );
    insta::assert_snapshot!(
        team.record("8", "error"),
        @"rejected: field `tables` is not JSON: the syntax is wrong, at line 1 column 3"
    );
    assert!(team.bench.redis::<bool>("EXISTS", "download:job:3"), "tqhost leaves old jobs alone");
    for queue in QUEUES {
        team.bench.tqhost(&["doctor", queue]).ok();
    }

    // 4. The table is there. Its report goes on, and the one that failed in the old days begins anew.
    team.turn("never", None);
    let requeue = ["dead", "requeue", "report-query", "--all", "--json"];
    assert_eq!(team.bench.tqhost(&requeue).ok().json(), json!({ "succeeded": 1, "skipped": 0 }));
    team.add("2", &tables);
    for record in ["7", "2"] {
        team.until(record, "COMPLETED");
        assert_eq!(team.file(record), "id,sum,never\r\n1,10,never of 1\r\n2,20,\r\n");
    }
    for queue in ["plan", "query", "assemble", "ends"] {
        let stream = format!("download:{queue}");
        eventually("all is settled", || (team.bench.redis::<u64>("XLEN", &stream) == 0).then_some(()));
    }
    host.stop();

    // 5. The way back: what waits is published to the broker again, and the old consumer goes on.
    let tables = team.tables(&["orders", "users"]).to_string();
    team.add("9", &tables);
    for queue in QUEUES {
        let back = team.bench.tqhost(&["adopt", queue, "--out", "--yes", "--json"]).ok().json();
        let found = kinds(&back);
        let waits = (queue == "report-plan").then_some(&1);
        assert_eq!((found.get("waiting"), found.get("flow")), (waits, None), "{back:#}");
    }
    let waiting: Vec<(String, BTreeMap<String, String>)> =
        team.bench.redis("XRANGE", ("download:plan", "-", "+"));
    let waiting: Vec<&str> = waiting.iter().map(|(_, fields)| &*fields["reportId"]).collect();
    assert_eq!(waiting, ["9"]);
    let _: u64 = team.bench.redis("DEL", "download:plan");
    team.publish("9", &["orders", "users"]);
    let old = team.old("60");
    team.until("9", "COMPLETED");
    assert_eq!(team.file("9"), USERS);
    old.kill();
    assert_eq!(team.records(&["FAILED", "PENDING", "GENERATING"]), ["8"]);
}

#[test]
fn a_table_that_is_late_is_asked_for_six_times_more_a_minute_apart() {
    let mut team = Team::new("60");
    team.turn("late", Some(Page::Late(usize::MAX)));
    let tables = team.tables(&["orders", "late"]).to_string();
    let now = |bench: &mut Bench| {
        let (seconds, micros): (u64, u64) = bench.redis("TIME", &[""; 0]);
        seconds * 1000 + micros / 1000
    };
    let mut host = team.bench.host();
    let mut before = now(&mut team.bench);
    team.add("1", &tables);
    let delayed = "tq:{download:query}:delayed";
    for deferral in 1..=6 {
        let (member, due) = eventually("the table is asked for later", || {
            let found: Vec<(String, u64)> = team.bench.redis("ZRANGE", (delayed, 0, -1, "WITHSCORES"));
            found.into_iter().find(|(_, due)| *due > before)
        });
        let latest = now(&mut team.bench) + 60_000;
        assert!((before + 60_000..=latest).contains(&due), "deferral {deferral}: {due}, after {before}");
        assert_eq!(team.asked("late"), deferral);
        if deferral == 1 {
            // Without a host, what is left of the flow stays, also if somebody asks to go back.
            host.stop();
            let back = team.bench.tqhost(&["adopt", "report-query", "--out", "--yes", "--json"]).ok().json();
            assert_eq!(kinds(&back).get("flow"), Some(&1), "{back:#}");
            host = team.bench.host();
        }
        // The minute is over.
        before = now(&mut team.bench);
        let _: i64 = team.bench.redis("ZADD", (delayed, "XX", 1, member));
    }
    team.until("1", "FAILED");
    assert_eq!(team.asked("late"), 7);
    insta::assert_snapshot!(
        masked(&team.record("1", "error"), &[]),
        @"flow-failed: child ID: the source of the table `late` is not ready (404)"
    );
    // Somebody gives another one up.
    team.add("2", &tables);
    team.until("2", "GENERATING");
    let assemble = team.record("2", "assemble");
    team.bench.tqhost(&["cancel", "report-assemble", &assemble]).ok();
    team.until("2", "CANCELLED");
    host.stop();
}
