//! `make test-upgrade`: hosts of another build are replaced by those of this one under load, one after the
//! other, and one of them comes back for a while.
//!
//! In: `TQHOST_PREVIOUS`, the program of the other build, which `scripts/test-upgrade.sh` makes. Out: no task
//! is lost, runs without need, or commits its effects twice. Not here: data that an older host left
//! (`tests/faults/other_versions.rs`).

#[allow(dead_code, unused_imports, reason = "the end-to-end tests use the rest")]
#[path = "../support/mod.rs"]
mod support;

use std::process::Command;
use std::time::Duration;

use serde_json::json;
use support::{Bench, Host, Load, eventually};

const RULES: &str = "plugin = \"effects\"\nlease = \"2s\"\nconcurrency = 5\nmax_crashes = 2\n\
                     backoff = { base = \"50ms\", max = \"100ms\", jitter = 0.0 }\n";
const QUEUES: [&str; 2] = ["plain", "serial"];
/// Each replaced host is followed by so many new tasks before the next one is replaced.
const BETWEEN: usize = 300;

/// A program, and whether it is that of this build.
struct Builds {
    bench: Bench,
    previous: String,
}

impl Builds {
    fn start(&self, is_new: bool) -> Host {
        let config = self.bench.config();
        let host = if is_new {
            self.bench.host_that_may_fail()
        } else {
            let mut command = Command::new(&self.previous);
            command.arg("--config").arg(config).args(["run", "--log-format", "json"]);
            command.env("TQHOST_LOG", "info");
            Host::spawn(command)
        };
        host.log("tqhost is running");
        host.until_ready();
        host
    }
}

/// Stops a host in order. It must not have taken over a task, since all others lived.
fn stop(host: Host) {
    for queue in QUEUES {
        assert_eq!(host.count("tqhost_reclaimed_total", queue), 0, "no host died");
    }
    host.stop();
}

/// Adds tasks to both queues in turn. Each retries once, and each third one waits for half a second before.
fn load(bench: &Bench) -> Load {
    let mut db = bench.redis.connection();
    Load::start(Duration::from_millis(5), move |n| {
        let calls = json!([["add", format!("n{n}"), 1], ["sleep", 5], ["fence"], ["first", 1, ["retry"]]]);
        let mut add = redis::cmd("XADD");
        add.arg(QUEUES[n % 2])
            .arg("*")
            .arg("tq-id")
            .arg(format!("task-{n}"))
            .arg("do")
            .arg(calls.to_string());
        add.arg("tenant").arg(n % 11);
        if n % 3 == 0 {
            add.arg("tq-delay-ms").arg(500);
        }
        add.query::<String>(&mut db).is_ok()
    })
}

#[test]
fn hosts_of_two_builds_work_on_one_redis_while_each_is_replaced() {
    let previous = std::env::var("TQHOST_PREVIOUS").expect("TQHOST_PREVIOUS names the other build's program");
    let bench = Bench::new(&format!(
        "[queues.plain]\n{RULES}[queues.serial]\n{RULES}serial = {{ field = \"tenant\" }}\n\
         [plugins.effects]\n"
    ));
    bench.install("effects", "effects");
    let mut builds = Builds { bench, previous };
    let mut hosts: Vec<Host> = (0..4).map(|_| builds.start(false)).collect();
    let load = load(&builds.bench);
    let more = |tasks: usize| {
        let before = load.count();
        eventually("the load goes on", || (load.count() >= before + tasks).then_some(()));
    };
    // The last one is replaced by the old build once more, and then for good.
    for (at, is_new) in [(0, true), (1, true), (2, true), (3, true), (3, false), (3, true)] {
        more(BETWEEN);
        let next = builds.start(is_new);
        stop(std::mem::replace(&mut hosts[at], next));
    }
    more(BETWEEN);
    let accepted = load.stop();
    for queue in QUEUES {
        builds.bench.until_drained(queue);
        assert_eq!(builds.bench.places(queue).dead, 0, "no task is buried");
    }
    for task in &accepted {
        let (queue, id) = (QUEUES[task.n % 2], format!("task-{}", task.n));
        let status = |field: &str, bench: &mut Bench| bench.status(queue, &id, field);
        assert_eq!(status("status", &mut builds.bench), "COMPLETED", "{id} of {queue}");
        assert_eq!(status("attempt", &mut builds.bench), "2", "{id} of {queue} has retried once");
        let key = format!("tq:{{{queue}}}:state:effects:n{}", task.n);
        assert_eq!(builds.bench.redis::<u64>("GET", key), 1, "{id} of {queue} is committed once");
        let result: serde_json::Value =
            serde_json::from_str(&status("result", &mut builds.bench)).expect("JSON");
        // A task that waits for its time is delivered once more, to find that out.
        let delivered = result[2].as_u64().expect("a fence");
        assert_eq!(delivered, if task.n % 3 == 0 { 3 } else { 2 }, "{id} of {queue} has run once too often");
    }
    println!("{} tasks", accepted.len());
    hosts.into_iter().for_each(stop);
}
