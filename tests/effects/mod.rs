//! Effects of handlers: what they write with the step that completes their task, and not otherwise.

mod batches;
mod broken_flows;
mod commit;
mod ends;
mod flows;
mod healing;
mod outbox;
mod refusals;
mod staging;

use serde_json::Value;

use crate::support::Bench;

/// Enqueues a task for the guest `effects`, which makes these calls.
fn told(bench: &mut Bench, stream: &str, calls: &Value) -> String {
    bench.xadd(stream, &[("do", &calls.to_string())])
}

/// Waits until the task is COMPLETED, and gives the results of its calls.
#[track_caller]
pub(crate) fn results(bench: &mut Bench, stream: &str, id: &str) -> Value {
    bench.until(stream, id, "COMPLETED");
    serde_json::from_str(&bench.status(stream, id, "result")).expect("the result is JSON")
}

/// The results of a new task that makes these calls.
#[track_caller]
pub(crate) fn done(bench: &mut Bench, stream: &str, calls: Value) -> Value {
    let id = told(bench, stream, &calls);
    results(bench, stream, &id)
}

/// A bench with the guest `effects` as the plugin `effects`.
fn bench(queues: &str) -> Bench {
    let bench = Bench::new(queues);
    bench.install("effects", "effects");
    bench
}

/// The text of an error in the results.
fn error(result: &Value) -> &str {
    result["error"].as_str().unwrap_or_else(|| panic!("{result} is no error"))
}
