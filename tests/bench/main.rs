//! `make bench`: measures the host, section by section. `throughput` and `start` are here, the other
//! sections are in other files.
//!
//! In: the name of a section, or a part of it; none runs all but `peers`. Out: tables on stdout. Speeds are
//! ratios to something that is measured in the same run; absolute figures hold for this machine and moment.
//! Every section checks that all tasks were completed. `cargo test --bench host` runs each of them with
//! little work, as a test of the benchmark, and `cargo test --bench host peers` does so with the rest. Their
//! figures say nothing. Not here: limits that are tests (`tests/queue/costs.rs`).

#[allow(dead_code, unused_imports, reason = "the tests use the rest")]
#[path = "../support/mod.rs"]
mod support;

mod attempt;
mod backlog;
mod busy;
mod comparison;
mod compilation;
mod connections;
mod edits;
mod effects;
mod everything;
mod http_call;
mod hundred;
mod idle;
mod instances;
mod languages;
mod operator;
mod page;
mod swaps;
mod turns;
mod waits;

use std::fs;
use std::str::FromStr;
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use nix::unistd::Pid;
use redis::Connection;
use support::files::{guest, marked};
use support::{Bench, Host, eventually, within};

/// Whether this is a test of the benchmark. `cargo bench` passes `--bench`, `cargo test` does not.
static IS_TEST: LazyLock<bool> = LazyLock::new(|| std::env::args().all(|arg| arg != "--bench"));
/// Tasks of one throughput run.
static TASKS: LazyLock<usize> = LazyLock::new(|| amount(50_000, 500));
/// Runs of each case; the median is shown.
static RUNS: LazyLock<usize> = LazyLock::new(|| amount(5, 1));
/// Repetitions of the sections that measure all their cases several times.
static REPS: LazyLock<usize> = LazyLock::new(|| from_env("REPS", amount(5, 1)));
/// The section that needs programs from outside of this repository.
const PEERS: &str = "peers";

fn main() {
    // `cargo bench` adds arguments for its own harness, which are ignored.
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    let sections: [(&str, fn()); 22] = [
        ("throughput", throughput),
        ("instances", instances::calls),
        ("busy", busy::slots),
        ("languages", languages::costs),
        ("edits", edits::times),
        ("start", start),
        ("idle", idle::hosts),
        ("backlog", backlog::queued),
        ("delayed", backlog::delayed),
        ("swaps", swaps::under_load),
        ("thousand", swaps::thousand),
        ("compilation", compilation::others),
        ("hundred", hundred::start),
        ("effects", effects::costs),
        ("connections", connections::costs),
        ("http-call", http_call::throughput),
        ("turns", turns::costs),
        ("waits", waits::costs),
        ("operator", operator::reads),
        ("overview", operator::many_queues),
        ("everything", everything::costs),
        (PEERS, comparison::peers),
    ];
    // The peers have to be downloaded and built, so they run only when they are named.
    let wanted = |name: &str| name.contains(&filter) && (name != PEERS || filter == PEERS);
    let sections = Mutex::new(sections.into_iter().filter(|(name, _)| wanted(name)));
    let next = || sections.lock().expect("no section panics while it is taken").next();
    // A measurement runs alone. A test mostly waits.
    std::thread::scope(|scope| {
        for _ in 0..amount(1, 4) {
            scope.spawn(|| {
                while let Some((_, section)) = next() {
                    section();
                    println!();
                }
            });
        }
    });
}

/// The first amount to measure, and the second to test the benchmark.
fn amount<T>(measured: T, tested: T) -> T {
    if *IS_TEST { tested } else { measured }
}

/// Measures tasks per second of a bare loop of XREADGROUP, XACK and XDEL, of the empty handler and of
/// resume-analyze, in turn.
fn throughput() {
    let (runs, tasks) = (*RUNS, *TASKS);
    println!("throughput, {runs} runs of each in turn; tasks per second: median (least to most)");
    let payload = "x".repeat(200);
    let resume = fs::read_to_string(sample()).expect("a sample resume");
    let mut bare = Vec::new();
    let mut rows: Vec<(String, Vec<f64>)> = Vec::new();
    let cases = [
        ("empty handler, 200 bytes, concurrency 10", "empty", 10, "empty", payload.as_str(), tasks, "24h"),
        ("empty handler, 200 bytes, concurrency 100", "empty", 100, "empty", payload.as_str(), tasks, "24h"),
        ("the same, no status kept (retention 0s)", "empty", 100, "empty", payload.as_str(), tasks, "0s"),
        (
            "resume-analyze, a real resume, concurrency 10",
            "resume-analyze",
            10,
            "resume-analyze",
            resume.as_str(),
            amount(500, 20),
            "24h",
        ),
    ];
    for _ in 0..runs {
        bare.push(bare_loop(&payload));
        for (label, guest, concurrency, plugin, content, tasks, retention) in &cases {
            let rate = host_rate(guest, *concurrency, plugin, content, *tasks, retention);
            match rows.iter_mut().find(|(known, _)| known == label) {
                Some((_, rates)) => rates.push(rate),
                None => rows.push(((*label).to_owned(), vec![rate])),
            }
        }
    }
    let base = median(&mut bare);
    println!(
        "  {:50} {:>9.0}  ({:.0} to {:.0})",
        "bare loop: XREADGROUP COUNT 100, XACK + XDEL",
        base,
        bare[0],
        bare[bare.len() - 1]
    );
    for (label, mut rates) in rows {
        let rate = median(&mut rates);
        println!(
            "  {label:50} {rate:>9.0}  ({:.0} to {:.0})  {:.3} of the bare loop",
            rates[0],
            rates[rates.len() - 1],
            rate / base
        );
    }
}

/// Tasks per second of a loop that only reads, acks and deletes: the most that Redis and one client can do.
fn bare_loop(payload: &str) -> f64 {
    let mut bench = Bench::new("[queues.work]\nplugin = \"empty\"\n");
    let tasks = *TASKS;
    fill(&mut bench, payload, tasks);
    let _: () = bench.redis("XGROUP", ("CREATE", "work", "tqhost", "0"));
    let begin = Instant::now();
    let mut done = 0;
    while done < tasks {
        type Entries = Vec<(String, Vec<(String, Vec<String>)>)>;
        let read: Entries =
            bench.redis("XREADGROUP", ("GROUP", "tqhost", "c", "COUNT", 100, "STREAMS", "work", ">"));
        let mut pipe = redis::pipe();
        for (id, _) in &read[0].1 {
            pipe.cmd("XACK").arg("work").arg("tqhost").arg(id).ignore();
            pipe.cmd("XDEL").arg("work").arg(id).ignore();
        }
        done += read[0].1.len();
        pipe.query::<()>(&mut bench.db).expect("XACK and XDEL");
    }
    tasks as f64 / begin.elapsed().as_secs_f64()
}

/// Tasks per second from the loading of the plugin until the last task is settled.
fn host_rate(
    guest: &str,
    concurrency: u32,
    plugin: &str,
    content: &str,
    tasks: usize,
    retention: &str,
) -> f64 {
    let mut bench = Bench::new(&format!(
        "[queues.work]\nplugin = \"{plugin}\"\nconcurrency = {concurrency}\nretention = \"{retention}\"\n"
    ));
    fill(&mut bench, content, tasks);
    let host = quiet_host(&bench);
    bench.install(guest, plugin);
    let loaded = host.log("plugin loaded");
    assert_eq!(loaded["plugin"], plugin);
    let begin = Instant::now();
    // One XLEN every 10 ms is little work for Redis.
    eventually("all tasks are settled", || {
        let left: usize = bench.redis("XLEN", "work");
        (left == 0).then_some(())
    });
    let rate = tasks as f64 / begin.elapsed().as_secs_f64();
    assert_eq!(bench.places("work").dead, 0, "every task was completed");
    host.stop();
    rate
}

/// Starts a host with the default log level, and waits until it runs.
fn quiet_host(bench: &Bench) -> Host {
    host_with_log(bench, "info")
}

/// Starts a host with this filter of its log, and waits until it runs.
fn host_with_log(bench: &Bench, log: &str) -> Host {
    let host = Host::start(&bench.config(), log);
    // The host first compiles the plugins that are there.
    within(Duration::from_secs(600), "the host runs", || host.logged("tqhost is running").pop());
    host
}

fn fill(bench: &mut Bench, content: &str, tasks: usize) {
    fill_stream(bench, "work", content, tasks);
}

fn fill_stream(bench: &mut Bench, stream: &str, content: &str, tasks: usize) {
    let mut left = tasks;
    while left > 0 {
        let now = left.min(1000);
        let mut pipe = redis::pipe();
        for _ in 0..now {
            pipe.cmd("XADD")
                .arg(stream)
                .arg("*")
                .arg("resumeId")
                .arg("1")
                .arg("content")
                .arg(content)
                .ignore();
        }
        pipe.query::<()>(&mut bench.db).expect("XADD");
        left -= now;
    }
}

/// Measures the time from the start of the process to ready, with an empty cache and with a full one.
fn start() {
    let runs = *RUNS;
    println!("start to ready, {runs} runs: median in ms (least to most)");
    for plugins in [1, amount(50, 3)] {
        let (mut cold, mut warm) = (Vec::new(), Vec::new());
        for _ in 0..runs {
            let bench = many_plugins(plugins);
            cold.push(time_to_ready(&bench));
            warm.push(time_to_ready(&bench));
        }
        for (label, mut times) in [("cold: compiles", cold), ("warm: from the cache", warm)] {
            let time = median(&mut times);
            println!(
                "  {plugins:>3} plugins, {label:22} {time:>7.0}  ({:.0} to {:.0})",
                times[0],
                times[times.len() - 1]
            );
        }
    }
}

fn time_to_ready(bench: &Bench) -> f64 {
    let begin = Instant::now();
    let host = quiet_host(bench);
    eventually("it is ready", || (host.get("/readyz").status == 200).then_some(()));
    let took = begin.elapsed();
    host.stop();
    took.as_secs_f64() * 1000.0
}

/// A bench with `count` queues, each with a plugin of different content.
fn many_plugins(count: u32) -> Bench {
    let queues: String = (0..count).map(|n| format!("[queues.q{n}]\n")).collect();
    let bench = Bench::new(&queues);
    let resume = guest("resume-analyze");
    for n in 0..count {
        fs::write(bench.plugin_path(&format!("q{n}")), marked(&resume, n)).expect("write a plugin");
    }
    bench
}

/// Seconds of processor time that a process has used so far.
fn cpu(pid: Pid) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("/proc");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    let ticks: f64 = fields[11].parse::<f64>().expect("utime") + fields[12].parse::<f64>().expect("stime");
    ticks / 100.0
}

/// Seconds of processor time that a Redis has used so far.
fn redis_cpu(redis: &mut Connection) -> f64 {
    let seconds = |(name, value): &(String, String)| {
        let is_of_process = matches!(name.as_str(), "used_cpu_user" | "used_cpu_sys");
        if is_of_process { value.parse().expect("seconds") } else { 0.0 }
    };
    info(redis, "cpu").iter().map(seconds).sum()
}

/// The names and values of a section of INFO.
fn info(redis: &mut Connection, section: &str) -> Vec<(String, String)> {
    let text: String = redis::cmd("INFO").arg(section).query(redis).expect("INFO");
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn resident_mib(host: &Host) -> u64 {
    memory_mib(host, "VmRSS:")
}

/// The most memory that the host has had.
fn peak_mib(host: &Host) -> u64 {
    memory_mib(host, "VmHWM:")
}

fn memory_mib(host: &Host, figure: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", host.pid())).expect("/proc");
    let line = status.lines().find(|line| line.starts_with(figure)).expect("the figure");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("KiB") / 1024
}

fn sample() -> std::path::PathBuf {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugins/resume-analyze/samples");
    let mut samples: Vec<_> = fs::read_dir(folder)
        .expect("samples")
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .collect();
    samples.sort_by_key(|path| fs::metadata(path).map(|data| data.len()).unwrap_or_default());
    // The one of median length.
    samples.swap_remove(samples.len() / 2)
}

/// The value that this share of them does not exceed.
fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() as f64 * share).ceil() as usize).clamp(1, sorted.len()) - 1]
}

/// Sorts the values, and gives the one in the middle.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A number from the environment.
fn from_env<T: FromStr>(name: &str, default: T) -> T {
    let value = std::env::var(name).ok().filter(|value| !value.is_empty());
    value.map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{name}: not a number: `{value}`")))
}
