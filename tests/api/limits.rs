//! The limits on requests: what is beyond one gets the answer of docs/api.md, and changes nothing.
//!
//! Not here: the number of streams (`events`), values out of their range (`bad_requests`), the number of
//! connections (`admin` in the crate).

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use super::{ask, good, post, post_with, problem};
use crate::support::dead_letters::add_dead;
use crate::support::http::Response;
use crate::support::{Bench, Host, eventually};

const TASKS: &str = "/v1/queues/work/tasks";

fn host() -> (Bench, Host) {
    let bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    let host = bench.host();
    (bench, host)
}

/// Sends these bytes on a new connection.
fn begin(host: &Host, bytes: &str) -> TcpStream {
    let mut stream = TcpStream::connect(host.admin()).expect("connect");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("set a time-out");
    // The host may refuse the request before it has read all of it.
    let _ = stream.write_all(bytes.as_bytes());
    stream
}

/// The answer. The host may close a connection of which it has not read all.
fn answer(mut stream: TcpStream) -> Response {
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    while let Ok(read @ 1..) = stream.read(&mut piece) {
        bytes.extend_from_slice(&piece[..read]);
    }
    let text = String::from_utf8(bytes).expect("text");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    Response { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
}

const BODY: &str = "{\"fields\": {\"a\": \"1\"}}";

/// A request to enqueue a task, without the last byte of its body.
fn unfinished(host: &Host) -> TcpStream {
    let (address, length, body) = (host.admin(), BODY.len(), &BODY[..BODY.len() - 1]);
    begin(
        host,
        &format!(
            "POST {TASKS} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        ),
    )
}

#[test]
fn sixteen_requests_are_answered_at_once_and_the_next_one_is_refused() {
    let (mut bench, host) = host();
    let open: Vec<TcpStream> = (0..40).map(|_| unfinished(&host)).collect();
    let has_answer = |stream: &TcpStream| {
        stream.set_nonblocking(true).expect("ask without waiting");
        let has = stream.peek(&mut [0]).is_ok();
        stream.set_nonblocking(false).expect("wait again");
        has
    };
    eventually("all but 16 are refused", || {
        (open.iter().filter(|stream| has_answer(stream)).count() == 24).then_some(())
    });
    let (refused, waiting): (Vec<_>, Vec<_>) = open.into_iter().partition(has_answer);
    for refused in refused.into_iter().map(answer).chain([ask(&host, "GET", "/v1/queues")]) {
        problem(&refused, 503, "busy");
        assert_eq!(refused.header("retry-after"), Some("1"));
    }
    assert_eq!(host.get("/livez").status, 200, "health needs no place");
    for mut stream in waiting {
        stream.write_all(b"}").expect("write");
        good(&answer(stream), 202);
    }
    assert_eq!(bench.redis::<u64>("XLEN", "work"), 16);
    good(&ask(&host, "GET", "/v1/queues"), 200);
    host.stop();
}

#[test]
fn a_request_that_takes_too_long_is_ended_and_changes_nothing() {
    let (mut bench, host) = host();
    let late = answer(unfinished(&host));
    insta::assert_snapshot!(
        problem(&late, 503, "timed-out"),
        @"there was no answer within 25 s; what it did so far stays"
    );
    assert_eq!(late.header("retry-after"), Some("2"));
    assert_eq!(bench.redis::<u64>("XLEN", "work"), 0);
    host.stop();
}

#[test]
fn a_head_has_its_limits() {
    let (_bench, host) = host();
    let get = |path: &str, headers: &str| {
        let line = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", host.admin());
        answer(begin(&host, &format!("{line}{headers}\r\n")))
    };
    let long = "a".repeat(60_000);
    problem(&get(&format!("/v1/queues/{long}"), ""), 404, "unknown-queue");
    problem(&get(&format!("{TASKS}/{long}"), ""), 404, "unknown-task");
    let list = good(&get(&format!("{TASKS}?state=queued&text={long}"), ""), 200);
    assert_eq!(list["tasks"], json!([]));
    assert_eq!(get(&format!("/v1/queues/{}", "a".repeat(66_000)), "").status, 414);
    good(&get("/v1/queues", &format!("x-long: {}\r\n", "a".repeat(300_000))), 200);
    assert_eq!(get("/v1/queues", &format!("x-long: {}\r\n", "a".repeat(600_000))).status, 431);
    let many = |count: usize| -> String { (0..count).map(|n| format!("x-{n}: 1\r\n")).collect() };
    good(&get("/v1/queues", &many(90)), 200);
    assert_eq!(get("/v1/queues", &many(110)).status, 431);
    host.stop();
}

#[test]
fn a_key_and_ids_have_their_limits() {
    let (mut bench, host) = host();
    let body = json!({ "fields": { "a": "1" } });
    let with = |keys: &[&str]| {
        let headers: Vec<_> = keys.iter().map(|key| ("idempotency-key", *key)).collect();
        post_with(&host, TASKS, &body, &headers)
    };
    // A long key is kept as its hash.
    let long = "k".repeat(100_000);
    good(&with(&[&long]), 202);
    assert_eq!(good(&with(&[&long]), 200)["duplicate"], true);
    let keys: Vec<String> = bench.redis("KEYS", "*:key:*");
    assert!(keys.len() == 1 && keys[0].len() < 100, "{keys:?}");
    let told = [&[""][..], &["a", "b"], &["a", "a"]].map(|keys| problem(&with(keys), 422, "invalid"));
    insta::assert_snapshot!(told.join("\n"), @"
    an idempotency key has at least one byte, this one is empty
    Idempotency-Key: it is there more than once
    Idempotency-Key: it is there more than once
    ");
    assert_eq!(bench.redis::<u64>("XLEN", "work"), 1);

    let ids = |count: usize| json!({ "ids": (0..count).map(|n| n.to_string()).collect::<Vec<_>>() });
    let cancel = format!("{TASKS}/cancel");
    assert_eq!(good(&post(&host, &cancel, &ids(1000)), 200)["skipped"], 1000);
    problem(&post(&host, &cancel, &ids(1001)), 422, "invalid");
    // The audit is written with bounds, whatever was sent.
    let id = "i".repeat(100_000);
    let text = json!({ "all": true, "text": id });
    assert_eq!(good(&post(&host, &cancel, &json!({ "ids": [id] })), 200)["skipped"], 1);
    assert!(problem(&post(&host, &cancel, &text), 422, "invalid").contains("8192 bytes"));
    problem(&ask(&host, "DELETE", &format!("{TASKS}/{}", "i".repeat(60_000))), 404, "unknown-task");
    let log = host.stop_for_log();
    let lines = log.logged("audit: a change was asked for");
    assert!(lines.len() == 10 && lines.iter().all(|line| line.to_string().len() < 4_000), "{lines:#?}");
}

#[test]
fn a_filter_by_text_says_how_far_it_came() {
    const ALL: usize = 6_000;
    let (mut bench, host) = host();
    let mut pipe = redis::pipe();
    for n in 0..ALL {
        pipe.cmd("XADD").arg(&["work", "*", "n"]).arg(n).ignore();
    }
    pipe.query::<()>(&mut bench.db).expect("add tasks");
    add_dead(&mut bench, 0..ALL);
    for path in [
        format!("{TASKS}?state=queued&text=nothing+like+this"),
        "/v1/queues/work/dead?text=nothing+like+this".to_owned(),
        "/v1/queues/work/dead/groups?text=nothing+like+this".to_owned(),
    ] {
        let first = good(&ask(&host, "GET", &path), 200);
        let looked_at = first["examined"].as_u64().expect("a count");
        assert!((1..=5_200).contains(&looked_at), "{path}: {first}");
        let next = first["next"].as_str().expect("a cursor");
        let rest = good(&ask(&host, "GET", &format!("{path}&cursor={next}")), 200);
        let sum = looked_at + rest["examined"].as_u64().expect("a count");
        assert_eq!((sum, &rest["next"]), (ALL as u64, &Value::Null), "{path}: {rest}");
    }
    host.stop();
}

#[test]
fn a_list_with_fields_ends_after_some_mebibytes() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    // The disk is no part of this.
    let _: String = bench.redis("CONFIG", ("SET", "appendonly", "no"));
    let [small, large] = [1, 5 << 20].map(|bytes| "x".repeat(bytes));
    // One with more than an answer may have comes alone.
    for more in [&large, &large, &"x".repeat(9 << 20), &small] {
        bench.xadd("work", &[("more", more)]);
    }
    for more in [&small, &large, &large] {
        let letter = ["more", more, "tq-id", "d", "tq-queue", "work", "tq-reason", "rejected"];
        let _: String = bench.redis("XADD", ("tq:{work}:dead", "*", &letter[..]));
    }
    let host = bench.host();
    for (path, list, sizes) in [
        ("/v1/queues/work/tasks?state=queued&fields=true", "tasks", &[2, 1, 1][..]),
        ("/v1/queues/work/dead?fields=true", "dead", &[2, 1]),
        ("/v1/queues/work/tasks?state=queued&fields=false", "tasks", &[4]),
    ] {
        let (mut found, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = good(&ask(&host, "GET", &format!("{path}{cursor}")), 200);
            found.push(page[list].as_array().expect("a list").len());
            let Some(next) = page["next"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        // A list that ends with its last task may have an empty page behind it.
        found.retain(|tasks| *tasks > 0);
        assert_eq!(found, sizes, "{path}");
    }
    host.stop();
}
