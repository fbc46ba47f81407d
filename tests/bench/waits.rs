//! Section `waits`: handlers that do nothing for seconds, since they wait for a model.
//!
//! Every repetition runs all rows once, in a random order, each with a new Redis and a model on the same
//! machine (`model`). A row has a backlog of several tasks for each place, and each task is one request.
//! Its ideal rate is that of a worker whose places are never free. Beside tqhost there are BullMQ with the
//! `fetch` of Node.js, and a bare asyncio loop (`peers/asyncio`).
//!
//! In, from the environment: `REPS` (repetitions, 3), `CASES` and `ROWS` (names of some; all), `AT_ONCE`
//! (500) and `MANY` (5000) tasks at once, `WRITE=1`. Out: for each case a table with medians and spreads.
//! With `WRITE=1` the tables also replace those of docs/performance.md. As a test, a row that cannot be
//! measured is an error.

mod model;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::unistd::Pid;

use self::model::{Answers, Model};
use super::comparison::set_up;
use super::page::{Spread, grouped, machine, replace, repository};
use super::support::application::plugin;
use super::support::{Bench, Host, within};
use super::{IS_TEST, amount, cpu, from_env, host_with_log};

/// The section's name.
const NAME: &str = "waits";
static AT_ONCE: LazyLock<usize> = LazyLock::new(|| from_env("AT_ONCE", amount(500, 5)));
static MANY: LazyLock<usize> = LazyLock::new(|| from_env("MANY", amount(5000, 5)));
const PATIENCE: Duration = Duration::from_secs(300);
/// The pause between two looks at the memory. A look holds the process up for a moment.
const LOOK: Duration = Duration::from_millis(250);

/// The program that runs the tasks: tqhost with a guest and an `instance`, or another one.
#[derive(Clone, Copy)]
enum Worker {
    Asyncio,
    Bullmq,
    Tqhost(&'static str, &'static str),
}

struct Row {
    name: &'static str,
    what: &'static str,
    worker: Worker,
}

const FRESH: &str = "\"per-task\"";
const SHARED: &str = "{ concurrent = 100 }";
const fn row(name: &'static str, what: &'static str, worker: Worker) -> Row {
    Row { name, what, worker }
}
static ROWS: [Row; 8] = [
    row("asyncio", "bare asyncio loop (redis-py, aiohttp)", Worker::Asyncio),
    row("bullmq", "BullMQ, Node's `fetch`", Worker::Bullmq),
    row("rust", "tqhost, Rust", Worker::Tqhost("fetches", FRESH)),
    row("http-call", "tqhost, `http-call`", Worker::Tqhost("http-call", FRESH)),
    row("javascript", "tqhost, JavaScript, `concurrent`", Worker::Tqhost("in-javascript", SHARED)),
    row("python", "tqhost, Python, `concurrent`", Worker::Tqhost("in-python", SHARED)),
    row("javascript-fresh", "tqhost, JavaScript", Worker::Tqhost("in-javascript", FRESH)),
    row("python-fresh", "tqhost, Python", Worker::Tqhost("in-python", FRESH)),
];

struct Case {
    name: &'static str,
    what: &'static str,
    answers: Answers,
    at_once: usize,
    /// Tasks for each place.
    rounds: usize,
    reps: usize,
    /// The rows that take so many tasks at once.
    rows: &'static [Row],
}

fn cases(reps: usize) -> Vec<Case> {
    let seconds = |seconds: u64| Duration::from_millis(amount(seconds * 1000, 200));
    let case = |name, what, take, events, rounds| Case {
        name,
        what,
        answers: Answers { take: seconds(take), events },
        at_once: *AT_ONCE,
        rounds: amount(rounds, 2),
        reps,
        rows: &ROWS,
    };
    let short = case("short", "answers of 2 s", 2, None, 3);
    let events = case("events", "answers of 20 events within 2 s", 2, Some(20), 3);
    let long = Case { reps: reps.min(1), ..case("long", "answers of 30 s", 30, None, 1) };
    let many = Case { at_once: *MANY, rows: &ROWS[..4], ..case("many", "answers of 2 s", 2, None, 3) };
    let names = std::env::var("CASES").unwrap_or_default();
    let wanted = |case: &Case| names.is_empty() || names.split_whitespace().any(|name| name == case.name);
    let mut cases: Vec<Case> = [short, events, long, many].into_iter().filter(wanted).collect();
    cases.truncate(amount(cases.len(), 2));
    cases
}

/// The figures of one run.
#[derive(Debug, Clone, Copy)]
struct Figures {
    /// Tasks per second.
    rate: f64,
    /// `rate`, of the ideal one.
    ideal: f64,
    /// The most memory of all processes of the worker, in MiB: shared pages count once.
    memory: f64,
    /// `memory`, for each task that waited at the same time, in MiB.
    each: f64,
    /// Processor time per task, in ms.
    cpu: f64,
}

pub fn costs() {
    let names = std::env::var("ROWS").unwrap_or_default();
    let wanted = |row: &&Row| names.is_empty() || names.split_whitespace().any(|name| name == row.name);
    let reps = from_env("REPS", amount(3, 1));
    let mut text = format!("{}\n\n", machine(reps));
    for case in cases(reps) {
        let (at_once, reps) = (case.at_once, case.reps);
        println!("waits: {at_once} tasks at once, {}; {reps} repetitions", case.what);
        let mut runs: BTreeMap<&str, Vec<Figures>> = BTreeMap::new();
        let mut rows: Vec<&Row> = case.rows.iter().filter(wanted).collect();
        for rep in 0..reps {
            fastrand::Rng::with_seed(rep as u64).shuffle(&mut rows);
            for row in &rows {
                match measure(row, &case) {
                    Ok(figures) => {
                        let Figures { rate, ideal, memory, each, cpu } = figures;
                        println!(
                            "  {} of {reps}  {:18} {rate:>7.1} tasks/s, {ideal:.2} of the ideal  \
                             {memory:>6.0} MiB, {each:>6.3} each  {cpu:>6.2} ms",
                            rep + 1,
                            row.name
                        );
                        runs.entry(row.name).or_default().push(figures);
                    }
                    Err(why) => {
                        println!("  {} of {reps}  {:18} left out: {why}", rep + 1, row.name);
                        assert!(!*IS_TEST, "there are rows without figures");
                    }
                }
            }
        }
        text += &table(&case, &runs);
    }
    println!("\n{text}");
    if from_env("WRITE", 0u8) != 0 {
        replace(NAME, &text);
    }
}

/// Runs a row's worker on a backlog. The error says why its program cannot be had.
fn measure(row: &Row, case: &Case) -> Result<Figures, String> {
    let (tasks, at_once) = (case.at_once * case.rounds, case.at_once);
    let model = Model::start(case.answers);
    let mut bench = Bench::with_redis(&configuration(row, case, &model), &["--appendonly", "no"]);
    let mut worker = Running::start(row, at_once, &model, &bench)?;
    let (pid, used) = (worker.pid(), cpu(worker.pid()));
    let (stop, stopped) = channel::<()>();
    let looks = thread::spawn(move || {
        let (mut most, mut pause) = (0.0_f64, LOOK);
        while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            let begin = Instant::now();
            most = most.max(memory(pid));
            pause = LOOK.max(begin.elapsed() * 10);
        }
        most
    });
    worker.fill(tasks, &model, &mut bench)?;
    let (left, failed) = worker.places();
    let mut count = |(command, key): (&str, &str)| bench.redis::<usize>(command, key);
    within(PATIENCE, "all tasks are done", || {
        assert!(!worker.has_ended(), "{}: the worker ended", row.name);
        (left.iter().map(|place| count(*place)).sum::<usize>() == 0).then_some(())
    });
    let took = model.first().expect("a request").elapsed().as_secs_f64();
    let cpu = cpu(pid) - used;
    drop(stop);
    let most = looks.join().expect("nothing panics while it looks");
    assert_eq!(failed.map_or(0, count), 0, "{}: tasks failed", row.name);
    assert_eq!(model.requests(), tasks, "{}: each task is one request", row.name);
    let rate = tasks as f64 / took;
    Ok(Figures {
        rate,
        ideal: rate / (at_once as f64 / case.answers.take.as_secs_f64()),
        memory: most,
        each: most / model.most() as f64,
        cpu: cpu * 1000.0 / tasks as f64,
    })
}

/// The configuration of tqhost: its defaults, but for the tasks at once and their time.
fn configuration(row: &Row, case: &Case, model: &Model) -> String {
    let Worker::Tqhost(guest, instance) = row.worker else { return String::new() };
    let (at_once, origin) = (case.at_once, &model.origin);
    let queue = format!(
        "[queues.work]\nplugin = \"{guest}\"\nconcurrency = {at_once}\ntimeout = \"5m\"\nmax_retries = 0\n\
         batch = {{ max_tasks = 1 }}\n"
    );
    if guest == "http-call" {
        return queue + &plugin(origin, "");
    }
    format!("{queue}[plugins.{guest}]\nallowed_hosts = [\"{origin}\"]\ninstance = {instance}\n")
}

/// A Redis command and its key. The reply is a number.
type Count = (&'static str, &'static str);

/// A worker that is ready for tasks.
enum Running {
    Tqhost(Host),
    Asyncio(Child),
    Bullmq(Child),
}

impl Running {
    fn start(row: &Row, at_once: usize, model: &Model, bench: &Bench) -> Result<Running, String> {
        let at_once = at_once.to_string();
        let (mut command, running): (Command, fn(Child) -> Running) = match row.worker {
            Worker::Tqhost(guest, _) => {
                bench.install(guest, guest);
                let host = host_with_log(bench, "info,guest=off");
                within(PATIENCE, "it is ready", || (host.get("/readyz").status == 200).then_some(()));
                return Ok(Running::Tqhost(host));
            }
            Worker::Asyncio => {
                let mut python = Command::new(set_up("asyncio")?.join("python"));
                python
                    .arg(repository().join("tests/bench/peers/asyncio/waits.py"))
                    .args([&model.origin, &at_once]);
                (python, Running::Asyncio)
            }
            Worker::Bullmq => {
                let mut node = bullmq(bench)?;
                node.arg("work").env("ASKS", &model.origin).env("AT_ONCE", &at_once);
                (node, Running::Bullmq)
            }
        };
        command.env("REDIS_URL", bench.redis.url()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("start a worker");
        let said = BufReader::new(child.stdout.take().expect("a pipe")).lines().next();
        let running = running(child);
        assert!(said.is_some_and(|line| line.is_ok_and(|line| line == "ready")), "{}: it ended", row.name);
        Ok(running)
    }

    /// Adds the backlog.
    fn fill(&self, tasks: usize, model: &Model, bench: &mut Bench) -> Result<(), String> {
        if let Running::Bullmq(_) = self {
            let status = bullmq(bench)?.arg("fill").arg(tasks.to_string()).status().expect("run a producer");
            assert!(status.success(), "BullMQ's producer failed");
            return Ok(());
        }
        let (url, mut pipe) = (format!("{}/ask", model.origin), redis::pipe());
        for _ in 0..tasks {
            let fields = ["work", "*", "end", "asks", "method", "POST", "url", &url, "bodySize", "100"];
            pipe.cmd("XADD").arg(&fields).ignore();
        }
        pipe.query::<()>(&mut bench.db).expect("XADD");
        Ok(())
    }

    /// Where tasks are that are not done, and where the failed ones are.
    fn places(&self) -> (&'static [Count], Option<Count>) {
        match self {
            Running::Asyncio(_) => (&[("XLEN", "work")], None),
            Running::Bullmq(_) => (
                &[("LLEN", "bull:bench:wait"), ("LLEN", "bull:bench:active")],
                Some(("ZCARD", "bull:bench:failed")),
            ),
            Running::Tqhost(_) => {
                (&[("XLEN", "work"), ("ZCARD", "tq:{work}:delayed")], Some(("XLEN", "tq:{work}:dead")))
            }
        }
    }

    fn has_ended(&mut self) -> bool {
        match self {
            Running::Tqhost(host) => host.has_ended(),
            Running::Asyncio(child) | Running::Bullmq(child) => {
                child.try_wait().expect("look after a worker").is_some()
            }
        }
    }

    fn pid(&self) -> Pid {
        match self {
            Running::Tqhost(host) => host.pid(),
            Running::Asyncio(child) | Running::Bullmq(child) => {
                Pid::from_raw(child.id().try_into().expect("a pid"))
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Running::Asyncio(child) | Running::Bullmq(child) = self {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// BullMQ's program, without arguments yet.
fn bullmq(bench: &Bench) -> Result<Command, String> {
    let mut node = Command::new("node");
    node.arg(set_up("bullmq")?.join("peer.mjs")).env("REDIS_URL", bench.redis.url());
    Ok(node)
}

/// The memory of a process and of those that it has started, in MiB. Of a page that several processes or
/// several places of one share, each has its part, so that it counts once.
fn memory(pid: Pid) -> f64 {
    let parents: Vec<(i32, i32)> = fs::read_dir("/proc")
        .expect("/proc")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|process: i32| {
            let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
            Some((process, stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()?))
        })
        .collect();
    let mut family = vec![pid.as_raw()];
    let mut at = 0;
    while let Some(parent) = family.get(at).copied() {
        family.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(process, _)| process));
        at += 1;
    }
    let kib = |process: &i32| -> Option<f64> {
        // A child may have ended meanwhile.
        let rollup = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).ok()?;
        rollup.lines().find_map(|line| line.strip_prefix("Pss:")?.split_whitespace().next()?.parse().ok())
    };
    family.iter().filter_map(kib).sum::<f64>() / 1024.0
}

fn table(case: &Case, runs: &BTreeMap<&str, Vec<Figures>>) -> String {
    let at_once = grouped(case.at_once as f64);
    let once = if case.reps == 1 { ", one run" } else { "" };
    let mut text = format!("**{at_once} tasks at once, {}{once}.**\n\n", case.what);
    text.push_str("| worker | tasks/s | of the ideal rate | MiB | CPU ms of a task |\n");
    text.push_str("|---|---:|---:|---:|---:|\n");
    for row in case.rows {
        let Some(seen) = runs.get(row.name) else { continue };
        let spread = |of: fn(&Figures) -> f64| Spread::of(seen.iter().map(of).collect()).expect("a run");
        let range = |Spread { median, least, most }| match seen.len() {
            1 => format!("{median:.2}"),
            _ => format!("{median:.2} ({least:.2} to {most:.2})"),
        };
        text += &format!(
            "| {} | {} | {} | {} | {:.2} |\n",
            row.what,
            grouped(spread(|of| of.rate).median),
            range(spread(|of| of.ideal)),
            grouped(spread(|of| of.memory).median),
            spread(|of| of.cpu).median,
        );
    }
    text.push('\n');
    text
}
