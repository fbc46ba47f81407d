//! Tests how an author finds a fault: the task of a dead letter as its queue had it, and the calls in
//! which a handler failed.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::authors::{Watching, cache_of, made, make_command, tried, tried_with};
use crate::support::bench::guest_path;
use crate::support::{Bench, within};

#[test]
fn a_dead_letter_is_tried_as_its_queue_had_it() {
    let mut bench = Bench::new(
        "[queues.work]\nplugin = \"p\"\nmax_retries = 1\nbackoff = \"none\"\ntimeout = \"7s\"\n\
         [plugins.p]\nmemory = \"9MiB\"\n",
    );
    bench.install("traps-if-told", "p");
    let host = bench.host();
    let fields: [(&str, &[u8]); 4] =
        [("trap", b"1"), ("a", b"1"), ("a", "two \u{1f980}".as_bytes()), ("bytes", &[0xff, 0, 1])];
    let fields: Vec<&[u8]> = fields.iter().flat_map(|(name, value)| [name.as_bytes(), value]).collect();
    let id: String = bench.redis("XADD", ("work", "*", fields));
    bench.until("work", &id, "FAILED");
    host.stop();

    let exported = bench.tqhost(&["dead", "export", "work", &id]).ok().stdout;
    let task: Value = serde_json::from_str(&exported).expect("JSON");
    let task = &task["tq-task"];
    assert_eq!(
        json!([task["id"], task["queue"], task["attempt"], task["limits"], task["fields"]]),
        json!([
            id, "work", 2, { "timeout_ms": 7000, "attempts": 2, "memory": 9 << 20 },
            [
                { "name": "trap", "value": "1" }, { "name": "a", "value": "1" },
                { "name": "a", "value": "two \u{1f980}" }, { "name": "bytes", "value": { "base64": "/wAB" } }
            ]
        ])
    );
    let file = bench.dir.path().join("task.json");
    fs::write(&file, &exported).expect("write");
    let (echo, file) = (guest_path("echo"), file.to_str().expect("UTF-8").to_owned());
    let tried = |args: &[&str]| {
        let echo = echo.to_str().expect("UTF-8");
        bench.tqhost(&[&["try", echo], args, &["--json"]].concat()).ok().json()
    };
    let of_file = tried_with(&cache_of("guests"), "echo", &[&file, "--json"]).ok().json();
    let of_letter = tried(&["--dead", "work", &id]);
    for seen in [&of_file, &of_letter] {
        let seen = &seen["result"];
        assert_eq!(json!([seen["id"], seen["attempt"], seen["max-attempts"]]), json!([id, 2, 2]), "{seen}");
        assert_eq!(seen["names"], json!(["trap", "a", "a", "bytes"]));
        for what in ["queue", "fields", "enqueued-at-ms"] {
            assert_eq!(seen[what], of_file["result"][what], "{what}");
        }
    }
    let other = tried(&["--dead", "work", &id, "--attempt", "1", "--id", "mine", "--field", "a=x"]);
    let other = &other["result"];
    assert_eq!(json!([other["id"], other["attempt"]]), json!(["mine", 1]), "{other}");
    assert_eq!(other["names"], json!(["trap", "bytes", "a"]));
    assert_eq!(bench.redis::<u64>("XLEN", "tq:{work}:dead"), 1, "the dead letter stays");
}

#[test]
fn a_letter_that_cannot_be_exported_is_told() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\n");
    bench.install("echo", "echo");
    let host = bench.host();
    let malformed: String = bench.redis("XADD", ("work", "*", "tq-attempt", "many"));
    bench.until("work", &malformed, "FAILED");
    host.stop();
    let echo = guest_path("echo");
    let echo = echo.to_str().expect("UTF-8");
    let table: [(&[&str], i32, &str); 6] = [
        (&["dead", "export", "work", "nope"], 1, "queue work has no dead letter \"nope\""),
        (&["dead", "export", "nowhere", "nope"], 2, "no queue \"nowhere\" is configured"),
        (&["dead", "export", "work", &malformed], 1, "is not a task that a handler could get"),
        (&["try", echo, "--dead", "work", "nope"], 1, "queue work has no dead letter \"nope\""),
        (&["try", echo, "--dead", "nowhere", "nope"], 2, "no queue \"nowhere\" is configured"),
        (&["try", echo, "--dead", "work"], 2, "--dead <QUEUE> <ID>"),
    ];
    for (args, code, why) in table {
        let ran = bench.tqhost(args);
        assert!(ran.code == code && ran.stderr.contains(why), "{args:?}: {ran:?}");
    }
}

#[test]
fn the_calls_in_which_a_handler_failed_are_shown_when_asked_for() {
    const HANDLE: &str = ".wasm!tqhost:handler/handler@0.1.0#handle";
    let calls = |guest: &str, args: &[&str]| -> Vec<String> {
        let args = [&["--field", "a=1", "--timeout", "1s", "--json"], args].concat();
        let view = tried(guest, &args).json();
        assert_eq!(view["outcome"], "failed", "{view}");
        serde_json::from_value(view["backtrace"].clone()).expect("lines")
    };
    for guest in ["panics", "loops"] {
        let shown = calls(guest, &["--backtrace"]);
        assert!(shown.last().is_some_and(|line| line.ends_with(HANDLE)), "{shown:#?}");
        assert!(!shown.iter().any(|line| line.contains("wasmtime")), "{shown:#?}");
        assert!(calls(guest, &[]).is_empty());
    }
    let deep = calls("overflows-call-stack", &["--backtrace"]);
    assert_eq!(deep.len(), 64, "{deep:#?}");
    let text = tried("panics", &["--field", "a=1", "--backtrace"]).stdout;
    assert!(text.contains("boom on attempt 1") && text.contains(HANDLE), "{text}");
}

#[test]
fn a_project_in_rust_shows_the_lines_of_a_trap() {
    let change = |project: &Path| {
        let file = project.join("src/lib.rs");
        let text = fs::read_to_string(&file).expect("the handler");
        let (before, rest) = text.split_once(") -> Result<").expect("a handler");
        let (result, body) = rest.split_once("{\n").expect("a body");
        let broken =
            format!("{before}) -> Result<{result}{{\n    assert!(task.attempt > 9, \"a bug\");\n{body}");
        fs::write(file, broken).expect("write");
    };
    let (_, ran) = made("rust", "new-with-a-bug", change, "trace");
    assert!(ran.stdout.contains("failed") && ran.stdout.contains("a bug"), "{}\n{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("src/lib.rs:"), "{}", ran.stdout);
}

#[test]
fn make_watch_builds_and_runs_a_handler_after_every_change() {
    // A build optimises the whole program.
    const BUILT: Duration = Duration::from_secs(300);
    let (project, ran) = made("rust", "new-watched", |_| {}, "build");
    assert_eq!(ran.code, 0, "{}\n{}", ran.stdout, ran.stderr);
    let file = project.join("src/lib.rs");
    let text = fs::read_to_string(&file).expect("the handler");
    let mut make = make_command(&project, "watch");
    let watching = Watching::start_command({
        make.process_group(0);
        make
    });
    let says = |words: &str| {
        within(BUILT, words, || {
            watching.lines.try_iter().find(|line| line.as_str().is_some_and(|line| line.contains(words)))
        })
    };
    says("\"words\": 7");
    fs::write(&file, text.replace(".count();", ".count() + 35;")).expect("write");
    says("\"words\": 42");
    // A build that fails leaves the component, and the next change is built.
    fs::write(&file, format!("{text}\nmistake")).expect("write");
    within(BUILT, "the mistake is shown", || {
        watching.errors.try_iter().find(|line| line.to_string().contains("src/lib.rs:"))
    });
    fs::write(&file, text.replace(".count();", ".count() + 36;")).expect("write");
    says("\"words\": 43");
    drop(watching);
    fs::write(&file, text).expect("write");
}

#[test]
fn an_editor_gets_the_types_of_the_interface() {
    for (lang, target, file, part) in [
        ("javascript", "types", "types/interfaces/tqhost-handler-types.d.ts", "export interface Task"),
        ("python", "bindings", "bindings/wit_world/imports/types.py", "class Task"),
    ] {
        let (project, ran) = made(lang, "types", |_| {}, target);
        assert_eq!(ran.code, 0, "{ran:?}");
        let types = fs::read_to_string(project.join(file)).expect("the types");
        assert!(types.contains(part), "{types}");
    }
}
