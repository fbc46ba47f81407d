//! The requests of docs/api.md are answered with what the page says of them.
//!
//! In: the lines of the page that call curl. Not here: what the paths do (the other files of this folder).

use std::process::Command;

use serde_json::Value;

use crate::cli::pages::{calls, root};
use crate::support::Bench;
use crate::support::http::{self, Events};

/// The queues that the page names. The handler of the first one rejects each of its tasks.
const QUEUES: &str = "[queues.reports]\nplugin = \"as-told\"\nevents = 100\n[queues.resume-analyze]\n";

/// A call of curl.
#[derive(Debug, Default)]
struct Request {
    path: String,
    headers: Vec<(String, String)>,
    body: Option<String>,
    is_stream: bool,
}

/// Reads the arguments as a shell and curl do. `task` is the value of `$ID`.
fn request(call: &str, task: &str) -> Request {
    let line = format!("printf '%s\\n' {call}");
    let mut shell = Command::new("sh");
    shell.args(["-euc", &line]).env("TOKEN", "t").env("ID", task);
    let output = shell.output().expect("run a shell");
    assert!(output.status.success(), "{call}: {output:?}");
    let words = String::from_utf8(output.stdout).expect("UTF-8");
    let (mut words, mut request) = (words.lines(), Request::default());
    while let Some(word) = words.next() {
        match word {
            "-s" => {}
            "-sN" => request.is_stream = true,
            "-H" => {
                let header = words.next().expect("a header").split_once(": ").expect("a name and a value");
                request.headers.push((header.0.to_owned(), header.1.to_owned()));
            }
            "-d" => request.body = words.next().map(str::to_owned),
            _ => {
                let url = word.strip_prefix("https://").unwrap_or(word);
                let (host, path) = url.split_once('/').expect("a path");
                assert!(["localhost:7700", "tqhost.example.com"].contains(&host), "{call}");
                request.path = format!("/{path}");
            }
        }
    }
    request
}

#[test]
fn the_requests_of_the_page_are_answered() {
    let mut bench = Bench::new(QUEUES);
    bench.install("as-told", "as-told");
    let host = bench.host();
    let dead = bench.xadd("reports", &[("data", r#"{"n":"a","ms":0,"retries":0,"end":"reject"}"#)]);
    bench.until("reports", &dead, "FAILED");
    let page = std::fs::read_to_string(root().join("docs/api.md")).expect("the page");
    let calls = calls(&page, "curl");
    assert!(calls.len() > 4, "{calls:?}");
    for call in calls {
        let request = request(&call, &dead);
        if request.is_stream {
            let mut events = Events::open(host.admin(), &request.path, &[]);
            assert_eq!(events.status, 200, "{call}");
            let more = bench.xadd("reports", &[("data", r#"{"n":"b","ms":0,"retries":0,"end":"ok"}"#)]);
            assert!(events.any(|event| event.data["id"] == more), "{call}: no event of the task {more}");
            continue;
        }
        let headers: Vec<(&str, &str)> =
            request.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let method = if request.body.is_some() { "POST" } else { "GET" };
        let answer = http::send(host.admin(), method, &request.path, &headers, request.body.as_deref());
        let expected = if request.path.ends_with("/tasks") { 202 } else { 200 };
        assert_eq!(answer.status, expected, "{call}: {answer:?}");
        let _: Value = answer.json();
    }
    host.stop();
}
