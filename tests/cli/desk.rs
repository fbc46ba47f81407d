//! The operator's desk: many tasks and dead letters at once, told apart, kept, brought back.
//!
//! Not here: the same over HTTP (`api`), single tasks (`commands`).

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tqhost::testing::queue::script;

use crate::support::dead_letters::add_dead;
use crate::support::words::masked;
use crate::support::{Bench, Held, Host, Ran, eventually};

/// The place of the dead letters.
const DEAD: &str = "tq:{work}:dead";

/// Starts a command, for one that is interrupted.
pub(super) fn start(bench: &Bench, args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tqhost"));
    command.arg("--config").arg(bench.config()).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("start tqhost")
}

/// Presses Ctrl-C.
pub(super) fn interrupt(child: Child) -> Ran {
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

/// How often commands have read a part of a stream.
fn reads(bench: &mut Bench) -> u64 {
    let stats: String = bench.redis("INFO", "commandstats");
    let calls = |name: &str| {
        let line = stats.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split(',').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    calls("cmdstat_xrange:calls=") + calls("cmdstat_xrevrange:calls=")
}

fn dead(bench: &mut Bench) -> u64 {
    bench.redis("XLEN", DEAD)
}

/// A queue without a host, with these dead letters.
fn with_dead(letters: usize) -> Bench {
    let mut bench = Bench::new("[queues.work]\n");
    add_dead(&mut bench, 0..letters);
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
        of(&[("timeout: … ms", 33), ("no such page …", 33), ("trap …", 32), ("too large", 32)])
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
    insta::assert_snapshot!(shown.lines().last().unwrap_or_default(), @"130 of 130 dead letters.");
    // The text of a group is a filter for the other commands.
    let found = ask(&bench, &["dead", "requeue", "work", "--all", "--error", "timeout: … ms", "--dry-run"]);
    assert_eq!(found, json!({ "succeeded": 33, "skipped": 0, "dry_run": true }));
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
    let filters: [&[&str]; 3] = [
        &["--match", "trap", "--limit", "5"],
        &["--match", "nothing"],
        &["--plugin", "bbbb", "--limit", "90"],
    ];
    let last = filters.map(|args| {
        let text = bench.tqhost(&[&["dead", "list", "work"], args].concat()).ok().stdout;
        let (last, cursor) = (text.lines().last().expect("a line"), |word: &&str| word.len() > 30);
        last.split(' ').map(|word| if cursor(&word) { "CURSOR" } else { word }).collect::<Vec<_>>().join(" ")
    });
    insta::assert_snapshot!(last.join("\n"), @"
    5 of 32 that match, of 130 dead letters. --limit shows more, and --cursor CURSOR goes on.
    None of the 130 dead letters of work match.
    65 of 130 dead letters match.
    ");
    // The filters are no second choice beside ids.
    let both = bench.tqhost(&["dead", "purge", "work", "id-1", "--reason", "rejected"]);
    assert!(both.code == 2 && both.stderr.contains("--all"), "{both:?}");
    assert_eq!(dead(&mut bench), 130);
}

#[test]
fn a_dead_letter_that_its_status_names_is_found_at_once() {
    let mut bench = with_dead(2_000);
    let id = "id-1999";
    let newest: Vec<RawEntry> = bench.redis("XREVRANGE", (DEAD, "+", "-", "COUNT", 1));
    let _: u64 =
        bench.redis("HSET", (format!("tq:{{work}}:task:{id}"), "status", "FAILED", "dead", &newest[0].0));
    let commands: [&[&str]; 5] = [
        &["dead", "show", "work", id],
        &["dead", "export", "work", id],
        &["dead", "requeue", "work", id, "--dry-run"],
        &["dead", "purge", "work", id, "--dry-run"],
        &["dead", "purge", "work", id],
    ];
    for command in commands {
        let before = reads(&mut bench);
        bench.tqhost(command).ok();
        let asked = reads(&mut bench) - before;
        assert!(asked <= 4, "{asked} reads of {command:?}, and 10 pages have all dead letters");
    }
    assert_eq!(dead(&mut bench), 1_999);
    // One that no status names is looked for among all of them.
    assert_eq!(ask(&bench, &["dead", "show", "work", "id-1995"])["error"], "trap 1995");
    let purge = bench.tqhost(&["dead", "purge", "work", "id-1995", "id-5", "nobody", "--json"]);
    assert_eq!(purge.ends_with(1).json(), counts(2, 1));
}

/// Runs a command at a terminal. When it asks, `meanwhile` happens, and the answer is these keys. Gives its
/// exit code, and what stands on the terminal in the end.
pub(super) fn at_the_question(
    bench: &mut Bench,
    args: &str,
    keys: &[u8],
    meanwhile: impl FnOnce(&mut Bench),
) -> (Option<i32>, String) {
    let config = bench.config();
    let line = format!("exec {} --config {} {args}", env!("CARGO_BIN_EXE_tqhost"), config.display());
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("start a terminal");
    let mut terminal = child.stdout.take().expect("a terminal");
    let mut shown = Vec::new();
    while !shown.ends_with(b"[y/N] ") {
        let mut byte = [0];
        terminal.read_exact(&mut byte).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&shown)));
        shown.extend(byte);
    }
    meanwhile(bench);
    let mut keyboard = child.stdin.take().expect("a keyboard");
    keyboard.write_all(keys).expect("press keys");
    terminal.read_to_end(&mut shown).expect("read the terminal");
    drop(keyboard);
    (child.wait().expect("wait").code(), String::from_utf8_lossy(&shown).into_owned())
}

/// Runs a command at a terminal, and answers yes. Gives what stands on the terminal in the end.
fn answered(bench: &mut Bench, args: &str, meanwhile: impl FnOnce(&mut Bench)) -> String {
    let (code, shown) = at_the_question(bench, args, b"y\n", meanwhile);
    assert_eq!(code, Some(0), "{shown}");
    shown
}

#[test]
fn exactly_the_counted_letters_are_deleted() {
    let mut bench = with_dead(3);
    let shown = answered(&mut bench, "dead purge work --all", |bench| add_dead(bench, 3..5));
    assert_eq!(dead(&mut bench), 2, "{shown}");
    insta::assert_snapshot!(masked(&shown.replace('\r', ""), &[]), @"
      id-0  n=0
      id-1  n=1
      id-2  n=2
    Delete 3 dead letters of work (they are kept for a day)? [y/N] y
    tqhost: for 24 hours, `tqhost jobs file HEX --out FILE` writes them to a file, and `tqhost jobs \
        undo HEX` brings them back
    3 dead letters deleted, 0 skipped
    ");
    let file = bench.dir.path().join("dead.jsonl");
    let purge = format!("dead purge work --all --out {}", file.display());
    let shown = answered(&mut bench, &purge, |bench| add_dead(bench, 5..6));
    assert_eq!(dead(&mut bench), 1, "{shown}");

    let delay = |bench: &Bench| drop(ask(bench, &["enqueue", "work", "a=1", "--delay", "1h"]));
    for command in ["drain", "cancel"] {
        bench.xadd("work", &[("a", "1")]);
        delay(&bench);
        let all = if command == "cancel" { " --all" } else { "" };
        let shown = answered(&mut bench, &format!("{command} work{all}"), |bench| {
            bench.xadd("work", &[("a", "2")]);
            delay(bench);
        });
        assert!(shown.contains("Cancel 2 tasks") && shown.contains("2 tasks cancelled"), "{shown}");
        assert_eq!(shown.matches("  a=1\r\n").count(), 2, "the question shows some of them: {shown}");
        let places = bench.places("work");
        assert_eq!((places.length, places.delayed), (1, 1), "{command}");
        assert_eq!(ask(&bench, &["drain", "work", "--yes"])["succeeded"], 2, "{command}");
    }
}

#[test]
fn an_interrupted_requeue_goes_on_on_a_host() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    add_dead(&mut bench, 0..100);
    let child = start(&bench, &["dead", "requeue", "work", "--all", "--rate", "20/s", "--json"]);
    eventually("some are back", || (bench.redis::<u64>("XLEN", "work") > 3).then_some(()));
    let ran = interrupt(child);
    let back = bench.redis::<u64>("XLEN", "work");
    assert!((4..100).contains(&back), "{back}");
    let jobs = ask(&bench, &["jobs"]);
    let id = jobs[0]["id"].as_str().expect("an id");
    assert_eq!((&jobs[0]["done"], &jobs[0]["state"]), (&json!(back), &json!("running")), "{jobs}");
    let error: Value = serde_json::from_str(&ran.stderr).expect("one error as JSON");
    let why = error["error"].as_str().expect("a text").replace(&format!(" {back} "), " N ");
    insta::assert_snapshot!(
        why.replace(id, "ID"),
        @"interrupted: N dead letters requeued, and hosts with this queue go on with it as job ID: `tqhost \
          jobs ID` tells how far it is, and `tqhost jobs stop ID` stops it"
    );
    assert_eq!((ran.code, dead(&mut bench)), (1, 100 - back));
    // Nobody carries it out until there is a host.
    let host = bench.host();
    let over = eventually("a host does the rest", || {
        Some(ask(&bench, &["jobs", id])).filter(|job| job["state"] == "done")
    });
    assert_eq!((&over["done"], dead(&mut bench)), (&json!(100), 0), "{over}");
    host.stop();
}

#[test]
fn an_interrupted_list_says_that_it_has_not_seen_all() {
    const TASKS: usize = 60_000;
    let mut bench = Bench::new("[queues.work]\n");
    let mut pipe = redis::pipe();
    for n in 0..TASKS {
        pipe.cmd("XADD").arg("work").arg("*").arg("n").arg(n).ignore();
        pipe.cmd("XADD").arg(DEAD).arg("*").arg(&["tq-id", "a", "tq-reason", "rejected"]).ignore();
    }
    pipe.query::<()>(&mut bench.db).expect("add tasks");
    let lists: [&[&str]; 3] = [
        &["tasks", "work", "--match", "nothing like this"],
        &["dead", "list", "work", "--match", "nothing like this"],
        &["dead", "list", "work", "--match", "nothing like this", "--by", "error"],
    ];
    for list in lists {
        let before = reads(&mut bench);
        let child = start(&bench, list);
        eventually("it is at work", || (reads(&mut bench) > before + 10).then_some(()));
        let ran = interrupt(child);
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{ran:?}");
        assert!(ran.stderr.starts_with("tqhost: interrupted: "), "{ran:?}");
        assert!(ran.stderr.contains(" looked at; --cursor "), "{ran:?}");
        assert!(!ran.stderr.contains(&format!(" {TASKS} ")), "{ran:?}");
    }
}

#[test]
fn an_import_that_only_counts_can_be_interrupted() {
    let mut bench = with_dead(1);
    let file = bench.dir.path().join("dead.jsonl");
    let path = file.to_str().expect("a path");
    let line = |n| {
        let id = format!("old-{n}");
        format!("{}\n", json!({ "id": id, "queue": "work", "failed_at": 1, "fields": [], "reserved": [] }))
    };
    std::fs::write(&file, (0..100_000).map(line).collect::<String>()).expect("write");
    let before = reads(&mut bench);
    let child = start(&bench, &["dead", "import", "work", path, "--dry-run"]);
    // It has read the file once by then.
    eventually("it knows what is dead", || (reads(&mut bench) > before).then_some(()));
    let ran = interrupt(child);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{ran:?}");
    assert!(ran.stderr.starts_with("tqhost: interrupted: "), "{ran:?}");
}

/// An entry of a stream, byte for byte.
type RawEntry = (String, Vec<Vec<u8>>);

/// The fields of all dead letters, oldest first.
fn raw(bench: &mut Bench) -> Vec<Vec<Vec<u8>>> {
    let entries: Vec<RawEntry> = bench.redis("XRANGE", (DEAD, "-", "+"));
    entries.into_iter().map(|(_, fields)| fields).collect()
}

fn counts(succeeded: u64, skipped: u64) -> Value {
    json!({ "succeeded": succeeded, "skipped": skipped })
}

/// The JSON of a command with `--dry-run`.
fn looked(mut answer: Value) -> Value {
    answer["dry_run"] = json!(true);
    answer
}

#[test]
fn the_file_of_a_purge_can_be_brought_back() {
    let mut bench = with_dead(130);
    let fields: [&[u8]; 16] = [
        b"a",
        b"1",
        b"a",
        b"\xff\x00\n",
        b"\xfe",
        b"{}",
        b"tq-id",
        b"bytes",
        b"tq-key",
        b"\xff",
        b"tq-reason",
        b"crashed",
        b"tq-error",
        b"trap",
        b"tq-failed-at",
        b"5",
    ];
    let _: String = bench.redis("XADD", (DEAD, "*", &fields[..]));
    let file = bench.dir.path().join("dead.jsonl");
    let path = file.to_str().expect("a path");
    let before = raw(&mut bench);
    let purge = ["dead", "purge", "work", "--all", "--match", "trap", "--out", path, "--yes"];
    let done = ask(&bench, &purge);
    assert_eq!(done, json!({ "succeeded": 33, "skipped": 0, "out": path, "written": 33 }));
    assert_eq!(std::fs::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o600);
    assert_eq!(dead(&mut bench), 98);
    let again = bench.tqhost(&["dead", "purge", "work", "--all", "--out", path, "--yes"]);
    assert!(again.code == 1 && again.stderr.contains("exists already"), "{again:?}");
    assert_eq!(dead(&mut bench), 98, "nothing is deleted that was not written");

    let import_of = |bench: &Bench, file: &str| ask(bench, &["dead", "import", "work", file]);
    let import = |bench: &Bench| import_of(bench, path);
    assert_eq!(ask(&bench, &["dead", "import", "work", path, "--dry-run"]), looked(counts(33, 0)));
    assert_eq!((dead(&mut bench), import(&bench)), (98, counts(33, 0)));
    let sorted = |mut letters: Vec<Vec<Vec<u8>>>| {
        letters.sort();
        letters
    };
    assert_eq!(sorted(raw(&mut bench)), sorted(before), "every byte is there again");
    assert_eq!(import(&bench), counts(0, 33), "a second import adds nothing");
    let statuses: Vec<String> = bench.redis("KEYS", "tq:{work}:task:*");
    assert_eq!(statuses.len(), 33);
    let lives: i64 = bench.redis("PTTL", &statuses[0]);
    assert!(lives > 0, "the status expires: {lives}");
    let _: u64 = bench.redis("DEL", statuses);
    assert_eq!(import(&bench), counts(0, 33), "also where no status is kept any more");

    // The task is what it was: it can be found, tried and requeued. Then it is no dead letter any more.
    assert_eq!(ask(&bench, &["dead", "show", "work", "id-3"])["error"], "trap 3");
    assert_eq!(ask(&bench, &["dead", "requeue", "work", "id-3"]), counts(1, 0));
    assert_eq!(ask(&bench, &["status", "work", "id-3"])["status"], "PENDING");
    assert_eq!(import(&bench), counts(0, 33), "a task that waits gets no dead letter");

    let other = bench.dir.path().join("other.jsonl");
    let other = other.to_str().expect("a path");
    let skips = |args: &[&str]| -> Value {
        bench
            .tqhost(&[&["dead", "purge", "work"], args, &["--out", other, "--json"]].concat())
            .ends_with(1)
            .json()
    };
    let some = skips(&["id-1", "nobody"]);
    assert_eq!((&some["succeeded"], &some["skipped"], &some["written"]), (&json!(1), &json!(1), &json!(1)));
    std::fs::remove_file(other).expect("remove");
    let none = skips(&["nobody"]);
    assert_eq!((&none["written"], std::fs::read(other).expect("a file")), (&json!(0), Vec::new()));
    assert_eq!(import_of(&bench, other), counts(0, 0), "a script may go on with it");
    std::fs::remove_file(other).expect("remove");
    let none = ask(&bench, &["drain", "work", "--match", "nobody", "--yes", "--out", other]);
    assert_eq!((&none["written"], std::fs::read(other).expect("a file")), (&json!(0), Vec::new()));
}

#[test]
fn an_export_into_a_file_leaves_the_dead_letters_where_they_are() {
    let mut bench = with_dead(130);
    let file = bench.dir.path().join("dead.jsonl");
    let path = file.to_str().expect("a path");
    let export = |bench: &Bench, chosen: &[&str]| -> Ran {
        let _ = std::fs::remove_file(&file);
        bench.tqhost(&[&["dead", "export", "work"], chosen, &["--out", path, "--json"]].concat())
    };
    let trap = export(&bench, &["--all", "--match", "trap"]).ok().json();
    assert_eq!(trap, json!({ "written": 32, "skipped": 0, "out": path }));
    let ids = export(&bench, &["id-1", "nobody"]).ends_with(1).json();
    assert_eq!(ids, json!({ "written": 1, "skipped": 1, "out": path }));
    assert_eq!(
        (export(&bench, &["--all"]).ok().json()["written"].as_u64(), dead(&mut bench)),
        (Some(130), 130)
    );
    // An import brings all of them back.
    let before = raw(&mut bench);
    ask(&bench, &["dead", "purge", "work", "--all", "--yes"]);
    assert_eq!(ask(&bench, &["dead", "import", "work", path]), counts(130, 0));
    let sorted = |mut letters: Vec<Vec<Vec<u8>>>| {
        letters.sort();
        letters
    };
    assert_eq!(sorted(raw(&mut bench)), sorted(before), "every byte is there again");
    // A part would be taken for the whole.
    let _: u64 = bench.redis("DEL", DEAD);
    let _: String = bench.redis("SET", (DEAD, "x"));
    let failed = export(&bench, &["--all"]);
    assert!(failed.code == 1 && !file.exists(), "{failed:?}");
}

#[test]
fn a_wrong_line_is_named_before_anything_is_added() {
    let mut bench = with_dead(8);
    let file = bench.dir.path().join("dead.jsonl");
    let path = file.to_str().expect("a path");
    ask(&bench, &["dead", "purge", "work", "--all", "--out", path, "--yes"]);
    let lines = std::fs::read_to_string(&file).expect("read");
    let mut import = |text: &str| -> String {
        std::fs::write(&file, text).expect("write");
        let ran = bench.tqhost(&["dead", "import", "work", path]);
        assert_eq!((ran.code, dead(&mut bench)), (1, 0), "{ran:?}");
        ran.stderr.replace(path, "FILE")
    };
    insta::assert_snapshot!(
        import(&format!("{lines}\n{{\"id\": \"9\"}}\n")),
        @"tqhost: FILE line 10: this is no line of `dead purge --out`, or of a download of dead letters: \
          missing field `queue` at line 1 column 11"
    );
    let end = json!({ "tq-export": { "letters": 9, "examined": 9, "next": null } });
    insta::assert_snapshot!(
        import(&format!("{lines}{end}\n")),
        @"tqhost: FILE line 9: the download had 9 dead letters, and 8 are in the file"
    );
    std::fs::write(&file, lines.repeat(2)).expect("write");
    assert_eq!(ask(&bench, &["dead", "import", "work", path]), counts(8, 8), "each only once");
}

#[test]
fn the_file_of_a_purge_goes_to_a_queue_with_another_name() {
    let mut bench = with_dead(2);
    let file = bench.dir.path().join("dead.jsonl");
    let path = file.to_str().expect("a path");
    ask(&bench, &["dead", "purge", "work", "--all", "--out", path, "--yes"]);
    bench.configure_for("[queues.renamed]\nstream = \"work\"\n", bench.redis.port);
    let import = |more: &[&str]| bench.tqhost(&[&["dead", "import", "renamed", path], more].concat()).ok();
    let looked = import(&["--dry-run"]);
    insta::assert_snapshot!(looked.stdout.clone() + &looked.stderr, @"
    2 dead letters would be added, 0 skipped
    tqhost: 2 dead letters of the file were of the queue work, not of renamed
    ");
    let done = import(&["--json"]);
    assert_eq!((done.json(), done.stderr), (counts(2, 0), looked.stderr));
    assert_eq!(dead(&mut bench), 2);
}

#[test]
fn a_dead_letter_with_more_fields_than_a_task_can_be_brought_back() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\n");
    bench.install("echo", "echo");
    let names: Vec<String> = (0..1_200).map(|n| format!("f{n}")).collect();
    let fields: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
    let host = bench.host();
    bench.xadd("work", &fields);
    eventually("it is malformed", || (bench.places("work").dead == 1).then_some(()));
    host.stop();
    let before = raw(&mut bench);
    let file = bench.dir.path().join("dead.jsonl");
    let path = file.to_str().expect("a path");
    ask(&bench, &["dead", "purge", "work", "--all", "--out", path, "--yes"]);
    assert_eq!(dead(&mut bench), 0);
    let add = |bench: &Bench| ask(bench, &["dead", "import", "work", path]);
    assert_eq!(add(&bench), counts(1, 0));
    assert_eq!(raw(&mut bench), before);
}

#[test]
fn a_purge_whose_file_cannot_be_written_has_lost_nothing() {
    let mut bench = with_dead(1000);
    let file = bench.dir.path().join("dead.jsonl");
    let path = file.to_str().expect("a path");
    // A file may have 220 KiB: the first 200 lines fit, and all of them do not.
    let script = "trap '' XFSZ; ulimit -f 440; exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_tqhost"), "--config"]).arg(bench.config());
    command.args(["dead", "purge", "work", "--all", "--yes", "--out"]).arg(&file);
    let ran: Ran = command.output().expect("run").into();
    assert_eq!((ran.code, dead(&mut bench), file.exists()), (1, 0, false), "{ran:?}");
    let jobs = ask(&bench, &["jobs"]);
    let id = jobs[0]["id"].as_str().expect("an id");
    insta::assert_snapshot!(
        ran.stderr.replace(id, "ID").replace(path, "FILE"),
        @"tqhost: 1000 dead letters deleted, which the job keeps: `tqhost jobs file ID --out FILE` writes \
          them to a file, and `tqhost jobs undo ID` brings them back: cannot write to FILE: File too large \
          (os error 27)"
    );
    assert_eq!(ask(&bench, &["jobs", "file", id, "--out", path])["written"], 1000);
    assert_eq!(std::fs::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o600);
    let again = bench.tqhost(&["jobs", "file", id, "--out", path]);
    assert!(again.code == 1 && again.stderr.contains("exists already"), "{again:?}");
    insta::assert_snapshot!(
        bench.tqhost(&["jobs", "undo", id]).ok().stdout,
        @"1000 tasks brought back, 0 skipped"
    );
    assert_eq!(dead(&mut bench), 1000);
    assert_eq!(ask(&bench, &["dead", "import", "work", path]), counts(0, 1000), "they are there already");
}

#[test]
fn a_purge_into_a_file_goes_on_after_ctrl_c_and_says_how_to_get_the_file() {
    const ALL: usize = 40_000;
    let mut bench = Bench::new("[queues.work]\nplugin = \"missing\"\n");
    add_dead(&mut bench, 0..ALL);
    let file = bench.dir.path().join("dead.jsonl");
    let path = file.to_str().expect("a path");
    std::fs::write(&file, "x").expect("write");
    let purge = ["dead", "purge", "work", "--all", "--yes", "--out", path];
    let refused = bench.tqhost(&purge);
    assert!(refused.code == 1 && refused.stderr.contains("exists already"), "{refused:?}");
    assert_eq!(ask(&bench, &["jobs"]), json!([]), "nothing was ordered");
    std::fs::remove_file(&file).expect("remove");

    let child = start(&bench, &purge);
    eventually("some are deleted", || (dead(&mut bench) < ALL as u64).then_some(()));
    let ran = interrupt(child);
    let left = dead(&mut bench);
    assert!(ran.code == 1 && left > 0 && !file.exists(), "{left}: {ran:?}");
    let jobs = ask(&bench, &["jobs"]);
    let id = jobs[0]["id"].as_str().expect("an id");
    assert_eq!(jobs[0]["state"], "running", "{jobs}");
    assert!(ran.stderr.contains(&format!("`tqhost jobs file {id} --out FILE`")), "{ran:?}");
    let early = bench.tqhost(&["jobs", "undo", id]);
    insta::assert_snapshot!(
        early.ends_with(1).stderr.replace(id, "ID"),
        @"tqhost: job ID is under way: stop it first"
    );
    let host = bench.host();
    eventually("a host does the rest", || (ask(&bench, &["jobs", id])["state"] == "done").then_some(()));
    assert_eq!(
        (ask(&bench, &["jobs", "file", id, "--out", path])["written"].as_u64(), dead(&mut bench)),
        (Some(ALL as u64), 0)
    );
    host.stop();
}

/// A host that runs one task of the queue `work`, while three are queued and one is delayed. Gives the id of
/// the one that runs, and of those that wait.
fn busy() -> (Held, Bench, Host, String, Vec<String>) {
    let held = Held::new();
    let mut bench = held.bench("[queues.work]\nplugin = \"fetches\"\nconcurrency = 1\n");
    let host = bench.host();
    let [task] = held.task();
    let running = bench.xadd("work", &[task]);
    bench.until_running("work", 1);
    let mut waiting: Vec<String> =
        (0..3).map(|n| bench.xadd("work", &[task, ("name", "waits"), ("n", &n.to_string())])).collect();
    let delayed = ask(&bench, &["enqueue", "work", "name=later", "--delay", "1h"]);
    waiting.push(delayed["id"].as_str().expect("an id").to_owned());
    (held, bench, host, running, waiting)
}

#[test]
fn a_drain_ends_what_waits_and_leaves_what_runs() {
    let (held, mut bench, host, running, waiting) = busy();
    let unsure = bench.tqhost(&["drain", "work"]);
    assert!(unsure.code == 2 && unsure.stderr.contains("--yes"), "{unsure:?}");
    let dry = bench.tqhost(&["drain", "work", "--dry-run"]).ok().stdout;
    insta::assert_snapshot!(dry, @"4 tasks would be cancelled");
    let file = bench.dir.path().join("work.jsonl");
    let path = file.to_str().expect("a path");
    let done = ask(&bench, &["drain", "work", "--match", "waits", "--out", path, "--yes"]);
    let some = ["succeeded", "skipped", "written"].map(|name| done[name].as_u64());
    assert_eq!(some, [Some(3), Some(0), Some(3)], "{done}");
    for id in &waiting[..3] {
        assert_eq!(bench.status("work", id, "status"), "CANCELLED", "{id}");
    }
    let rest = bench.tqhost(&["drain", "work", "--yes"]).ok().stdout;
    assert_eq!(rest, "1 task cancelled\n");
    assert_eq!(bench.status("work", &running, "status"), "PROCESSING");
    let places = bench.places("work");
    assert_eq!((places.length, places.pending, places.delayed), (1, 1, 0));

    // The file brings them back as dead letters, and a requeue lets them run.
    assert_eq!(ask(&bench, &["dead", "import", "work", path]), counts(3, 0));
    assert_eq!(ask(&bench, &["dead", "list", "work", "--reason", "drained"])["matching"], 3);
    held.end();
    assert_eq!(ask(&bench, &["dead", "requeue", "work", "--all"]), counts(3, 0));
    bench.until_drained("work");
    for id in waiting[..3].iter().chain([&running]) {
        assert_eq!(bench.status("work", id, "status"), "COMPLETED", "{id}");
    }
    assert_eq!(bench.status("work", &waiting[3], "status"), "CANCELLED");
    host.stop();
}

#[test]
fn a_drain_does_not_touch_a_task_that_a_host_has_just_taken() {
    let mut bench = Bench::new("[queues.work]\n");
    let id = bench.xadd("work", &[("a", "1")]);
    let _: String = bench.redis("XGROUP", ("CREATE", "work", "tqhost", "0"));
    let keys = ["work", "tq:{work}:delayed", "tq:{work}:parked"].map(str::to_owned);
    let status = format!("tq:{{work}}:task:{id}");
    let flow = [format!("tq:{{work}}:flow:{id}"), format!("tq:{{work}}:flow:{id}:children")];
    let keys: Vec<String> =
        keys.into_iter().chain([status.clone(), "work".into()]).chain(flow).chain(["work".into()]).collect();
    let cancel = |bench: &mut Bench, only_waiting: &str| -> String {
        let args = ["tqhost", "60000", "60000", &id, &id, only_waiting, "", "", "", "", "work", ""];
        bench.redis("EVAL", (&script::CANCEL.source, keys.len(), &keys, &args[..]))
    };
    // The host has read it, and has not said yet that it runs.
    let _: redis::Value = bench.redis("XREADGROUP", ("GROUP", "tqhost", "box-1", "STREAMS", "work", ">"));
    assert_eq!(cancel(&mut bench, "1"), "PROCESSING");
    assert_eq!((bench.places("work").pending, bench.redis::<bool>("EXISTS", &status)), (1, false));
    assert_eq!(cancel(&mut bench, ""), "PENDING");
    assert_eq!((bench.places("work").pending, bench.status("work", &id, "status")), (0, "CANCELLED".into()));
}

#[test]
fn a_kept_task_comes_back_once_and_only_where_it_is_nowhere_else() {
    let mut bench = Bench::new("[queues.work]\n");
    let (status, kept) = ("tq:{work}:task:id-1", "tq:{work}:kept:job");
    let letter = ["tq-id", "id-1", "tq-reason", "rejected", "tq-error", "no"];
    let keep = |bench: &mut Bench| -> String { bench.redis("XADD", (kept, "*", &letter[..])) };
    let import = |bench: &mut Bench, entry: &str| -> u64 {
        let keys = ["work", status, DEAD, kept];
        bench.redis("EVAL", (&script::IMPORT.source, keys.len(), &keys[..], &["tqhost", "0", entry][..]))
    };
    let entry = keep(&mut bench);
    assert_eq!([import(&mut bench, &entry), import(&mut bench, &entry)], [1, 0]);
    assert_eq!((dead(&mut bench), bench.redis::<u64>("XLEN", kept)), (1, 0));
    assert_eq!(bench.status("work", "id-1", "error"), "no");
    let entry = keep(&mut bench);
    assert_eq!(import(&mut bench, &entry), 0, "it is dead");
    let _: u64 = bench.redis("DEL", DEAD);
    for (state, gives) in [("PENDING", 0), ("PROCESSING", 0), ("COMPLETED", 0), ("CANCELLED", 1)] {
        let _: u64 = bench.redis("HSET", (status, "status", state));
        assert_eq!(import(&mut bench, &entry), gives, "{state}");
    }
    let _: u64 = bench.redis("DEL", DEAD);
    let _: String = bench.redis("SET", (status, "x"));
    let entry = keep(&mut bench);
    assert_eq!(import(&mut bench, &entry), 1, "a key of another type is no status");
}

#[test]
fn a_drain_keeps_a_task_only_as_it_was_found() {
    let mut bench = Bench::new("[queues.work]\n");
    let kept = "tq:{work}:kept:job";
    let drain = |bench: &mut Bench, id: &str, entry: &str| -> String {
        let keys = ["work", "tq:{work}:delayed", "tq:{work}:parked"].map(str::to_owned).into_iter();
        let keys = keys.chain([format!("tq:{{work}}:task:{id}"), "work".into()]);
        let keys = keys.chain(["flow", "flow:children"].map(|flow| format!("tq:{{work}}:{flow}:{id}")));
        let keys: Vec<String> = keys.chain([kept.to_owned()]).collect();
        let args =
            ["tqhost", "60000", "60000", id, entry, "1", "", "", "86400000", "tq-id", id, "", "work", ""];
        bench.redis("EVAL", (&script::CANCEL_KEPT.source, keys.len(), &keys, &args[..]))
    };
    let count = |bench: &mut Bench| -> [u64; 2] { ["work", kept].map(|key| bench.redis("XLEN", key)) };
    // It was promoted, and so has another entry than the list found.
    let [old, new] = [(); 2].map(|()| bench.xadd("work", &[("tq-id", "7")]));
    let _: u64 = bench.redis("XDEL", ("work", &old));
    let _: u64 = bench.redis("HSET", ("tq:{work}:task:7", &["status", "PENDING", "entry", &new][..]));
    assert_eq!((drain(&mut bench, "7", &old), count(&mut bench)), ("PROCESSING".into(), [1, 0]));
    assert_eq!((drain(&mut bench, "7", &new), count(&mut bench)), ("PENDING".into(), [0, 1]));
    assert_eq!((drain(&mut bench, "7", &new), count(&mut bench)), ("CANCELLED".into(), [0, 1]));
    // The same id was sent again: beside a task that has completed it would never run, and else it would.
    for (state, is_kept) in [("COMPLETED", 0), ("CANCELLED", 1)] {
        let _: u64 = bench.redis("DEL", kept);
        let again = bench.xadd("work", &[("tq-id", "7")]);
        let _: u64 = bench.redis("HSET", ("tq:{work}:task:7", "status", state));
        let told = drain(&mut bench, "7", &again);
        assert_eq!((told, count(&mut bench)), ("PENDING".into(), [0, is_kept]), "{state}");
    }
}

#[test]
fn queues_are_watched_line_by_line_until_ctrl_c() {
    let mut bench = Bench::new("[queues.work]\n[queues.other]\nplugin = \"else\"\n");
    let mut child = start(&bench, &["queues", "--watch", "--json", "--match", "wor"]);
    let stdout = child.stdout.take().expect("stdout");
    let mut lines = BufReader::new(stdout).lines().map(|line| line.expect("a line"));
    let mut next = || -> Value { serde_json::from_str(&lines.next().expect("a line")).expect("JSON") };
    let first = next();
    assert_eq!((texts(&first, "queue"), &first[0]["queued"]), (vec!["work".to_owned()], &json!(0)));
    bench.xadd("work", &[("a", "1")]);
    // The task comes into one of the next lines.
    assert!((0..10).any(|_| next()[0]["queued"] == 1), "the task is seen");
    let ran = interrupt(child);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "Ctrl-C is how it ends");

    let shown = |text: &str| bench.tqhost(&["queues", "--match", text]).ok().stdout;
    assert!(shown("no host").contains("other") && !shown("els").contains("work "), "{}", shown("els"));
    assert_eq!(shown("nothing"), "No queue matches.\n");
}

#[test]
fn an_interrupted_enqueue_says_where_the_file_goes_on() {
    const ALL: usize = 300_000;
    let mut bench = Bench::new("[queues.work]\n");
    let file = bench.dir.path().join("tasks.jsonl");
    std::fs::write(&file, "{\"a\":1}\n".repeat(ALL)).expect("write");
    let child = start(&bench, &["enqueue", "work", "--jsonl", file.to_str().expect("a path")]);
    eventually("some are there", || (bench.redis::<usize>("XLEN", "work") > 0).then_some(()));
    let ran = interrupt(child);
    let there = bench.redis::<usize>("XLEN", "work");
    assert!(ran.code == 1 && there < ALL, "{there}: {ran:?}");
    insta::assert_snapshot!(
        ran.stderr.replace(&there.to_string(), "N"),
        @"tqhost: interrupted: the first N tasks of the file are in the queue, and the others are not"
    );
}

/// Whatever only reads works while Redis refuses writes.
fn reads_work(refuse: impl FnOnce(&mut Bench), code: &str) {
    let mut bench = Bench::with_redis(
        "[queues.work]\nplugin = \"missing\"\nevents = 10\n",
        &["--maxmemory-policy", "noeviction"],
    );
    add_dead(&mut bench, 0..8);
    let host = bench.host();
    let id = bench.xadd("work", &[("a", "1")]);
    let delayed = ask(&bench, &["enqueue", "work", "a=1", "--delay", "1h"])["id"].to_string();
    refuse(&mut bench);
    let refused = bench.tqhost(&["enqueue", "work", "a=1"]);
    assert!(refused.code == 1 && refused.stderr.contains(code), "{refused:?}");
    let commands = [
        "queues",
        "queues work",
        "tasks work",
        "tasks work --state running",
        "tasks work --state delayed",
        "tasks work --state held",
        "tasks work --state dead",
        "tasks work --state ended",
        &format!("status work {id}"),
        &format!("status work {}", delayed.trim_matches('"')),
        "status work id-1",
        "dead list work",
        "dead list work --match page",
        "dead list work --by cause",
        "dead show work id-1",
        "dead export work id-1",
        "tasks work --fields",
        "queues work --history",
        &format!("cancel work {id} --dry-run"),
        &format!("retry work {} --dry-run", delayed.trim_matches('"')),
        "dead purge work --all --dry-run",
        "dead requeue work id-1 --dry-run",
        "cancel work --all --dry-run",
        "drain work --dry-run",
        "pause work --dry-run",
        "resume work --dry-run",
        "enqueue work a=2 --dry-run",
        "doctor work",
        "adopt work",
        "plugins",
        "check",
    ];
    for command in commands {
        let ran = bench.tqhost(&command.split(' ').collect::<Vec<_>>());
        assert!(ran.code == 0 && ran.stderr.is_empty(), "{command}: {ran:?}");
    }
    let paths = [
        "/v1/queues",
        "/v1/queues/work",
        "/v1/queues/work/tasks?state=queued",
        "/v1/queues/work/tasks?state=delayed",
        "/v1/queues/work/dead",
        "/v1/queues/work/dead/groups",
        "/v1/queues/work/dead/export",
        "/v1/queues/work/tasks/id-1",
        "/v1/plugins",
        "/",
        "/queues/work",
        "/queues/work/dead",
        "/queues/work/drain",
        "/plugins",
        "/plugins/missing",
    ];
    for path in paths {
        let answer = host.get(path);
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
    }
    host.stop();
}

#[test]
fn whatever_reads_works_when_the_memory_of_redis_is_full() {
    reads_work(|bench| bench.redis("CONFIG", ("SET", "maxmemory", "1")), "maxmemory");
}

#[test]
fn whatever_reads_works_when_redis_cannot_save() {
    let refuse = |bench: &mut Bench| {
        // A folder is in the place of the file.
        std::fs::create_dir(bench.redis.dir().join("dump.rdb")).expect("create a folder");
        std::fs::write(bench.redis.dir().join("dump.rdb/full"), "").expect("write a file");
        let _: () = bench.redis("CONFIG", ("SET", "save", "3600 1"));
        eventually("Redis cannot save", || {
            // A save that is already running is enough.
            let _ = redis::cmd("BGSAVE").query::<redis::Value>(&mut bench.db);
            let info: String = bench.redis("INFO", "persistence");
            info.contains("rdb_last_bgsave_status:err").then_some(())
        });
    };
    reads_work(refuse, "MISCONF");
}

#[test]
fn wrong_command_lines_are_told_as_json() {
    let bench = Bench::new("[queues.work]\n");
    let lines = [
        "queues --nope --json",
        "--json explode",
        "dead requeue work --json",
        "queues --json --log-format text",
        "dead --json",
    ];
    let told = lines.map(|line| {
        let ran = bench.tqhost(&line.split(' ').collect::<Vec<_>>());
        assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.lines().count()), (2, "", 1), "{ran:?}");
        let told: Value = serde_json::from_str(&ran.stderr).expect("JSON");
        // The usage follows.
        let why = told["error"].as_str().expect("a text").split("\n\n").next();
        format!("{line}\n  {}\n", why.unwrap_or_default())
    });
    insta::assert_snapshot!(told.concat(), @"
    queues --nope --json
      unexpected argument '--nope' found
    --json explode
      unrecognized subcommand 'explode'
    dead requeue work --json
      name an id, or --all
    queues --json --log-format text
      unexpected argument '--log-format' found
    dead --json
      'tqhost dead' requires a subcommand but one was not provided
      [subcommands: list, export, show, requeue, purge, import]
    ");
    insta::assert_snapshot!(bench.tqhost(&["queues", "--nope"]).ends_with(2).stderr, @"
    error: unexpected argument '--nope' found

      tip: to pass '--nope' as a value, use '-- --nope'

    Usage: tqhost queues [OPTIONS] [QUEUE]

    For more information, try '--help'.
    ");
    // Words behind `--` are no options.
    let value = bench.tqhost(&["queues", "--nope", "--", "--json"]);
    assert!(value.stderr.starts_with("error: "), "{value:?}");
    let help = bench.tqhost(&["queues", "--json", "--help"]).ok();
    assert!(help.stdout.contains("Usage: tqhost queues") && help.stderr.is_empty(), "{help:?}");
}

#[test]
fn a_shell_completes_the_names_of_queues_plugins_and_tasks() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\n[queues.other]\n[plugins.spare]\n");
    add_dead(&mut bench, 0..3);
    // A shell carries out what stands in such a name.
    let forged = ["tq-id", "$(touch$IFS/tmp/x)", "tq-queue", "work"];
    let _: String = bench.redis("XADD", (DEAD, "*", &forged[..]));
    let script = bench.dir.path().join("tqhost.bash");
    std::fs::write(&script, bench.tqhost(&["completions", "bash"]).ok().stdout).expect("write");
    let built = std::path::Path::new(env!("CARGO_BIN_EXE_tqhost")).parent().expect("a folder").display();
    let path = format!("{built}:{}", std::env::var("PATH").expect("PATH"));
    let completed = |line: &str| -> String {
        let asked = format!(
            "source \"$0\"; COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _tqhost_names tqhost \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; \
             echo \"${{COMPREPLY[@]}}\""
        );
        let mut bash = Command::new("bash");
        bash.args(["-c", &asked]).arg(&script).current_dir(bench.dir.path()).env("PATH", &path);
        let output = bash.output().expect("run bash");
        assert!(output.stderr.is_empty(), "{line}: {output:?}");
        String::from_utf8(output.stdout).expect("UTF-8").trim_end().to_owned()
    };
    for (line, names) in [
        ("tqhost pause ''", "other work"),
        ("tqhost pause work o", "other"),
        ("tqhost try x.wasm --queue w", "work"),
        ("tqhost rollback ''", "echo other spare"),
        ("tqhost dead requeue work id-", "id-0 id-1 id-2"),
        ("tqhost dead show work ''", "id-0 id-1 id-2"),
        ("tqhost dead pu", "purge"),
    ] {
        assert_eq!(completed(line), names, "{line}");
    }
    assert!(completed("tqhost cancel work ''").contains("--dry-run"), "the options where no name fits");
    // Errors would stand in the middle of the user's line.
    let complete = |bench: &Bench, words: &[&str]| {
        let ran = bench.tqhost(&[&["complete", "--"], words].concat()).ok();
        assert_eq!((&*ran.stdout, &*ran.stderr), ("", ""), "{words:?}");
    };
    let here = bench.config().to_str().expect("a path").to_owned();
    for words in [
        &["--config", "nowhere.toml", "pause", ""][..],
        &["--config", &here, "pause", "x"],
        &["explode", ""],
        &[],
    ] {
        complete(&bench, words);
    }
    bench.configure_url("[queues.work]\n", "redis://127.0.0.1:1");
    complete(&bench, &["--config", &here, "dead", "show", "work", ""]);
    bench.configure("[queues.work\n");
    complete(&bench, &["--config", &here, "pause", ""]);
}

#[test]
fn a_shell_and_a_manual_know_the_commands() {
    let bench = Bench::new("");
    let script = bench.dir.path().join("tqhost.bash");
    std::fs::write(&script, bench.tqhost(&["completions", "bash"]).ok().stdout).expect("write");
    let asked = "source \"$0\"; COMP_WORDS=(tqhost dead pu); COMP_CWORD=2; _tqhost tqhost pu dead; \
                 echo \"${COMPREPLY[@]}\"";
    let completed = Command::new("bash").args(["-c", asked]).arg(&script).output().expect("run bash");
    assert_eq!(String::from_utf8_lossy(&completed.stdout), "purge\n", "{completed:?}");
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        let told = ask(&bench, &["completions", shell]);
        let script = told["script"].as_str().expect("a text");
        assert!(script.contains("drain"), "{shell}");
        // The elvish and the PowerShell complete commands and options only.
        let asks = script.contains("tqhost complete -- ");
        assert_eq!(asks, ["zsh", "fish"].contains(&shell), "{shell}");
        if shell == "zsh" {
            let parts = ["configuration:_tqhost_names'", "local -a tqhost_words=", "compadd -a names"];
            assert!(parts.iter().all(|part| script.contains(part)), "{script}");
        }
    }
    let page = bench.tqhost(&["man", "dead", "purge"]).ok().stdout;
    assert!(page.contains(".TH tqhost-dead-purge 1") && page.contains("\\-\\-out"), "{page}");
    assert!(bench.tqhost(&["man"]).ok().stdout.contains("completions"));
    assert_eq!(bench.tqhost(&["man", "explode"]).code, 2);
    let folder = bench.dir.path().join("man");
    bench.tqhost(&["man", "--out", folder.to_str().expect("a path")]).ok();
    let pages = std::fs::read_dir(&folder).expect("pages").count();
    assert!(
        pages > 20 && folder.join("tqhost-drain.1").is_file() && !folder.join("tqhost-compile.1").exists()
    );
}
