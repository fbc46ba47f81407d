//! Runs one row: drains a backlog, and enqueues at a steady pace.
//!
//! In: a [`Row`] and where its programs are. Out: its figures. Every error is a panic. Each process ends when
//! the value that owns it is dropped. Not here: rows (`rows`), the table (`report`).
//!
//! A drain is measured from the moment when a tenth of its tasks is done, which leaves out the start of the
//! worker. The progress is polled from Redis every few milliseconds; these commands are not counted as
//! commands of the queue.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use nix::unistd::Pid;
use redis::Connection;

use super::super::support::{Bench, Host, RedisServer};
use super::super::{IS_TEST, amount, cpu, info, quantile, redis_cpu};
use super::rows::{self, Count, Row, Worker};

/// Tasks per second, for the latency.
const RATE: usize = 200;
/// How long tasks are added for the latency. The tasks of the first second are left out.
static SECONDS: LazyLock<usize> = LazyLock::new(|| amount(5, 2));
/// The measurement of a drain begins when one in this many tasks is done.
const START: usize = 10;
/// The pause between two polls.
const LOOK: Duration = Duration::from_millis(3);
/// How long a worker may make no progress.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a worker may need for its first tasks: a loop compiles its guest before.
const PATIENCE_AT_START: Duration = Duration::from_secs(300);

/// The folders of the programs.
#[derive(Debug, Clone)]
pub struct Places {
    pub programs: PathBuf,
    pub bullmq: PathBuf,
    /// The folder of a newer redis-server than the one in the path.
    pub redis: Option<PathBuf>,
}

/// The figures of one run of a row.
#[derive(Debug, Clone, Copy)]
pub struct Figures {
    pub drain: Drain,
    pub latency: Latency,
}

#[derive(Debug, Clone, Copy)]
pub struct Drain {
    /// Tasks per second.
    pub rate: f64,
    /// Redis's processor time per task, in µs.
    pub redis: f64,
    /// The worker's processor time per task, in µs.
    pub worker: f64,
    /// Commands per task that Redis ran, with those in scripts.
    pub commands: f64,
    /// The most memory that the worker's process used, in MiB.
    pub memory: f64,
}

/// Median and p99 of the times since a task was enqueued, in ms. None where nothing was noted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Latency {
    pub started: Option<[f64; 2]>,
    pub done: Option<[f64; 2]>,
}

/// Measures how fast a backlog is drained.
pub fn drain(row: &Row, places: &Places, scale: f64) -> Drain {
    let tasks = (row.tasks as f64 * scale).ceil() as usize;
    let mut run = Run::new(row, places);
    run.produce(&["fill", &tasks.to_string()], &[]);
    run.start(&[]);
    let mut look = Look::new(row, &run.bench, tasks);
    look.until(&mut run, tasks - tasks / START);
    let begin = Seen::take(&mut look, &run);
    look.until(&mut run, 0);
    let end = Seen::take(&mut look, &run);
    let done = begin.left - end.left;
    // A test has so few tasks that they may all be done before somebody looks.
    assert!(
        *IS_TEST || done >= tasks / 2,
        "{}: only {done} of {tasks} tasks were left to measure: raise SCALE",
        row.name
    );
    let per_task = |begin: f64, end: f64| (end - begin) / done as f64;
    Drain {
        rate: done as f64 / (end.at - begin.at).as_secs_f64(),
        redis: per_task(begin.redis, end.redis) * 1e6,
        worker: per_task(begin.worker, end.worker) * 1e6,
        commands: per_task(begin.commands as f64, end.commands as f64),
        memory: peak_kib(run.pid()) as f64 / 1024.0,
    }
}

/// Measures how long a task takes at a low rate.
pub fn latency(row: &Row, places: &Places) -> Latency {
    let mut run = Run::new(row, places);
    let times = |name: &str| run.bench.dir.path().join(name);
    let (of_worker, of_producer) = (times("times-of-worker"), times("times-of-producer"));
    run.start(&[("TIMES", &of_worker)]);
    run.produce(&["fill", "1"], &[]);
    Look::new(row, &run.bench, 1).until(&mut run, 0);
    let mut env = vec![("TIMES", of_producer.as_path())];
    env.extend(row.statuses.map(|prefix| ("WATCH", Path::new(prefix))));
    run.produce(&["pace", &RATE.to_string(), &SECONDS.to_string()], &env);
    Look::new(row, &run.bench, 1 + RATE * *SECONDS).until(&mut run, 0);
    run.stop();
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    let (of_worker, of_producer) = (read(&of_worker), read(&of_producer));
    // A task is done when a client sees its last status, or, where there is no status to watch, when the
    // worker knows.
    let of_end = if row.statuses.is_some() { &of_producer } else { &of_worker };
    Latency { started: quantiles(row, &of_worker, "started"), done: quantiles(row, of_end, "done") }
}

/// A new Redis with one row's queue, and its worker.
struct Run<'r> {
    row: &'r Row,
    places: &'r Places,
    // Fields are dropped in order: the worker ends before its Redis.
    worker: Option<Running>,
    bench: Bench,
}

impl<'r> Run<'r> {
    fn new(row: &'r Row, places: &'r Places) -> Run<'r> {
        let dir = tempfile::tempdir().expect("create a folder");
        // The search path, so that another redis-server is started.
        let env = places.redis.iter().map(|folder| ("PATH".to_owned(), folder.clone())).collect();
        let redis = RedisServer::start_with_env(dir.path(), &["--appendonly", "no"], env);
        let queues = match row.worker {
            Worker::Tqhost(rows::Host { guest, retention, concurrency, rules, grants, .. }) => {
                format!(
                    "[queues.work]\nplugin = \"{guest}\"\nconcurrency = {concurrency}\n\
                     retention = \"{retention}\"\n{rules}\n[plugins.{guest}]\n{grants}\n"
                )
            }
            _ => String::new(),
        };
        Run { row, places, worker: None, bench: Bench::on(&queues, dir, redis) }
    }

    /// The program that enqueues, and that runs tasks where the worker is not tqhost. It has no arguments
    /// yet.
    fn program(&self) -> Command {
        let program = |name: &str| Command::new(self.places.programs.join(name));
        let mut command = match self.row.worker {
            Worker::Loops(..) | Worker::Tqhost(_) => program("loops"),
            Worker::Program(name, _) => program(name),
            Worker::Bullmq => {
                let mut node = Command::new("node");
                node.arg(self.places.bullmq.join("peer.mjs"));
                node
            }
        };
        let log = File::options().append(true).create(true).open(self.log()).expect("open the log");
        command.env("REDIS_URL", self.bench.redis.url()).stdout(Stdio::null()).stderr(log);
        command
    }

    fn log(&self) -> PathBuf {
        self.bench.dir.path().join("log-of-programs")
    }

    /// Enqueues tasks, and waits until that is done.
    fn produce(&self, args: &[&str], env: &[(&str, &Path)]) {
        let status = self
            .program()
            .args(args)
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .status()
            .expect("run a producer");
        assert!(status.success(), "{}: enqueueing failed: {}", self.row.name, self.said());
    }

    fn start(&mut self, env: &[(&str, &Path)]) {
        self.worker = Some(if let Worker::Tqhost(rows::Host { guest, log, .. }) = self.row.worker {
            self.bench.install(guest, guest);
            Running::Tqhost(super::super::host_with_log(&self.bench, log))
        } else {
            let mut command = self.program();
            command.arg("work");
            match self.row.worker {
                Worker::Loops(args, guest) => {
                    command.args(args).args(guest.map(super::super::support::bench::guest_path));
                }
                Worker::Program(_, args) => {
                    command.args(args);
                }
                Worker::Bullmq | Worker::Tqhost(_) => {}
            }
            let child =
                command.envs(env.iter().copied()).stdin(Stdio::piped()).spawn().expect("start a worker");
            Running::Program(Program(child))
        });
    }

    fn pid(&self) -> Pid {
        match self.worker.as_ref().expect("a worker") {
            Running::Tqhost(host) => host.pid(),
            Running::Program(Program(child)) => Pid::from_raw(child.id().try_into().expect("a pid")),
        }
    }

    /// Stops the worker, and waits until it has written its times.
    fn stop(&mut self) {
        match self.worker.take().expect("a worker") {
            Running::Tqhost(host) => host.stop(),
            Running::Program(mut program) => {
                drop(program.0.stdin.take());
                super::super::support::eventually("the worker ends", || {
                    program.0.try_wait().expect("look after a worker")
                });
            }
        }
    }

    fn assert_runs(&mut self) {
        let has_ended = match self.worker.as_mut().expect("a worker") {
            Running::Tqhost(host) => host.has_ended(),
            Running::Program(Program(child)) => child.try_wait().expect("look after a worker").is_some(),
        };
        assert!(!has_ended, "{}: the worker ended: {}", self.row.name, self.said());
    }

    /// The last line that a program wrote.
    fn said(&self) -> String {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        log.lines().last().unwrap_or("it said nothing").to_owned()
    }
}

enum Running {
    Tqhost(Host),
    Program(Program),
}

/// A worker's process. It is killed when this is dropped. It also ends when this process ends, as its
/// standard input is closed then.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Polls the progress of a queue.
struct Look<'r> {
    row: &'r Row,
    redis: Connection,
    /// The number of all tasks.
    tasks: usize,
    /// Commands that were sent for polling.
    asked: u64,
}

impl<'r> Look<'r> {
    fn new(row: &'r Row, bench: &Bench, tasks: usize) -> Look<'r> {
        Look { row, redis: bench.redis.connection(), tasks, asked: 0 }
    }

    fn count(&mut self, (command, key): Count) -> usize {
        self.asked += 1;
        redis::cmd(command)
            .arg(key)
            .query(&mut self.redis)
            .unwrap_or_else(|error| panic!("{command} {key}: {error}"))
    }

    fn left(&mut self) -> usize {
        let progress = self.row.progress;
        let left = progress.left.iter().map(|count| self.count(*count)).sum::<usize>();
        progress.done.map_or(left, |done| self.tasks.saturating_sub(self.count(done)))
    }

    /// Waits until no more than `most` tasks are left.
    fn until(&mut self, run: &mut Run<'_>, most: usize) {
        let (mut last, mut since) = (usize::MAX, Instant::now());
        loop {
            let left = self.left();
            if left <= most {
                break;
            }
            if left != last {
                (last, since) = (left, Instant::now());
            }
            run.assert_runs();
            let patience = if left < self.tasks { PATIENCE } else { PATIENCE_AT_START };
            assert!(
                since.elapsed() < patience,
                "{}: {left} tasks are left, and nothing happens: {}",
                self.row.name,
                run.said()
            );
            std::thread::sleep(LOOK);
        }
        let failed = self.row.progress.failed.map_or(0, |failed| self.count(failed));
        assert_eq!(failed, 0, "{}: tasks failed", self.row.name);
    }
}

/// The resources that were used up to a moment.
struct Seen {
    at: Instant,
    left: usize,
    /// Redis's processor time in seconds.
    redis: f64,
    /// The worker's processor time in seconds.
    worker: f64,
    commands: u64,
}

impl Seen {
    fn take(look: &mut Look<'_>, run: &Run<'_>) -> Seen {
        let (left, at) = (look.left(), Instant::now());
        let redis = redis_cpu(&mut look.redis);
        let worker = cpu(run.pid());
        let calls = |(name, value): &(String, String)| -> u64 {
            let calls = value
                .split(',')
                .find_map(|part| part.strip_prefix("calls="))
                .and_then(|calls| calls.parse().ok());
            if name == "cmdstat_info" { 0 } else { calls.unwrap_or_default() }
        };
        let commands = info(&mut look.redis, "commandstats").iter().map(calls).sum::<u64>() - look.asked;
        Seen { at, left, redis, worker, commands }
    }
}

/// The most memory that a process has used, in KiB.
fn peak_kib(pid: Pid) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("read /proc");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Median and p99 of the times until tasks reached this point, without those of the first second. None when
/// nothing was noted.
fn quantiles(row: &Row, times: &str, point: &str) -> Option<[f64; 2]> {
    let number = |word: &str| word.parse::<u64>().expect("nanoseconds");
    let noted = times.lines().filter_map(|line| match line.split(' ').collect::<Vec<_>>()[..] {
        [noted, made, now] if noted == point => Some((number(made), number(now))),
        _ => None,
    });
    let noted: Vec<(u64, u64)> = noted.collect();
    let last = noted.iter().map(|(made, _)| *made).max()?;
    let seen = Duration::from_secs(*SECONDS as u64 - 1).as_nanos() as u64;
    let recent = noted.iter().filter(|(made, _)| made + seen >= last);
    let took: Vec<f64> = recent.map(|(made, now)| now.saturating_sub(*made) as f64 / 1e6).collect();
    let least = RATE * (*SECONDS - 1) * 9 / 10;
    let is_enough = *IS_TEST || took.len() >= least;
    assert!(is_enough, "{}: {} tasks were {point} in time, not {least}", row.name, took.len());
    Some([quantile(&took, 0.5), quantile(&took, 0.99)])
}
