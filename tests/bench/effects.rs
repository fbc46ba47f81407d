//! Section `effects`: what a task costs that enqueues another, keeps a value, counts or writes a record, and
//! what a flow's child costs, next to a plain task.
//!
//! Every repetition runs all cases once, in a random order, each with a new Redis. All cases run the same
//! guest on tasks of the same size, so a difference between them is the cost of the effect. The tasks are
//! there before the plugin is, and the measurement begins when a tenth of them is done.
//!
//! In, from the environment: `REPS` (repetitions, 5), `SCALE` (a factor on the number of tasks, 1),
//! `WRITE=1`. Out: a table with medians and spreads, and ratios to the plain task of the same repetition.
//! With `WRITE=1` the table also replaces the one of docs/performance.md.
//!
//! Not here: the work of the enqueued task and of the task that joins the flow, as no plugin runs them;
//! effects of several kinds in one task.

use std::time::{Duration, Instant};

use redis::Connection;
use serde_json::{Value, json};

use super::page::{Spread, grouped, machine, replace};
use super::support::{Bench, Host, within};
use super::{IS_TEST, REPS, amount, from_env, quiet_host, redis_cpu};

/// The section's name.
const NAME: &str = "effects";
/// Tasks of one run are these times `SCALE`.
const TASKS: usize = 50_000;
/// Children of one flow.
const CHILDREN: usize = 500;
/// The bytes of a task's field. Spaces fill it up.
const BYTES: usize = 100;
/// How long a step may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// One state write is to cost less than this part of a plain task's processor time of Redis.
const GOAL: f64 = 0.25;

/// `work` is measured. `start` begins the flows. `sink` and `join` have no plugin, so their tasks wait.
const QUEUES: &str = "[defaults]\nmax_backlog = 1000000\n\
     [queues.work]\nconcurrency = 100\nenqueue_to = [\"sink\"]\n\
     [queues.start]\nenqueue_to = [\"work\", \"join\"]\n[queues.sink]\n[queues.join]\n\
     [plugins.work]\nrecords = [\"kb:*\"]\n";

/// The cases, each with its description in the table. The first one is what the others are compared to.
const CASES: [(Case, &str); 8] = [
    (Case::Plain, "a plain task"),
    (Case::Outbox, "one task in the outbox"),
    (Case::State, "one state write"),
    (Case::Expiring, "one state write with a ttl"),
    (Case::Counter, "one count in the state"),
    (Case::Record, "one record of one field"),
    (Case::Child, "a flow's child"),
    (Case::Events, "a plain task, with `events`"),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    Plain,
    Outbox,
    State,
    Expiring,
    Counter,
    Record,
    Child,
    Events,
}

impl Case {
    /// The calls of one task.
    fn calls(self, n: usize) -> Value {
        match self {
            Case::Plain | Case::Child | Case::Events => json!([]),
            Case::Outbox => json!([["enqueue", { "queue": "sink", "fields": { "n": n } }]]),
            Case::State => json!([["set", format!("key-{n}"), "value", 0]]),
            Case::Expiring => json!([["set", format!("key-{n}"), "value", 3_600_000]]),
            Case::Counter => json!([["add", "sum", 1]]),
            Case::Record => json!([["put", format!("kb:{n}"), { "n": n }]]),
        }
    }

    fn content(self, n: usize) -> String {
        let content = format!("{:BYTES$}", self.calls(n).to_string());
        assert_eq!(content.len(), BYTES, "every task has the same size");
        content
    }
}

/// The cost of a task.
#[derive(Debug, Clone, Copy)]
struct Cost {
    /// Tasks per second.
    rate: f64,
    /// Redis's processor time per task, in µs.
    redis: f64,
}

/// A figure of a cost.
type Figure = fn(&Cost) -> f64;
const RATE: Figure = |cost| cost.rate;
const REDIS: Figure = |cost| cost.redis;

pub fn costs() {
    let (reps, write) = (*REPS, from_env("WRITE", 0u8) != 0);
    // Flows have all their children.
    let flows = (TASKS / CHILDREN) as f64 * from_env("SCALE", amount(1.0f64, 0.05));
    let tasks = flows.ceil() as usize * CHILDREN;
    println!("effects: {reps} repetitions of {tasks} tasks, each with all cases in an order of its own");
    let mut runs: Vec<Vec<Cost>> = vec![Vec::new(); CASES.len()];
    for rep in 0..reps {
        let mut order: Vec<usize> = (0..CASES.len()).collect();
        fastrand::Rng::with_seed(rep as u64).shuffle(&mut order);
        for at in order {
            let (case, what) = CASES[at];
            let cost = measure(case, tasks);
            println!(
                "  {} of {reps}  {what:28} {:>9} tasks/s  {:5.1} µs of Redis",
                rep + 1,
                grouped(cost.rate),
                cost.redis
            );
            runs[at].push(cost);
        }
    }
    let text = table(reps, &runs);
    println!("\n{text}");
    let extra = ratios(&runs[2], &runs[0], REDIS).median - 1.0;
    println!(
        "goal: one state write costs less than {GOAL} of a plain task's time in Redis; it is {extra:.2}"
    );
    if write {
        replace(NAME, &text);
    }
}

/// Drains a backlog of one case.
fn measure(case: Case, tasks: usize) -> Cost {
    let events = if case == Case::Events { "concurrency = 100\nevents = 1000" } else { "concurrency = 100" };
    let queues = QUEUES.replace("concurrency = 100", events);
    let mut bench = Bench::with_redis(&queues, &["--appendonly", "no"]);
    let host = match case {
        Case::Child => start_flows(&mut bench, tasks),
        _ => {
            fill(&mut bench.db, case, tasks);
            quiet_host(&bench)
        }
    };
    assert_eq!(left(&mut bench.db), tasks, "all tasks wait for the plugin");
    bench.install("effects", "work");
    until_left(&mut bench.db, tasks - tasks / 10);
    let (first, begin, redis) = (left(&mut bench.db), Instant::now(), redis_cpu(&mut bench.db));
    until_left(&mut bench.db, 0);
    let (seconds, redis) = (begin.elapsed().as_secs_f64(), redis_cpu(&mut bench.db) - redis);
    assert_all_happened(&mut bench, case, tasks);
    host.stop();
    assert!(*IS_TEST || first >= tasks / 2, "only {first} of {tasks} tasks were left to measure");
    Cost { rate: first as f64 / seconds, redis: redis / first as f64 * 1e6 }
}

/// Adds the tasks as a producer does that knows only XADD.
fn fill(redis: &mut Connection, case: Case, tasks: usize) {
    for begin in (0..tasks).step_by(CHILDREN) {
        let mut pipe = redis::pipe();
        for n in begin..begin + CHILDREN {
            pipe.cmd("XADD").arg("work").arg("*").arg("do").arg(case.content(n)).ignore();
        }
        pipe.query::<()>(redis).expect("XADD");
    }
}

/// Starts a host and flows, and waits until all children are released.
fn start_flows(bench: &mut Bench, tasks: usize) -> Host {
    let child = json!({ "queue": "work", "fields": { "do": Case::Child.content(0) } });
    let then = json!({ "queue": "join", "fields": { "do": "[]" } });
    let calls = json!([["fan-out", vec![child; CHILDREN], then]]).to_string();
    for _ in 0..tasks / CHILDREN {
        bench.xadd("start", &[("do", &calls)]);
    }
    bench.install("effects", "start");
    let host = quiet_host(bench);
    within(PATIENCE, "all children are released", || (left(&mut bench.db) == tasks).then_some(()));
    host
}

/// The number of tasks that are not done.
fn left(redis: &mut Connection) -> usize {
    redis::cmd("XLEN").arg("work").query(redis).expect("XLEN")
}

fn until_left(redis: &mut Connection, most: usize) {
    within(PATIENCE, "tasks are done", || (left(redis) <= most).then_some(()));
}

/// Every task was completed, and did what it was told to.
fn assert_all_happened(bench: &mut Bench, case: Case, tasks: usize) {
    assert_eq!(bench.places("work").dead, 0, "every task was completed");
    let found: usize = match case {
        Case::Plain => tasks,
        Case::Events => {
            let entries: usize = bench.redis("XLEN", "tq:{work}:events");
            // An entry tells of 20 tasks at most, and about a thousand entries are kept.
            let least = (tasks / 20).min(1_000);
            assert!((least..10_000).contains(&entries), "{entries} entries of events");
            tasks
        }
        Case::Outbox => bench.redis("XLEN", "sink"),
        Case::Child => bench.redis::<usize>("XLEN", "join") * CHILDREN,
        Case::Counter => bench.redis("GET", "tq:{work}:state:work:sum"),
        Case::State | Case::Expiring | Case::Record => {
            // There is also a status for each task.
            let keys: usize = redis::cmd("DBSIZE").query(&mut bench.db).expect("DBSIZE");
            assert!(keys < 2 * tasks + 100, "{keys} keys");
            keys.min(2 * tasks) - tasks
        }
    };
    assert_eq!(found, tasks, "{case:?}: every task did what it was told to");
}

fn table(reps: usize, runs: &[Vec<Cost>]) -> String {
    let mut text = format!("{}\n\n", machine(reps));
    text.push_str(
        "| task | tasks/s | Redis µs | tasks/s ratio | Redis µs ratio |\n\
         |---|---:|---:|---:|---:|\n",
    );
    for ((_, what), costs) in CASES.iter().zip(runs) {
        let spread = |figure: Figure| spread(costs.iter().map(figure));
        let ratio = |figure: Figure| {
            let Spread { median, least, most } = ratios(costs, &runs[0], figure);
            format!("{median:.2} ({least:.2} to {most:.2})")
        };
        let (rate, redis) = (spread(RATE), spread(REDIS));
        text.push_str(&format!(
            "| {what} | {} | {:.1} | {} | {} |\n",
            grouped(rate.median),
            redis.median,
            ratio(RATE),
            ratio(REDIS),
        ));
    }
    text
}

/// The ratios between two cases, each within one repetition.
fn ratios(of: &[Cost], to: &[Cost], figure: Figure) -> Spread {
    spread(of.iter().zip(to).map(|(of, to)| figure(of) / figure(to)))
}

fn spread(values: impl Iterator<Item = f64>) -> Spread {
    Spread::of(values.collect()).expect("at least one repetition")
}
