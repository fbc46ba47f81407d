//! Gathers tasks into batches that a handler takes in one call.
//!
//! In: begun tasks, one by one. Out: a runner for each batch, or for a single task that may not be in a
//! batch. A batch ends when it is full, when its wait is over, when a task has another version, when no
//! permits are left, or when the worker stops claiming.
//!
//!     add ─▶ Open ─▶ gather ─▶ crew ─▶ runner
//!
//! Not here: the open batch itself (`gathering`), how a batch begins (`crew`), and its outcome (`runner`).

use std::sync::Arc;
use std::time::Duration;

use super::crew;
use super::gathering::{Member, Members};
use super::inflight::Hold;
use super::shared::SharedQueue;
use crate::plugins::Version;
use crate::task::Task;

/// Adds a task to the batch that is open, or to a new one; or runs it at once.
pub(crate) fn add(shared: &Arc<SharedQueue>, version: &Arc<Version>, task: Task, hold: Hold) {
    let rules = &shared.queue.rules;
    let most = if version.handler.takes_batches() { rules.largest_batch() } else { 1 };
    // A task that may have crashed a host runs outside of batches.
    if most < 2 || task.crashes > 0 {
        crew::begin(shared, version, vec![(task, hold)]);
        return;
    }
    if let Some((first, more)) = shared.gathering.add(version, (task, hold), most) {
        drop(shared.runners.spawn(gather(
            shared.clone(),
            version.clone(),
            first,
            more,
            rules.batch.max_wait,
        )));
    }
}

/// Collects members until the batch ends, and runs them on the version that is active then.
async fn gather(
    shared: Arc<SharedQueue>,
    version: Arc<Version>,
    first: Member,
    mut more: Members,
    wait: Duration,
) {
    let mut members = vec![first];
    let mut over = std::pin::pin!(tokio::time::sleep(wait));
    loop {
        tokio::select! {
            biased;
            member = more.recv() => match member {
                Some(member) => members.push(member),
                None => break,
            },
            () = shared.stop.claiming.cancelled() => break,
            () = &mut over => break,
        }
    }
    // Tasks added before this are still received.
    more.close();
    while let Some(member) = more.recv().await {
        members.push(member);
    }
    shared.gathering.forget_closed();
    // If the plugin was removed meanwhile, the batch still runs, because it began before.
    let version = shared.versions.borrow().clone().unwrap_or(version);
    if version.handler.takes_batches() {
        return crew::begin(&shared, &version, members);
    }
    for member in members {
        crew::begin(&shared, &version, vec![member]);
    }
}
