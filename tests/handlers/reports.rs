//! The report pipeline: `report-plan` starts a task for each table, `report-query` fetches them, and
//! `report-assemble` joins them to a file.
//!
//! Not here: each format and each answer of a source (the handlers' own tests).

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::{Value, json};

use crate::support::{Bench, Host, eventually};

/// Starts the sources of a report, and gives their origin and the requests for `/late`. `/late` is not ready
/// for the first `late` requests.
fn sources(late: usize) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let origin = format!("http://{}", listener.local_addr().expect("an address"));
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    thread::spawn(move || {
        for mut tcp in listener.incoming().map_while(Result::ok) {
            let head = BufReader::new(&tcp).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
            let first = head.collect::<Vec<_>>().swap_remove(0);
            let (status, kind, body) = match first.split(' ').nth(1) {
                Some("/orders") => ("200 OK", "text/csv", "id,sum\r\n1,10\r\n2,20\r\n"),
                Some("/users") => ("200 OK", "application/json", r#"[{"id": 2, "name": "Ada, née"}]"#),
                Some("/late") if count.fetch_add(1, Ordering::SeqCst) >= late => {
                    ("200 OK", "application/json", r#"{"rows": [{"id": 1, "paid": true}]}"#)
                }
                _ => ("404 Not Found", "text/plain", ""),
            };
            let length = body.len();
            let head = format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}");
            // An error ends the connection; the handler then fails the test.
            let _ = write!(tcp, "{head}\r\nconnection: close\r\n\r\n{body}");
        }
    });
    (origin, asked)
}

fn start(origin: &str) -> (Bench, Host) {
    let bench = Bench::new(&format!(
        "[defaults]\nmax_retries = 0\n\
         [queues.report-plan]\nenqueue_to = [\"report-query\", \"report-assemble\"]\n\
         [queues.report-query]\nmax_deferrals = 6\n\
         [queues.report-assemble]\non_end = {{ dead = \"report-ends\", cancelled = \"report-ends\" }}\n\
         [queues.report-ends]\nplugin = \"report-assemble\"\n\
         [plugins.report-plan]\nrecords = [\"report:{{report}}:*\"]\n\
         [plugins.report-assemble]\nrecords = [\"report:{{report}}:*\"]\n\
         [plugins.report-query]\nallowed_hosts = [\"{origin}\"]\nconfig = {{ defer_seconds = \"0\" }}\n"
    ));
    for handler in ["report-plan", "report-query", "report-assemble"] {
        bench.install(handler, handler);
    }
    let host = bench.host();
    (bench, host)
}

/// Enqueues a report of these tables, and gives the id of the task that joins them.
fn report(bench: &mut Bench, origin: &str, id: &str, tables: &[&str]) -> String {
    let source = |name: &&str| json!({ "name": name, "url": format!("{origin}/{name}") });
    let tables = Value::from_iter(tables.iter().map(source)).to_string();
    let task = bench.xadd("report-plan", &[("reportId", id), ("tables", &tables), ("key", "id")]);
    bench.until("report-plan", &task, "COMPLETED");
    let plan: Value = serde_json::from_str(&bench.status("report-plan", &task, "result")).expect("JSON");
    plan["assemble"].as_str().expect("an id").to_owned()
}

fn until_status(bench: &mut Bench, id: &str, status: &str) {
    let key = format!("report:{{report}}:{id}");
    eventually(&format!("report {id} is {status}"), || {
        let found: Option<String> = bench.redis("HGET", (&key, "status"));
        (found.as_deref() == Some(status)).then_some(())
    });
}

/// The content of the file that a report's record names.
fn file(bench: &mut Bench, id: &str) -> String {
    let url: String = bench.redis("HGET", (format!("report:{{report}}:{id}"), "url"));
    let path = url.strip_prefix("file://").unwrap_or_else(|| panic!("{url}"));
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn tables_from_several_sources_become_one_file_when_the_last_one_is_ready() {
    let (origin, asked) = sources(6);
    let (mut bench, host) = start(&origin);
    let assemble = report(&mut bench, &origin, "7", &["orders", "users", "late"]);
    until_status(&mut bench, "7", "COMPLETED");
    assert_eq!(file(&mut bench, "7"), "id,sum,name,paid\r\n1,10,,true\r\n2,20,\"Ada, née\",\r\n");
    let result: Value =
        serde_json::from_str(&bench.status("report-assemble", &assemble, "result")).expect("JSON");
    let url: String = bench.redis("HGET", ("report:{report}:7", "url"));
    assert!(url.ends_with(&format!("/.tqhost/blobs/report-assemble/7/{assemble}.csv")), "{url}");
    assert_eq!((&result["url"], &result["rows"], &result["reportId"]), (&json!(url), &json!(2), &json!("7")));
    assert_eq!(asked.load(Ordering::SeqCst), 7, "six deferrals, and the table");
    let rows: String = bench.redis("HGET", ("report:{report}:7", "rows"));
    assert_eq!((rows.as_str(), bench.dead("report-query").len()), ("2", 0));
    host.stop();
}

#[test]
fn a_source_that_stays_away_fails_the_report_until_it_is_there() {
    let (origin, asked) = sources(7);
    let (mut bench, host) = start(&origin);
    report(&mut bench, &origin, "8", &["orders", "late"]);
    until_status(&mut bench, "8", "FAILED");
    assert_eq!(asked.load(Ordering::SeqCst), 7);
    let child = bench.dead("report-query").remove(0);
    assert_eq!(child["tq-reason"], "deferrals-exhausted");
    let error: String = bench.redis("HGET", ("report:{report}:8", "error"));
    insta::assert_snapshot!(error.replace(&child["tq-id"], "ID"), @r"
    flow-failed: child ID: the source of the table `late` is not ready (404)
    ");
    bench.tqhost(&["dead", "requeue", "report-query", &child["tq-id"]]).ok();
    until_status(&mut bench, "8", "COMPLETED");
    assert_eq!(file(&mut bench, "8"), "id,sum,paid\r\n1,10,true\r\n2,20,\r\n");
    host.stop();
}

#[test]
fn a_table_that_another_program_has_put_into_the_store_is_read_from_there() {
    let (origin, _) = sources(0);
    let (mut bench, host) = start(&origin);
    let tables = json!([{ "name": "orders", "url": format!("{origin}/orders") },
        { "name": "cities", "url": "blob:2026-11/cities.csv" }]);
    let fields = [("reportId", "9"), ("tables", &*tables.to_string()), ("key", "id")];
    let folder = bench.dir.path().join(".tqhost/blobs/report-query/2026-11");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("cities.csv"), "id,city\n1,Bonn\n").expect("a file");
    bench.xadd("report-plan", &fields);
    until_status(&mut bench, "9", "COMPLETED");
    assert_eq!(file(&mut bench, "9"), "id,sum,city\r\n1,10,Bonn\r\n2,20,\r\n");
    host.stop();
}
