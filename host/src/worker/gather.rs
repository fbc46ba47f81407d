//! Gathers tasks into batches that a handler takes in one call.
//!
//! In: begun tasks, one by one. Out: an attempt for each batch, or for a single task that may not be in a
//! batch. A batch ends when it is full, when its wait is over, when a task has another version, when no
//! permits are left, or when the worker stops claiming.
//!
//! Not here: how a batch begins (`crew`), and its outcome (`runner`).

use std::sync::Arc;

use tokio::sync::Notify;

use super::crew;
use super::inflight::Ownership;
use super::shared::SharedQueue;
use super::starts::OpenBatch;
use crate::plugins::Version;
use crate::task::Task;

/// Adds a task to the batch that is open, or to a new one; or runs it at once, if `here` on this thread.
pub(crate) fn add(
    shared: &Arc<SharedQueue>,
    version: &Arc<Version>,
    task: Task,
    owned: Ownership,
    here: bool,
) {
    let most = if version.handler.takes_batches() { shared.queue.rules.largest_batch() } else { 1 };
    // A task that may have crashed a host runs outside of batches, and not where heartbeats are sent.
    if most < 2 || task.crashes > 0 {
        let begin = if here && task.crashes == 0 { crew::begin_here } else { crew::begin };
        return begin(shared, version, vec![(task, owned)]);
    }
    let mut open = shared.open_batch.lock();
    let older = open.take_if(|batch| !Arc::ptr_eq(&batch.version, version));
    let batch = open.get_or_insert_with(|| {
        let ended = Arc::new(Notify::new());
        drop(shared.runners.spawn(end_in_time(shared.clone(), ended.clone())));
        OpenBatch { version: version.clone(), members: Vec::new(), ended }
    });
    batch.members.push((task, owned));
    let full = open.take_if(|batch| batch.members.len() >= most);
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
fn begin(shared: &Arc<SharedQueue>, batch: OpenBatch) {
    batch.ended.notify_one();
    // If the plugin was removed meanwhile, the batch still runs, because it began before.
    let version = shared.versions.borrow().clone().unwrap_or(batch.version);
    if version.handler.takes_batches() {
        return crew::begin(shared, &version, batch.members);
    }
    for member in batch.members {
        crew::begin(shared, &version, vec![member]);
    }
}
