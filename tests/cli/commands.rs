//! The commands against running hosts, the private Redis, and the admin endpoints.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::support::words::masked;
use crate::support::{Bench, Host, Ran, eventually};

/// A command as a child process, for a command that takes input or is watched.
fn child(bench: &Bench, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tqhost"));
    command
        .arg("--config")
        .arg(bench.config())
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// The JSON values of a command that prints one per line.
#[track_caller]
fn lines(ran: &Ran) -> Vec<Value> {
    ran.stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {ran:#?}")))
        .collect()
}

/// The object must have exactly these names.
#[track_caller]
fn has(value: &Value, names: &[&str]) {
    let found: BTreeSet<&str> = value.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(found, names.iter().copied().collect(), "{value}");
}

/// Enqueues one task and returns its id.
#[track_caller]
fn enqueue(bench: &Bench, args: &[&str]) -> String {
    let ran = bench.tqhost(&[&["enqueue"], args, &["--json"]].concat()).ok();
    let value = ran.json();
    has(&value, &["id"]);
    value["id"].as_str().expect("an id").to_owned()
}

/// The JSON answer of a command.
#[track_caller]
fn ask(bench: &Bench, args: &[&str]) -> Value {
    bench.tqhost(&[args, &["--json"]].concat()).ok().json()
}

/// The JSON answer of a command that could not act on one of its ids.
#[track_caller]
fn skips(bench: &Bench, args: &[&str]) -> Value {
    bench.tqhost(&[args, &["--json"]].concat()).ends_with(1).json()
}

const STATUS: [&str; 26] = [
    "id",
    "queue",
    "status",
    "attempt",
    "attempts",
    "error",
    "result",
    "progress",
    "note",
    "plugin",
    "consumer",
    "enqueued_at",
    "started_at",
    "finished_at",
    "due_at",
    "duplicate_of",
    "unfinished",
    "enqueued",
    "enqueued_tasks",
    "fields",
    "fields_bytes",
    "children",
    "children_completed",
    "open_children",
    "child_of",
    "flows",
];

#[test]
fn a_task_from_enqueue_to_its_status() {
    let bench = Bench::new("[queues.work]\nplugin = \"echo\"\n");
    bench.install("echo", "echo");
    let host = bench.host();
    std::fs::write(bench.dir.path().join("cv.txt"), "ten years of this").expect("write");
    let file = format!("cv=@{}", bench.dir.path().join("cv.txt").display());
    let id = enqueue(&bench, &["work", "name=Ada=Lovelace", &file, "at=@@home"]);
    let status = eventually("it ends", || {
        Some(ask(&bench, &["status", "work", &id])).filter(|status| status["status"] == "COMPLETED")
    });
    has(&status, &STATUS);
    assert_eq!(
        (&status["id"], &status["queue"], &status["attempt"]),
        (&id.as_str().into(), &"work".into(), &1.into())
    );
    assert_eq!(
        status["result"]["fields"],
        json!({ "name": "Ada=Lovelace", "cv": "ten years of this", "at": "@home" })
    );
    assert_eq!(status["result"]["id"], id.as_str());
    assert!(status["plugin"].as_str().is_some_and(|plugin| plugin.starts_with("echo@")), "{status}");
    let times =
        ["enqueued_at", "started_at", "finished_at"].map(|name| status[name].as_u64().expect("a time"));
    assert!(times.is_sorted(), "{times:?}");
    // The output for people.
    let text = bench.tqhost(&["status", "work", &id]).ok().stdout;
    assert!(text.contains("COMPLETED") && text.contains(&id) && text.contains("Lovelace"), "{text}");
    let printed = bench.tqhost(&["enqueue", "work", "a=1"]).ok().stdout;
    assert_eq!(printed.lines().count(), 1, "only the id, for scripts: {printed}");
    host.stop();
}

#[test]
fn enqueue_can_wait_for_the_end() {
    let bench = Bench::new(
        "[queues.work]\nplugin = \"echo\"\n[queues.no]\nplugin = \"rejects\"\n[queues.later]\n\
         plugin = \"missing\"\n",
    );
    bench.install("echo", "echo");
    bench.install("rejects", "rejects");
    let host = bench.host();
    let good = ask(&bench, &["enqueue", "work", "a=1", "--wait"]);
    has(&good, &STATUS);
    assert_eq!((&good["status"], &good["result"]["fields"]["a"]), (&"COMPLETED".into(), &"1".into()));
    assert!(bench.tqhost(&["enqueue", "work", "a=1", "--wait"]).ok().stdout.contains("COMPLETED"));

    let bad = bench.tqhost(&["enqueue", "no", "a=1", "--wait", "--json"]);
    assert_eq!((bad.code, &bad.json()["status"]), (1, &"FAILED".into()), "{bad:#?}");
    let bad = bench.tqhost(&["enqueue", "no", "a=1", "--wait"]);
    assert!(bad.code == 1 && bad.stdout.contains("FAILED"), "{bad:#?}");

    let waits = bench.tqhost(&["enqueue", "later", "a=1", "--wait", "--timeout", "200ms"]);
    let waits = waits.ends_with(1);
    insta::assert_snapshot!(
        waits.stderr.replace(waits.stdout.trim(), "ID"),
        @"tqhost: not ended after 200ms: ID"
    );
    host.stop();
}

#[test]
fn many_tasks_from_a_file_and_from_stdin() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\n");
    bench.install("echo", "echo");
    let host = bench.host();
    let tasks: String =
        (0..450).map(|n| format!("{{\"n\": {n}, \"name\": \"ü\", \"list\": [1, 2]}}\n")).collect();
    let path = bench.dir.path().join("tasks.jsonl");
    std::fs::write(&path, format!("\n{tasks}\n")).expect("write");
    let ran = bench.tqhost(&["enqueue", "work", "--jsonl", &path.display().to_string(), "--json"]).ok();
    let ids: BTreeSet<String> =
        lines(&ran).iter().map(|line| line["id"].as_str().expect("an id").to_owned()).collect();
    assert_eq!(ids.len(), 450);
    let last = lines(&ran).last().expect("a line")["id"].as_str().expect("an id").to_owned();
    bench.until("work", &last, "COMPLETED");
    let result: Value = serde_json::from_str(&bench.status("work", &last, "result")).expect("JSON");
    assert_eq!(result["fields"], json!({ "n": "449", "name": "ü", "list": "[1, 2]" }));

    let mut child =
        child(&bench, &["enqueue", "work", "--jsonl", "-", "--wait", "--json"]).spawn().expect("start");
    child.stdin.take().expect("stdin").write_all(tasks.as_bytes()).expect("write");
    let ran: Ran = child.wait_with_output().expect("wait").into();
    let ran = ran.ok();
    let ends = lines(&ran);
    assert_eq!(ends.len(), 450);
    assert!(ends.iter().all(|end| end["status"] == "COMPLETED"));
    host.until_ended_as("work", "completed", 900);
    host.stop();
}

#[test]
fn a_delayed_task_is_pending_and_starts_no_earlier() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\n");
    bench.install("echo", "echo");
    let host = bench.host();
    let far = enqueue(&bench, &["work", "a=1", "--delay", "1h"]);
    let near = enqueue(&bench, &["work", "a=1", "--delay", "1s"]);
    bench.until("work", &near, "COMPLETED");
    let status = ask(&bench, &["status", "work", &near]);
    let [enqueued, started] =
        ["enqueued_at", "started_at"].map(|name| status[name].as_u64().expect("a time"));
    assert!(started >= enqueued + 1000, "started after {} ms", started - enqueued);
    let status = ask(&bench, &["status", "work", &far]);
    assert_eq!((&status["status"], &status["started_at"]), (&"PENDING".into(), &Value::Null));
    let [enqueued, due] = ["enqueued_at", "due_at"].map(|name| status[name].as_u64().expect("a time"));
    assert_eq!(due - enqueued, 3_600_000);
    assert_eq!(ask(&bench, &["queues", "work"])["delayed"], 1);
    host.stop();
}

#[test]
fn several_queues_are_paused_resumed_and_examined_one_after_the_other() {
    let queue = |name: &str| format!("[queues.{name}]\nhold = {{ after = 5, for = \"1h\" }}\n");
    let mut bench = Bench::new(&["a", "b", "c"].map(queue).concat());
    let commands = ["pause", "resume", "doctor"];
    insta::assert_snapshot!(commands.map(|command| bench.tqhost(&[command]).ends_with(2).stderr).concat(), @"
    tqhost: name a queue, or --all
    tqhost: name a queue, or --all
    tqhost: name a queue, or --all
    ");
    for command in commands {
        let ran = bench.tqhost(&[command, "a", "nosuch"]);
        assert!(
            ran.code == 2 && ran.stdout.is_empty(),
            "a wrong name is found before anything is done: {ran:?}"
        );
    }
    let changed = |queue: &str, paused: bool| json!({ "queue": queue, "paused": paused, "changed": true });
    let view = ask(&bench, &["pause", "a", "b"]);
    assert_eq!(view, json!({ "queues": [changed("a", true), changed("b", true)], "failed": [] }));
    insta::assert_snapshot!(bench.tqhost(&["pause", "--all"]).ok().stdout, @"
    a was paused already
    b was paused already
    c is paused in all hosts; what runs goes on
    ");

    // One that fails does not keep the others back.
    let _: u64 = bench.redis("HSET", ("tq:{b}:hold", "x", "y"));
    let view = skips(&bench, &["resume", "--all"]);
    assert_eq!(view["queues"], json!([changed("a", false), changed("c", false)]));
    assert_eq!(view["failed"][0]["queue"], "b");
    let why = view["failed"][0]["why"].as_str().expect("a text");
    insta::assert_snapshot!(
        why,
        @"a key of the queue b has another type: `tqhost adopt b` says which one and what can be done, and \
          `tqhost doctor b` if it is the key of a task"
    );
    let ran = bench.tqhost(&["resume", "c", "b"]).ends_with(1);
    insta::assert_snapshot!(ran.stdout, @"c was neither paused nor on hold");
    assert_eq!(ran.stderr, format!("tqhost: b: {why}\n"));
    let alone = bench.tqhost(&["resume", "b"]).ends_with(1);
    assert_eq!(alone.stderr, format!("tqhost: {why}\n"));

    let _: u64 = bench.redis("DEL", "tq:{b}:hold");
    let _: String = bench.redis("SET", ("b", "x"));
    let view = skips(&bench, &["doctor", "--all"]);
    let told = |report: &Value| (report["queue"].as_str().expect("a name").to_owned(), report["ok"] == true);
    let told: Vec<_> = view["queues"].as_array().expect("a list").iter().map(told).collect();
    assert_eq!(told, [("a", true), ("b", false), ("c", true)].map(|(name, ok)| (name.to_owned(), ok)));
    let ran = bench.tqhost(&["doctor", "a", "b"]).ends_with(1);
    insta::assert_snapshot!(ran.stdout, @"
    a: Nothing is wrong.
    QUEUE  QUEUED  RUNNING  DELAYED  HELD  DEAD  ENDED
    b           0        0        0     0     0      0

    wrong-type: another program uses this key; rename or delete it
      wrong  b: it holds a string, not a stream

    1 finding; --fix can repair none of them.
    ");
}

#[test]
fn a_watched_task_shows_every_change_until_its_end() {
    let bench = Bench::new("[queues.slow]\nplugin = \"progress\"\n");
    let host = bench.host();
    let id = enqueue(&bench, &["slow", "ms=1500"]);
    let mut watch = child(&bench, &["status", "slow", &id, "--watch", "--json"]).spawn().expect("start");
    let mut said = BufReader::new(watch.stdout.take().expect("stdout")).lines();
    let mut next =
        || said.next().map(|line| serde_json::from_str::<Value>(&line.expect("a line")).expect("JSON"));
    assert_eq!(next().expect("a line")["status"], "PENDING");
    bench.install("progress", "progress");
    let mut seen = Vec::new();
    while let Some(status) = next() {
        has(&status, &STATUS);
        seen.push((
            status["status"].as_str().expect("a status").to_owned(),
            status["progress"].as_u64().unwrap_or(0),
        ));
    }
    assert!(watch.wait().expect("wait").success());
    assert_eq!(seen.last().map(|(status, _)| status.as_str()), Some("COMPLETED"), "{seen:?}");
    let running: Vec<u64> =
        seen.iter().filter(|(status, _)| status == "PROCESSING").map(|(_, progress)| *progress).collect();
    assert!(running.is_sorted() && running.contains(&10) && running.contains(&50), "{seen:?}");
    host.stop();
}

#[test]
fn queues_count_what_is_where() {
    let bench = Bench::new(
        "shutdown_grace = \"0s\"\n[queues.no]\nplugin = \"rejects\"\n[queues.later]\nplugin = \"missing\"\n\
         [queues.busy]\nplugin = \"loops\"\ntimeout = \"1h\"\nconcurrency = 1\n",
    );
    // The answer is the same without a host.
    let names = [
        "queue",
        "stream",
        "group",
        "plugin",
        "state",
        "queued",
        "running",
        "delayed",
        "held_tasks",
        "dead",
        "oldest_ms",
        "paused",
        "pause",
        "held",
        "limits",
        "rate",
        "schedule",
        "hosts",
        "versions_differ",
        "consumers",
    ];
    for queue in ask(&bench, &["queues"]).as_array().expect("a list") {
        has(queue, &names);
        assert_eq!(
            (&queue["state"], &queue["queued"], &queue["oldest_ms"]),
            (&"no-host".into(), &0.into(), &Value::Null)
        );
    }
    bench.install("rejects", "rejects");
    bench.install("loops", "loops");
    let host = bench.host();
    for _ in 0..2 {
        assert_eq!(bench.tqhost(&["enqueue", "no", "a=1", "--wait"]).code, 1);
    }
    for _ in 0..3 {
        enqueue(&bench, &["later", "a=1"]);
    }
    enqueue(&bench, &["later", "a=1", "--delay", "1h"]);
    for _ in 0..4 {
        enqueue(&bench, &["busy", "a=1"]);
    }
    let expected = [
        ("no", "reading", [0, 0, 0, 2]),
        ("later", "waiting-for-plugin", [3, 0, 1, 0]),
        ("busy", "waiting-for-permit", [3, 1, 0, 0]),
    ];
    for (queue, state, counts) in expected {
        let view = eventually(&format!("{queue} is {state}, {counts:?}"), || {
            let view = ask(&bench, &["queues", queue]);
            let found =
                ["queued", "running", "delayed", "dead"].map(|name| view[name].as_u64().expect("a count"));
            (view["state"] == state && found == counts).then_some(view)
        });
        has(&view, &names);
        assert_eq!(view["oldest_ms"].is_null(), counts[0] == 0, "{view}");
        assert_eq!(
            (view["hosts"].as_array().map(Vec::len), view["consumers"].as_array().is_some()),
            (Some(1), true),
            "{view}"
        );
    }
    let text = bench.tqhost(&["queues"]).ok().stdout;
    for (queue, state) in [("no", "ready"), ("later", "waits for plugin missing"), ("busy", "busy")] {
        let row = text.lines().find(|line| line.starts_with(&format!("{queue} ")));
        assert!(row.is_some_and(|row| row.contains(state)), "{queue} is {state}: {text}");
    }
    host.stop();
}

/// A queue with this many dead letters. Its handler rejects every task.
fn with_dead(tasks: usize) -> (Bench, Host, Vec<String>) {
    let mut bench = Bench::new("[queues.work]\nplugin = \"p\"\nconcurrency = 20\n");
    bench.install("rejects", "p");
    let host = bench.host();
    let ids: Vec<String> = (0..tasks)
        .map(|n| bench.xadd("work", &[("n", &format!("n{n}.")), ("tq-key", &format!("k{n}"))]))
        .collect();
    eventually("all are dead", || (bench.places("work").dead == tasks as u64).then_some(()));
    (bench, host, ids)
}

fn redriven(succeeded: u64, skipped: u64) -> Value {
    json!({ "succeeded": succeeded, "skipped": skipped })
}

#[test]
fn dead_letters_are_listed_shown_requeued_and_purged() {
    let (mut bench, host, ids) = with_dead(12);
    let malformed = bench.xadd("work", &[("tq-attempt", "many"), ("n", "x")]);
    bench.until("work", &malformed, "FAILED");
    let list = |args: &[&str]| -> Vec<Value> {
        let list = ask(&bench, &[&["dead", "list", "work"], args].concat());
        list["dead"].as_array().expect("a list").clone()
    };
    let all = list(&[]);
    assert_eq!(all.len(), 13);
    for letter in &all {
        has(
            letter,
            &[
                "id",
                "entry",
                "queue",
                "reason",
                "error",
                "attempts",
                "enqueued_at",
                "failed_at",
                "consumer",
                "plugin",
            ],
        );
    }
    assert_eq!(
        list(&["--reason", "malformed"]).iter().map(|letter| letter["id"].clone()).collect::<Vec<_>>(),
        [malformed.as_str()]
    );
    assert_eq!(list(&["--match", "n7."])[0]["id"], ids[7].as_str());
    assert_eq!((list(&["--match", "n1"]).len(), list(&["--limit", "5"]).len()), (3, 5));
    let letter = ask(&bench, &["dead", "show", "work", &ids[3]]);
    assert_eq!(
        (&letter["reason"], &letter["attempts"], &letter["fields"]),
        (&"rejected".into(), &1.into(), &json!([{ "name": "n", "value": "n3." }]))
    );
    let failed = &letter["failed_attempts"];
    assert_eq!((&failed[0]["attempt"], failed.as_array().map(Vec::len)), (&1.into(), Some(1)), "{failed}");
    assert!(bench.tqhost(&["dead", "list", "work"]).ok().stdout.contains("malformed"));

    // The plugin now works, and the dead tasks run again from their first attempt.
    bench.install("echo", "p");
    eventually("the good version", || host.logged("plugin loaded").into_iter().nth(1));
    let good = enqueue(&bench, &["work", "a=1"]);
    bench.until("work", &good, "COMPLETED");
    let done = skips(&bench, &["dead", "requeue", "work", &ids[0], &ids[1], &good, "1-1"]);
    assert_eq!(done, redriven(2, 2), "what is not dead, or not there, is counted as skipped");
    for id in &ids[..2] {
        bench.until("work", id, "COMPLETED");
        assert_eq!(
            (bench.status("work", id, "attempt"), bench.status("work", id, "error")),
            ("1".into(), String::new())
        );
        let result: Value = serde_json::from_str(&bench.status("work", id, "result")).expect("JSON");
        assert_eq!(
            (&result["id"], &result["attempt"]),
            (&id.as_str().into(), &1.into()),
            "the same task again"
        );
    }
    assert_eq!(skips(&bench, &["dead", "requeue", "work", &ids[0]]), redriven(0, 1), "once is enough");
    // n1. was requeued before. Of the tasks that match, n10. and n11. are left.
    assert_eq!(ask(&bench, &["dead", "requeue", "work", "--all", "--match", "n1"]), redriven(2, 0));
    bench.until("work", &ids[10], "COMPLETED");
    bench.until("work", &ids[11], "COMPLETED");

    assert_eq!(skips(&bench, &["dead", "purge", "work", &ids[2], &ids[0]]), redriven(1, 1));
    assert_eq!(
        ask(&bench, &["dead", "purge", "work", "--all", "--reason", "malformed", "--yes"]),
        redriven(1, 0)
    );
    let unsure = bench.tqhost(&["dead", "purge", "work", "--all"]).ends_with(2);
    insta::assert_snapshot!(masked(&unsure.stderr, &[]), @"
      ID  n=n3.
      ID  n=n4.
      ID  n=n5.
      ID  n=n6.
      ID  n=n7.
    tqhost: Delete 7 dead letters of work (they are kept for a day)? Nobody can be asked here: add --yes
    ");
    assert_eq!(bench.places("work").dead, 7);
    assert_eq!(ask(&bench, &["dead", "requeue", "work", "--all"]), redriven(7, 0));
    for id in &ids[3..10] {
        bench.until("work", id, "COMPLETED");
    }
    assert_eq!(ask(&bench, &["dead", "purge", "work", "--all", "--yes"]), redriven(0, 0));
    let skipped = bench.tqhost(&["dead", "requeue", "work", &ids[0]]).ends_with(1);
    insta::assert_snapshot!(
        skipped.stdout,
        @"0 dead letters requeued, 1 skipped (not dead, sent again, or they can never run)"
    );
    host.stop();
}

#[test]
fn an_interrupted_command_says_how_much_it_did() {
    let mut bench = Bench::new("[queues.work]\n");
    // The script cannot requeue the second one: Redis refuses to unpack so many fields.
    for (id, fields) in [("5-0", 1), ("6-0", 5000), ("7-0", 1)] {
        let letter = ["tq-id", id, "tq-queue", "work"].into_iter().chain(["n", "1"].repeat(fields));
        let _: String = bench.redis("XADD", ("tq:{work}:dead", "*", letter.collect::<Vec<_>>()));
    }
    let some = bench.tqhost(&["dead", "requeue", "work", "--all"]).ends_with(1).stderr;
    // The error of Redis follows.
    insta::assert_snapshot!(
        some.split(": requeue: ").next().unwrap_or_default(),
        @"tqhost: 2 dead letters requeued, not all of them; run the command again to go on"
    );
    let _: String = bench.redis("SET", ("tq:{work}:dead", "x"));
    let nothing = bench.tqhost(&["dead", "purge", "work", "5-0"]).ends_with(1).stderr;
    insta::assert_snapshot!(
        nothing,
        @"tqhost: nothing was deleted: a key of the queue work has another type: `tqhost adopt work` says \
          which one and what can be done, and `tqhost doctor work` if it is the key of a task"
    );
}

#[test]
fn a_dead_letter_goes_by_the_id_of_its_task_and_not_by_that_of_its_entry() {
    let mut bench = Bench::new("[queues.work]\n");
    // When many tasks die at once, the entry id of a dead letter is often the id of another task.
    for (entry, task) in [("5-0", "6-0"), ("6-0", "5-0"), ("7-0", "8-0")] {
        let letter = ["n", "1", "tq-id", task, "tq-queue", "work", "tq-reason", "rejected", "tq-error", task];
        let _: String = bench.redis("XADD", ("tq:{work}:dead", entry, &letter[..]));
    }
    assert_eq!(ask(&bench, &["dead", "show", "work", "5-0"])["error"], "5-0");
    assert_eq!(
        skips(&bench, &["dead", "purge", "work", "5-0", "7-0"]),
        redriven(1, 1),
        "no task 7-0 is dead"
    );
    assert_eq!(ask(&bench, &["dead", "requeue", "work", "6-0"]), redriven(1, 0));
    assert_eq!(ask(&bench, &["status", "work", "6-0"])["status"], "PENDING");
    let left = ask(&bench, &["dead", "list", "work"]);
    assert_eq!((left["dead"].as_array().map(Vec::len), &left["dead"][0]["id"]), (Some(1), &"8-0".into()));
}

#[test]
fn requeueing_twice_in_parallel_adds_up() {
    let (mut bench, host, ids) = with_dead(600);
    bench.install("echo", "p");
    eventually("the good version", || host.logged("plugin loaded").into_iter().nth(1));
    // 400 are named by their ids, and the rest are requeued with `--all`.
    let mut named = vec!["dead", "requeue", "work", "--json"];
    named.extend(ids[..400].iter().map(String::as_str));
    let twice = |args: &[&str]| -> [(u64, u64); 2] {
        let children = [(); 2].map(|()| child(&bench, args).spawn().expect("start"));
        children.map(|child| {
            let ran: Ran = child.wait_with_output().expect("wait").into();
            let done = ran.json();
            (done["succeeded"].as_u64().expect("a count"), done["skipped"].as_u64().expect("a count"))
        })
    };
    let both = twice(&named);
    assert_eq!(
        both.map(|(succeeded, skipped)| succeeded + skipped),
        [400, 400],
        "each is told of all that it asked for: {both:?}"
    );
    assert_eq!(both[0].0 + both[1].0, 400, "each letter was requeued by one of them: {both:?}");
    let both = twice(&["dead", "requeue", "work", "--json", "--all"]);
    assert_eq!(both[0].0 + both[1].0, 200, "{both:?}");
    for id in &ids {
        bench.until("work", id, "COMPLETED");
    }
    bench.until_drained("work");
    assert_eq!(bench.places("work").dead, 0);
    // Each task ran once more.
    host.until_ended_as("work", "completed", 600);
    host.stop();
}

#[test]
fn plugins_show_versions_and_figures() {
    let bench =
        Bench::new("[queues.work]\nplugin = \"echo\"\n[queues.bad]\nplugin = \"traps\"\nmax_retries = 0\n");
    bench.install("echo", "echo");
    let view = ask(&bench, &["plugins"]);
    assert_eq!((&view["hosts"], view["files"].as_array().map(Vec::len)), (&0.into(), Some(2)), "{view}");
    bench.install("traps", "traps");
    let host = bench.host();
    bench.tqhost(&["enqueue", "work", "a=1", "--wait"]).ok();
    assert_eq!(bench.tqhost(&["enqueue", "bad", "a=1", "--wait"]).code, 1);
    let view = eventually("the figures", || {
        let view = ask(&bench, &["plugins"]);
        let rows = view["plugins"].as_array()?;
        (rows.len() == 2 && rows.iter().all(|row| row["attempts"] == 1)).then_some(view)
    });
    has(&view, &["hosts", "plugins", "versions"]);
    for row in view["plugins"].as_array().expect("rows") {
        has(
            row,
            &[
                "host",
                "name",
                "state",
                "version",
                "error",
                "retry_at",
                "loaded_at",
                "compile_ms",
                "compiling",
                "compiling_since",
                "from_cache",
                "bytes",
                "attempts",
                "failures",
                "version_attempts",
                "version_failures",
                "peak_memory",
                "reloads",
                "failed_reloads",
                "rolled_back",
                "on_probation",
                "can_go_back",
                "back_to",
                "is_new",
                "history",
                "label",
                "commit",
                "built_at",
                "author",
                "builds",
            ],
        );
        assert_eq!(
            (&row["state"], row["version"].as_str().map(str::len)),
            (&"active".into(), Some(64)),
            "{row}"
        );
        assert_eq!(row["failures"], u64::from(row["name"] == "traps"), "{row}");
        assert!(row["peak_memory"].as_u64() > Some(1 << 16), "{row}");
    }
    let text = bench.tqhost(&["plugins"]).ok().stdout;
    assert!(text.contains("active") && text.contains("traps"), "{text}");
    // The outcomes are there a moment later.
    let of = |view: &Value, plugin: &str, end: &str| {
        let versions = view["versions"].as_array().expect("versions").iter();
        let version = |of: &&Value| of["version"].as_str().is_some_and(|name| name.starts_with(plugin));
        versions.filter(version).filter_map(|of| of[end].as_u64()).sum::<u64>()
    };
    eventually("the outcomes by version", || {
        let view = ask(&bench, &["plugins"]);
        (of(&view, "echo@", "completed") == 1 && of(&view, "traps@", "trapped") == 1).then_some(())
    });
    let one = ask(&bench, &["plugins", "echo"]);
    assert_eq!((of(&one, "echo@", "completed"), of(&one, "traps@", "attempts")), (1, 0), "{one}");
    let text = bench.tqhost(&["plugins"]).ok().stdout;
    assert!(text.contains("VERSION") && text.contains("REJECTED") && text.contains("\ntraps@"), "{text}");
    host.stop();
}

#[test]
fn check_shows_exports_imports_and_the_names_of_grants() {
    let bench = Bench::new(
        "[queues.work]\nplugin = \"reads-config\"\n[plugins.reads-config]\n\
         config = { api_key = \"hunter2\" }\n",
    );
    bench.install("reads-config", "reads-config");
    let view = ask(&bench, &["check"]);
    has(&view, &["config", "redis", "warnings", "notes", "queues", "plugins", "ok"]);
    let plugin = &view["plugins"][0];
    assert_eq!(
        (&view["ok"], &plugin["state"], &plugin["grants"]["config"]),
        (&true.into(), &"good".into(), &json!(["api_key"]))
    );
    let any = |list: &Value, text: &str| {
        list.as_array()
            .expect("a list")
            .iter()
            .any(|name| name.as_str().is_some_and(|name| name.contains(text)))
    };
    assert!(
        any(&plugin["exports"], "tqhost:handler/handler@0.1.0")
            && any(&plugin["imports"], "wasi:config/store"),
        "{plugin}"
    );
    let text = bench.tqhost(&["check"]).ok().stdout;
    assert!(
        text.contains("All good.")
            && text.contains("api_key")
            && !text.contains("hunter2")
            && !view.to_string().contains("hunter2"),
        "{text}"
    );
}

/// A bench whose host starts a private Redis.
fn embedded() -> Bench {
    let bench = Bench::new("[queues.work]\n");
    bench.configure(
        "[queues.work]\nplugin = \"echo\"\n[queues.later]\nplugin = \"missing\"\n[admin]\n\
        listen = \"127.0.0.1:0\"\n",
    );
    bench.install("echo", "echo");
    bench
}

/// The process of the private Redis.
fn embedded_pid(bench: &Bench) -> Pid {
    let socket = bench.dir.path().join(".tqhost/redis/redis.sock");
    let client = redis::Client::open(format!("redis+unix://{}", socket.display())).expect("a URL");
    let info: String =
        redis::cmd("INFO").arg("server").query(&mut client.get_connection().expect("connect")).expect("INFO");
    let pid = info.lines().find_map(|line| line.strip_prefix("process_id:")).expect("a pid");
    Pid::from_raw(pid.trim().parse().expect("a number"))
}

/// Whether a process has ended; a process whose exit code nobody has read yet counts as ended.
fn gone(pid: Pid) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .map_or(true, |stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z")))
}

#[test]
fn without_a_redis_the_host_brings_its_own_and_commands_find_it() {
    let bench = embedded();
    let host = bench.host();
    let pid = embedded_pid(&bench);
    assert!(!gone(pid));
    let done = ask(&bench, &["enqueue", "work", "a=1", "--wait"]);
    let id = done["id"].as_str().expect("an id");
    let waits = enqueue(&bench, &["later", "a=1"]);
    assert_eq!(ask(&bench, &["queues", "later"])["queued"], 1);
    host.stop();
    assert!(gone(pid), "the server has ended before the host");

    // The new private Redis has the data of the old one.
    let host = bench.host();
    assert_eq!(ask(&bench, &["status", "work", id])["result"]["id"], id);
    assert_eq!(ask(&bench, &["queues", "later"])["queued"], 1);
    bench.install("echo", "missing");
    eventually("it runs", || {
        (ask(&bench, &["status", "later", &waits])["status"] == "COMPLETED").then_some(())
    });
    host.stop();
}

#[test]
fn the_private_redis_ends_with_a_host_that_is_killed_and_keeps_what_it_had() {
    let bench = embedded();
    let host = bench.host();
    let pid = embedded_pid(&bench);
    let waits = enqueue(&bench, &["later", "a=1"]);
    host.kill();
    eventually("its Redis ends too", || gone(pid).then_some(()));
    let host = bench.host();
    assert_ne!(embedded_pid(&bench), pid);
    assert_eq!(ask(&bench, &["status", "later", &waits])["status"], "PENDING");
    bench.install("echo", "missing");
    eventually("it runs", || {
        (ask(&bench, &["status", "later", &waits])["status"] == "COMPLETED").then_some(())
    });
    host.stop();
}

#[test]
fn the_admin_address_answers_and_every_documented_series_is_there() {
    let mut bench = Bench::new("[queues.work]\nplugin = \"echo\"\n");
    bench.install("echo", "echo");
    let host = bench.host();
    let live = host.get("/livez");
    assert_eq!((live.status, live.body.as_str()), (200, "ok"));
    let ready = eventually("it is ready", || Some(host.get("/readyz")).filter(|ready| ready.status == 200));
    let report: Value = serde_json::from_str(&ready.body).expect("JSON");
    assert_eq!(
        (&report["ready"], &report["started"], &report["queues"][0]["queue"]),
        (&true.into(), &true.into(), &"work".into())
    );
    assert_eq!(host.get("/nowhere").status, 404);
    let id = bench.xadd("work", &[("a", "1")]);
    bench.until("work", &id, "COMPLETED");
    host.until_ended_as("work", "completed", 1);
    for name in ["tqhost_task_duration_seconds", "tqhost_task_wait_seconds"] {
        host.until_count(&format!("{name}_count"), "work", 1);
        host.metric(&format!("{name}_sum{{queue=\"work\"}}"));
        host.metric(&format!("{name}_bucket{{queue=\"work\",le=\"+Inf\"}}"));
    }
    for outcome in [
        "completed",
        "retried",
        "deferred",
        "rejected",
        "retries-exhausted",
        "deferrals-exhausted",
        "crashed",
        "malformed",
        "flow-failed",
        "released",
        "given-back",
        "unavailable",
    ] {
        host.metric(&format!("tqhost_tasks_total{{queue=\"work\",outcome=\"{outcome}\"}}"));
    }
    for state in ["queued", "running", "delayed", "dead"] {
        assert!(host.metric(&format!("tqhost_queue_tasks{{queue=\"work\",state=\"{state}\"}}")) < 1.5);
    }
    for name in [
        "queue_oldest_seconds",
        "queue_held",
        "lost_entries_total",
        "lease_lost_total",
        "reclaimed_total",
        "fetch_stalled",
    ] {
        assert!(host.metric(&format!("tqhost_{name}{{queue=\"work\"}}")) < 0.5, "{name}");
    }
    assert!(host.metric("tqhost_redis_reconnects_total") < 0.5);
    host.until_metric("tqhost_plugin_reloads_total{plugin=\"echo\",result=\"ok\"}", 1);
    assert!(host.metric("tqhost_plugin_reloads_total{plugin=\"echo\",result=\"failed\"}") < 0.5);
    host.until_metric("tqhost_plugin_info{plugin=\"echo\",state=\"active\"}", 1);
    assert!(host.metric("tqhost_guest_memory_bytes{plugin=\"echo\"}") > 65_536.0);
    host.stop();
}

#[test]
fn with_a_token_the_metrics_ask_for_it_and_the_health_does_not() {
    let bench = Bench::new("[queues.work]\n");
    let url = bench.redis.url();
    bench.configure(&format!(
        "[queues.work]\n[redis]\nurl = \"{url}\"\n[admin]\nlisten = \"127.0.0.1:0\"\ntoken = \"hunter2\"\n"
    ));
    let host = bench.host();
    let refused = host.get("/metrics");
    assert_eq!(refused.status, 401, "{}", refused.body);
    assert!(!refused.body.contains("tqhost_"), "{}", refused.body);
    assert_eq!(host.get("/livez").status, 200);
    eventually("it is ready", || (host.get("/readyz").status == 200).then_some(()));
    assert!(!host.stop_for_log().raw().contains("hunter2"));
}
