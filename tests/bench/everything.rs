//! Section `everything`: the speed of a queue in a host with everything on that watches it, next to one with
//! everything off, in the same run.
//!
//! In: `REPS` and `TASKS` of the environment. Out: tasks per second of each case, and its ratio to the case
//! `off` of the same repetition.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::http_call::Application;
use crate::support::{Bench, http, within};
use crate::{amount, fill, from_env, median, quiet_host, redis_cpu};

const PATIENCE: Duration = Duration::from_secs(600);
/// How often Prometheus scrapes, and how often an open page of the dashboard looks.
const SCRAPE: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_secs(3);

/// A host, and what is on in it.
struct Case {
    what: &'static str,
    /// Keys of the queue.
    queue: &'static str,
    /// The `histograms` of `[admin]`.
    histograms: &'static str,
    /// Whether traces are sent to a collector, as many as by default.
    has_collector: bool,
    /// Whether there are clients: pages of the dashboard, a stream of events, and a scraper.
    is_watched: bool,
}

/// The cases. The first one is what the others are compared to.
const CASES: [Case; 5] = [
    OFF,
    Case { what: "full histograms, and clients", histograms: "full", is_watched: true, ..OFF },
    Case { what: "events", queue: EVENTS, ..OFF },
    Case { what: "traces", has_collector: true, ..OFF },
    Case { what: "everything", queue: EVENTS, histograms: "full", has_collector: true, is_watched: true },
];
const OFF: Case =
    Case { what: "off", queue: "", histograms: "host", has_collector: false, is_watched: false };
const EVENTS: &str = "events = 10000\n";

pub fn costs() {
    let (reps, tasks) = (from_env("REPS", amount(7usize, 1)), from_env("TASKS", amount(200_000usize, 1_000)));
    println!("everything: {reps} repetitions of {tasks} tasks; ratios to the host with everything off");
    let mut ratios: Vec<(Vec<f64>, Vec<f64>)> = vec![Default::default(); CASES.len()];
    for rep in 0..reps {
        let measured = CASES.each_ref().map(|case| measure(case, tasks));
        for ((rate, redis), (rates, times)) in measured.iter().zip(&mut ratios) {
            rates.push(rate / measured[0].0);
            times.push(redis / measured[0].1);
        }
        for (case, (rate, redis)) in CASES.iter().zip(&measured) {
            println!(
                "  {} of {reps}  {:32} {rate:>9.0} tasks/s  {redis:6.1} µs of Redis",
                rep + 1,
                case.what
            );
        }
    }
    println!("  {:32} {:>28} {:>14}", "median (least to most)", "tasks/s", "Redis's time");
    for (case, (mut rates, mut times)) in CASES.iter().zip(ratios) {
        let rate = median(&mut rates);
        let spread = format!("{rate:.3} ({:.3} to {:.3})", rates[0], rates[rates.len() - 1]);
        println!("  {:32} {spread:>28} {:>14.3}", case.what, median(&mut times));
    }
}

/// Drains a backlog. Gives the tasks per second, and Redis's time per task in µs.
fn measure(case: &Case, tasks: usize) -> (f64, f64) {
    let mut bench = Bench::with_redis("", &["--appendonly", "no"]);
    let collector = case.has_collector.then(Application::start);
    let telemetry = collector
        .as_ref()
        .map(|collector| format!("[telemetry]\notlp = \"http://127.0.0.1:{}\"\n", collector.port));
    bench.configure(&format!(
        "[queues.work]\nplugin = \"empty\"\nconcurrency = 100\n{}[redis]\nurl = \"{}\"\n[admin]\n\
         listen = \"127.0.0.1:0\"\nhistograms = \"{}\"\n{}",
        case.queue,
        bench.redis.url(),
        case.histograms,
        telemetry.unwrap_or_default()
    ));
    fill(&mut bench, &"x".repeat(200), tasks);
    let host = quiet_host(&bench);
    let (address, stop) = (host.admin(), AtomicBool::new(false));
    let figures = thread::scope(|scope| {
        if case.is_watched {
            scope.spawn(|| again(&stop, SCRAPE, || ask(address, "/metrics")));
            scope.spawn(|| {
                again(&stop, LOOK, || {
                    ask(address, "/");
                    ask(address, "/queues/work");
                });
            });
            let path = if case.queue.is_empty() { "/v1/events" } else { "/v1/queues/work/events" };
            scope.spawn(|| listen(address, path, &stop));
        }
        let (begin, redis) = (Instant::now(), redis_cpu(&mut bench.db));
        bench.install("empty", "empty");
        within(PATIENCE, "all tasks are done", || (bench.redis::<usize>("XLEN", "work") == 0).then_some(()));
        let seconds = begin.elapsed().as_secs_f64();
        let redis = redis_cpu(&mut bench.db) - redis;
        stop.store(true, Ordering::Relaxed);
        (tasks as f64 / seconds, redis / tasks as f64 * 1e6)
    });
    assert_eq!(bench.places("work").dead, 0, "every task was completed");
    host.stop();
    if let Some(collector) = collector {
        assert!(collector.requests() > 0, "spans were sent");
    }
    figures
}

fn ask(address: &str, path: &str) {
    let answer = http::get(address, path);
    assert_eq!(answer.status, 200, "{path}: {answer:?}");
}

/// Does the same at once and after each pause, until it is to stop.
fn again(stop: &AtomicBool, pause: Duration, act: impl Fn()) {
    let mut due = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        if Instant::now() >= due {
            act();
            due += pause;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Reads a stream of events until it is to stop.
fn listen(address: &str, path: &str, stop: &AtomicBool) {
    let mut stream = TcpStream::connect(address).expect("connect to the host");
    stream.set_read_timeout(Some(Duration::from_millis(100))).expect("set a time-out");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").expect("ask for events");
    let mut buffer = [0; 64 << 10];
    while !stop.load(Ordering::Relaxed) {
        // Nothing has come when the time is over.
        let _ = stream.read(&mut buffer);
    }
}
