//! The guest in Go, which is a core module of wasip1 without a component type: what a panic tells, requests,
//! effects, and what instances keep.
//!
//! Not here: projects of `tqhost new` (`authors`, `everyday`), how a module gets its type (unit tests of the
//! sandbox).

use std::net::TcpListener;

use serde_json::{Value, json};

use super::authors::{NAME, cache_of, make, new_project, tried_with};
use super::languages::{host, result, understands_retry_after};
use crate::support::application::{Application, Reply};
use crate::support::{Bench, Web, eventually};

fn seen(bench: &mut Bench, fields: &[(&str, &str)]) -> Value {
    let id = bench.xadd("go", fields);
    serde_json::from_str(&result(bench, "go", &id)).expect("JSON")
}

fn failed(bench: &mut Bench, fields: &[(&str, &str)]) -> String {
    let id = bench.xadd("go", fields);
    bench.until("go", &id, "FAILED");
    bench.dead("go").last().expect("a dead letter")["tq-error"].clone()
}

#[test]
fn a_panic_in_go_tells_its_text_and_its_places() {
    let (mut bench, host) = host(&["in-go"], "");
    let trap = "trap: ";
    for (end, what) in [
        (
            "throw",
            "panic: runtime error: index out of range [3] with length 0 at guest/handler.go:82 in \
             main.(*shelf).take at guest/handler.go:84 in main.explode at guest/handler.go:",
        ),
        ("caused", "panic: it was not there: boom in Go"),
        ("stuck", "fatal error: all goroutines are asleep - deadlock! at guest/handler.go:"),
    ] {
        let error = failed(&mut bench, &[("end", end)]);
        assert!(error.strip_prefix(trap).is_some_and(|error| error.starts_with(what)), "{end}: {error}");
        host.log(&what[..what.len().min(40)]);
    }
    for (end, what) in
        [("recursion", "call stack exhausted"), ("exit", "the handler called exit(1) instead of returning")]
    {
        let error = failed(&mut bench, &[("end", end)]);
        assert!(error.starts_with("trap: ") && error.contains(what), "{end}: {error}");
    }
    assert_eq!(failed(&mut bench, &[("end", "reject")]), "as told");
    assert_eq!(failed(&mut bench, &[("end", "retry")]), "retry: as told");
    let id = bench.xadd("go", &[("end", "defer")]);
    eventually("it is deferred", || (bench.places("go").delayed == 1).then_some(()));
    assert_eq!(bench.status("go", &id, "error"), "as told");
    let id = bench.xadd("go", &[("end", "none")]);
    assert_eq!(result(&mut bench, "go", &id), "");
    host.stop();
}

#[test]
fn a_handler_in_go_prints_waits_and_has_effects_and_blobs() {
    let (mut bench, host) = host(&["in-go"], "[plugins.in-go]\nrecords = [\"kb:*\"]\n");
    let id = bench.xadd("go", &[("a", "1")]);
    result(&mut bench, "go", &id);
    for (level, text) in [
        ("INFO", "printed by {}"),
        ("INFO", "complained by {}"),
        ("WARN", "warned by {} n=1"),
        ("INFO", "logged by {}"),
    ] {
        let line = host.log(&text.replace("{}", &id));
        assert_eq!((&line["task"], &line["level"]), (&json!(id), &json!(level)), "{line}");
    }
    let found = seen(&mut bench, &[("end", "clocks")]);
    // The two goroutines slept at the same time.
    assert!(found["slept"].as_f64().is_some_and(|slept| (0.02..20.0).contains(&slept)), "{found}");
    assert!(found["seconds"].as_u64() > Some(1_577_836_800), "{found}");
    for (count, key) in [(2, "kb:1"), (4, "kb:2")] {
        let found = seen(&mut bench, &[("end", "effects"), ("key", key)]);
        let record = json!({ "by": "go", "n": "1" });
        let expected = json!({
            "fence": 1, "count": count, "seen": "{\"by\":\"go\"}", "gone": true, "record": record,
            "children": [],
        });
        assert_eq!(found, expected);
        let kept: Vec<(String, String)> = bench.redis("HGETALL", key);
        assert_eq!(kept, [("by".into(), "go".into()), ("n".to_owned(), "1".to_owned())]);
    }
    // Both tasks have enqueued one, with one key, which the first of them has.
    let enqueued: Vec<String> = bench.redis("KEYS", "tq:{reports}:task:*");
    let holder: String = bench.redis("GET", "tq:{reports}:key:once");
    assert_eq!(enqueued.len(), 2, "{enqueued:?}");
    assert!(enqueued.contains(&format!("tq:{{reports}}:task:{holder}")), "{enqueued:?}");
    let error = failed(&mut bench, &[("end", "effects"), ("key", "other")]);
    insta::assert_snapshot!(error, @"the key `other` is not granted: `records` of the plugin grants kb:*");
    let found = seen(&mut bench, &[("end", "blobs")]);
    assert_eq!(
        (&found["read"], &found["refused"]),
        (&json!("{\"by\":\"go\"}"), &json!(["invalid-name", "not-found"]))
    );
    host.stop();
}

#[test]
fn a_self_check_in_go_keeps_a_version_out() {
    let bench = Bench::new("[queues.go]\nplugin = \"in-go\"\n");
    let url = format!("redis://127.0.0.1:{}", bench.redis.port);
    let grants = "[queues.go]\nplugin = \"in-go\"\n[plugins.in-go]\nconfig = { self-check = \"bad\" }\n";
    bench.configure_url(grants, &url);
    bench.install("in-go", "in-go");
    let host = bench.host_that_may_fail();
    let line = host.log("plugin cannot be used");
    assert_eq!(line["error"], "self-check: the self-check is told to be bad");
    host.log("tqhost is running");
    host.stop();
}

/// A host with the guest, which may ask these hosts.
fn asking(hosts: &[&str]) -> (Bench, crate::support::Host) {
    let http =
        "max_request_body = \"100KiB\", max_response_body = \"1MiB\", between_bytes_timeout = \"500ms\"";
    host(&["in-go"], &format!("[plugins.in-go]\nallowed_hosts = {hosts:?}\nhttp = {{ {http} }}\n"))
}

#[test]
fn requests_of_net_http_go_through_the_host() {
    let web = Web::start();
    let (mut bench, host) = asking(&[&web.origin()]);
    let page = |path: &str| format!("{}{path}", web.origin());
    let found = seen(&mut bench, &[("url", &page("/echo?key=value#part")), ("header", "x-whose")]);
    assert_eq!((&found["status"], &found["type"]), (&json!(200), &json!("text/plain")), "{found}");
    let head = found["body"].as_str().expect("a body").to_lowercase();
    for line in ["get /echo?key=value http/1.1\r\n", "\r\nx-whose: own\r\n"] {
        assert!(head.contains(line), "{line:?} in {head}");
    }
    // The body is larger than the host takes at once.
    let found = seen(&mut bench, &[("url", &page("/size")), ("bodySize", "90000")]);
    assert_eq!((&found["status"], &found["body"]), (&json!(200), &json!("90000")), "{found}");
    let found = seen(&mut bench, &[("url", &page("/nowhere"))]);
    assert_eq!(found, json!({ "status": 404, "type": null, "body": "" }));
    let found = seen(&mut bench, &[("url", &page("/zipped"))]);
    assert_eq!(found["body"], "zipped");
    // The server answers only when both requests are there at once.
    let found = seen(&mut bench, &[("url", &page("/meet")), ("times", "2")]);
    assert_eq!(found["body"], "met");
    host.stop();
}

#[test]
fn requests_of_net_http_that_fail_become_retries_or_rejections() {
    let (web, other) = (Web::start(), Web::start());
    let closed = TcpListener::bind("127.0.0.1:0").and_then(|taken| taken.local_addr()).expect("an address");
    let closed = format!("http://127.0.0.1:{}", closed.port());
    let (mut bench, host) = asking(&[&web.origin(), &closed]);
    let page = |path: &str| format!("{}{path}", web.origin());
    let refused = format!("retry: {} refuses connections", closed.trim_start_matches("http://"));
    let late = format!("retry: 127.0.0.1:{} did not answer in time", web.port);
    let cut = format!("retry: 127.0.0.1:{} ended the connection too early", web.port);
    type Case<'c> = (String, &'c [(&'c str, &'c str)], String, &'c str);
    let table: [Case<'_>; 8] = [
        (
            format!("{}/echo?token=hunter2", other.origin()),
            &[],
            format!("retry: the request to 127.0.0.1:{} is refused", other.port),
            "HTTP-request-denied",
        ),
        (closed, &[("bodySize", "50000")], refused, "connection-refused"),
        (
            page("/endless"),
            &[],
            "the response is larger than the plugin's max_response_body".into(),
            "HTTP-response-body-size",
        ),
        (page("/cut"), &[], cut, "HTTP-response-incomplete"),
        (page("/stuck"), &[], late, "connection-read-timeout"),
        (
            page("/size"),
            &[("bodySize", "200000")],
            "the request is larger than the plugin's max_request_body".into(),
            "HTTP-request-body-size",
        ),
        (
            "ftp://127.0.0.1/".into(),
            &[],
            "the url does not begin with http:// or https://".into(),
            "HTTP-request-URI-invalid",
        ),
        (
            format!("http://user:hunter2@127.0.0.1:{}/", web.port),
            &[],
            "the url has no host, or a user name in it".into(),
            "HTTP-request-URI-invalid",
        ),
    ];
    for (url, fields, why, code) in &table {
        let fields = [&[("url", url.as_str())], *fields].concat();
        let error = failed(&mut bench, &fields);
        assert!(error.starts_with(why), "{fields:?}: {error}");
        let id = bench.xadd("go", &[&fields[..], &[("end", "code")]].concat());
        assert_eq!(result(&mut bench, "go", &id), *code, "{fields:?}");
    }
    // A client's own timeout is a retry, whoever noticed it first.
    let error = failed(&mut bench, &[("url", &page("/silent")), ("seconds", "0.2")]);
    assert!(error.starts_with("retry: ") && !error.contains("/silent"), "{error}");
    // An end that follows from a failed request is no evidence against the version.
    for path in ["/down", "/busy", "/cut"] {
        let error = failed(&mut bench, &[("url", &page(path)), ("end", "throw")]);
        assert!(error.starts_with("retry: panic: runtime error: index out of range"), "{path}: {error}");
    }
    let error = failed(&mut bench, &[("url", &page("/busy"))]);
    assert_eq!(error, "retry: the server is busy");
    assert_eq!(other.requests(), 0);
    assert!(!host.raw().contains("hunter2"), "no query and no password is logged");
    host.stop();
}

#[test]
fn a_server_that_is_down_is_told_as_the_cause() {
    let web = Web::start();
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("tqhost.toml");
    let closing = Application::start(|_| Reply::lost());
    let hosts = [web.origin(), closing.origin()];
    let grants = format!("[queues.q]\n[plugins.in-go]\nallowed_hosts = {hosts:?}\n");
    std::fs::write(&config, grants).expect("write");
    let config = config.to_str().expect("UTF-8");
    // The outcome is the same if the handler ignores the answer and panics.
    for (path, end, after) in [("busy", "well", 7000), ("down", "throw", 9000)] {
        let (url, end) = (format!("url={}/{path}", web.origin()), format!("end={end}"));
        let args = ["--config", config, "--field", &url, "--field", &end, "--json"];
        let view = tried_with(&cache_of("languages"), "in-go", &args).json();
        assert_eq!((&view["outcome"], &view["after_ms"]), (&json!("unavailable"), &json!(after)), "{view}");
    }
    // A request that names no timeout ends before the attempt does.
    let url = format!("url={}/silent", web.origin());
    let args = ["--config", config, "--field", &url, "--timeout", "2s", "--json"];
    let view = tried_with(&cache_of("languages"), "in-go", &args).json();
    assert_eq!(view["outcome"], "unavailable", "{view}");
    // A connection that ends before the answer is no answer at all; one that ends within it is one.
    for (url, outcome) in [(closing.origin(), "unavailable"), (format!("{}/cut", web.origin()), "retry")] {
        let args = ["--config", config, "--field", &format!("url={url}"), "--json"];
        let view = tried_with(&cache_of("languages"), "in-go", &args).json();
        assert_eq!(view["outcome"], outcome, "{view}");
    }
    understands_retry_after(&web, config, "in-go");
}

#[test]
fn globals_of_go_are_seen_by_later_tasks_of_a_warm_instance_only() {
    let warm = "[plugins.in-go]\ninstance = { warm = 1, max_tasks = 3 }\n";
    for (grants, expected) in [("", [1, 1, 1, 1, 1]), (warm, [1, 2, 3, 1, 2])] {
        let (mut bench, host) = host(&["in-go"], grants);
        let mut count = || seen(&mut bench, &[("a", "1")])["tasks"].clone();
        assert_eq!([(); 5].map(|()| count()), expected.map(|n| json!(n)), "{grants}");
        failed(&mut bench, &[("end", "throw")]);
        assert_eq!(seen(&mut bench, &[("a", "1")])["tasks"], 1, "{grants}");
        host.stop();
    }
}

#[test]
fn a_build_in_go_shows_a_file_and_a_line() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let project = new_project("go", folder.path());
    let handler = std::fs::read_to_string(project.join("handler.go")).expect("the handler");
    for (change, place) in [
        ("len(strings.Fields(text)) + nothing", "./handler.go:21:"),
        ("strings.Fields(text))", "./handler.go:21:"),
    ] {
        let changed = handler.replace("len(strings.Fields(text))", change);
        std::fs::write(project.join("handler.go"), changed).expect("write");
        let ran = make(&project, "build");
        assert!(ran.code != 0 && ran.stderr.contains(place), "{ran:#?}");
        assert!(!project.join(format!("{NAME}.wasm")).exists());
    }
}
