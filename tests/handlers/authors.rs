//! The tools for authors of handlers: `tqhost try`, which needs no Redis and no host, and the projects of
//! `tqhost new`.
//!
//! The projects are built and tested by their own `make test`, with the tools that `make setup` fetched.
//!
//! Not here: the handlers of this repository that are written in other languages (`languages`), packages and
//! mistakes that a build tells (`build_errors`).

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::llm::{Llm, Said};
use crate::support::bench::{CACHES, guest_path};
use crate::support::files::functions;
use crate::support::process::{compilers, is_there};
use crate::support::{Bench, Host, Ran, Web, eventually};

/// Runs a command without a configuration, in a folder.
fn command(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tqhost"));
    command.args(args).current_dir(folder).stdin(Stdio::null()).env(CACHES, cache_of("guests"));
    command
}

/// A cache that stays for the next run of the tests. Each kind of guest has its own, because small guests
/// would push the large ones out of a shared one.
pub fn cache_of(what: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache").join(what)
}

/// The right to compile large handlers: the first test compiles, and the others wait and use its code.
pub static COMPILING: Mutex<()> = Mutex::new(());

/// Compiles the plugins of a bench into these caches, if that was not done before.
pub fn compile(bench: &Bench, what: &str) {
    let _alone = COMPILING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut check = Command::new(env!("CARGO_BIN_EXE_tqhost"));
    check.arg("--config").arg(bench.config()).arg("check").stdin(Stdio::null());
    Ran::from(check.env(CACHES, cache_of(what)).output().expect("run tqhost")).ok();
}

/// Starts a host whose plugins are compiled in these caches. Its folder of data is its own: a host notes
/// there which versions of a plugin were good and which are in quarantine.
pub fn host_with_caches(bench: &Bench, what: &str) -> Host {
    compile(bench, what);
    bench.host_with_env(vec![(CACHES.to_owned(), cache_of(what))])
}

fn run(folder: &Path, args: &[&str]) -> Ran {
    command(folder, args).output().expect("run tqhost").into()
}

/// Runs `tqhost try` on a guest of plugins/testing or a handler of plugins.
pub fn tried_with(cache: &Path, guest: &str, args: &[&str]) -> Ran {
    let path = guest_path(guest);
    let mut command = command(Path::new("."), &[&["try", path.to_str().expect("UTF-8")], args].concat());
    command.env(CACHES, cache).output().expect("run tqhost").into()
}

pub fn tried(guest: &str, args: &[&str]) -> Ran {
    tried_with(&cache_of("guests"), guest, args)
}

#[test]
fn json_as_deep_as_its_parser_takes_fits_on_the_stack_that_handlers_are_linked_with() {
    // serde_json stops at 128 levels; the object around this value is one of them.
    let deep = format!("{}{}", "[".repeat(126), "]".repeat(126));
    let ran = tried("as-told", &["--field", &format!(r#"data={{"end":"ok","n":{deep}}}"#), "--json"]).ok();
    assert!(ran.stdout.contains(r#""outcome":"completed""#) && ran.stdout.contains(&deep), "{ran:?}");
}

#[test]
fn every_outcome_is_told_with_its_exit_code() {
    let table: [(&str, &[&str], i32, Value); 9] = [
        ("echo", &[], 0, json!({ "outcome": "completed", "kind": null, "message": null })),
        ("always-fails", &[], 1, json!({ "outcome": "retry", "after_ms": null })),
        ("retry-after", &["--field", "afterMs=1500"], 1, json!({ "outcome": "retry", "after_ms": 1500 })),
        ("rejects", &[], 1, json!({ "outcome": "reject", "kind": null })),
        ("defers", &[], 1, json!({ "outcome": "defer", "after_ms": 1000 })),
        ("traps", &[], 1, json!({ "outcome": "failed", "kind": "trap" })),
        ("loops", &["--timeout", "100ms"], 1, json!({ "kind": "timeout" })),
        ("hoards", &[], 1, json!({ "outcome": "failed", "kind": "out-of-memory" })),
        (
            "big-result",
            &["--field", "bytes=1100000"],
            1,
            json!({ "outcome": "failed", "kind": "output-too-large" }),
        ),
    ];
    for (guest, args, code, expected) in table {
        let args = [&["--field", "a=1", "--json"], args].concat();
        let ran = tried(guest, &args);
        assert_eq!(ran.code, code, "{guest}: {ran:#?}");
        let view = ran.json();
        for (name, value) in expected.as_object().expect("an object") {
            assert_eq!(&view[name], value, "{guest}: {view}");
        }
        assert!(
            view["run_ms"].as_f64() > Some(0.0) && view["peak_memory"].as_u64() > Some(0),
            "{guest}: {view}"
        );
        // The output for people has the outcome's name and the reason.
        let ran = tried(guest, &args.iter().copied().filter(|arg| *arg != "--json").collect::<Vec<_>>());
        let outcome = view["outcome"].as_str().expect("a word");
        assert_eq!(ran.code, code, "{guest}: {ran:#?}");
        assert!(ran.stdout.contains(&format!("{outcome} in ")), "{ran:#?}");
        if let Some(message) = view["message"].as_str() {
            assert!(ran.stdout.contains(message.lines().next().unwrap_or_default()), "{ran:#?}");
        }
    }
}

#[test]
fn a_task_comes_from_a_file_from_stdin_and_from_the_command_line() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(
        folder.path().join("task.json"),
        "{\n  \"text\": \"ü\",\n  \"n\": 12345678901234567890.50,\n  \"o\": {\"x\": [1]}\n}\n",
    )
    .expect("write");
    fs::write(folder.path().join("cv.txt"), "from a file").expect("write");
    let echo = guest_path("echo");
    let echo = fs::canonicalize(echo).expect("a path");
    let args = [
        "try",
        echo.to_str().expect("UTF-8"),
        "task.json",
        "--field",
        "text=@cv.txt",
        "--field",
        "more=a=b",
        "--attempt",
        "3",
    ];
    let view = run(folder.path(), &[&args[..], &["--id", "t-7", "--json"]].concat()).ok().json();
    let result = &view["result"];
    let fields =
        json!({ "n": "12345678901234567890.50", "o": "{\"x\": [1]}", "text": "from a file", "more": "a=b" });
    assert_eq!(
        (&result["fields"], &result["attempt"], &result["id"]),
        (&fields, &json!(3), &json!("t-7")),
        "{view}"
    );

    let mut piped = command(folder.path(), &["try", echo.to_str().expect("UTF-8"), "-", "--json"]);
    piped.stdin(fs::File::open(folder.path().join("task.json")).expect("open"));
    let ran = Ran::from(piped.output().expect("run tqhost")).ok();
    assert_eq!(ran.json()["result"]["fields"]["text"], "ü");
}

#[test]
fn a_handlers_printed_lines_are_shown() {
    let ran = tried("panics", &["--field", "a=1"]);
    let line = ran.stdout.lines().find(|line| line.contains("panicked at")).expect("a line");
    insta::assert_snapshot!(line.trim(), @r"
    error log    panic: panicked at testing/panics.rs:7:5:\nboom on attempt 1
    ");
    let view = tried("panics", &["--field", "a=1", "--json"]).json();
    assert_eq!(
        (&view["log"][0]["level"], &view["log"][0]["stream"]),
        (&json!("error"), &json!("log")),
        "{view}"
    );
    // The log has a limit, and its last line says that the rest is dropped.
    let view = tried("floods-log", &["--field", "a=1", "--json"]).json();
    let lines = view["log"].as_array().expect("lines");
    let last = lines.last().expect("a line")["text"].as_str().expect("text");
    insta::assert_snapshot!(last, @r"
    the handler has printed more than its budget; the rest of this attempt is dropped
    ");
    let view = tried("echo", &["--field", "a=1", "--runs", "5", "--json"]).ok().json();
    assert_eq!(view["runs"], 5);
    let [least, median, most] =
        ["least_ms", "run_ms", "most_ms"].map(|name| view[name].as_f64().expect(name));
    assert!(least <= median && median <= most, "{view}");
}

#[test]
fn grants_are_those_of_a_configuration() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = "[queues.q]\nplugin = \"p\"\nmax_retries = 8\n[queues.r]\n[plugins.p]\n\
        config = { model = \"small\", secret = \"hunter2\" }\n";
    fs::write(folder.path().join("tqhost.toml"), config).expect("write");
    let guest = fs::canonicalize(guest_path("reads-config")).expect("a path");
    let of = |args: &[&str]| {
        run(
            folder.path(),
            &[&["try", guest.to_str().expect("UTF-8"), "--field", "key=model", "--json"], args].concat(),
        )
        .ok()
        .json()
    };
    let granted = of(&["--plugin", "p"]);
    assert!(granted["result"].to_string().contains("small"), "{granted}");
    assert!(of(&["--queue", "q"])["result"].to_string().contains("small"));
    // Without `--plugin` or `--queue` no configuration is read, even if the folder has one.
    assert!(!of(&[])["result"].to_string().contains("small"));
    assert!(!of(&["--queue", "r"])["result"].to_string().contains("small"));
}

#[test]
fn effects_and_blobs_are_shown() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = "[queues.q]\nplugin = \"p\"\nenqueue_to = [\"r\"]\n[queues.r]\n\
        [plugins.p]\nrecords = [\"resume:*\"]\n";
    fs::write(folder.path().join("tqhost.toml"), config).expect("write");
    let calls = json!([
        ["enqueue", { "queue": "r", "fields": { "kind": "mail" }, "delay": 60_000, "key": "k" }],
        ["fan-out", [{ "queue": "r", "fields": { "n": "1" } }, { "queue": "r", "fields": { "n": "2" } }],
            { "queue": "r", "fields": { "joins": "all" } }],
        ["put", "resume:118", { "score": "0.9" }],
        ["set", "seen", "yes", 5_000],
    ]);
    let of = |guest: &str, calls: &Value, more: &[&str]| {
        let guest = fs::canonicalize(guest_path(guest)).expect("a path");
        let field = format!("do={calls}");
        let args = ["try", guest.to_str().expect("UTF-8"), "--queue", "q", "--field", &field];
        run(folder.path(), &[&args, more].concat())
    };
    // Only the effects of the last run count.
    let ran = of("effects", &calls, &["--runs", "2"]).ok();
    for line in [
        "  task for r: kind=mail, in 1m, key k\n",
        "  task for r: joins=all, when 2 have completed\n    child for r: n=1\n    child for r: n=2\n",
        "  record resume:118: score=0.9\n",
        "  state seen = yes, for 5.0s\n",
    ] {
        assert!(ran.stdout.contains(line), "{line} is not in\n{}", ran.stdout);
    }
    let view = of("effects", &calls, &["--json"]).ok().json();
    let effects = &view["effects"];
    assert_eq!(effects["tasks"][0]["fields"], json!([{ "name": "kind", "value": "mail" }]), "{view}");
    assert_eq!(effects["flows"][0]["children"].as_array().map(Vec::len), Some(2), "{view}");
    assert_eq!(
        (&effects["records"][0]["key"], &effects["state"][0]["value"]),
        (&json!("resume:118"), &json!("yes")),
        "{view}"
    );
    // A task that has not completed has no effects, and blobs act at once.
    let failed = json!([["set", "seen", "yes", 0], ["retry"]]);
    assert!(of("effects", &failed, &["--json"]).json()["effects"].is_null());
    let blobs = json!([["put", "a.txt", "text/plain", "hello"], ["retry"]]);
    let ran = of("keeps-blobs", &blobs, &[]);
    assert!(ran.code == 1 && ran.stdout.contains("blob p/a.txt, 5 B\n"), "{ran:#?}");
}

#[test]
fn a_self_check_is_run_before_the_task() {
    let folder = tempfile::tempdir().expect("a folder");
    let plugin =
        |name: &str| format!("[queues.{name}]\n[plugins.{name}]\nconfig = {{ self-check = \"{name}\" }}\n");
    fs::write(folder.path().join("tqhost.toml"), ["ok", "no", "trap", "long"].map(plugin).concat())
        .expect("write");
    let guest = fs::canonicalize(guest_path("checks-itself")).expect("a path");
    let of = |args: &[&str]| {
        run(folder.path(), &[&["try", guest.to_str().expect("UTF-8"), "--field", "a=1"], args].concat())
    };
    let ran = of(&["--plugin", "ok"]).ok();
    let (passed, completed) = (ran.stdout.find("self-check passed in "), ran.stdout.find("completed in "));
    assert!(passed.is_some() && passed < completed, "{ran:#?}");
    let view = of(&["--plugin", "ok", "--json"]).ok().json();
    assert!(view["self_check_ms"].as_f64() > Some(0.0) && view["outcome"] == "completed", "{view}");
    assert!(tried("echo", &["--field", "a=1", "--json"]).ok().json()["self_check_ms"].is_null());
    for (args, why) in [
        (&["--plugin", "no"][..], "self-check: the self-check is told to be `no`\n"),
        (&["--queue", "trap"], "self-check: trap: wasm `unreachable`"),
        // A self-check may return as much as an attempt, 4 MiB. Of 2 MiB, the beginning is told.
        (&["--queue", "long"], "self-check: why why why why"),
        (
            &[],
            "self-check: the self-check is not told what to do (it was granted the defaults: --plugin or \
             --queue take grants",
        ),
    ] {
        let ran = of(args);
        assert!(
            ran.code == 1 && ran.stderr.contains(why) && !ran.stdout.contains("completed"),
            "{args:?}: {ran:#?}"
        );
        let ran = of(&[args, &["--json"]].concat());
        assert!(
            ran.code == 1 && ran.stdout.is_empty() && ran.stderr.contains("{\"error\":"),
            "{args:?}: {ran:#?}"
        );
    }
}

#[test]
fn runs_have_the_instances_that_they_are_said_to_have() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(
        folder.path().join("tqhost.toml"),
        "[queues.fresh]\n[queues.kept]\n[plugins.kept]\ninstance = { warm = 1 }\n",
    )
    .expect("write");
    let guest = fs::canonicalize(guest_path("remembers")).expect("a path");
    let of = |args: &[&str]| {
        run(
            folder.path(),
            &[&["try", guest.to_str().expect("UTF-8"), "--field", "a=1", "--runs", "3"], args].concat(),
        )
    };
    let told = [("fresh", "per-task", 1), ("kept", "warm", 3)].map(|(queue, instance, tasks)| {
        let view = of(&["--queue", queue, "--json"]).ok().json();
        assert_eq!(
            (&view["instance"], &view["result"]["tasks"]),
            (&json!(instance), &json!(tasks)),
            "{view}"
        );
        let text = of(&["--queue", queue]).ok().stdout;
        let (_, runs) = text.split_once("(median ").expect("the median");
        runs.split_once(": ").expect("the times").0.to_owned()
    });
    insta::assert_snapshot!(told.join("\n"), @r"
    of 3 runs, each in a fresh instance
    of 3 runs, in instances that are kept
    ");
}

#[test]
fn mistakes_are_told() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("bad.json"), "{\n \"a\": 1\n \"b\": 2\n}").expect("write");
    fs::write(folder.path().join("reserved.json"), "{\"tq-id\": \"1\"}").expect("write");
    fs::write(folder.path().join("text.wasm"), "(module)").expect("write");
    fs::write(folder.path().join("tqhost.toml"), "[queues.q]\n").expect("write");
    let paths = ["echo", "wrong-world", "wrong-version", "wants-more"]
        .map(|guest| fs::canonicalize(guest_path(guest)).expect("a path"));
    let [echo, wrong_world, wrong_version, wants_more] =
        paths.each_ref().map(|path| path.to_str().expect("UTF-8"));
    let task = ["--field", "a=1"];
    let table: [(&[&str], i32, &str); 18] = [
        (&["nowhere.wasm", task[0], task[1]], 1, "nowhere.wasm: there is no such file"),
        (&[".", task[0], task[1]], 1, ".: it is a directory, not a file"),
        (&["text.wasm", task[0], task[1]], 1, "text.wasm: this is not a WebAssembly file: it is a text file"),
        (
            &[wrong_world, task[0], task[1]],
            1,
            "it exports no tqhost:handler/handler; it exports tqhost:testing/greeter@0.1.0",
        ),
        (&[wrong_version, task[0], task[1]], 1, "but this tqhost runs tqhost:handler/handler@0.1.0"),
        (
            &[wants_more, task[0], task[1]],
            1,
            "wasi:keyvalue/store@0.2.0-draft (tqhost does not know it), for ",
        ),
        (&[echo], 2, "<TASK.json>"),
        (&[echo, "nowhere.json"], 1, "nowhere.json: there is no such file"),
        (&[echo, "bad.json"], 1, "bad.json: not a JSON object: line 3 column 2: expected `,` or `}`"),
        (&[echo, "reserved.json"], 1, "the task: field `tq-id`"),
        (&[echo, "--field", "a"], 2, "write name=value or name=@file"),
        (&[echo, "--field", "a=@nowhere"], 1, "field a: cannot read nowhere"),
        (&[echo, "-", "--watch"], 2, "stdin cannot be watched"),
        (&[echo, "/dev/null", "--watch"], 2, "/dev/null cannot be watched: write the task to a file"),
        (&[echo, "--field", "a=@/dev/null", "--watch"], 2, "null cannot be watched: write the field to"),
        (&[echo, "--field", "a=1", "--queue", "p"], 2, "no queue \"p\" is configured"),
        (
            &[echo, "--field", "a=1", "--config", "tqhost.toml"],
            2,
            "has no plugin \"echo\": name one with --plugin or --queue",
        ),
        (&[echo, "--field", "a=1", "--config", "nowhere.toml"], 78, "there is no such file"),
    ];
    for (args, code, why) in table {
        let ran = run(folder.path(), &[&["try"], args].concat());
        assert!(ran.code == code && ran.stdout.is_empty() && ran.stderr.contains(why), "{args:?}: {ran:#?}");
    }
}

/// A running `tqhost try --watch --json`, and the lines that it has printed.
pub struct Watching {
    child: Child,
    pub lines: Receiver<Value>,
    pub errors: Receiver<Value>,
}

impl Watching {
    fn start(folder: &Path, args: &[&str]) -> Watching {
        Watching::start_command(command(folder, &[&["try", "h.wasm", "--watch", "--json"], args].concat()))
    }

    pub fn start_command(mut command: Command) -> Watching {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start tqhost");
        let (lines, errors) =
            (lines(child.stdout.take().expect("a pipe")), lines(child.stderr.take().expect("a pipe")));
        Watching { child, lines, errors }
    }

    #[track_caller]
    fn next(&self) -> Value {
        eventually("a line on stdout", || self.lines.try_recv().ok())
    }

    #[track_caller]
    fn error(&self) -> String {
        eventually("a line on stderr", || self.errors.try_recv().ok())["error"]
            .as_str()
            .expect("an error")
            .to_owned()
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        // `make` has children of its own. They are in its group if the test made one.
        let pid = Pid::from_raw(self.child.id().try_into().expect("a pid"));
        let _ = nix::sys::signal::killpg(pid, Signal::SIGINT);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(from: impl std::io::Read + Send + 'static) -> Receiver<Value> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let _ = sender.send(serde_json::from_str(&line).unwrap_or(Value::String(line)));
        }
    });
    lines
}

#[test]
fn a_watched_handler_runs_again_when_something_changed() {
    let folder = tempfile::tempdir().expect("a folder");
    let handler = folder.path().join("h.wasm");
    let install = |guest: &str| {
        let new = folder.path().join("h.new");
        fs::copy(guest_path(guest), &new).expect("copy");
        fs::rename(new, &handler).expect("rename");
    };
    install("echo");
    fs::write(folder.path().join("task.json"), "{\"a\": 1}").expect("write");
    fs::write(folder.path().join("more.txt"), "one").expect("write");
    let mut watching = Watching::start(folder.path(), &["task.json", "--field", "more=@more.txt"]);
    let first = watching.next();
    assert_eq!(
        (&first["result"]["version"], &first["result"]["fields"]),
        (&json!("1"), &json!({ "a": "1", "more": "one" })),
        "{first}"
    );
    // The files that fields are read from are watched too.
    fs::write(folder.path().join("more.txt"), "two").expect("write");
    let again = watching.next();
    assert_eq!(again["result"]["fields"]["more"], "two", "{again}");
    install("echo-v2");
    let second = watching.next();
    assert!(second["version"] != first["version"] && second["outcome"] == "completed", "{second}");
    // The file is written in place, as an editor may do.
    fs::write(folder.path().join("task.json"), "{\"a\": 2}").expect("write");
    let third = watching.next();
    assert_eq!((&third["version"], &third["outcome"]), (&second["version"], &json!("completed")), "{third}");
    fs::write(folder.path().join("task.json"), "{\"a\": ").expect("write");
    insta::assert_snapshot!(watching.error(), @r"
    task.json: not a JSON object: column 6: EOF while parsing a value
    ");
    fs::remove_file(&handler).expect("remove");
    fs::write(folder.path().join("task.json"), "{\"a\": 3}").expect("write");
    insta::assert_snapshot!(watching.error(), @"h.wasm: there is no such file");
    install("rejects");
    assert_eq!(watching.next()["outcome"], "reject");
    kill(Pid::from_raw(watching.child.id().try_into().expect("a pid")), Signal::SIGINT).expect("signal");
    let ended = eventually("it ends", || watching.child.try_wait().expect("look"));
    assert_eq!(ended.code(), Some(0));
}

#[test]
fn a_handler_that_never_ends_is_broken_off_when_it_is_mended() {
    let folder = tempfile::tempdir().expect("a folder");
    let install = |guest: &str| {
        fs::copy(guest_path(guest), folder.path().join("h.new")).expect("copy");
        fs::rename(folder.path().join("h.new"), folder.path().join("h.wasm")).expect("rename");
    };
    install("loops");
    let watching = Watching::start_command(command(
        folder.path(),
        &["try", "h.wasm", "--field", "a=1", "--watch", "--timeout", "1h"],
    ));
    let says = |text: &str| {
        eventually(text, || {
            watching.lines.try_iter().find(|line| line.as_str().is_some_and(|line| line.contains(text)))
        })
    };
    says("compiled");
    install("echo");
    says("completed in");
    let is_noted =
        |line: Value| line.as_str().is_some_and(|line| line.contains("broken off, as a file has changed"));
    eventually("it says so", || watching.errors.try_iter().any(is_noted).then_some(()));
}

#[test]
fn a_compilation_does_not_hold_up_the_end_of_a_watch() {
    let folder = tempfile::tempdir().expect("a folder");
    // This component contains the runtime of its language, so it takes many seconds to compile.
    fs::copy(guest_path("in-javascript"), folder.path().join("h.wasm")).expect("copy");
    let mut command = command(folder.path(), &["try", "h.wasm", "--field", "a=1", "--watch", "--json"]);
    command.env(CACHES, folder.path().join("cache"));
    let mut watching = Watching::start_command(command);
    let pid = Pid::from_raw(watching.child.id().try_into().expect("a pid"));
    let compiler = eventually("it compiles", || compilers(pid).first().copied());
    kill(pid, Signal::SIGINT).expect("signal");
    let ended = eventually("it ends", || watching.child.try_wait().expect("look"));
    assert_eq!(ended.code(), Some(0));
    assert!(watching.lines.try_recv().is_err(), "nothing was run");
    let kept = fs::read_dir(folder.path().join("cache/tqhost/try/cache")).expect("the cache").count();
    assert_eq!(kept, 0, "it ended before the component was compiled");
    eventually("what compiled has ended", || (!is_there(compiler)).then_some(()));
}

#[test]
fn a_changed_handler_is_compiled_with_the_functions_that_are_as_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let (handler, cache) = (folder.path().join("h.wasm"), folder.path().join("cache"));
    let kept = || functions(&cache.join("tqhost/try/cache")).expect("the functions");
    let changed_and_tried = |change: u8| {
        // A custom section: another file with the same functions.
        let section = [0, 3, 1, b'x', change];
        let content = fs::read(guest_path("echo")).expect("read a guest");
        fs::write(&handler, [&content[..], &section].concat()).expect("write");
        let mut command = command(folder.path(), &["try", "h.wasm", "--field", "a=1"]);
        let ran = Ran::from(command.env(CACHES, &cache).output().expect("run tqhost")).ok();
        assert!(ran.stdout.contains(", compiled in "), "{}", ran.stdout);
        fs::read(kept()).expect("read the functions")
    };
    let first = changed_and_tried(1).len();
    let second = changed_and_tried(2);
    // A function that is compiled again is kept once more.
    assert!(second.len() - first < first / 2, "{first}, then {}", second.len());

    // A file that is not as it was written is not used.
    fs::write(kept(), second.repeat(2)).expect("write");
    assert!(changed_and_tried(3).len() < second.len() + first / 2);
}

#[test]
fn a_project_has_a_new_folder_and_a_good_name() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("there")).expect("a folder");
    let table: [(&[&str], i32, &str); 8] = [
        (&["there"], 1, "there is there already: take another name, or remove it"),
        (&["a/b"], 2, "may have only letters, digits, dots, dashes and underscores"),
        (&[".hidden"], 2, "must not begin with a dot"),
        (&[""], 2, "must not be empty"),
        (&["--", "-x"], 2, "must not begin with a dash"),
        (&["ü"], 2, "may have only letters"),
        (&["x", "--lang", "cobol"], 2, "[possible values: rust, javascript, typescript, python, go]"),
        (&[], 2, "<NAME>"),
    ];
    for (args, code, why) in table {
        let ran = run(folder.path(), &[&["new"], args].concat());
        assert!(ran.code == code && ran.stdout.is_empty() && ran.stderr.contains(why), "{args:?}: {ran:#?}");
    }
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
    let made = run(folder.path(), &["new", "count", "--json"]).ok().json();
    assert_eq!((&made["folder"], &made["language"]), (&json!("count"), &json!("Rust")));
    assert!(folder.path().join("count/wit/handler.wit").is_file());
}

/// The name of the projects that are made here.
pub const NAME: &str = "Word.count-1";

/// Makes a project, changes it, and runs `make` there. The build of an identical project from an earlier run
/// is used again.
pub fn built(lang: &str, folder: &str, change: impl Fn(&Path), target: &str) -> PathBuf {
    let (project, ran) = made(lang, folder, change, target);
    assert_eq!(ran.code, 0, "{}\n{}", ran.stdout, ran.stderr);
    let component = project.join(format!("{NAME}.wasm"));
    assert!(component.is_file());
    component
}

/// Runs `make` in a new project. In the folder `model` it is one that asks a model. Returns the project's
/// folder, and what was said.
pub fn made(lang: &str, folder: &str, change: impl Fn(&Path), target: &str) -> (PathBuf, Ran) {
    let temporary = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let template = if folder == "model" { "model" } else { "words" };
    let args = ["new", NAME, "--lang", lang, "--template", template, "--json"];
    let said = run(temporary.path(), &args).ok().json();
    let made = temporary.path().join(NAME);
    change(&made);
    let project = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder).join(lang);
    let files: Vec<&str> =
        said["files"].as_array().expect("files").iter().map(|file| file.as_str().expect("a path")).collect();
    assert!(files.contains(&"README.md") && files.contains(&"task.json"), "{said}");
    let is_same = |file: &&str| fs::read(made.join(file)).ok() == fs::read(project.join(file)).ok();
    // Cargo rewrites its lock file.
    if !files.iter().filter(|file| **file != "Cargo.lock").all(is_same) {
        let _ = fs::remove_dir_all(&project);
        fs::create_dir_all(project.parent().expect("a folder")).expect("a folder");
        fs::rename(&made, &project).expect("move the project");
    }
    let ran = make(&project, target);
    (project, ran)
}

/// Makes a project of its own in a folder.
pub fn new_project(lang: &str, folder: &Path) -> PathBuf {
    run(folder, &["new", NAME, "--lang", lang]).ok();
    folder.join(NAME)
}

/// Runs `make` in a project, with the tools that `make setup` fetched.
pub fn make(project: &Path, target: &str) -> Ran {
    make_command(project, target).output().expect("run make").into()
}

pub fn make_command(project: &Path, target: &str) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/build-languages.sh");
    let mut make = Command::new(fs::canonicalize(script).expect("the script"));
    make.args(["--run", "make", target]).current_dir(project).stdin(Stdio::null());
    make.env("TQHOST", env!("CARGO_BIN_EXE_tqhost")).env_remove("CARGO_TARGET_DIR");
    make
}

/// Runs a project's component on a task with the field `content`.
pub fn tried_with_content(project: &Path, content: &str) -> Ran {
    let component = format!("{NAME}.wasm");
    run(project, &["try", &component, "--field", &format!("content={content}"), "--json"])
}

fn passes_its_own_test(lang: &str) {
    built(lang, "new", |_| {}, "test");
}

/// Adds HTTP requests to a project with the one line that its README gives. Its handler requests the URL in
/// `content`.
fn asks_as_its_readme_tells(lang: &str, file: &str, handler: &str) {
    let change = |project: &Path| {
        let world = project.join("wit/world.wit");
        let text = fs::read_to_string(&world).expect("the world");
        let more = text.replace("// import wasi:http/", "import wasi:http/");
        assert_ne!(text, more, "there is such a line");
        fs::write(world, more).expect("write");
        fs::write(project.join(file), handler).expect("write");
    };
    let component = built(lang, "new-with-requests", change, "build");
    let web = Web::start();
    let folder = tempfile::tempdir().expect("a folder");
    let config = format!("[queues.\"{NAME}\"]\n[plugins.\"{NAME}\"]\nallowed_hosts = [{:?}]\n", web.origin());
    fs::write(folder.path().join("tqhost.toml"), config).expect("write");
    let field = format!("content={}/echo", web.origin());
    let args = ["try", component.to_str().expect("UTF-8"), "--field", &field, "--json"];
    let view = run(folder.path(), &args).json();
    assert!(view["outcome"] == "retry" && view["message"].to_string().contains("allowed_hosts"), "{view}");
    let view = run(folder.path(), &[&args[..], &["--config", "tqhost.toml"]].concat()).ok().json();
    assert_eq!((&view["result"], web.requests()), (&json!({ "status": 200 }), 1), "{view}");
}

/// A project that asks a model passes its own tests, which have a server of their own. With the grants of its
/// own configuration it ends as the server answers.
fn asks_a_model(lang: &str) {
    let component = built(lang, "model", |_| {}, "test");
    let project = component.parent().expect("a folder");
    let grants = fs::read_to_string(project.join("tqhost.toml")).expect("the grants");
    let event =
        |text: &str| format!("data: {}\n\n", json!({ "choices": [{ "delta": { "content": text } }] }));
    let events = event("Ünï") + "data: {\"choices\":[]}\n\n" + &event("code.") + "data: [DONE]\n\n";
    let away = TcpListener::bind("127.0.0.1:0").and_then(|taken| taken.local_addr()).expect("an address");
    let says = |status, headers, body: &str| Llm::start(vec![Said::status(status, headers, body)]).origin();
    let table = [
        (says(200, "", &events), json!({ "outcome": "completed", "result": { "summary": "Ünïcode." } })),
        (says(429, "retry-after: 7\r\n", ""), json!({ "outcome": "unavailable", "after_ms": 7000 })),
        (says(503, "", ""), json!({ "outcome": "unavailable", "after_ms": null })),
        (format!("http://{away}"), json!({ "outcome": "unavailable", "after_ms": null })),
        (says(500, "", ""), json!({ "outcome": "retry", "message": "the model's server says 500" })),
        (
            says(400, "", "no such model"),
            json!({ "outcome": "reject", "message": "the model's server says 400: no such model" }),
        ),
    ];
    let folder = tempfile::tempdir().expect("a folder");
    let args = ["try", component.to_str().expect("UTF-8"), "--field", "content=x", "--json"];
    for (origin, expected) in table {
        let grants = grants.replace("http://127.0.0.1:11434", &origin);
        fs::write(folder.path().join("tqhost.toml"), grants).expect("write");
        let more = ["--config", "tqhost.toml", "--queue", NAME];
        let mut command = command(folder.path(), &[&args[..], &more].concat());
        // The project's own tests have compiled it into the cache of this machine's user.
        let view = Ran::from(command.env_remove(CACHES).output().expect("run tqhost")).json();
        for (name, value) in expected.as_object().expect("an object") {
            assert_eq!(&view[name], value, "{origin}: {view}");
        }
        assert!(view["progress"]["percent"].as_u64() >= Some(10), "{view}");
    }
}

#[test]
fn a_project_in_rust_asks_a_model() {
    asks_a_model("rust");
}

#[test]
fn a_project_in_go_asks_a_model() {
    asks_a_model("go");
}

#[test]
fn a_project_in_python_asks_a_model() {
    asks_a_model("python");
}

#[test]
fn a_project_in_javascript_asks_a_model() {
    asks_a_model("javascript");
}

#[test]
fn a_project_in_typescript_asks_a_model() {
    asks_a_model("typescript");
}

#[test]
fn a_project_in_rust_passes_its_own_test() {
    passes_its_own_test("rust");
}

#[test]
fn a_project_in_javascript_passes_its_own_test() {
    passes_its_own_test("javascript");
}

#[test]
fn a_project_in_typescript_passes_its_own_test() {
    passes_its_own_test("typescript");
}

#[test]
fn a_project_in_python_passes_its_own_test() {
    passes_its_own_test("python");
}

#[test]
fn a_project_in_go_passes_its_own_test() {
    passes_its_own_test("go");
}

#[test]
fn a_project_in_javascript_makes_requests_with_one_line_more() {
    let handler = "import { handles, text } from './tqhost.js';\n\
        import { fetch } from './tqhost-http.js';\n\n\
        export const handler = handles(async (task) => \
        ({ status: (await fetch(text(task, 'content'))).status }));\n";
    asks_as_its_readme_tells("javascript", "handler.js", handler);
}

#[test]
fn a_project_in_python_makes_requests_with_one_line_more() {
    let handler = "from tqhost import handles, text\nfrom tqhost_http import request\n\n\
        Handler = handles(lambda task: {\"status\": request(\"GET\", text(task, \"content\")).status})\n";
    asks_as_its_readme_tells("python", "app.py", handler);
}
