//! Gathers tasks into batches that a handler takes in one call.
//!
//! In: tasks that may run, one by one. Out: an attempt for each batch, or for a single task that may not be
//! in a batch. A batch ends when it is full, when its wait is over, when a task has another version, when no
//! permits are left, or when the worker stops claiming.
//!
//! Not here: how a batch begins (`crew`), and its outcome (`runner`).

use std::sync::Arc;

use tokio::sync::Notify;

use super::crew;
use super::inflight::OwnedTask;
use super::shared::SharedQueue;
use super::starts::{OpenBatch, PendingAttempt};
use crate::plugins::Version;

/// Adds a task to the open batch, or to a new one. A task that may not be in a batch begins at once, if
/// `may_begin_here` on this thread.
pub(crate) fn add(shared: &Arc<SharedQueue>, version: &Arc<Version>, task: OwnedTask, may_begin_here: bool) {
    let most = if version.handler.takes_batches() { shared.queue.rules.largest_batch() } else { 1 };
    // A task that may have crashed a host runs outside of batches, and not where heartbeats are sent.
    let had_crash = task.0.crashes > 0;
    if most < 2 || had_crash {
        let attempt = PendingAttempt { version: version.clone(), tasks: vec![task] };
        return crew::begin(shared, attempt, may_begin_here && !had_crash);
    }
    let mut open = shared.open_batch.lock();
    let older = open.take_if(|batch| !Arc::ptr_eq(&batch.attempt.version, version));
    let batch = open.get_or_insert_with(|| {
        let ended = Arc::new(Notify::new());
        drop(shared.runners.spawn(end_in_time(shared.clone(), ended.clone())));
        OpenBatch { attempt: PendingAttempt { version: version.clone(), tasks: Vec::new() }, ended }
    });
    batch.attempt.tasks.push(task);
    let full = open.take_if(|batch| batch.attempt.tasks.len() >= most);
    drop(open);
    older.into_iter().chain(full).for_each(|batch| begin(shared, batch));
}

/// Ends the open batch, because no more tasks can arrive.
pub(crate) fn end(shared: &Arc<SharedQueue>) {
    let batch = shared.open_batch.lock().take();
    batch.into_iter().for_each(|batch| begin(shared, batch));
}

/// Ends a batch when its wait is over or the worker stops claiming, unless it has `ended` before.
async fn end_in_time(shared: Arc<SharedQueue>, ended: Arc<Notify>) {
    tokio::select! {
        () = tokio::time::sleep(shared.queue.rules.batch.max_wait) => {}
        () = shared.stop.claiming.cancelled() => {}
        () = ended.notified() => return,
    }
    let batch = shared.open_batch.lock().take_if(|batch| Arc::ptr_eq(&batch.ended, &ended));
    batch.into_iter().for_each(|batch| begin(&shared, batch));
}

/// Begins a batch that has ended, on the version that is active now.
fn begin(shared: &Arc<SharedQueue>, OpenBatch { attempt, ended }: OpenBatch) {
    ended.notify_one();
    // If the plugin was removed meanwhile, the batch still runs, because it began before.
    let version = shared.versions.borrow().clone().unwrap_or(attempt.version);
    if version.handler.takes_batches() {
        return crew::begin(shared, PendingAttempt { version, tasks: attempt.tasks }, false);
    }
    for task in attempt.tasks {
        crew::begin(shared, PendingAttempt { version: version.clone(), tasks: vec![task] }, false);
    }
}
