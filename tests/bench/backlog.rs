//! Sections `backlog` and `delayed`: a million tasks at once.
//!
//! Out: the speed over time, the memory of host and Redis, and the commands that kept Redis busy for long.
//! Not here: speed with fewer tasks (`main`).

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::LazyLock;
use std::time::Instant;

use crate::support::{Bench, Host, eventually};
use crate::{amount, fill, quiet_host, resident_mib};

/// Tasks that wait when the host starts.
static TASKS: LazyLock<usize> = LazyLock::new(|| amount(1_000_000, 2_000));
/// The speed is measured in this many parts.
const PARTS: usize = 10;
/// Commands that keep Redis busy for longer than this are counted, in µs.
const SLOW: u64 = 10_000;

/// All tasks wait in the stream, as if producers had added them while no host ran.
pub fn queued() {
    let tasks = *TASKS;
    println!(
        "a backlog of {tasks} tasks of 200 bytes in the stream, empty handler, concurrency 100, retention 24h"
    );
    let mut bench = bench("24h");
    fill(&mut bench, &"x".repeat(200), tasks);
    drain(bench);
}

/// All tasks are delayed, and due before the host starts.
pub fn delayed() {
    let tasks = *TASKS;
    println!(
        "{tasks} delayed tasks of 200 bytes, all due at the start, \
         empty handler, concurrency 100, retention 0s"
    );
    let mut bench = bench("0s");
    let file = bench.dir.path().join("tasks.jsonl");
    let mut lines = std::io::BufWriter::new(std::fs::File::create(&file).expect("a file"));
    let content = "x".repeat(200);
    for n in 0..tasks {
        writeln!(lines, "{{\"n\":\"{n}\",\"content\":\"{content}\"}}").expect("write");
    }
    lines.flush().expect("write");
    let began = Instant::now();
    let file = file.to_str().expect("UTF-8");
    bench.tqhost(&["enqueue", "work", "--jsonl", file, "--delay", "1s"]).ok();
    println!(
        "  enqueued by the command: {:>9.0} tasks per second",
        tasks as f64 / began.elapsed().as_secs_f64()
    );
    assert_eq!(bench.redis::<usize>("ZCARD", "tq:{work}:delayed"), tasks);
    drain(bench);
}

fn bench(retention: &str) -> Bench {
    Bench::new(&format!(
        "[queues.work]\nplugin = \"empty\"\nconcurrency = 100\nmax_backlog = 2000000\n\
         retention = \"{retention}\"\n"
    ))
}

/// Lets a host run all tasks, and prints what it measured.
fn drain(mut bench: Bench) {
    bench.install("empty", "empty");
    let _: () = bench.redis("CONFIG", ("SET", "slowlog-log-slower-than", SLOW));
    let _: () = bench.redis("CONFIG", ("SET", "slowlog-max-len", 100_000));
    let _: () = bench.redis("SLOWLOG", ("RESET",));
    let _: () = bench.redis("CONFIG", ("RESETSTAT",));
    let before = redis_mib(&mut bench);
    let host = quiet_host(&bench);
    let (mut rates, mut last, mut part) = (Vec::new(), Instant::now(), 1);
    let (mut resident, mut used) = (0, before);
    while part <= PARTS {
        let goal = *TASKS - *TASKS / PARTS * part;
        eventually_slowly("the next part is done", &mut bench, &host, &mut resident, goal);
        rates.push((*TASKS / PARTS) as f64 / last.elapsed().as_secs_f64());
        used = used.max(redis_mib(&mut bench));
        last = Instant::now();
        part += 1;
    }
    println!(
        "  tasks per second, tenth by tenth: {}",
        rates.iter().map(|rate| format!("{rate:.0}")).collect::<Vec<_>>().join(" ")
    );
    println!(
        "  host: at most {resident} MiB resident; Redis: {before} MiB before, at most {used} MiB on the way"
    );
    println!("  of more than {} ms: {}", SLOW / 1000, slow(&mut bench));
    let stats: String = bench.redis("INFO", "latencystats");
    let script = stats.lines().find(|line| line.contains("_fcall:")).unwrap_or("no script ran").trim();
    println!("  all scripts, µs: {}", script.trim_start_matches("latency_percentiles_usec_fcall:"));
    assert_eq!(bench.places("work").dead, 0, "every task was completed");
    host.stop();
}

/// Waits until no more than `goal` tasks are left, and keeps the most memory of the host in `resident`.
fn eventually_slowly(what: &str, bench: &mut Bench, host: &Host, resident: &mut u64, goal: usize) {
    loop {
        *resident = (*resident).max(resident_mib(host));
        let left = bench.redis::<usize>("XLEN", "work") + bench.redis::<usize>("ZCARD", "tq:{work}:delayed");
        if left <= goal {
            return;
        }
        // This fails when the host makes no progress.
        eventually(what, || {
            let now =
                bench.redis::<usize>("XLEN", "work") + bench.redis::<usize>("ZCARD", "tq:{work}:delayed");
            (now < left).then_some(())
        });
    }
}

/// The commands of the slow log by name: how many, and the longest in ms. The slow log measures wall-clock
/// time: on a machine with more work than cores, trivial commands are among them.
pub fn slow(bench: &mut Bench) -> String {
    let log: Vec<redis::Value> = bench.redis("SLOWLOG", ("GET", -1));
    let mut found: BTreeMap<String, (usize, u64)> = BTreeMap::new();
    for entry in log {
        let (_, _, took, command) = first_four(entry);
        let name = match &command[..] {
            [name, function, ..] if name.eq_ignore_ascii_case("fcall") => {
                function.rsplit_once('_').map_or(function.as_str(), |(script, _)| script).to_owned()
            }
            [name, ..] => name.to_lowercase(),
            [] => "?".to_owned(),
        };
        let (count, longest) = found.entry(name).or_default();
        *count += 1;
        *longest = (*longest).max(took / 1000);
    }
    if found.is_empty() {
        return "none".to_owned();
    }
    found
        .iter()
        .map(|(name, (count, longest))| format!("{name} {count} (at most {longest} ms)"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn first_four(entry: redis::Value) -> (u64, u64, u64, Vec<String>) {
    let redis::Value::Array(mut items) = entry else { panic!("an entry of the slow log") };
    items.truncate(4);
    redis::from_redis_value(redis::Value::Array(items)).expect("an entry of the slow log")
}

fn redis_mib(bench: &mut Bench) -> u64 {
    let info: String = bench.redis("INFO", "memory");
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("used_memory");
    line.trim().parse::<u64>().expect("bytes") >> 20
}
