//! Tests: every table of every command fits the terminal, with the longest names and the largest numbers.

use std::path::Path;
use std::time::Duration;

use jiff::tz::TimeZone;
use serde_json::json;
use unicode_width::UnicodeWidthStr as _;

use super::deploy::render_verdicts;
use super::output::Paint;
use super::plugins::{FileView, render_files, render_history, render_versions};
use super::{changes, dead, dead_groups, doctor, history, jobs, plugins, queues, status, tasks};
use crate::builds::{BuildNote, Builds};
use crate::config::Config;
use crate::doctor::DoctorReport;
use crate::operations::changes::{ChangeKind, ChangeView};
use crate::operations::history::{HistoryView, Percentiles, SpanView, StepView, VersionView};
use crate::operations::jobs::BulkJob;
use crate::operations::{
    DeadView, GroupBy, HostVerdict, ListedTask, QueueView, Taken, TaskGroup, TaskGroups, plugin_rows,
};
use crate::queue::attempts::FailedAttempt;
use crate::queue::census::Consumer;
use crate::queue::hosts::{HostChange, HostInfo, HostPlugin, HostQueue, LastMinute};
use crate::queue::{Census, Status};

/// A long time ago, and now.
const LONG_AGO: u64 = 1;
const NOW: u64 = 1_700_000_000_000;
const ID: &str = "0190b8e4-61a9-76b6-8505-cad2c3ca81d9";

/// The longest name that the configuration takes.
fn name() -> String {
    "a-name-".chars().cycle().take(64).collect()
}

fn version() -> String {
    format!("{}@3f1c0aa2b7d4", name())
}

fn words() -> String {
    "an error that says very much, even with 日本語 in it ".repeat(12)
}

/// The longest label.
fn builds() -> Builds {
    let mut builds = Builds::default();
    let build = BuildNote { label: Some("label".repeat(12)), ..BuildNote::default() };
    builds.add("3f1c0aa2b7d4e5f60718", build);
    builds
}

/// The verdict of a host about a version that was deployed.
fn verdict() -> HostVerdict {
    let (state, on_probation) = (Taken::Active, true);
    HostVerdict { host: hosts()[0].id.clone(), state, on_probation, why: Some(words()) }
}

fn hosts() -> Vec<HostInfo> {
    let queue = HostQueue {
        name: name(),
        stream: name(),
        rules: "ab".into(),
        state: "waiting-for-plugin".into(),
        reason: None,
        running: u64::MAX,
        completed: u64::MAX,
        retried: u64::MAX,
        dead: u64::MAX,
        rate: 1e12,
        last_minute: LastMinute::default(),
        versions: Vec::new(),
    };
    let change = HostChange {
        at: LONG_AGO,
        what: "self-check-failed".into(),
        version: Some("3f1c0aa2b7d4e5f60718".into()),
        took_ms: Some(u64::MAX),
        reason: Some(words()),
    };
    let plugin = HostPlugin {
        name: name(),
        state: "quarantined".into(),
        version: Some("3f1c0aa2b7d4e5f60718".into()),
        compiling: None,
        compiling_since: None,
        error: None,
        retry_at: None,
        loaded_at: Some(LONG_AGO),
        compile_ms: Some(u64::MAX),
        from_cache: false,
        bytes: Some(u64::MAX),
        attempts: u64::MAX,
        failures: u64::MAX,
        version_attempts: u64::MAX,
        version_failures: u64::MAX,
        peak_memory: u64::MAX,
        reloads: u64::MAX,
        failed_reloads: u64::MAX,
        rolled_back: u64::MAX,
        on_probation: true,
        can_go_back: Some(false),
        back_to: None,
        is_new: false,
        history: vec![change],
        builds: builds(),
    };
    let host = HostInfo {
        id: format!("{}-4194304-bc8134e199e3", name()),
        version: "10.20.30-rc.1+0123456789abcdef".into(),
        pid: u32::MAX,
        started_at: 0,
        queues: vec![queue],
        plugins: vec![plugin],
        config_error: None,
        configured_at: None,
        memory: None,
        memory_most: None,
        capacity: None,
    };
    vec![host]
}

fn census() -> Census {
    Census {
        queued: u64::MAX,
        running: u64::MAX,
        delayed: u64::MAX,
        held_tasks: u64::MAX,
        dead: u64::MAX,
        pause: None,
        held: None,
        limits: None,
        oldest: Some(Duration::from_millis(u64::MAX)),
        consumers: vec![Consumer { name: hosts()[0].id.clone(), pending: u64::MAX, idle_ms: u64::MAX }],
        node: None,
        outgoing: None,
    }
}

fn task(id: &str) -> ListedTask {
    ListedTask {
        id: id.to_owned(),
        status: Status::Processing,
        entry: None,
        attempt: u32::MAX,
        reason: None,
        error: Some(words()),
        plugin: Some(version()),
        consumer: Some(hosts()[0].id.clone()),
        progress: None,
        note: None,
        enqueued_at: Some(LONG_AGO),
        started_at: None,
        finished_at: None,
        due_at: None,
        idle_ms: None,
        fields: None,
        columns: Vec::new(),
    }
}

fn letter(id: &str) -> DeadView {
    DeadView {
        id: id.to_owned(),
        entry: "1700000000000-0".into(),
        queue: name(),
        reason: "deferrals-exhausted-by-another-program".into(),
        error: words(),
        attempts: u32::MAX,
        enqueued_at: LONG_AGO,
        failed_at: LONG_AGO,
        consumer: hosts()[0].id.clone(),
        plugin: version(),
        fields: None,
        columns: Vec::new(),
    }
}

fn groups(by: GroupBy, example: &str) -> TaskGroups {
    let some = |is_there: bool, text: String| is_there.then_some(text);
    let is = |others: &[GroupBy]| others.contains(&by);
    let group = TaskGroup {
        reason: some(is(&[GroupBy::Cause, GroupBy::Reason]), "deferrals-exhausted".repeat(10)),
        version: some(is(&[GroupBy::Cause, GroupBy::Version]), version()),
        error: some(is(&[GroupBy::Cause, GroupBy::Error]), words()),
        hour: is(&[GroupBy::Hour]).then_some(NOW),
        value: None,
        count: u64::MAX,
        oldest_at: LONG_AGO,
        newest_at: LONG_AGO,
        example: example.to_owned(),
    };
    let groups = vec![group];
    TaskGroups {
        by: by.into_str().to_owned(),
        groups,
        more_groups: 0,
        others: 0,
        matching: 1,
        examined: 1,
        next: None,
    }
}

fn versions() -> Vec<VersionView> {
    vec![VersionView {
        version: version(),
        label: Some("label".repeat(12)),
        attempts: u64::MAX,
        completed: u64::MAX,
        retried: u64::MAX,
        rejected: u64::MAX,
        deferred: 0,
        unavailable: u64::MAX,
        trapped: 0,
        timed_out: 0,
        out_of_memory: 0,
        failed: u64::MAX,
        mean_ms: 1.5,
    }]
}

fn minutes() -> HistoryView {
    let times = || Some(Percentiles { count: u64::MAX, p50_ms: 0.1, p95_ms: 1e12, p99_ms: f64::MAX });
    let counted = SpanView {
        completed: u64::MAX,
        failed: u64::MAX,
        error_rate: Some(1.0),
        outcomes: [("completed", u64::MAX)].into(),
        waiting: times(),
        running: times(),
        ..SpanView::default()
    };
    let minute = StepView { from_ms: NOW, counted: counted.clone(), depth: None };
    HistoryView {
        queue: name(),
        step_ms: 600_000,
        total: counted,
        minutes: vec![minute],
        versions: Vec::new(),
    }
}

fn attempts() -> Vec<FailedAttempt> {
    vec![FailedAttempt {
        attempt: u32::MAX,
        started_at: LONG_AGO,
        finished_at: NOW,
        outcome: "output-too-large".into(),
        error: words(),
        plugin: version(),
        consumer: hosts()[0].id.clone(),
        log: String::new(),
    }]
}

fn files() -> Vec<FileView> {
    let file = |version: Option<&str>, error: Option<String>| FileView {
        plugin: name(),
        file: format!("/srv/{}/{}.wasm", "a-long-folder/".repeat(20), name()),
        bytes: Some(u64::MAX),
        version: version.map(str::to_owned),
        build: builds().of("3f1c0aa2b7d4").cloned().unwrap_or_default(),
        error,
    };
    vec![file(Some("3f1c0aa2b7d4e5f60718"), None), file(None, Some(words()))]
}

/// The tables of all commands, by what shows them.
fn job() -> BulkJob {
    let job = json!({
        "id": "7c1e93d04ab2", "queue": name(), "do": "requeue", "state": "running", "filter": {},
        "who": name(), "started_at": NOW - 1000, "places": u64::MAX, "examined": u64::MAX / 2,
        "done": u64::MAX / 4, "skipped": u64::MAX / 4, "took_ms": u64::MAX / 4, "seen_at": NOW
    });
    serde_json::from_value(job).expect("a job")
}

fn change() -> ChangeView {
    let change = ChangeView::new(ChangeKind::JobStarted, &name()).queue(&name()).detail(&words());
    ChangeView { at: NOW - 1000, ..change.why(&words()) }
}

fn tables(paint: Paint) -> Vec<(&'static str, String)> {
    let config = format!("[queues.{}]\n", name());
    let config = Config::parse(&config, Path::new("/srv/tqhost.toml"), &|_| None).expect("a configuration");
    let (census, hosts, zone) = (census(), hosts(), TimeZone::UTC);
    let view = QueueView::new(&config.queues[0], &census, &hosts, NOW);
    let report = DoctorReport { census: census.clone(), ended: u64::MAX, ..DoctorReport::default() };
    let long = "x".repeat(512);
    let rows = plugin_rows(&hosts);
    let with_columns = ListedTask { columns: vec![Some(words()), None], ..task(ID) };
    let mut tables = vec![
        ("queues", queues::table(&[view], paint)),
        ("queues QUEUE --history", history::table(&minutes(), &zone, paint)),
        ("plugins", plugins::render(&rows, NOW, paint)),
        ("plugins: outcomes", render_versions(&versions(), paint)),
        ("plugins: changes", render_history(&rows, NOW, paint)),
        ("plugins: files", render_files(&files(), paint)),
        ("deploy", render_verdicts(&[verdict()], paint)),
        ("doctor", doctor::places(&name(), &report, paint)),
        ("status", status::failed(&attempts(), &zone, paint)),
        ("tasks", tasks::table(&[task(ID)], &[], NOW, paint)),
        ("tasks with long ids", tasks::table(&[task(ID), task(&long)], &[], NOW, paint)),
        ("tasks with columns", tasks::table(&[with_columns], &[name(), name()], NOW, paint)),
        ("dead list", dead::table(&[letter(ID)], &[], NOW, paint)),
        ("dead list with long ids", dead::table(&[letter(ID), letter(&long)], &[], NOW, paint)),
    ];
    let view = QueueView::new(&config.queues[0], &census, &hosts, NOW);
    tables.push(("queues QUEUE: hosts", queues::hosts_table(&view, paint)));
    tables.push(("changes", changes::table(&[change()], NOW, paint)));
    tables.push(("jobs", jobs::table(&[job()], NOW, paint)));
    tables.push(("queues QUEUE: consumers", queues::consumers_table(&view.consumers, paint)));
    for by in [GroupBy::Cause, GroupBy::Error, GroupBy::Version, GroupBy::Reason, GroupBy::Hour] {
        for example in [ID, &long] {
            tables.push(("dead list --by", dead_groups::table(&groups(by, example), NOW, &zone, paint)));
        }
    }
    tables
}

#[test]
fn no_table_is_wider_than_the_terminal() {
    for width in [20, 40, 60, 80, 100, 132] {
        for (what, table) in tables(Paint { colour: false, width: Some(width) }) {
            let widest = table.lines().map(|line| line.width()).max().unwrap_or(0);
            assert!(widest <= width, "{what} in {width} columns has {widest}:\n{table}");
            let is_short = table.contains("Not shown: ");
            assert!(is_short || table.lines().count() <= 3, "a last line is for columns left out: {table}");
        }
    }
    // A pipe takes everything.
    for (what, table) in tables(Paint::default()) {
        assert!(
            !table.contains("Not shown: ") && table.lines().next().is_some_and(|line| line.width() > 40),
            "{what}"
        );
    }
}

#[test]
fn what_tells_a_row_from_others_is_there() {
    for width in [60, 80] {
        for (what, table) in tables(Paint { colour: false, width: Some(width) }) {
            let (first, wanted) = match what {
                "tasks" | "tasks with long ids" => ("ID", ID),
                "dead list" | "dead list with long ids" => ("ID", ID),
                "queues" | "doctor" => ("QUEUE", "a-name-"),
                "plugins" => ("PLUGIN", "a-name-"),
                "plugins: outcomes" => ("VERSION", "@3f1c0aa2b7d4"),
                _ => continue,
            };
            // A version keeps its digest, as far as there is room.
            let wanted = if first == "VERSION" { &wanted[4..] } else { wanted };
            assert!(table.starts_with(first) && table.contains(wanted), "{what} in {width}:\n{table}");
        }
    }
}

#[test]
fn usual_queues_fit_a_usual_terminal() {
    let usual = Census {
        oldest: Some(Duration::from_secs(3_700)),
        queued: 12,
        running: 10,
        dead: 3,
        ..Census::default()
    };
    let config = Config::parse("[queues.resume-analyze]\n", Path::new("/srv/tqhost.toml"), &|_| None)
        .expect("a configuration");
    let view = QueueView::new(&config.queues[0], &usual, &[], NOW);
    insta::assert_snapshot!(queues::table(&[view], Paint { colour: false, width: Some(80) }), @r"
    QUEUE           QUEUED  RUNNING  DELAYED  HELD  DEAD  OLDEST  RATE/S  STATE
    resume-analyze      12       10        0     0     3   1h 1m     0.0  no host
    Not shown: HOSTS. A wider terminal or --json has them.
    ");
    insta::assert_snapshot!(tasks::table(&[task(ID)], &[], NOW, Paint { colour: false, width: Some(80) }), @r"
    ID                                    STATUS                WHEN  ERROR
    0190b8e4-61a9-76b6-8505-cad2c3ca81d9  PROCESSING  19675d 22h ago  an error that…
    Not shown: ATTEMPT, HOST. A wider terminal or --json has them.
    ");
    insta::assert_snapshot!(tasks::table(&[task(ID)], &[], NOW, Paint { colour: false, width: Some(60) }), @r"
    ID                                    STATUS      ERROR
    0190b8e4-61a9-76b6-8505-cad2c3ca81d9  PROCESSING  an error …
    Not shown: ATTEMPT, HOST, WHEN. A wider terminal or --json
    has them.
    ");
}

/// A table that is not among those above would not be looked at.
#[test]
fn all_tables_are_looked_at() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cli");
    let mut made = 0;
    for file in std::fs::read_dir(&folder).expect("the folder") {
        let path = file.expect("a file").path();
        let is_ours = path.file_name().is_none_or(|name| name == "table.rs" || name == "table_tests.rs");
        if is_ours || path.extension().is_none_or(|end| end != "rs") {
            continue;
        }
        made += std::fs::read_to_string(&path).expect("a source").matches("TextTable::new(").count();
    }
    let mut looked_at: Vec<&str> = tables(Paint::default()).iter().map(|(what, _)| *what).collect();
    looked_at.retain(|what| !what.contains(" with "));
    looked_at.dedup();
    assert_eq!(made, looked_at.len(), "{looked_at:?}");
}
