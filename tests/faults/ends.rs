//! Queues for the ways in which an attempt can end, on hosts that reach Redis through a proxy.
//!
//! In: tasks of every kind. Out: assertions that each ended once, as its kind does. Not here: what the proxy
//! does to connections (`proxy`).

use crate::support::proxy::Proxy;
use crate::support::{Bench, Places};

pub const QUEUES: &str = r#"
[defaults]
lease = "1s"
max_crashes = 100
backoff = { delays = ["100ms"] }
[queues.fine]
plugin = "echo"
[queues.twice]
plugin = "fails-twice"
[queues.bad]
plugin = "rejects"
[queues.slow]
plugin = "sleeps"
concurrency = 100
"#;

/// A bench with [`QUEUES`] and the queues in `more`. Its hosts and commands reach Redis through the proxy;
/// the test itself connects directly.
pub fn behind_proxy(more: &str) -> (Bench, Proxy) {
    let queues = format!("{QUEUES}{more}");
    let bench = Bench::new(&queues);
    let proxy = Proxy::start(bench.redis.port);
    bench.configure_for(&queues, proxy.port);
    for guest in ["echo", "fails-twice", "rejects", "sleeps"] {
        bench.install(guest, guest);
    }
    (bench, proxy)
}

/// A task's queue and id.
pub type Added = (&'static str, String);

/// Adds a task of every kind. The slow one takes `slow` milliseconds.
pub fn add(bench: &mut Bench, slow: &str) -> Vec<Added> {
    let kinds = [("fine", ("n", "1")), ("twice", ("n", "1")), ("bad", ("n", "1")), ("slow", ("ms", slow))];
    kinds.into_iter().map(|(queue, field)| (queue, bench.xadd(queue, &[field]))).collect()
}

/// Waits until all queues are drained, and asserts that each task ended once, as its kind does.
#[track_caller]
pub fn each_ended_once(bench: &mut Bench, added: &[Added]) {
    for queue in ["fine", "twice", "bad", "slow"] {
        bench.until_drained(queue);
        let dead =
            if queue == "bad" { added.iter().filter(|(of, _)| *of == queue).count() as u64 } else { 0 };
        assert_eq!(bench.places(queue), Places { dead, ..Places::default() }, "{queue}");
    }
    for (queue, id) in added {
        let (end, attempt) = match *queue {
            "twice" => ("COMPLETED", "3"),
            "bad" => ("FAILED", "1"),
            _ => ("COMPLETED", "1"),
        };
        let found = (bench.status(queue, id, "status"), bench.status(queue, id, "attempt"));
        assert_eq!((found.0.as_str(), found.1.as_str()), (end, attempt), "{queue} {id}");
    }
}
