//! Section `operator`: what an operator's reads take where a queue holds a million tasks and a hundred
//! thousand dead letters, and what they cost the queue; the same for changes of one task; then the overview
//! of many busy queues.
//!
//! In: `TASKS`, `DEAD`, `QUEUES`, `REPS`, `WINDOW` and `PAUSE_MS` of the environment. Out: the median and the
//! 99th of a hundred of each page, list, change and command; the memory of the host; the slowest commands of
//! Redis; the speed of the queue with a client that goes round all of it, as a ratio to that without.
//!
//! Not here: limits on commands and bytes, which are a test (`tests/api/size.rs`).

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use crate::backlog::slow;
use crate::support::dead_letters::add_dead;
use crate::support::requests::{self, Names};
use crate::support::{Bench, Host, eventually, http, within};
use crate::{amount, fill, from_env, info, median, peak_mib, quantile, quiet_host};

/// Commands that keep Redis busy for longer than this are told, in µs.
const SLOW: u64 = 1_000;
const PATIENCE: Duration = Duration::from_secs(600);
/// The method, the path and the body of a request; null is no body.
type Change = (&'static str, String, Value);
/// Rounds over all commands. Each is a process of its own.
static COMMAND_RUNS: LazyLock<usize> = LazyLock::new(|| amount(5, 1));

pub fn reads() {
    let tasks = from_env("TASKS", amount(1_000_000usize, 2_000));
    let (dead, reps) = (from_env("DEAD", amount(100_000usize, 200)), from_env("REPS", amount(30usize, 1)));
    println!(
        "operator: {tasks} tasks of 200 bytes in the stream, {dead} dead letters; {reps} rounds of all reads"
    );
    let mut bench = bench(tasks, dead);
    let host = quiet_host(&bench);
    watch_slow(&mut bench);
    let before = peak_mib(&host);
    let all = all_reads(&mut bench, &host);
    let mut times: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for _ in 0..reps {
        for path in &all {
            times.entry(path).or_default().push(timed(host.admin(), "GET", path, None));
        }
    }
    for path in &all {
        row(path, &times[path.as_str()]);
    }
    let together: Vec<f64> = times.into_values().flatten().collect();
    row("all together", &together);
    println!("  host: at most {} MiB resident, {before} MiB before the reads", peak_mib(&host));
    println!("  commands of Redis of more than {} ms: {}", SLOW / 1000, slow(&mut bench));
    changes(&mut bench, &host, reps);
    commands(&bench);
    beside(bench, host, &all);
}

/// A queue with this many tasks, whose handler is not there yet.
fn bench(tasks: usize, dead: usize) -> Bench {
    let mut bench = Bench::with_redis("", &["--appendonly", "no"]);
    // Fields that are masked make lists look into each value.
    bench.configure(&format!(
        "[queues.work]\nplugin = \"empty\"\nconcurrency = 100\nevents = 1000\nmax_backlog = 100000000\n\
         [redis]\nurl = \"redis://127.0.0.1:{}\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\nmask = [\"email\", \"phone\"]\n",
        bench.redis.port
    ));
    fill(&mut bench, &"x".repeat(200), tasks);
    for begin in (0..dead).step_by(1000) {
        add_dead(&mut bench, begin..(begin + 1000).min(dead));
    }
    bench
}

/// Every read, with the last task of the queue, a dead one, and one that was never there.
fn all_reads(bench: &mut Bench, host: &Host) -> Vec<String> {
    let document = http::get(host.admin(), "/v1/openapi.json").json();
    let last: Vec<(String, Vec<String>)> = bench.redis("XREVRANGE", ("work", "+", "-", "COUNT", 1));
    let ids = [last[0].0.as_str(), "id-1", "nobody"];
    requests::all(&document, Names { queue: "work", plugin: "empty", ids: &ids })
}

/// Changes of one task: known ones, and one that was never there.
fn changes(bench: &mut Bench, host: &Host, reps: usize) {
    println!("changes of one task");
    let queued: Vec<(String, Vec<String>)> = bench.redis("XREVRANGE", ("work", "+", "-", "COUNT", reps));
    // The first letters get a status. The others have none, as old ones, and are looked for among all.
    let letters: Vec<(String, Vec<String>)> =
        bench.redis("XRANGE", ("tq:{work}:dead", "-", "+", "COUNT", reps));
    for (n, (entry, _)) in letters.iter().enumerate() {
        let status = format!("tq:{{work}}:task:id-{n}");
        let _: () = bench.redis("HSET", (status, "status", "FAILED", "dead", entry));
    }
    let task = |id: &str| format!("/v1/queues/work/tasks/{id}");
    let one = |id: String| json!({ "ids": [id] });
    let (dead, old) = ("/v1/queues/work/dead", letters.len());
    let all: [(&str, &dyn Fn(usize) -> Change); 8] = [
        ("cancel a queued task", &|n| ("DELETE", task(&queued[n].0), json!(null))),
        ("enqueue", &|_| ("POST", "/v1/queues/work/tasks".into(), json!({ "fields": { "n": "1" } }))),
        ("cancel nobody", &|_| ("DELETE", task("nobody"), json!(null))),
        ("retry nobody", &|_| ("POST", task("nobody/retry"), json!({}))),
        ("requeue a letter", &|n| ("POST", format!("{dead}/requeue"), one(format!("id-{n}")))),
        ("purge a letter without a status", &|n| {
            ("POST", format!("{dead}/purge"), one(format!("id-{}", old + n)))
        }),
        ("pause", &|_| ("POST", "/v1/queues/work/pause".into(), json!({}))),
        ("resume", &|_| ("POST", "/v1/queues/work/resume".into(), json!({}))),
    ];
    for (what, change) in all {
        let time = |n| {
            let (method, path, body) = change(n);
            timed(host.admin(), method, &path, (!body.is_null()).then(|| body.to_string()).as_deref())
        };
        row(what, &(0..old.min(queued.len())).map(time).collect::<Vec<_>>());
    }
}

/// The milliseconds from the request to the end of its answer.
fn timed(address: &str, method: &str, path: &str, body: Option<&str>) -> f64 {
    let begin = Instant::now();
    let answer = http::send(address, method, path, &[("Content-Type", "application/json")], body);
    let took = begin.elapsed().as_secs_f64() * 1000.0;
    assert!(answer.status < 400 || answer.status == 404, "{path}: {answer:?}");
    took
}

fn row(what: &str, times: &[f64]) {
    let of = |share| quantile(times, share);
    println!("  {what:60} {:>8.1} ms, 99 of 100 {:>8.1}, most {:>8.1}", of(0.5), of(0.99), of(1.0));
}

/// The time of commands that only read, each a process of its own.
fn commands(bench: &Bench) {
    let runs = *COMMAND_RUNS;
    println!("commands, {runs} runs of each, with the start of the process");
    let all: [&[&str]; 7] = [
        &["queues"],
        &["tasks", "work", "--state", "queued"],
        &["tasks", "work", "--state", "dead"],
        &["status", "work", "nobody"],
        &["dead", "list", "work"],
        // These two look at all of it, page by page.
        &["dead", "list", "work", "--by", "cause"],
        &["doctor", "work"],
    ];
    for command in all {
        let time = |_| {
            let begin = Instant::now();
            let ran = bench.tqhost(command);
            assert!(ran.code < 2, "{ran:?}");
            begin.elapsed().as_secs_f64() * 1000.0
        };
        row(&command.join(" "), &(0..runs).map(time).collect::<Vec<_>>());
    }
}

/// The speed of the queue in windows of some tasks: every other one with a client that makes one read after
/// the other.
fn beside(mut bench: Bench, host: Host, all: &[String]) {
    let pause = Duration::from_millis(from_env("PAUSE_MS", 100));
    let window = from_env("WINDOW", amount(50_000usize, 200));
    let address = host.admin();
    bench.install("empty", "empty");
    // The first tasks are on probation.
    done_in(&mut bench, window);
    let (mut with, mut without, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let mut times = Vec::new();
    while bench.redis::<usize>("XLEN", "work") >= 3 * window {
        let rates = [true, false].map(|is_asked| {
            let stop = AtomicBool::new(false);
            let (rate, asked) = thread::scope(|scope| {
                let client = is_asked.then(|| scope.spawn(|| go_round(address, all, pause, &stop)));
                let rate = done_in(&mut bench, window);
                stop.store(true, Ordering::Relaxed);
                (rate, client.map(|client| client.join().expect("the client")))
            });
            times.extend(asked.into_iter().flatten());
            rate
        });
        ratios.push(rates[0] / rates[1]);
        with.push(rates[0]);
        without.push(rates[1]);
    }
    println!(
        "the queue at work, windows of {window} tasks in turn with and without a client that makes a read \
         every {} ms",
        pause.as_millis()
    );
    if ratios.is_empty() {
        println!("  there were too few tasks");
    } else {
        println!(
            "  {:.0} tasks/s with, {:.0} without; ratio {:.3} ({:.3} to {:.3}) of {} pairs",
            median(&mut with),
            median(&mut without),
            median(&mut ratios),
            ratios[0],
            ratios[ratios.len() - 1],
            ratios.len()
        );
    }
    if !times.is_empty() {
        row("the client's reads meanwhile", &times);
    }
    println!("  host: at most {} MiB resident", peak_mib(&host));
    host.stop();
}

/// Waits until this many tasks are done. Gives how many were done in a second.
fn done_in(bench: &mut Bench, window: usize) -> f64 {
    let (before, begin): (usize, _) = (bench.redis("XLEN", "work"), Instant::now());
    let after = within(PATIENCE, "tasks are done", || {
        let left: usize = bench.redis("XLEN", "work");
        (left + window <= before || left == 0).then_some(left)
    });
    (before - after) as f64 / begin.elapsed().as_secs_f64()
}

fn go_round(address: &str, all: &[String], pause: Duration, stop: &AtomicBool) -> Vec<f64> {
    let mut times = Vec::new();
    for path in all.iter().cycle() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        times.push(timed(address, "GET", path, None));
        thread::sleep(pause);
    }
    times
}

/// The overview of a host with many queues, each with a history of every minute of the last hour.
pub fn many_queues() {
    let (queues, reps) = (from_env("QUEUES", amount(500usize, 5)), from_env("REPS", amount(30usize, 1)));
    println!("overview: {queues} queues with a full history and a backlog");
    let text: String = (0..queues).map(|n| format!("[queues.q{n}]\nplugin = \"empty\"\n")).collect();
    let mut bench = Bench::with_redis(&text, &["--appendonly", "no"]);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock").as_secs() / 60;
    let figures =
        r#"{"completed":600,"retried":5,"rejected":2,"w3":100,"w4":300,"w5":207,"r4":500,"r5":107}"#;
    let depth = r#"{"queued":5,"running":2,"delayed":1,"held":0,"dead":3,"oldest_ms":1200}"#;
    for n in 0..queues {
        let mut pipe = redis::pipe();
        for minute in now - 61..=now {
            let key = format!("tq:{{q{n}}}:minutes:{}", minute / 60);
            let at = minute % 60;
            pipe.cmd("HSET").arg(key).arg(format!("figures:{at}")).arg(figures);
            pipe.arg(format!("depth:{at}")).arg(depth).ignore();
        }
        pipe.cmd("XADD").arg(format!("q{n}")).arg("*").arg("n").arg("1").ignore();
        pipe.query::<()>(&mut bench.db).expect("a history");
    }
    let host = quiet_host(&bench);
    eventually("the host is ready to answer", || (http::get(host.admin(), "/").status == 200).then_some(()));
    for path in ["/", "/v1/queues", "/queues/q1", "/v1/queues/q1/history", "/plugins"] {
        let before = calls(&mut bench);
        let times: Vec<f64> = (0..reps).map(|_| timed(host.admin(), "GET", path, None)).collect();
        let each = (calls(&mut bench) - before) / reps as u64;
        row(&format!("{path} (about {each} commands)"), &times);
    }
    println!("  host: at most {} MiB resident", peak_mib(&host));
    host.stop();
}

/// How many commands Redis has carried out.
fn calls(bench: &mut Bench) -> u64 {
    let stats = info(&mut bench.db, "commandstats");
    stats
        .iter()
        .filter_map(|(_, text)| text.strip_prefix("calls=")?.split(',').next()?.parse::<u64>().ok())
        .sum()
}

fn watch_slow(bench: &mut Bench) {
    let _: () = bench.redis("CONFIG", ("SET", "slowlog-log-slower-than", SLOW));
    let _: () = bench.redis("CONFIG", ("SET", "slowlog-max-len", 100_000));
    let _: () = bench.redis("SLOWLOG", ("RESET",));
}
