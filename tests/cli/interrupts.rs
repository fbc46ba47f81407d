//! Ctrl-C and SIGTERM: a command that waits says for what, one that watches has done its work, and a question
//! is answered with no. Not here: operations on many tasks that are cut off (`desk`).

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::desk::{at_the_question, interrupt, start};
use crate::support::dead_letters::add_dead;
use crate::support::first_process::{first_process, inner, is_real, until_handled};
use crate::support::{Bench, eventually};

/// Reads the next line that a command prints. The reader has to live as long as the command.
fn first_line(child: &mut Child) -> (String, BufReader<ChildStdout>) {
    let mut said = BufReader::new(child.stdout.take().expect("stdout"));
    let mut line = String::new();
    said.read_line(&mut line).expect("a line");
    (line.trim().to_owned(), said)
}

#[test]
fn a_command_that_waits_for_tasks_names_them() {
    let mut bench = Bench::new("[queues.work]\n");
    let mut child = start(&bench, &["enqueue", "work", "a=1", "--wait"]);
    let (id, _said) = first_line(&mut child);
    let ran = interrupt(child);
    let ran = ran.ends_with(1);
    insta::assert_snapshot!(
        ran.stderr.lines().last().unwrap_or_default().replace(&id, "ID"),
        @"tqhost: interrupted: stopped waiting for ID; the task is enqueued"
    );

    // With --json nothing is printed before the end.
    let child = start(&bench, &["enqueue", "work", "a=1", "--wait", "--json"]);
    eventually("the task is there", || (bench.redis::<u64>("XLEN", "work") == 2).then_some(()));
    let ran = interrupt(child);
    let id = ran.json()["id"].as_str().expect("an id").to_owned();
    let error: Value = serde_json::from_str(&ran.stderr).expect("one error as JSON");
    insta::assert_snapshot!(
        error.to_string().replace(&id, "ID"),
        @r#"{"error":"interrupted: stopped waiting for ID; the task is enqueued"}"#
    );
    assert_eq!(ran.code, 1);
    assert_eq!(bench.tqhost(&["status", "work", &id, "--json"]).ok().json()["status"], "PENDING");
}

#[test]
fn a_file_whose_tasks_are_waited_for_has_all_its_ids_in_the_json() {
    let mut bench = Bench::new("[queues.work]\n");
    let file = bench.dir.path().join("tasks.jsonl");
    std::fs::write(&file, "{\"a\": 1}\n".repeat(12)).expect("write");
    let path = file.to_str().expect("a path");
    let child = start(&bench, &["enqueue", "work", "--jsonl", path, "--wait", "--json"]);
    eventually("the tasks are there", || (bench.redis::<u64>("XLEN", "work") == 12).then_some(()));
    let ran = interrupt(child);
    assert!(ran.code == 1 && ran.stderr.starts_with("{\"error\":\"interrupted: "), "{ran:?}");
    let ids: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(ids.len() == 12 && ids.iter().all(|line| line["id"].is_string()), "{ran:?}");
}

#[test]
fn a_watch_ends_without_a_word() {
    let bench = Bench::new("[queues.work]\n");
    let id = bench.tqhost(&["enqueue", "work", "a=1"]).ok().stdout;
    let watches: [&[&str]; 2] = [&["status", "work", id.trim(), "--watch"], &["queues", "--watch"]];
    for watch in watches {
        let mut child = start(&bench, watch);
        let (line, _said) = first_line(&mut child);
        assert!(line.contains("PENDING") || line.starts_with("QUEUE"), "{line}");
        let ran = interrupt(child);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{watch:?}");
    }
}

#[test]
fn a_question_is_answered_with_no() {
    let mut bench = Bench::new("[queues.work]\n");
    bench.xadd("work", &[("a", "1")]);
    add_dead(&mut bench, 0..2);
    let commands =
        ["cancel work --all", "drain work", "dead purge work --all", "dead purge work --all --json"];
    let told = commands.map(|command| {
        let (code, shown) = at_the_question(&mut bench, command, b"\x03", |_| ());
        assert_eq!(code, Some(1), "{command}: {shown}");
        format!("{command}\n  {}\n", shown.lines().last().unwrap_or_default())
    });
    insta::assert_snapshot!(told.concat(), @r#"
    cancel work --all
      tqhost: nothing was cancelled
    drain work
      tqhost: nothing was cancelled
    dead purge work --all
      tqhost: nothing was deleted
    dead purge work --all --json
      {"error":"nothing was deleted"}
    "#);
    let places = bench.places("work");
    assert_eq!((places.length, places.dead), (1, 2));
}

#[test]
fn sigterm_is_as_good_as_ctrl_c_also_for_the_first_process_of_a_container() {
    let bench = Bench::new("[queues.work]\n");
    let id = bench.tqhost(&["enqueue", "work", "a=1"]).ok().stdout;
    let commands: [(&[&str], i32); 3] = [
        (&["enqueue", "work", "a=1", "--wait"], 1),
        (&["queues", "--watch"], 0),
        (&["status", "work", id.trim(), "--watch"], 0),
    ];
    for (args, code) in commands {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tqhost"));
        command.arg("--config").arg(bench.config()).args(args);
        let mut command = first_process(&command);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("start tqhost");
        let (line, _said) = first_line(&mut child);
        let process = inner(Pid::from_raw(child.id().try_into().expect("a pid")));
        kill(process, Signal::SIGTERM).expect("SIGTERM");
        let ended = eventually("it ends", || child.try_wait().expect("look after it"));
        assert_eq!(ended.code(), Some(code), "{args:?}: {line}");
    }
    if !is_real() {
        return;
    }
    // A command that listens to nothing, here at a pipe that nobody writes to, ends as any process does.
    let mut command = Command::new(env!("CARGO_BIN_EXE_tqhost"));
    command.arg("--config").arg(bench.config()).args(["enqueue", "work", "--jsonl", "-"]);
    for signal in [Signal::SIGTERM, Signal::SIGHUP] {
        let mut command = first_process(&command);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("start tqhost");
        let process = inner(Pid::from_raw(child.id().try_into().expect("a pid")));
        until_handled(process, signal);
        kill(process, signal).expect("a signal");
        let ended = eventually("it ends", || child.try_wait().expect("look after it"));
        assert!(!ended.success(), "{signal}: {ended:?}");
    }
}
