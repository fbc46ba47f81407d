//! Rounds of tasks that end in every way, and what the host and its Redis use after each round. The use
//! should not grow.
//!
//! In: how many tasks a round has. Out: a [`Use`] per round, taken when nothing of the round is left. Not
//! here: how many rounds there are (`tests/proofs/soak.rs`, `tests/soak/main.rs`).

use std::fmt;

use super::{Bench, Host, eventually};

/// Results and statuses expire after a second, so that a round leaves nothing.
const QUEUES: &str = r#"
[defaults]
concurrency = 50
retention = "1s"
backoff = { delays = ["20ms"] }
[queues.fine]
plugin = "echo"
list = "fine:list"
[queues.keyed]
plugin = "echo"
idempotency = { field = "key", window = "1s" }
[queues.twice]
plugin = "fails-twice"
[queues.deferred]
plugin = "defers"
max_deferrals = 2
[queues.bad]
plugin = "rejects"
[queues.trapped]
plugin = "traps"
max_retries = 1
"#;
const STREAMS: [&str; 6] = ["fine", "keyed", "twice", "deferred", "bad", "trapped"];

pub struct Soak {
    pub bench: Bench,
    host: Host,
    rounds: usize,
}

/// The resources that the host and Redis use when a round is over.
#[derive(Debug, Clone, Copy)]
pub struct Use {
    pub host_kib: u64,
    pub host_files: u64,
    pub host_threads: u64,
    pub redis_bytes: u64,
    pub redis_clients: u64,
    pub redis_keys: u64,
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Use { host_kib, host_files, host_threads, redis_bytes, redis_clients, redis_keys } = self;
        write!(
            f,
            "host {host_kib} KiB, {host_files} files, {host_threads} threads; \
             Redis {} KiB, {redis_clients} clients, {redis_keys} keys",
            redis_bytes / 1024
        )
    }
}

impl Soak {
    pub fn start() -> Soak {
        let bench = Bench::with_redis(QUEUES, &["--appendonly", "no"]);
        for guest in ["echo", "fails-twice", "defers", "rejects", "traps"] {
            bench.install(guest, guest);
        }
        // Without INFO lines: the log of each dead letter would stay in this process's memory.
        let host = Host::start(&bench.config(), "error,tqhost::app=info");
        host.log("tqhost is running");
        Soak { bench, host, rounds: 0 }
    }

    /// Adds this many tasks, and waits until they have ended and their statuses have expired. Dead letters
    /// are requeued once and then deleted.
    pub fn round(&mut self, tasks: usize) -> Use {
        self.rounds += 1;
        self.add(tasks);
        self.until_drained();
        for queue in ["bad", "deferred", "trapped"] {
            self.bench.tqhost(&["dead", "requeue", queue, "--all"]).ok();
        }
        self.until_drained();
        for queue in ["bad", "deferred", "trapped"] {
            self.bench.tqhost(&["dead", "purge", queue, "--all", "--yes", "--no-undo"]).ok();
        }
        // These keys stay: the streams, what hosts publish about themselves, the last replies to a running
        // host's settlements, the histories of groups, and those of the last hours.
        let redis_keys = eventually("statuses have expired", || {
            let mut kept: Vec<String> = self.bench.redis("KEYS", "*");
            // KEYS leaves expired keys out that Redis has not deleted yet. Their memory is still in use.
            if self.bench.redis::<usize>("DBSIZE", &[""; 0]) != kept.len() {
                return None;
            }
            let stays = [":settled:", ":history", ":minutes:"];
            kept.retain(|key| !stays.iter().any(|part| key.contains(part)));
            kept.iter()
                .all(|key| !key.starts_with("tq:{") || key.ends_with(":dead"))
                .then_some(kept.len() as u64)
        });
        self.look(redis_keys)
    }

    fn add(&mut self, tasks: usize) {
        let per_queue = tasks / STREAMS.len();
        let payload = "x".repeat(500);
        for from in (0..per_queue).step_by(500) {
            let mut pipe = redis::pipe();
            for n in from..per_queue.min(from + 500) {
                pipe.cmd("LPUSH").arg("fine:list").arg(format!("{n} {payload}")).ignore();
                let key = format!("{}-{}", self.rounds, n / 2);
                pipe.cmd("XADD").arg("keyed").arg("*").arg("key").arg(key).ignore();
                pipe.cmd("XADD").arg("deferred").arg("*").arg("afterMs").arg(20).ignore();
                for queue in ["twice", "bad", "trapped"] {
                    pipe.cmd("XADD").arg(queue).arg("*").arg("data").arg(&payload).ignore();
                }
            }
            pipe.query::<()>(&mut self.bench.db).expect("add tasks");
        }
    }

    fn until_drained(&mut self) {
        eventually("the list is empty", || (self.bench.redis::<u64>("LLEN", "fine:list") == 0).then_some(()));
        for stream in STREAMS {
            self.bench.until_drained(stream);
        }
    }

    fn look(&mut self, redis_keys: u64) -> Use {
        let _: redis::Value = self.bench.redis("MEMORY", "PURGE");
        let info: String = self.bench.redis("INFO", "everything");
        let value = |name: &str| -> u64 {
            let line = info
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .unwrap_or_else(|| panic!("no {name} in {info}"));
            line.trim().parse().expect("a number")
        };
        let count = |folder: &str| {
            std::fs::read_dir(format!("/proc/{}/{folder}", self.host.pid())).expect("read /proc").count()
                as u64
        };
        Use {
            host_kib: self.host.memory().0,
            host_files: count("fd"),
            host_threads: count("task"),
            // The buffers of connections and of the append-only file change with the load of the machine.
            redis_bytes: value("used_memory:")
                .saturating_sub(value("mem_clients_normal:") + value("mem_aof_buffer:")),
            redis_clients: value("connected_clients:"),
            redis_keys,
        }
    }

    pub fn stop(self) {
        self.host.stop();
    }
}

/// The growth from one round to a later one that is more than noise: a quarter of the memory, or more than 3
/// files, threads, clients or keys.
pub fn growth(early: &Use, late: &Use) -> Vec<String> {
    const MEMORY: f64 = 1.25;
    const COUNTS: u64 = 3;
    let memory = [
        ("the host's memory", early.host_kib, late.host_kib),
        ("Redis's memory", early.redis_bytes, late.redis_bytes),
    ];
    let counts = [
        ("the host's files", early.host_files, late.host_files),
        ("the host's threads", early.host_threads, late.host_threads),
        ("Redis's clients", early.redis_clients, late.redis_clients),
        ("Redis's keys", early.redis_keys, late.redis_keys),
    ];
    let more = memory.into_iter().filter(|(_, before, after)| *after as f64 > *before as f64 * MEMORY);
    let more = more.chain(counts.into_iter().filter(|(_, before, after)| *after > before + COUNTS));
    more.map(|(what, before, after)| format!("{what} grew from {before} to {after}")).collect()
}
