//! The HTTP API, asked by schemathesis: what it makes of the OpenAPI document, right and wrong requests, is
//! sent to a real host, and each answer has to be one that the document describes.
//!
//! In: schemathesis, which `scripts/from-pypi.sh` fetches; a host with tasks of all states. Out: how many
//! requests each operation got, and how many of them were accepted. The requests are the same in each run.
//! Not here: what the operations do (`api` of the end-to-end tests).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use super::support::dead_letters::add_dead;
use super::support::files::{digest, guest};
use super::support::{Bench, Held, Host, eventually, http};

/// Values that are there; each other one is made up. A stream is read for a moment, up to its first event.
const CONFIG: &str = r#"
request-timeout = 30.0
max-stream-events = 1
warnings = false
[parameters]
"path.queue" = { dictionary = "queues", probability = 0.9 }
"path.id" = { dictionary = "ids", probability = 0.8 }
"path.plugin" = { dictionary = "plugins", probability = 0.9 }
[dictionaries]
queues.values = ["work", "mail", "rows", "full"]
ids.values = ["run", "wait-1", "wait-2", "later", "sent", "id-1", "id-2", "nobody"]
plugins.values = ["fetches", "echo"]
jobs.values = JOBS
incidents.values = ["dead-letters:work", "plugin-refused:echo"]
[[operations]]
include-path-regex = "^/v1/jobs/"
parameters = { "path.id" = { dictionary = "jobs", probability = 0.9 } }
[[operations]]
include-path-regex = "^/v1/incidents/"
parameters = { "path.id" = { dictionary = "incidents", probability = 0.9 } }
[[operations]]
include-path-regex = "/events$"
request-timeout = 1.0
generation.max-examples = 15
"#;

fn schemathesis() -> PathBuf {
    let mut script = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/from-pypi.sh"));
    let output = script.arg("schemathesis").stdin(Stdio::null()).output().expect("run from-pypi.sh");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Path::new(String::from_utf8(output.stdout).expect("UTF-8").trim_end()).join("schemathesis")
}

/// A host with tasks in every state, and a version that is withdrawn.
fn host(held: &Held) -> (Bench, Host) {
    let bench = held.bench("");
    let queues = held.queues(
        "[queues.work]\nplugin = \"fetches\"\nconcurrency = 1\nevents = 100\nid = { field = \"name\" }\n\
         [queues.mail]\nplugin = \"echo\"\nevents = 100\nid = { field = \"name\" }\n\
         [queues.rows]\nplugin = \"fetches\"\nserial = { field = \"name\" }\n\
         [queues.full]\nplugin = \"fetches\"\nmax_backlog = 1\nid = { field = \"name\" }\n",
    );
    let redis = bench.redis.port;
    let mut bench = bench;
    bench.configure(&format!(
        "{queues}[redis]\nurl = \"redis://127.0.0.1:{redis}\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\ntoken = \"s3cret\"\n"
    ));
    bench.install("echo", "echo");
    let host = bench.host();
    let [url] = held.task();
    for queue in ["work", "rows", "full"] {
        bench.xadd(queue, &[url, ("name", "run")]);
        bench.until_running(queue, 1);
        for name in ["wait-1", "wait-2", "run"] {
            bench.xadd(queue, &[url, ("name", name)]);
        }
    }
    enqueue_later(host.admin());
    let sent = bench.xadd("mail", &[("name", "sent")]);
    bench.until("mail", &sent, "COMPLETED");
    add_dead(&mut bench, 0..40);
    bench.tqhost(&["rollback", "echo", "--version", &digest(&guest("echo")), "--why", "a test"]).ok();
    (bench, host)
}

/// Enqueues delayed tasks.
fn enqueue_later(address: &str) {
    let body = "{\"fields\": {\"name\": \"later\"}, \"delay\": \"1h\"}";
    let headers = [("authorization", "Bearer s3cret"), ("content-type", "application/json")];
    for path in ["/v1/queues/work/tasks", "/v1/queues/mail/tasks"] {
        let answer = http::send(address, "POST", path, &headers, Some(body));
        assert_eq!(answer.status, 202, "{answer:?}");
    }
}

/// Begins some jobs. Those that purge end, and keep what they have taken away; the others are paused.
fn jobs(bench: &Bench, address: &str) -> Vec<String> {
    let headers = [("authorization", "Bearer s3cret"), ("content-type", "application/json")];
    let begun = |body: &str| {
        let answer = http::send(address, "POST", "/v1/queues/work/jobs", &headers, Some(body));
        assert_eq!(answer.status, 202, "{answer:?}");
        answer.json()["id"].as_str().expect("an id").to_owned()
    };
    let purges = ["trap 3", "trap 7", "trap 19"].map(|text| {
        let id = begun(&format!("{{\"do\": \"purge\", \"text\": \"{text}\"}}"));
        eventually("the purge has ended", || {
            let job = http::send(address, "GET", &format!("/v1/jobs/{id}"), &headers, None).json();
            (job["state"] == "done" && job["kept"]["tasks"].as_u64() > Some(0)).then_some(())
        });
        id
    });
    let paused = [(); 3].map(|()| {
        let id = begun("{\"do\": \"requeue\", \"rate\": \"1/h\"}");
        bench.tqhost(&["jobs", "pause", &id]).ok();
        id
    });
    purges.into_iter().chain(paused).collect()
}

/// Sends requests to the operations of these methods, and gives the report.
fn asked(program: &Path, bench: &Bench, host: &Host, jobs: &[String], methods: [&str; 2]) -> Value {
    let folder = bench.dir.path();
    let (config, report) = (folder.join("schemathesis.toml"), folder.join("report.json"));
    std::fs::write(&config, CONFIG.replace("JOBS", &format!("{jobs:?}"))).expect("write");
    let mut command = Command::new(program);
    command.arg("--config-file").arg(config).arg("run");
    command.arg(format!("http://{}/v1/openapi.json", host.admin()));
    command.args(["-H", "Authorization: Bearer s3cret", methods[0], methods[1], "--no-color"]);
    command.args(["--generation-deterministic", "--max-examples", "60", "--continue-on-failure"]);
    command.args(["--phases", "examples,coverage,fuzzing"]);
    // The document does not say all: two values may exclude each other, and a cursor is not made up.
    command.args(["--exclude-checks", "positive_data_acceptance"]);
    command.args(["--report", "json", "--report-json-path"]).arg(&report);
    let ran = command.current_dir(folder).output().expect("run schemathesis");
    let told = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{told}{}", String::from_utf8_lossy(&ran.stderr));
    serde_json::from_str(&std::fs::read_to_string(report).expect("a report")).expect("JSON")
}

#[test]
fn every_answer_is_one_that_the_document_describes() {
    let (program, held) = (schemathesis(), Held::new());
    let (bench, host) = host(&held);
    let jobs = jobs(&bench, host.admin());
    // The changes come last: the lists have tasks in each state before. Some leave no delayed task, so there
    // are new ones again and again.
    let (address, is_over) = (host.admin().to_owned(), Arc::new(AtomicBool::new(false)));
    let ends = is_over.clone();
    let more = std::thread::spawn(move || {
        while !ends.load(Ordering::Relaxed) {
            enqueue_later(&address);
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    let reports = ["--include-method", "--exclude-method"]
        .map(|which| asked(&program, &bench, &host, &jobs, [which, "GET"]));
    is_over.store(true, Ordering::Relaxed);
    more.join().expect("all were taken");
    let count = |path: &str| -> u64 {
        reports.iter().map(|report| report.pointer(path).and_then(Value::as_u64).expect("a count")).sum()
    };
    let (tested, cases) = (count("/operations/tested"), count("/test_cases/generated"));
    let mut never = Vec::new();
    for report in &reports {
        for (operation, phases) in report["valid_rates"].as_object().expect("operations") {
            let of = |what: &str| -> u64 {
                let phases = phases.as_object().expect("phases").values();
                phases.map(|rates| rates[what].as_u64().expect("a count")).sum()
            };
            let accepted = of("accepted");
            eprintln!("{operation}: {accepted} right requests were accepted");
            // It names the version that runs, which is hardly made up; `host` has made such a request.
            if accepted == 0 && operation != "POST /v1/plugins/{plugin}/rollback" {
                never.push(operation);
            }
        }
    }
    eprintln!("schemathesis asked {tested} operations with {cases} requests: no answer was wrong");
    assert!(never.is_empty(), "never accepted: {never:?}");
    assert_eq!((tested, count("/operations/total") / 2, cases > 1_000), (39, 39, true), "{cases}");
    assert_eq!(count("/test_cases/unique_failures") + count("/operations/errored"), 0);
    held.end();
    host.stop();
}
