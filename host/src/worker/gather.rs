//! Gathers tasks into batches that a handler takes in one call.
//!
//! In: begun tasks, one by one. Out: a runner for each batch, or for a single task that may not be in a
//! batch. A batch ends when it is full, when its wait is over, when a task has another version, when no
//! permits are left, or when the worker stops claiming.
//!
//!     add ─▶ Open ─▶ gather ─▶ crew ─▶ runner
//!
//! Not here: how a batch begins (`crew`), and its outcome (`runner`).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;

use super::inflight::Hold;
use super::shared::SharedQueue;
use crate::plugins::Version;
use crate::task::Task;

/// The batch of a queue that may still grow.
#[derive(Default)]
pub struct Gathering(Mutex<Option<Open>>);

struct Open {
    version: Arc<Version>,
    /// How many more tasks it takes; at least one.
    room: usize,
    members: mpsc::Sender<(Task, Hold)>,
}

impl Gathering {
    /// Adds a task to the batch that is open, or to a new one; or runs it at once.
    pub fn add(&self, shared: &Arc<SharedQueue>, version: &Arc<Version>, task: Task, hold: Hold) {
        let rules = &shared.queue.rules;
        let most = if version.handler.takes_batches() { rules.largest_batch() } else { 1 };
        // A task that may have crashed a host runs outside of batches.
        if most < 2 || task.crashes > 0 {
            shared.crew.begin(shared, version, vec![(task, hold)]);
            return;
        }
        let mut open = self.open();
        let mut member = (task, hold);
        if let Some(batch) = open.as_mut().filter(|batch| Arc::ptr_eq(&batch.version, version)) {
            match batch.members.try_send(member) {
                Ok(()) => {
                    batch.room -= 1;
                    if batch.room == 0 {
                        *open = None;
                    }
                    return;
                }
                // The batch has closed.
                Err(mpsc::error::TrySendError::Closed(back) | mpsc::error::TrySendError::Full(back)) => {
                    member = back;
                }
            }
        }
        let (members, more) = mpsc::channel(most);
        *open = Some(Open { version: version.clone(), room: most - 1, members });
        drop(shared.runners.spawn(gather(
            shared.clone(),
            version.clone(),
            member,
            more,
            rules.batch.max_wait,
        )));
    }

    /// Closes the open batch, because no more tasks can arrive.
    pub fn close(&self) {
        *self.open() = None;
    }

    /// Drops a batch that is closed, and with it its version.
    fn forget_closed(&self) {
        self.open().take_if(|batch| batch.members.is_closed());
    }

    fn open(&self) -> MutexGuard<'_, Option<Open>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Collects members until the batch ends, and runs them on the version that is active then.
async fn gather(
    shared: Arc<SharedQueue>,
    version: Arc<Version>,
    first: (Task, Hold),
    mut more: mpsc::Receiver<(Task, Hold)>,
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
        return shared.crew.begin(&shared, &version, members);
    }
    for member in members {
        shared.crew.begin(&shared, &version, vec![member]);
    }
}
