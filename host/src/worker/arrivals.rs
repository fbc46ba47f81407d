//! Asks Redis for what has to be known of claimed tasks before any of them runs: whether a host wrote the
//! fields that only hosts may write, and the time, if tasks can expire. It also notes the aliases of tasks.
//!
//! A queue that needs nothing of this asks nothing. Not here: which tasks have expired (`settle`), how
//! clients find a task by its alias (`queue::alias`).

use super::inflight::Ownership;
use super::pace::Pace;
use super::shared::SharedQueue;
use crate::chain::chain;
use crate::queue::turns::HeldTask;
use crate::queue::{QueueResult, StreamEntry, codec};
use crate::task::Task;

/// A claimed task, or an entry that is none.
pub(super) type Decoded = Result<Task, (codec::Malformed, StreamEntry)>;

/// Removes from entries the fields of producers that only a host may write. A host that stops asks Redis only
/// once. Returns false if Redis does not answer then: the entries stay pending, and another host takes them
/// over.
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

/// Redis's clock, in milliseconds since the Unix epoch. `None`: no task of the queue expires, or the host
/// stops before Redis answers, and then gives the tasks back.
pub(super) async fn now_ms(shared: &SharedQueue) -> Option<u64> {
    if !shared.queue.rules.may_expire() {
        return None;
    }
    let asked = Pace::until_done(&shared.name, "clock", || shared.queue.now_ms());
    shared.stop.running.run_until_cancelled(asked).await
}

/// Notes the aliases of tasks, so that they are found from their first moment on. A refusal by Redis does not
/// hold the tasks up: they run, and are found by their ids alone.
pub(super) async fn note_aliases(shared: &SharedQueue, claimed: &[(Decoded, Ownership)]) {
    if shared.queue.rules.id.is_none() {
        return;
    }
    let tasks: Vec<&Task> = claimed.iter().filter_map(|(decoded, _)| decoded.as_ref().ok()).collect();
    until_noted(shared, || shared.queue.note_aliases(&tasks)).await;
}

/// Notes the aliases of tasks that were held, so that they are found while they wait for their turn.
pub(super) async fn note_held(shared: &SharedQueue, held: &[HeldTask]) {
    if !held.is_empty() {
        until_noted(shared, || shared.queue.note_held_aliases(held)).await;
    }
}

/// Tries until Redis has carried out or refused the call, or until the host stops.
async fn until_noted<F>(shared: &SharedQueue, call: impl Fn() -> F)
where
    F: Future<Output = QueueResult>,
{
    let call = || async {
        match call().await {
            Err(error) if !error.is_connection() => {
                let (queue, error) = (shared.name.as_ref(), chain(&error));
                tracing::warn!(queue, error, "could not note the aliases of tasks");
                Ok(())
            }
            noted => noted,
        }
    };
    let noted = Pace::until_done(&shared.name, "aliases", call);
    shared.stop.running.run_until_cancelled(noted).await;
}
