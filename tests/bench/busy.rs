//! Section `busy`: a host whose one queue has handlers in every slot that compute without end, next to the
//! same host with handlers that wait.
//!
//! Out: a table of the effect on tasks of another queue, requests to the admin server, heartbeats, and
//! handlers that time out. docs/decisions/0001-execution.md has the other ways to run guests.

use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use super::support::{Bench, Host};
use super::{amount, fill_stream, median, quantile};

static RUNS: LazyLock<usize> = LazyLock::new(|| amount(3, 1));
/// How long one run measures.
static WINDOW: LazyLock<Duration> = LazyLock::new(|| Duration::from_secs(amount(6, 1)));
/// The pause between two tasks of the other queue, and between two requests.
const BEAT: Duration = Duration::from_millis(20);
const SLOTS: usize = 8;
const LEASE: Duration = Duration::from_secs(3);
const TIMEOUT: Duration = Duration::from_millis(500);
/// Tasks of the other queue that are added at once, to measure its speed.
static TASKS: LazyLock<usize> = LazyLock::new(|| amount(50_000, 500));

/// Selects the values of one figure.
type Figure = fn(&Seen) -> &[f64];

/// The figures of one run; times in ms.
#[derive(Default)]
struct Seen {
    tasks: Vec<f64>,
    readyz: Vec<f64>,
    metrics: Vec<f64>,
    idle: Vec<f64>,
    late: Vec<f64>,
    rate: f64,
}

pub fn slots() {
    let runs = *RUNS;
    println!(
        "one queue with {SLOTS} handlers that wait, or compute without end, and what the others notice; \
         {runs} runs of each in turn, medians of the runs"
    );
    let (mut waiting, mut busy) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        waiting.push(run("sleeps"));
        busy.push(run("loops"));
    }
    let what: [(&str, Figure); 5] = [
        ("a task of another queue, from XADD to settled", |seen| &seen.tasks),
        ("GET /readyz", |seen| &seen.readyz),
        ("GET /metrics", |seen| &seen.metrics),
        ("a running task since its last heartbeat", |seen| &seen.idle),
        ("a timeout of a handler that computes, late by", |seen| &seen.late),
    ];
    println!(
        "  {:48} {:^26}   {:^26}   times",
        "ms: median, 99 of 100, most", "while they wait", "while they compute"
    );
    for (label, values) in what {
        let of = |runs: &[Seen], share| {
            median(&mut runs.iter().map(|seen| quantile(values(seen), share)).collect::<Vec<_>>())
        };
        let three = |runs: &[Seen]| [0.5, 0.99, 1.0].map(|share| of(runs, share));
        let (a, b) = (three(&waiting), three(&busy));
        let times = [0, 1, 2].map(|n| format!("{:.1}", b[n] / a[n].max(0.01))).join(" ");
        println!(
            "  {label:48} {:>8.1} {:>8.1} {:>8.1}   {:>8.1} {:>8.1} {:>8.1}   {times}",
            a[0], a[1], a[2], b[0], b[1], b[2]
        );
    }
    let rate = |runs: &[Seen]| median(&mut runs.iter().map(|seen| seen.rate).collect::<Vec<_>>());
    let (a, b) = (rate(&waiting), rate(&busy));
    println!("  {:48} {a:>26.0}   {b:>26.0}   {:.2}", "tasks per second of another queue", b / a);
}

fn run(guest: &str) -> Seen {
    let mut bench = Bench::new(&format!(
        "shutdown_grace = \"0s\"\n\
         [queues.held]\nplugin = \"{guest}\"\nconcurrency = {SLOTS}\ntimeout = \"1h\"\nlease = \"{}s\"\n\
         [queues.late]\nplugin = \"loops\"\ntimeout = \"{}ms\"\nmax_retries = 0\n\
         [queues.other]\nplugin = \"empty\"\n",
        LEASE.as_secs(),
        TIMEOUT.as_millis(),
    ));
    for plugin in [guest, "loops", "empty"] {
        bench.install(plugin, plugin);
    }
    let host = super::quiet_host(&bench);
    host.until_ready();
    for _ in 0..SLOTS {
        bench.xadd("held", &[("ms", "3600000")]);
    }
    bench.until_running("held", SLOTS);
    let seen = watched(&mut bench, &host);
    assert_eq!(bench.places("other").dead, 0, "no task has failed");
    host.stop();
    seen
}

fn watched(bench: &mut Bench, host: &Host) -> Seen {
    let end = Instant::now() + *WINDOW;
    let mut seen = Seen::default();
    let admin = host.log("tqhost is running")["admin"].as_str().expect("an address").to_owned();
    let asked = |path: &'static str| {
        let admin = admin.clone();
        thread::spawn(move || {
            let mut took = Vec::new();
            while Instant::now() < end {
                let begin = Instant::now();
                assert_eq!(super::support::http::get(&admin, path).status, 200);
                took.push(begin.elapsed().as_secs_f64() * 1000.0);
                thread::sleep(BEAT);
            }
            took
        })
    };
    let (readyz, metrics) = (asked("/readyz"), asked("/metrics"));
    let (mut tasks, mut late) = (Vec::new(), Vec::new());
    while Instant::now() < end {
        tasks.push(bench.xadd("other", &[("a", "1")]));
        // The next task is added when the last one has timed out.
        if late.last().is_none_or(|id: &String| bench.status("late", id, "status") == "FAILED") {
            late.push(bench.xadd("late", &[("a", "1")]));
        }
        let held: Vec<(String, String, f64, u64)> =
            bench.redis("XPENDING", ("held", "tqhost", "-", "+", SLOTS));
        assert!(
            held.len() == SLOTS && held.iter().all(|entry| entry.3 == 1),
            "all of them run, for the first time: {held:?}"
        );
        seen.idle.extend(held.iter().map(|entry| entry.2));
        thread::sleep(BEAT);
    }
    seen.readyz = readyz.join().expect("the requests");
    seen.metrics = metrics.join().expect("the requests");
    for (queue, id) in tasks.iter().map(|id| ("other", id)).chain(late.iter().map(|id| ("late", id))) {
        bench.until(queue, id, if queue == "late" { "FAILED" } else { "COMPLETED" });
    }
    for id in &tasks {
        seen.tasks.push(time(bench, "other", id, "finished_at") - time(bench, "other", id, "enqueued_at"));
    }
    for id in &late {
        let ran = time(bench, "late", id, "finished_at") - time(bench, "late", id, "started_at");
        seen.late.push(ran - TIMEOUT.as_secs_f64() * 1000.0);
    }
    seen.rate = rate(bench);
    seen
}

/// Tasks per second of the other queue, whose handler does nothing. It counts the tasks that are settled
/// within [`WINDOW`].
fn rate(bench: &mut Bench) -> f64 {
    let tasks = *TASKS;
    fill_stream(bench, "other", "x", tasks);
    let begin = Instant::now();
    loop {
        thread::sleep(BEAT);
        let left: usize = bench.redis("XLEN", "other");
        if left == 0 || begin.elapsed() > *WINDOW {
            return tasks.saturating_sub(left) as f64 / begin.elapsed().as_secs_f64();
        }
    }
}

/// A time of a task's status, in ms by Redis's clock.
fn time(bench: &mut Bench, queue: &str, id: &str, field: &str) -> f64 {
    bench.status(queue, id, field).parse().expect("a time")
}
