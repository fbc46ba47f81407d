//! Asks Redis what a queue has to know about claimed tasks before any of them runs: who wrote their entries,
//! if these say what only hosts may say, and the time, if tasks can expire. And notes their aliases, if tasks
//! have some.
//!
//! A queue that needs none of them asks nothing. Not here: which tasks have expired (`settle`), how clients
//! find a task by its alias (`queue::alias`).

use super::inflight::Ownership;
use super::pace::Pace;
use super::shared::SharedQueue;
use crate::chain::chain;
use crate::queue::turns::HeldTask;
use crate::queue::{QueueResult, StreamEntry, codec};
use crate::task::Task;

/// A claimed task, or an entry that is none.
pub(super) type Decoded = Result<Task, (codec::Malformed, StreamEntry)>;

/// Takes from entries what only a host may write, where a producer wrote it. A host that stops asks once, to
/// give them back. False if Redis does not answer then: they stay pending, and another host takes them over.
pub(super) async fn keep_trusted(shared: &SharedQueue, entries: &mut [StreamEntry]) -> bool {
    let mut pace = Pace::new(&shared.name, "statuses");
    while let Err(error) = shared.queue.keep_trusted(entries).await {
        let wait = tokio::time::sleep(pace.failed(&error));
        if shared.stop.running.run_until_cancelled(wait).await.is_none() {
            return false;
        }
    }
    pace.succeeded();
    true
}

/// Redis's clock, in milliseconds since the Unix epoch. None where no task expires, or if the host stops
/// before Redis answers: then the tasks are given back.
pub(super) async fn now_ms(shared: &SharedQueue) -> Option<u64> {
    if !shared.queue.rules.may_expire() {
        return None;
    }
    let asked = async {
        let mut pace = Pace::new(&shared.name, "clock");
        loop {
            match shared.queue.now_ms().await {
                Ok(now_ms) => {
                    pace.succeeded();
                    return now_ms;
                }
                Err(error) => tokio::time::sleep(pace.failed(&error)).await,
            }
        }
    };
    shared.stop.running.run_until_cancelled(asked).await
}

/// Notes the aliases of tasks, so that they are found from their first moment on. A refusal by Redis does not
/// hold the tasks up: they run, and are found by their ids alone.
pub(super) async fn note_aliases(shared: &SharedQueue, claimed: &[(Decoded, Ownership)]) {
    if shared.queue.rules.id.is_none() {
        return;
    }
    let tasks: Vec<&Task> = claimed.iter().filter_map(|(decoded, _)| decoded.as_ref().ok()).collect();
    patiently(shared, || shared.queue.note_aliases(&tasks)).await;
}

/// Notes the aliases of tasks that were held, so that they are found while they wait for their turn.
pub(super) async fn note_held(shared: &SharedQueue, held: &[HeldTask]) {
    if !held.is_empty() {
        patiently(shared, || shared.queue.note_held_aliases(held)).await;
    }
}

async fn patiently<F>(shared: &SharedQueue, note: impl Fn() -> F)
where
    F: Future<Output = QueueResult>,
{
    let asked = async {
        let mut pace = Pace::new(&shared.name, "aliases");
        loop {
            match note().await {
                Ok(()) => return pace.succeeded(),
                Err(error) if error.is_connection() => tokio::time::sleep(pace.failed(&error)).await,
                Err(error) => {
                    let (queue, error) = (shared.name.as_ref(), chain(&error));
                    return tracing::warn!(queue, error, "could not note the aliases of tasks");
                }
            }
        }
    };
    shared.stop.running.run_until_cancelled(asked).await;
}
