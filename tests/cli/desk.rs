//! The operator's desk: many tasks and dead letters at once, told apart, kept, brought back.
//!
//! Not here: the same over HTTP (`api`), single tasks (`commands`).

use std::ops::Range;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::support::{Bench, Ran, eventually};

/// The place of the dead letters.
const DEAD: &str = "tq:{work}:dead";

/// Starts a command, for one that is interrupted.
fn start(bench: &Bench, args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tqhost"));
    command.arg("--config").arg(bench.config()).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("start tqhost")
}

/// Presses Ctrl-C.
fn interrupt(child: Child) -> Ran {
    kill(Pid::from_raw(child.id().try_into().expect("a pid")), Signal::SIGINT).expect("SIGINT");
    child.wait_with_output().expect("wait").into()
}

/// The JSON answer of a command.
#[track_caller]
fn ask(bench: &Bench, args: &[&str]) -> Value {
    bench.tqhost(&[args, &["--json"]].concat()).ok().json()
}

/// The texts under `name` of each item.
fn texts(list: &Value, name: &str) -> Vec<String> {
    let items = list.as_array().unwrap_or_else(|| panic!("a list: {list}"));
    items.iter().map(|item| item[name].as_str().unwrap_or_default().to_owned()).collect()
}

fn dead(bench: &mut Bench) -> u64 {
    bench.redis("XLEN", DEAD)
}

/// Adds dead letters as hosts write them, of four causes.
fn add(bench: &mut Bench, numbers: Range<usize>) {
    let mut pipe = redis::pipe();
    for n in numbers {
        let (reason, error) = match n % 4 {
            0 => ("rejected", format!("no such page {n}")),
            1 => ("retries-exhausted", format!("timeout: {n} ms")),
            2 => ("rejected", "too large".to_owned()),
            _ => ("crashed", format!("trap {n}")),
        };
        let version = if n % 2 == 0 { "echo@aaaa" } else { "echo@bbbb" };
        let fields = [
            ("n", n.to_string()),
            ("tq-id", format!("id-{n}")),
            ("tq-queue", "work".into()),
            ("tq-reason", reason.into()),
            ("tq-error", error),
            ("tq-attempts", "1".into()),
            ("tq-enqueued-at", "1700000000000".into()),
            ("tq-failed-at", (1_700_000_000_000 + n * 60_000).to_string()),
            ("tq-consumer", "box-1".into()),
            ("tq-plugin", version.into()),
        ];
        pipe.cmd("XADD").arg(DEAD).arg("*").arg(&fields).ignore();
    }
    pipe.query::<()>(&mut bench.db).expect("add dead letters");
}

/// A queue without a host, with these dead letters.
fn with_dead(letters: usize) -> Bench {
    let mut bench = Bench::new("[queues.work]\n");
    add(&mut bench, 0..letters);
    bench
}

#[test]
fn dead_letters_are_told_apart_without_another_tool() {
    let bench = with_dead(130);
    let by = |what: &str, args: &[&str]| -> Value {
        ask(&bench, &[&["dead", "list", "work", "--by", what], args].concat())
    };
    let counts = |groups: &Value| -> Vec<(String, u64)> {
        let name = groups["by"].as_str().expect("a name").to_owned();
        let group = |group: &Value| (group[&name].to_string(), group["count"].as_u64().expect("a count"));
        groups["groups"].as_array().expect("groups").iter().map(group).collect()
    };
    let of = |all: &[(&str, u64)]| -> Vec<(String, u64)> {
        all.iter().map(|(name, count)| (format!("\"{name}\""), *count)).collect()
    };
    let errors = by("error", &[]);
    // The newer one of two groups of the same size comes first.
    assert_eq!(
        counts(&errors),
        of(&[("timeout: ", 33), ("no such page ", 33), ("trap ", 32), ("too large", 32)])
    );
    assert_eq!(
        (&errors["matching"], &errors["examined"], &errors["next"]),
        (&json!(130), &json!(130), &Value::Null)
    );
    let first = &errors["groups"][0];
    let times = [&first["oldest_at"], &first["newest_at"], &first["example"]];
    assert_eq!(times, [&json!(1_700_000_060_000_u64), &json!(1_700_007_740_000_u64), &json!("id-129")]);
    assert_eq!(counts(&by("version", &[])), of(&[("echo@bbbb", 65), ("echo@aaaa", 65)]));
    assert_eq!(counts(&by("reason", &["--error", "page"])), of(&[("rejected", 33)]));
    let hours = by("hour", &[]);
    // 47 minutes of the first hour are left.
    assert_eq!(hours["groups"].as_array().map(Vec::len), Some(3), "{hours}");
    assert_eq!(hours["groups"][2]["hour"], 1_699_999_200_000_u64);
    assert_eq!(by("cause", &[])["groups"].as_array().map(Vec::len), Some(4));
    let some = by("error", &["--limit", "1"]);
    assert_eq!(
        (&some["more_groups"], &some["others"]),
        (&json!(3), &json!(97)),
        "no group is left out silently"
    );

    let shown = bench.tqhost(&["dead", "list", "work", "--by", "cause"]).ok().stdout;
    assert!(shown.contains("retries-exhausted  echo@bbbb") && shown.contains("timeout: …"), "{shown}");
    assert!(shown.contains("130 of 130 dead letters."), "{shown}");
    // What a group shows is a filter for the other commands.
    let found = ask(&bench, &["dead", "requeue", "work", "--all", "--error", "timeout: ", "--dry-run"]);
    assert_eq!(found, json!({ "succeeded": 33, "skipped": 0 }));
}

#[test]
fn a_list_is_the_newest_first_and_says_how_many_there_are() {
    let mut bench = with_dead(130);
    let list = |bench: &Bench, args: &[&str]| ask(bench, &[&["dead", "list", "work"], args].concat());
    let first = list(&bench, &["--limit", "3"]);
    assert_eq!(texts(&first["dead"], "id"), ["id-129", "id-128", "id-127"]);
    assert_eq!((&first["matching"], &first["all_counted"]), (&json!(130), &json!(true)));
    let next = first["next"].as_str().expect("a cursor");
    let rest = list(&bench, &["--limit", "1000", "--cursor", next]);
    assert_eq!((texts(&rest["dead"], "id").len(), &rest["next"]), (127, &Value::Null));
    let some = list(&bench, &["--match", "trap", "--limit", "5"]);
    assert_eq!((&some["matching"], some["dead"].as_array().map(Vec::len)), (&json!(32), Some(5)));
    assert!(some["next"].is_string(), "{some}");
    let text =
        |bench: &Bench, args: &[&str]| bench.tqhost(&[&["dead", "list", "work"], args].concat()).ok().stdout;
    let shown = text(&bench, &["--match", "trap", "--limit", "5"]);
    assert!(shown.contains("5 of 32 that match, of 130 dead letters. --limit shows more"), "{shown}");
    assert!(text(&bench, &["--match", "nothing"]).contains("None of the 130 dead letters of work match."));
    assert!(text(&bench, &["--plugin", "bbbb", "--limit", "90"]).contains("65 of 130 dead letters match."));
    // The filters are no second choice beside ids.
    let both = bench.tqhost(&["dead", "purge", "work", "id-1", "--reason", "rejected"]);
    assert!(both.code == 2 && both.stderr.contains("--all"), "{both:?}");
    assert_eq!(dead(&mut bench), 130);
}

#[test]
fn an_interrupted_requeue_ends_with_its_figure() {
    let mut bench = with_dead(500);
    let child = start(&bench, &["dead", "requeue", "work", "--all", "--rate", "20/s", "--json"]);
    eventually("some are back", || (bench.redis::<u64>("XLEN", "work") > 3).then_some(()));
    let ran = interrupt(child);
    let back = bench.redis::<u64>("XLEN", "work");
    assert!((4..500).contains(&back), "{back}");
    let told = format!("interrupted: {back} dead letters requeued, not all of them; run the command again");
    let error: Value = serde_json::from_str(&ran.stderr).expect("one error as JSON");
    assert!(error["error"].as_str().is_some_and(|why| why.starts_with(&told)), "{back}: {ran:?}");
    assert_eq!((ran.code, dead(&mut bench)), (1, 500 - back));
}
