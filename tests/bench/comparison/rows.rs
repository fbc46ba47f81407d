//! The rows of the comparison, and the ratios between them.
//!
//! In: nothing. Out: [`ROWS`] and [`RATIOS`]. The backlog of a row lasts a few seconds. Not here: how a row
//! is run (`measure`).

use super::report::Figure;

/// The program that runs the tasks.
pub enum Worker {
    /// `loops`, with these arguments, and a guest.
    Loops(&'static [&'static str], Option<&'static str>),
    /// Another program, with these arguments.
    Program(&'static str, &'static [&'static str]),
    /// BullMQ for Node.js.
    Bullmq,
    Tqhost(Host),
}

/// tqhost, with its defaults for everything else.
#[derive(Clone, Copy)]
pub struct Host {
    pub guest: &'static str,
    pub retention: &'static str,
    pub concurrency: u32,
    /// Further lines of the queue's table.
    pub rules: &'static str,
    /// The lines of the plugin's table.
    pub grants: &'static str,
    /// The filter of the log.
    pub log: &'static str,
}

/// A Redis command and its key. The reply is a number.
pub type Count = (&'static str, &'static str);

/// The commands that show the progress of a queue.
pub struct Progress {
    /// The tasks that are not done are the sum of these.
    pub left: &'static [Count],
    /// The tasks that are done, where the others cannot be counted.
    pub done: Option<Count>,
    /// The tasks that failed. There have to be none.
    pub failed: Option<Count>,
}

pub struct Row {
    pub name: &'static str,
    /// The description in the table.
    pub what: &'static str,
    pub worker: Worker,
    pub tasks: usize,
    pub progress: &'static Progress,
    /// The prefix of the keys of the statuses, where a client can watch them.
    pub statuses: Option<&'static str>,
    /// Whether its latency is measured.
    pub latency: bool,
    /// Whether it needs Redis 8.6.
    pub newer_redis: bool,
}

const LOOP: Progress = Progress { left: &[("XLEN", "work")], done: None, failed: None };
const TQHOST: Progress = Progress {
    left: &[("XLEN", "work"), ("ZCARD", "tq:{work}:delayed"), ("HLEN", "tq:{work}:parked")],
    done: None,
    failed: Some(("XLEN", "tq:{work}:dead")),
};
const BULLMQ: Progress = Progress {
    left: &[("LLEN", "bull:bench:wait"), ("LLEN", "bull:bench:active")],
    done: None,
    failed: Some(("ZCARD", "bull:bench:failed")),
};
const APALIS: Progress =
    Progress { left: &[], done: Some(("SCARD", "bench:done")), failed: Some(("SCARD", "bench:dead")) };
const CHASQUIMQ: Progress = Progress {
    left: &[("XLEN", "{chasqui:bench}:stream")],
    done: None,
    failed: Some(("XLEN", "{chasqui:bench}:dlq")),
};

/// The log of the host without the lines of handlers. The sandboxed loop drops them as well.
const WITHOUT_LINES: &str = "info,guest=off";
const WARM: &str = "instance = { warm = 10 }";

/// The statuses of `loops`.
const JOBS: Option<&str> = Some("job:");
/// The statuses of tqhost.
const STATUSES: Option<&str> = Some("tq:{work}:task:");

const fn bare(
    name: &'static str,
    what: &'static str,
    args: &'static [&'static str],
    guest: Option<&'static str>,
    tasks: usize,
) -> Row {
    Row {
        name,
        what,
        worker: Worker::Loops(args, guest),
        tasks,
        progress: &LOOP,
        statuses: None,
        latency: false,
        newer_redis: false,
    }
}

const fn other(
    name: &'static str,
    what: &'static str,
    worker: Worker,
    tasks: usize,
    progress: &'static Progress,
) -> Row {
    Row { name, what, worker, tasks, progress, statuses: None, latency: true, newer_redis: false }
}

const fn tqhost(
    name: &'static str,
    what: &'static str,
    guest: &'static str,
    retention: &'static str,
    concurrency: u32,
) -> Row {
    let tasks = if concurrency < 100 { 100_000 } else { 200_000 };
    host(name, what, Host { guest, retention, concurrency, rules: "", grants: "", log: "info" }, tasks)
}

const fn host(name: &'static str, what: &'static str, host: Host, tasks: usize) -> Row {
    Row {
        name,
        what,
        worker: Worker::Tqhost(host),
        tasks,
        progress: &TQHOST,
        statuses: None,
        latency: false,
        newer_redis: false,
    }
}

/// A handler in a language with a runtime of its own. Each task has a call of its own, although the handler
/// takes batches.
const fn language(guest: &'static str, grants: &'static str) -> Host {
    let rules = "batch = { max_tasks = 1 }";
    Host { guest, retention: "24h", concurrency: 10, rules, grants, log: WITHOUT_LINES }
}

pub static ROWS: [Row; 25] = [
    Row { latency: true, ..bare("bare", "bare loop", &[], None, 1_000_000) },
    Row {
        latency: true,
        statuses: JOBS,
        ..bare("bare-status", "bare loop with a status", &["status"], None, 400_000)
    },
    bare("sandboxed", "sandboxed loop, `empty`", &[], Some("empty"), 400_000),
    Row {
        latency: true,
        statuses: JOBS,
        ..bare(
            "sandboxed-status",
            "sandboxed loop with a status, `empty`",
            &["status"],
            Some("empty"),
            300_000,
        )
    },
    bare("sandboxed-echo", "sandboxed loop with a status, `echo`", &["status"], Some("echo"), 200_000),
    Row {
        latency: true,
        statuses: STATUSES,
        ..tqhost("tqhost-empty", "tqhost, `empty`, 24h, 400 at once", "empty", "24h", 400)
    },
    tqhost("tqhost-empty-0s", "tqhost, `empty`, 0s, 400 at once", "empty", "0s", 400),
    Row {
        latency: true,
        statuses: STATUSES,
        ..tqhost("tqhost-echo", "tqhost, `echo`, 24h, 400 at once", "echo", "24h", 400)
    },
    Row {
        latency: true,
        statuses: STATUSES,
        ..tqhost("tqhost-empty-10", "tqhost, `empty`, 24h, 10 at once", "empty", "24h", 10)
    },
    tqhost("tqhost-empty-0s-10", "tqhost, `empty`, 0s, 10 at once", "empty", "0s", 10),
    tqhost("tqhost-echo-10", "tqhost, `echo`, 24h, 10 at once", "echo", "24h", 10),
    bare(
        "sandboxed-javascript",
        "sandboxed loop, JavaScript",
        &["status", "10"],
        Some("in-javascript"),
        10_000,
    ),
    bare(
        "sandboxed-javascript-warm",
        "sandboxed loop, JavaScript, warm",
        &["status", "10", "warm"],
        Some("in-javascript"),
        30_000,
    ),
    bare("sandboxed-python", "sandboxed loop, Python", &["status", "10"], Some("in-python"), 3_000),
    bare(
        "sandboxed-python-warm",
        "sandboxed loop, Python, warm",
        &["status", "10", "warm"],
        Some("in-python"),
        10_000,
    ),
    host("tqhost-javascript", "tqhost, JavaScript, 10 at once", language("in-javascript", ""), 10_000),
    host(
        "tqhost-javascript-warm",
        "tqhost, JavaScript, 10 at once, warm",
        language("in-javascript", WARM),
        30_000,
    ),
    host("tqhost-python", "tqhost, Python, 10 at once", language("in-python", ""), 3_000),
    host("tqhost-python-warm", "tqhost, Python, 10 at once, warm", language("in-python", WARM), 10_000),
    other("bullmq", "BullMQ (Node.js)", Worker::Bullmq, 60_000, &BULLMQ),
    other("bullmq-rust", "bullmq-official (Rust)", Worker::Program("bullmq", &[]), 80_000, &BULLMQ),
    other("apalis", "apalis-redis (Rust)", Worker::Program("apalis", &[]), 20_000, &APALIS),
    Row {
        newer_redis: true,
        ..other(
            "chasquimq",
            "ChasquiMQ (Rust), Redis 8.6",
            Worker::Program("chasquimq", &[]),
            200_000,
            &CHASQUIMQ,
        )
    },
    Row {
        newer_redis: true,
        latency: false,
        ..other(
            "chasquimq-quiet",
            "ChasquiMQ without events, Redis 8.6",
            Worker::Program("chasquimq", &["quiet"]),
            400_000,
            &CHASQUIMQ,
        )
    },
    Row { newer_redis: true, ..bare("bare-newer", "bare loop, Redis 8.6", &[], None, 1_000_000) },
];

/// The figure of the row `of`, divided by that of the row `to` in the same repetition.
pub struct Ratio {
    pub what: &'static str,
    pub of: &'static str,
    pub to: &'static str,
    pub figure: Figure,
}

const fn ratio(of: &'static str, to: &'static str, what: &'static str, figure: Figure) -> Ratio {
    Ratio { what, of, to, figure }
}

pub static RATIOS: [Ratio; 16] = [
    ratio("tqhost-empty", "sandboxed-status", "tasks/s", Figure::Rate),
    ratio("tqhost-empty-0s", "sandboxed", "tasks/s", Figure::Rate),
    ratio("tqhost-echo", "sandboxed-echo", "tasks/s", Figure::Rate),
    ratio("tqhost-empty", "bare-status", "tasks/s", Figure::Rate),
    ratio("tqhost-javascript", "sandboxed-javascript", "tasks/s", Figure::Rate),
    ratio("tqhost-javascript-warm", "sandboxed-javascript-warm", "tasks/s", Figure::Rate),
    ratio("tqhost-python", "sandboxed-python", "tasks/s", Figure::Rate),
    ratio("tqhost-python-warm", "sandboxed-python-warm", "tasks/s", Figure::Rate),
    ratio("tqhost-empty", "bullmq", "tasks/s", Figure::Rate),
    ratio("tqhost-empty", "bullmq-rust", "tasks/s", Figure::Rate),
    ratio("tqhost-empty", "apalis", "tasks/s", Figure::Rate),
    ratio("tqhost-empty", "chasquimq", "tasks/s", Figure::Rate),
    ratio("tqhost-empty", "chasquimq-quiet", "tasks/s", Figure::Rate),
    ratio("tqhost-empty", "bare-status", "Redis µs per task", Figure::RedisMicros),
    ratio("tqhost-empty", "bullmq", "Redis µs per task", Figure::RedisMicros),
    ratio("tqhost-empty", "bullmq", "worker µs per task", Figure::WorkerMicros),
];
