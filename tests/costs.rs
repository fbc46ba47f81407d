//! What a task may cost: commands that Redis runs, bytes that it reads and writes, allocations of the host.
//!
//! Times differ on every machine and in every run; these numbers do not, also when the machine is busy. A limit that
//! is exceeded means that a task's way has got longer; lower it when the way gets shorter. The tasks are a backlog,
//! so each of them shares reads and round trips with as many others as it can, however fast the machine is.
//!
//! Not here: how long a task takes (`make bench SECTION=peers`).

use std::time::Instant;

use crate::support::allocations::Allocations;
use crate::support::{Bench, Host, eventually};

/// Tasks that run before the measurement, so that scripts are loaded and buffers have their size.
const FIRST: usize = 200;
const TASKS: usize = 3000;
const CONCURRENCY: usize = 100;
const PAYLOAD_BYTES: usize = 200;

/// What Redis and the host may do beside the tasks, for each second: heartbeats, looks at what is due, and the questions
/// of this test. On a machine that is not busy there is hardly a second of it.
const BESIDE: Costs = Costs { commands: 100.0, to_redis: 15_000.0, from_redis: 15_000.0, allocations: 4_000.0 };

/// The most that a task may cost, next to what happens beside it: a tenth more than was seen, and a call more for every other task, as calls are
/// for fewer tasks at a time on a machine that is busy. To set them anew,
/// `cargo test --test e2e costs:: -- --nocapture` prints what is seen.
const WITH_STATUS: Costs = Costs { commands: 5.5, to_redis: 250.0, from_redis: 285.0, allocations: 75.0 };
const WITHOUT_STATUS: Costs = Costs { commands: 3.0, to_redis: 250.0, from_redis: 285.0, allocations: 75.0 };

/// Adds tasks with one small command: what their producer sends and gets is not the host's.
const FILL: &str = "for n = 1, tonumber(ARGV[2]) do redis.call('XADD', KEYS[1], '*', 'content', ARGV[1]) end";

/// One of the figures.
type Figure = fn(&Costs) -> f64;

#[derive(Debug, Clone, Copy)]
struct Costs {
    commands: f64,
    to_redis: f64,
    from_redis: f64,
    allocations: f64,
}

#[test]
fn a_task_costs_no_more_than_this() {
    assert_costs("24h", WITH_STATUS);
}

#[test]
fn a_task_without_a_status_costs_no_more_than_this() {
    assert_costs("0s", WITHOUT_STATUS);
}

/// Lets a host run tasks that are there at once, and sees what that took.
#[track_caller]
fn assert_costs(retention: &str, most: Costs) {
    let mut bench = Bench::new(&format!("[queues.work]\nplugin = \"empty\"\nconcurrency = {CONCURRENCY}\nretention = \"{retention}\"\n"));
    bench.install("empty", "empty");
    let allocations = Allocations::new(bench.dir.path());
    let mut command = Host::command(&bench.config());
    // As little log as by default.
    command.env("TQHOST_LOG", "info").envs(allocations.env());
    let host = Host::spawn(command);
    run(&mut bench, FIRST);
    let (before, begin) = (seen(&mut bench, &allocations), Instant::now());
    let asked = run(&mut bench, TASKS);
    let (after, seconds) = (seen(&mut bench, &allocations), begin.elapsed().as_secs_f64());
    assert_eq!(bench.places("work").dead, 0, "every task was completed");
    host.stop();
    // The producer's XADDs and its EVAL, the questions of `run` and the INFO between the two moments.
    let of_test = (TASKS + 1 + asked + 1) as f64;
    let figures: [(&str, Figure, f64); 4] = [
        ("Redis commands", |costs| costs.commands, of_test),
        ("bytes to Redis", |costs| costs.to_redis, 0.0),
        ("bytes from Redis", |costs| costs.from_redis, 0.0),
        ("allocations", |costs| costs.allocations, 0.0),
    ];
    let mut problems = Vec::new();
    for (what, of, of_test) in figures {
        let used = of(&after) - of(&before) - of_test;
        let (each, allowed) = (used / TASKS as f64, of(&most) + of(&BESIDE) * seconds / TASKS as f64);
        println!("{retention}: {what} per task: {each:.2}, {allowed:.2} allowed, {:.2} of that to the task", of(&most));
        assert!(each > 0.0, "{what} are counted");
        if each > allowed {
            problems.push(format!("{what} per task: {each:.2}, more than {allowed:.2}"));
        }
    }
    assert!(problems.is_empty(), "{retention}: {}", problems.join("; "));
}

/// Adds tasks and waits until they are done. Gives how many commands it took to find out.
#[track_caller]
fn run(bench: &mut Bench, tasks: usize) -> usize {
    let _: () = bench.redis("EVAL", (FILL, 1, "work", "x".repeat(PAYLOAD_BYTES), tasks));
    let mut asked = 0;
    eventually("all tasks are settled", || {
        asked += 1;
        let left: usize = bench.redis("XLEN", "work");
        (left == 0).then_some(())
    });
    asked
}

/// What was used so far.
fn seen(bench: &mut Bench, allocations: &Allocations) -> Costs {
    let text: String = bench.redis("INFO", ("commandstats", "stats"));
    let number = |value: &str| value.parse::<f64>().expect("a number");
    let stat =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(number).expect("a figure of Redis");
    let calls = |line: &str| line.strip_prefix("cmdstat_")?.split("calls=").nth(1)?.split(',').next().map(number);
    Costs {
        commands: text.lines().filter_map(calls).sum(),
        to_redis: stat("total_net_input_bytes"),
        from_redis: stat("total_net_output_bytes"),
        allocations: allocations.count() as f64,
    }
}
