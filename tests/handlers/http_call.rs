//! The handler `http-call`: a task is one request to the team's application, and its answer is the outcome.
//!
//! Not here: each status (the handler's own tests), applications that misbehave and hosts that are killed
//! (`http_call_faults`), the example in Java (`world::java`).

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::application::{Application, Reply, SECRET, plugin};
use crate::support::{Bench, Host, eventually, receiver};

/// A bench with the queue `work` of the plugin, for an application at this origin.
pub fn bench(origin: &str, rules: &str, settings: &str) -> Bench {
    let bench = Bench::new(&format!(
        "[queues.work]\nplugin = \"http-call\"\nbackoff = \"none\"\n{rules}\n{}",
        plugin(origin, settings)
    ));
    bench.install("http-call", "http-call");
    bench
}

/// Starts an application that answers as the task's field `answers` says: a list of status, headers and body,
/// one for each time that the task comes. The last one is for all later times.
fn as_told() -> Application {
    Application::start(|call| {
        let answers: Vec<(u16, String, String)> =
            serde_json::from_str(&call.field("answers")).expect("answers");
        let (status, headers, body) = &answers[call.before.min(answers.len() - 1)];
        Reply::page(*status, headers, body)
    })
}

#[test]
fn the_answer_is_the_outcome() {
    let application = as_told();
    let rules = "max_retries = 1\nmax_deferrals = 2";
    let mut bench = bench(&application.origin(), rules, "defer_status = \"409\"");
    let host = bench.host();
    let problem = "content-type: application/problem+json\r\n";
    let detail = r#"{"title": "no", "detail": "there is no session 7"}"#;
    let soon = "retry-after: 0\r\n";
    let elsewhere = "location: http://127.0.0.1:1/other\r\n";
    // The answers, the status, the reason of the dead letter or the result, what the error has, the calls.
    type Row<'t> = (Value, &'t str, &'t str, &'t str, usize);
    let table: [Row<'_>; 16] = [
        (json!([[200, "", "done"]]), "COMPLETED", "done", "", 1),
        (json!([[202, "", ""]]), "COMPLETED", "", "", 1),
        (json!([[204, "", ""]]), "COMPLETED", "", "", 1),
        (json!([[422, problem, detail]]), "FAILED", "rejected", "there is no session 7", 1),
        (json!([[400, problem, detail]]), "FAILED", "rejected", "there is no session 7", 1),
        (json!([[410, "", detail]]), "FAILED", "rejected", "rejects the task (410)", 1),
        (json!([[413, "", ""]]), "FAILED", "rejected", "rejects the task (413)", 1),
        (json!([[415, "", ""]]), "FAILED", "rejected", "rejects the task (415)", 1),
        (json!([[409, soon, ""], [409, soon, ""], [200, "", "late"]]), "COMPLETED", "late", "", 3),
        (json!([[409, soon, ""]]), "FAILED", "deferrals-exhausted", "defers the task (409)", 3),
        (json!([[500, "", ""], [200, "", "again"]]), "COMPLETED", "again", "", 2),
        (json!([[500, problem, detail]]), "FAILED", "retries-exhausted", "(500): there is no session 7", 2),
        (json!([[401, "", ""]]), "FAILED", "retries-exhausted", "look at `secret`", 2),
        (json!([[404, "", ""]]), "FAILED", "retries-exhausted", "look at `url`", 2),
        (json!([[429, soon, ""]]), "FAILED", "retries-exhausted", "fewer requests (429)", 2),
        (json!([[307, elsewhere, ""]]), "FAILED", "retries-exhausted", "to http://127.0.0.1:1/other", 2),
    ];
    let add = |row: &Row<'_>| bench.xadd("work", &[("answers", &row.0.to_string())]);
    let ids: Vec<String> = table.iter().map(add).collect();
    for ((answers, status, expected, error, calls), id) in table.iter().zip(&ids) {
        bench.until("work", id, status);
        let field = if *status == "COMPLETED" { "result" } else { "error" };
        let found = bench.status("work", id, field);
        match *status {
            "COMPLETED" => assert_eq!(found, *expected, "{answers}"),
            _ => assert!(found.contains(error), "{answers}: {found}"),
        }
        let made = application.calls_for(id);
        assert_eq!(made.len(), *calls, "{answers}");
        // Each delivery has a higher fence, and the same id.
        assert!(made.is_sorted_by(|a, b| a.fence() < b.fence()), "{made:?}");
        assert!(made.iter().all(|call| call.header("idempotency-key") == format!("work:{id}")), "{made:?}");
    }
    for letter in bench.dead("work") {
        let (.., reason, _, _) = table[ids.iter().position(|id| *id == letter["tq-id"]).expect("a task")];
        assert_eq!(letter["tq-reason"], reason, "{letter:?}");
    }
    assert_eq!(bench.places("work").dead as usize, table.iter().filter(|row| row.1 == "FAILED").count());
    host.stop();
}

#[test]
fn a_request_has_what_the_application_needs() {
    let application = Application::start(|_| Reply::page(200, "", ""));
    let mut bench = bench(&application.origin(), "", "");
    let host = bench.host();
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let mut added = redis::cmd("XADD");
    added.arg(&["work", "*", "traceparent", trace, "tq-id", "order.7", "text", "grüße"]);
    added.arg("raw").arg(b"\xff\x00").arg(&["tag", "a", "tag", "b"]);
    added.query::<String>(&mut bench.db).expect("XADD");
    bench.until("work", "order.7", "COMPLETED");
    let calls = application.calls();
    let [call] = &calls[..] else { panic!("{calls:?}") };
    for (name, value) in [
        ("webhook-id", "order%2E7"),
        ("idempotency-key", "work:order%2E7"),
        ("traceparent", trace),
        ("content-type", "application/json"),
        ("tqhost-queue", "work"),
        ("tqhost-attempt", "1"),
    ] {
        assert_eq!(call.header(name), value, "{call:?}");
    }
    assert!(call.header("webhook-signature").starts_with("v1,"), "{call:?}");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time").as_secs();
    let sent: u64 = call.header("webhook-timestamp").parse().expect("seconds");
    assert!(now.abs_diff(sent) < 60, "{sent} at {now}");
    let raw = json!({ "base64": "/wA=" });
    let fields = json!({ "traceparent": trace, "text": "grüße", "raw": raw, "tag": ["a", "b"] });
    let fence = call.fence();
    let expected =
        json!({ "id": "order.7", "queue": "work", "attempt": 1, "fence": fence, "fields": fields });
    assert_eq!(call.json(), expected);
    host.stop();
}

#[test]
fn one_field_is_sent_as_it_is() {
    let application = Application::start(|call| Reply::ok(&call.body.len().to_string()));
    let settings = "body = \"data\"\ncontent_type = \"image/png\"";
    let mut bench = bench(&application.origin(), "", settings);
    let host = bench.host();
    let id: String = bench.redis("XADD", ("work", "*", "other", "1", "data", b"\xff\x00{".as_slice()));
    let without = bench.xadd("work", &[("other", "1")]);
    bench.until("work", &id, "COMPLETED");
    bench.until("work", &without, "FAILED");
    assert_eq!(bench.status("work", &without, "error"), "field `data` is missing: it has other");
    let calls = application.calls();
    assert_eq!((calls.len(), &calls[0].body[..]), (1, b"\xff\x00{".as_slice()));
    assert_eq!(calls[0].header("content-type"), "image/png");
    host.stop();
}

#[test]
fn the_application_says_when_to_call_again() {
    let application = Application::start(|call| {
        let seconds = "retry-after: 1000\r\n";
        let date = "date: Tue, 28 Jul 2026 10:00:00 GMT\r\nretry-after: Tue, 28 Jul 2026 10:16:40 GMT\r\n";
        match call.field("n").as_str() {
            "seconds" => Reply::page(503, seconds, ""),
            "date" => Reply::page(500, date, ""),
            _ => Reply::page(409, seconds, ""),
        }
    });
    let queue = "[queues.work]\nplugin = \"http-call\"\n";
    let mut bench =
        Bench::new(&format!("{queue}{}", plugin(&application.origin(), "defer_status = \"409\"")));
    bench.install("http-call", "http-call");
    let host = bench.host();
    let before = now_ms(&mut bench);
    for kind in ["seconds", "date", "defer"] {
        bench.xadd("work", &[("n", kind)]);
    }
    eventually("all three wait", || (bench.places("work").delayed == 3).then_some(()));
    let after = now_ms(&mut bench);
    let due: Vec<(String, u64)> = bench.redis("ZRANGE", ("tq:{work}:delayed", 0, -1, "WITHSCORES"));
    for (member, due) in due {
        assert!((before + 1_000_000..=after + 1_000_000).contains(&due), "{member} is due at {due}");
    }
    host.stop();
}

fn now_ms(bench: &mut Bench) -> u64 {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut bench.db).expect("TIME");
    seconds * 1000 + micros / 1000
}

#[test]
fn tasks_share_a_connection() {
    let application = Application::start(|_| Reply::ok("done"));
    let mut bench = bench(&application.origin(), "concurrency = 1", "");
    let host = bench.host();
    let ids: Vec<String> = (0..30).map(|n| bench.xadd("work", &[("n", &n.to_string())])).collect();
    bench.all_done("work", &ids);
    assert_eq!((application.count(), application.connections()), (30, 1));
    host.stop();
}

#[test]
fn a_version_is_not_loaded_before_its_configuration_is_right() {
    let application = Application::start(|_| Reply::ok("done"));
    let origin = application.origin();
    let mut bench = bench(&origin, "", "");
    let text = std::fs::read_to_string(bench.config()).expect("the configuration");
    bench.configure(&text.replace(SECRET, "hunter2hunter2"));
    let host = bench.host();
    let id = bench.xadd("work", &[("n", "1")]);
    said(&host, "`secret` must be a secret such as");
    bench.configure(&text.replace(&format!("[\"{origin}\"]"), "[\"https://other.example.com\"]"));
    said(&host, &format!("`url` is not granted: add {origin} to allowed_hosts"));
    assert_eq!(application.count(), 0);
    assert_eq!(bench.places("work").length, 1, "the task waits");
    bench.configure(&text);
    bench.until("work", &id, "COMPLETED");
    assert!(!host.raw().contains("hunter2"), "no secret is logged");
    host.stop();
}

/// Waits for a log line that has this text in any of its values.
#[track_caller]
fn said(host: &Host, text: &str) {
    eventually(&format!("a line with {text:?} in\n{}", host.raw()), || {
        host.raw().contains(text).then_some(())
    });
}

#[test]
fn the_example_in_node_checks_signatures_and_works_once() {
    receiver::takes_tasks(|| {
        let mut command = Command::new("node");
        command.arg(receiver::example("node").join("receiver.mjs"));
        command
    });
}

/// The bytes as gzip compresses them.
fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut child = Command::new("gzip")
        .args(["-c", "-n"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start gzip");
    let mut stdin = child.stdin.take().expect("stdin");
    let plain = plain.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&plain).expect("write"));
    let output = child.wait_with_output().expect("gzip");
    writer.join().expect("all is written");
    output.stdout
}

#[test]
fn an_answer_that_is_compressed_all_the_same_is_read() {
    fn raw(status: u16, headers: &str, body: &[u8]) -> Reply {
        let head = format!("HTTP/1.1 {status} X\r\n{headers}content-length: {}\r\n\r\n", body.len());
        Reply::Raw([head.as_bytes(), body].concat())
    }
    const PLAIN: &str = "café und Kuchen";
    const BR: &[u8] = b"\x8b\x07\x80caf\xc3\xa9 und Kuchen\x03";
    const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd\x00\x58\x81\x00\x00caf\xc3\xa9 und Kuchen";
    let application = Application::start(|call| match call.field("answer").as_str() {
        "gzip" => raw(200, "content-encoding: gzip\r\n", &gzip(PLAIN.as_bytes())),
        "br" => raw(200, "content-encoding: br\r\n", BR),
        "zstd" => raw(200, "content-encoding: zstd\r\n", ZSTD),
        "latin" => raw(200, "content-type: text/plain; charset=iso-8859-1\r\n", b"caf\xe9 und Kuchen"),
        "words" => {
            let words = br#"{"detail":[{"loc":["body","age"],"msg":"Input should be a number"}]}"#;
            raw(422, "content-type: application/json\r\ncontent-encoding: gzip\r\n", &gzip(words))
        }
        "bomb" => raw(200, "content-encoding: gzip\r\n", &gzip(&vec![b'0'; 64 << 20])),
        _ => raw(200, "content-encoding: compress\r\n", b"?"),
    });
    let mut bench = bench(&application.origin(), "max_retries = 0", "");
    let host = bench.host();
    for answer in ["gzip", "br", "zstd", "latin"] {
        let id = bench.xadd("work", &[("answer", answer)]);
        bench.until("work", &id, "COMPLETED");
        assert_eq!(bench.status("work", &id, "result"), PLAIN, "{answer}");
        assert_eq!(application.calls_for(&id)[0].header("accept-encoding"), "identity");
    }
    for (answer, error) in [
        ("words", "body.age: Input should be a number"),
        ("bomb", "more than 16 MiB without its coding `gzip`"),
        ("other", "the answer is coded as `compress`"),
    ] {
        let id = bench.xadd("work", &[("answer", answer)]);
        bench.until("work", &id, "FAILED");
        let found = bench.status("work", &id, "error");
        assert!(found.contains(error), "{answer}: {found}");
    }
    host.stop();
}
