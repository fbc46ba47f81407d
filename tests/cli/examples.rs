//! The examples of docs/commands.md and docs/commands-tasks.md run and print what these pages show, and those
//! of the pages for operators and for authors run.
//!
//! In: the pages. Out: for each example its exit code, the headers of its tables, its labels, and the names
//! in its JSON. Ids of tasks are those of tasks of this test.
//!
//! Not here: whether the binary takes the commands of all pages (`pages`), and what the commands do
//! (`commands`).

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use super::pages::{Shell, blocks, calls, root};
use crate::support::bench::guest_path;
use crate::support::files::{digest, guest};
use crate::support::{Bench, Host, Ran};

/// Tasks first: what they leave behind is in the tables of queues.
const COMMANDS: &str =
    concat!(include_str!("../../docs/commands-tasks.md"), include_str!("../../docs/commands.md"));
const OPERATIONS: [&str; 3] = [
    include_str!("../../docs/operations.md"),
    include_str!("../../docs/monitoring.md"),
    include_str!("../../docs/incidents.md"),
];
const HANDLERS: &str = include_str!("../../docs/handlers.md");
/// The queues of the examples. The second one has no plugin.
const QUEUES: &str = "[queues.resume-analyze]\nstream = \"resume:analyze:stream\"\n[queues.reports]\n";
/// The version that the page shows running.
const VERSION: &str = "77ac0aa2b7d4";
/// Examples that only read, so that they can be run once more with `--json`.
const READ: [&str; 9] = [
    "check",
    "status",
    "queues",
    "doctor",
    "adopt",
    "dead list",
    "dead show",
    "plugins",
    "try word-count.wasm task",
];
/// Examples that print the same text every time.
const ALWAYS: [&str; 4] = ["pause", "resume ", "new", "enqueue resume-analyze --jsonl bad"];

/// A command on the page, without `tqhost`.
struct Example {
    line: String,
    /// The output that the page shows.
    shown: String,
    /// The section in which it stands.
    section: String,
}

fn examples(page: &str) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    for section in page.split("\n## ") {
        for (_, block) in blocks(section) {
            // Blocks of other kinds begin with something else.
            for example in block.split("$ tqhost ").skip(1) {
                let (line, shown) = example.split_once('\n').expect("a line");
                let section = section.to_owned();
                examples.push(Example { line: line.to_owned(), shown: shown.to_owned(), section });
            }
        }
    }
    examples
}

/// A host with the files that the examples name.
fn start() -> (Bench, Host) {
    let bench = Bench::new(QUEUES);
    let resume = fs::read_to_string(root().join("plugins/resume-analyze/samples/one-page-en.txt"));
    let resume = resume.expect("a resume");
    let task = |content: &str| format!("{}\n", json!({ "resumeId": "1", "content": content }));
    for (name, text) in [
        ("cv.txt", resume.clone()),
        ("short.txt", "too short".to_owned()),
        ("task.json", task(&resume)),
        ("tasks.jsonl", [task(&resume).repeat(4), task("too short")].concat()),
        ("bad.jsonl", [task(&resume), "no JSON\n".to_owned()].concat()),
    ] {
        fs::write(bench.dir.path().join(name), text).expect("write a file");
    }
    fs::copy(guest_path("resume-analyze"), bench.dir.path().join("word-count.wasm")).expect("copy a handler");
    bench.install("resume-analyze", "resume-analyze");
    let before = bench.host();
    let fields = ["resumeId=1", &format!("content={resume}")];
    bench.tqhost(&[&["enqueue", "resume-analyze", "--wait"], &fields[..]].concat()).ok();
    // A host that stops writes the minute into the history, so `plugins` shows it from now on.
    before.stop();
    let host = bench.host();
    host.log("plugin loaded");
    (bench, host)
}

/// A task in the state that the example needs.
fn task(bench: &Bench, line: &str) -> String {
    let (fields, way): (_, &[&str]) = match line {
        line if line.starts_with("dead") => ("content=", &["--wait"]),
        line if line.contains("--watch") => ("content=@cv.txt", &["--delay", "1s"]),
        line if line.starts_with("status") => ("content=@short.txt", &["--wait"]),
        _ => ("content=@cv.txt", &["--delay", "1h"]),
    };
    let fields = fields.replace('@', &format!("@{}/", bench.dir.path().display()));
    let ran = bench.tqhost(&[&["enqueue", "resume-analyze", "resumeId=1", &fields], way].concat());
    ran.stdout.lines().next().unwrap_or_else(|| panic!("no id: {ran:?}")).to_owned()
}

/// Whether a word is a task's id.
fn is_id(word: &str) -> bool {
    word.len() == 36 && word.chars().all(|c| c.is_ascii_hexdigit() || c == '-')
}

/// The headers of tables: lines whose words are in capitals.
fn headers(text: &str) -> Vec<String> {
    let is_header = |words: &Vec<&str>| {
        let capital = |word: &&str| word.chars().all(|c| c.is_ascii_uppercase() || c == '/');
        words.len() > 1 && words.iter().all(capital)
    };
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines.filter(is_header).map(|words| words.join(" ")).collect()
}

/// The labels of a sheet: words in small letters at the beginning of a line, with two blanks behind them.
fn labels(text: &str) -> BTreeSet<&str> {
    let labels = text.lines().filter_map(|line| Some(line.split_once("  ")?.0));
    labels.filter(|label| !label.is_empty() && label.chars().all(|c| c.is_ascii_lowercase())).collect()
}

/// All names in a JSON value, except those that a handler or an operator has chosen.
fn names(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| names(value, found)),
        Value::Object(object) => {
            for (name, value) in object {
                found.insert(name.clone());
                if name != "result" && name != "config" {
                    names(value, found);
                }
            }
        }
        _ => {}
    }
}

/// The names in the JSON of a command that its section does not mention.
fn unexplained(ran: &Ran, section: &str) -> Vec<String> {
    let mut found = BTreeSet::new();
    for line in ran.stdout.lines() {
        names(&serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {ran:?}")), &mut found);
    }
    let words: BTreeSet<&str> = section.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    found.into_iter().filter(|name| !words.contains(name.as_str())).collect()
}

/// The difference between an example and its real output.
fn problems(example: &Example, ran: &Ran) -> Vec<String> {
    let Example { line, shown, section } = example;
    let mut problems = Vec::new();
    let text = format!("{}{}", ran.stdout, ran.stderr);
    let fails = ["tqhost: ", "FAILED after", ", 1 failed", ", 1 skipped", "reject in "]
        .iter()
        .any(|word| shown.contains(word));
    if ran.code != i32::from(fails) {
        problems.push(format!("`{line}` ends with {}: {text}", ran.code));
    }
    if headers(&text) != headers(shown) {
        problems.push(format!("`{line}` has the headers {:?}, not {:?}", headers(&text), headers(shown)));
    }
    let unknown: Vec<&str> = labels(&text)
        .into_iter()
        .filter(|label| !labels(shown).contains(label) && !section.contains(label))
        .collect();
    if !unknown.is_empty() {
        problems.push(format!("`{line}` has the labels {unknown:?}, which its section does not have"));
    }
    if ALWAYS.iter().any(|begin| line.starts_with(begin)) && text.trim() != shown.trim() {
        problems.push(format!("`{line}` prints `{text}`, not `{shown}`"));
    }
    problems
}

#[test]
fn the_examples_of_the_commands_print_what_the_page_shows() {
    let (bench, host) = start();
    let shell = Shell::new(&bench);
    let (mut wrong, mut seen, mut later) = (Vec::new(), 0, Vec::new());
    for example in examples(COMMANDS) {
        // It stands for what the command prints without a host.
        if example.line == "plugins" {
            later.push(example);
            continue;
        }
        let words = example.line.split(' ').map(|word| match word {
            word if is_id(word) => task(&bench, &example.line),
            VERSION => digest(&guest("resume-analyze")),
            word => word.to_owned(),
        });
        let line = words.collect::<Vec<_>>().join(" ");
        wrong.extend(problems(&example, &shell.ran(&format!("tqhost {line}"))));
        if READ.iter().any(|begin| line.starts_with(begin)) && !line.contains("--watch") {
            let ran = shell.ran(&format!("tqhost {line} --json"));
            let names = unexplained(&ran, &example.section);
            wrong.extend((!names.is_empty()).then(|| format!("`{line} --json` has {names:?}")));
        }
        seen += 1;
    }
    host.stop();
    assert_eq!(later.len(), 1, "an example without a host");
    for example in later {
        wrong.extend(problems(&example, &shell.ran(&format!("tqhost {}", example.line))));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 20, "{seen} examples");
}

#[test]
fn the_commands_of_the_pages_for_operators_run() {
    let (bench, host) = start();
    let shell = Shell::new(&bench);
    let mut seen = 0;
    for call in OPERATIONS.iter().flat_map(|page| calls(page, "tqhost")) {
        // A command without its arguments is only named.
        let is_whole =
            call.contains("QUEUE") || call.contains("NAME") || ["check", "queues"].contains(&&*call);
        if is_whole {
            let mut call = call.replace("QUEUE", "resume-analyze").replace("NAME", "resume-analyze");
            call = call.replace("VERSION", &digest(&guest("resume-analyze")));
            if call.contains("ID") {
                let ran = shell.ran("tqhost enqueue resume-analyze content=text --delay 1h").ok();
                call = call.replace("ID", ran.stdout.split_whitespace().next().expect("an id"));
            }
            shell.ran(&format!("tqhost {call}")).ok();
            seen += 1;
        }
    }
    assert!(seen > 5, "{seen} commands");
    host.stop();
}

#[test]
fn the_trials_of_the_page_for_authors_run() {
    let (bench, host) = start();
    host.stop();
    let shell = Shell::new(&bench);
    let mut seen = 0;
    // `--watch` goes on until somebody ends it (`handlers::desk`).
    for call in calls(HANDLERS, "tqhost try word-count.wasm").iter().filter(|call| !call.contains("--watch"))
    {
        let ran = shell.ran(&format!("tqhost try word-count.wasm {call}"));
        // The handler that stands for the author's rejects tasks without an id.
        let outcome = if call.contains("task.json") { (0, "completed in ") } else { (1, "reject in ") };
        assert!(ran.code == outcome.0 && ran.stdout.contains(outcome.1), "{call}: {ran:?}");
        seen += 1;
    }
    assert!(seen > 2, "{seen} commands");
}
