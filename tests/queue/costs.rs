//! Limits on the cost of a task: commands that Redis runs, bytes that it reads and writes, and allocations of
//! the host.
//!
//! Times differ on every machine and in every run. These numbers do not, even when the machine is busy. If a
//! limit is exceeded, a task needs more steps; lower the limit when a task needs fewer.
//!
//! Two things depend on the machine's speed, and are made not to count. How many tasks share a call: the
//! tasks are a backlog and each reply of Redis comes late, so that the next call fills while one waits. And
//! how many tasks run long enough for the status PROCESSING: these are counted, and have a share of their
//! own.
//!
//! Not here: how long a task takes (`make bench SECTION=peers`).

use std::time::Instant;

use serde_json::Value;

use crate::support::proxy::Proxy;
use crate::support::{Bench, Host, eventually};

/// Tasks of the first host. The second host, which is compared to it, has [`TASKS`] more.
const FEW: usize = 200;
const TASKS: usize = 4000;
const CONCURRENCY: usize = 100;
const PAYLOAD_BYTES: usize = 200;
/// How late each reply of Redis comes.
const REPLY_MS: u64 = 5;

/// The cost beside the tasks, per second: heartbeats, looks at what is due, and the questions of this test.
const BESIDE: Costs =
    Costs { commands: 100.0, to_redis: 15_000.0, from_redis: 15_000.0, allocations: 4_000.0 };

/// The most that the status PROCESSING may cost a task whose run takes long enough for it. A machine on which
/// many do is busy, and shares fewer calls.
const PROCESSING: Costs = Costs { commands: 11.0, to_redis: 290.0, from_redis: 30.0, allocations: 40.0 };

/// The most that a task may cost, without [`BESIDE`] and [`PROCESSING`]: a tenth more than was measured. To
/// set them anew, `cargo test --test e2e costs:: -- --nocapture` prints what is measured.
const WITH_STATUS: Costs = Costs { commands: 5.5, to_redis: 250.0, from_redis: 285.0, allocations: 62.0 };
const WITHOUT_STATUS: Costs = Costs { commands: 3.0, to_redis: 250.0, from_redis: 285.0, allocations: 62.0 };

/// Adds tasks with one small command. The traffic of the producer does not count as the host's.
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

/// Runs few tasks in one host and many in another, and checks the difference.
#[track_caller]
fn assert_costs(retention: &str, most: Costs) {
    let begin = Instant::now();
    let [(few, few_processing), (many, many_processing)] =
        [FEW, FEW + TASKS].map(|tasks| costs_of(retention, tasks));
    let processing = many_processing.saturating_sub(few_processing);
    let seconds = begin.elapsed().as_secs_f64();
    let figures: [(&str, Figure); 4] = [
        ("Redis commands", |costs| costs.commands),
        ("bytes to Redis", |costs| costs.to_redis),
        ("bytes from Redis", |costs| costs.from_redis),
        ("allocations", |costs| costs.allocations),
    ];
    let mut problems = Vec::new();
    for (what, of) in figures {
        let each = (of(&many) - of(&few)) / TASKS as f64;
        let beside = of(&PROCESSING) * processing as f64 + of(&BESIDE) * seconds;
        let allowed = of(&most) + beside / TASKS as f64;
        println!(
            "{retention}: {what} per task: {each:.2}, {allowed:.2} allowed, {:.2} of that to the task; \
             {processing} were PROCESSING",
            of(&most)
        );
        assert!(each > 0.0, "{what} are counted");
        if each > allowed {
            problems.push(format!("{what} per task: {each:.2}, more than {allowed:.2}"));
        }
    }
    assert!(problems.is_empty(), "{retention}: {}", problems.join("; "));
}

/// The cost of tasks that are all there at once, and how many of them had the status PROCESSING. The start
/// and the stop of the host are included.
#[track_caller]
fn costs_of(retention: &str, tasks: usize) -> (Costs, usize) {
    let mut bench = Bench::new("");
    let proxy = Proxy::start(bench.redis.port);
    proxy.delay_replies(REPLY_MS..REPLY_MS + 1, 0);
    let queue = format!(
        "[queues.work]\nplugin = \"empty\"\nconcurrency = {CONCURRENCY}\nretention = \"{retention}\"\n"
    );
    bench.configure_for(&queue, proxy.port);
    bench.install("empty", "empty");
    let mut command = Host::command(&bench.config());
    // The log has the default level, and the allocator prints its statistics at the end.
    command.env("TQHOST_LOG", "info").env("_RJEM_MALLOC_CONF", "stats_print:true,stats_print_opts:Jgdablxe");
    let host = Host::spawn(command);
    let asked = run(&mut bench, tasks);
    assert_eq!(bench.places("work").dead, 0, "every task was completed");
    let text: String = bench.redis("INFO", ("commandstats", "stats"));
    let number = |value: &str| value.parse::<f64>().expect("a number");
    let stat = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(number)
            .expect("a figure of Redis")
    };
    let calls =
        |line: &str| line.strip_prefix("cmdstat_")?.split("calls=").nth(1)?.split(',').next().map(number);
    let costs = Costs {
        // The XADDs of the producer and the questions of `run` are not the host's.
        commands: text.lines().filter_map(calls).sum::<f64>() - (tasks + asked) as f64,
        to_redis: stat("total_net_input_bytes"),
        from_redis: stat("total_net_output_bytes"),
        allocations: allocations(&host.stop_for_log().raw()),
    };
    // Only the write of PROCESSING keeps a status from expiring.
    let processing = text.lines().find(|line| line.starts_with("cmdstat_persist:")).and_then(calls);
    (costs, processing.unwrap_or_default() as usize)
}

/// How often the host allocated memory, from its allocator's statistics.
#[track_caller]
fn allocations(log: &str) -> f64 {
    let account =
        log.lines().find(|line| line.starts_with("{\"jemalloc\"")).expect("the allocator's account");
    let account: Value = serde_json::from_str(account).expect("JSON");
    let of = |kind: &str| {
        account["jemalloc"]["stats.arenas"]["merged"][kind]["nrequests"].as_f64().expect("a number")
    };
    of("small") + of("large")
}

/// Adds tasks and waits until they are done. Returns how many commands the test used to find out.
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
