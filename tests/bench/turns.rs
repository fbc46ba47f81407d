//! The cost of limits on the tasks that run beside each other: a backlog without limits, next to the same
//! backlog in order of a thousand keys, of one key, and with a bound over all hosts.
//!
//! In: `REPS` and `TASKS` of the environment. Out: tasks per second, and Redis's time per task, as ratios to
//! the queue without limits in the same repetition.

use std::time::{Duration, Instant};

use crate::support::{Bench, within};
use crate::{REPS, amount, from_env, median, quiet_host, redis_cpu};

const KEYS: usize = 1000;
const PATIENCE: Duration = Duration::from_secs(600);

/// The cases: the options of the queue, and how many keys its tasks have.
const CASES: [(&str, &str, usize); 5] = [
    ("no limit", "", KEYS),
    ("max_running = 100", "max_running = 100", KEYS),
    ("serial, 1,000 keys", "serial = { field = \"key\" }", KEYS),
    ("serial, 10 keys", "serial = { field = \"key\" }", 10),
    ("order = \"strict\"", "max_running = 1\norder = \"strict\"", KEYS),
];

pub fn costs() {
    let (reps, tasks) = (*REPS, from_env("TASKS", amount(20_000usize, 200)));
    println!("turns: {reps} repetitions of {tasks} tasks; ratios to the queue without limits");
    let mut ratios: Vec<(Vec<f64>, Vec<f64>)> = vec![Default::default(); CASES.len()];
    for rep in 0..reps {
        let costs = CASES.map(|(_, options, keys)| measure(options, keys, tasks));
        for ((rate, redis), (rates, times)) in costs.iter().zip(&mut ratios) {
            rates.push(rate / costs[0].0);
            times.push(redis / costs[0].1);
        }
        for ((what, ..), (rate, redis)) in CASES.iter().zip(&costs) {
            println!("  {} of {reps}  {what:20} {rate:>9.0} tasks/s  {redis:6.1} µs of Redis", rep + 1);
        }
    }
    println!("  {:20} {:>14} {:>14}", "median", "tasks/s", "Redis's time");
    for ((what, ..), (mut rates, mut times)) in CASES.iter().zip(ratios) {
        println!("  {what:20} {:>14.2} {:>14.2}", median(&mut rates), median(&mut times));
    }
}

/// Drains a backlog. Gives the tasks per second, and Redis's time per task in µs.
fn measure(options: &str, keys: usize, tasks: usize) -> (f64, f64) {
    let queue = format!("[queues.work]\nplugin = \"empty\"\nconcurrency = 100\n{options}\n");
    let mut bench = Bench::with_redis(&queue, &["--appendonly", "no"]);
    for begin in (0..tasks).step_by(1000) {
        let mut pipe = redis::pipe();
        for n in begin..(begin + 1000).min(tasks) {
            pipe.cmd("XADD").arg("work").arg("*").arg("key").arg(n % keys).arg("n").arg(n).ignore();
        }
        pipe.query::<()>(&mut bench.db).expect("XADD");
    }
    let host = quiet_host(&bench);
    let (begin, redis) = (Instant::now(), redis_cpu(&mut bench.db));
    bench.install("empty", "empty");
    within(PATIENCE, "all tasks are done", || {
        let places = bench.places("work");
        (places.length + places.delayed == 0).then_some(())
    });
    let (seconds, redis) = (begin.elapsed().as_secs_f64(), redis_cpu(&mut bench.db) - redis);
    assert_eq!(bench.places("work").dead, 0, "every task was completed");
    host.stop();
    (tasks as f64 / seconds, redis / tasks as f64 * 1e6)
}
