//! The batch of a queue that may still grow.
//!
//! In: begun tasks, one by one. Out: batches, each to the caller that opened it.
//!
//! Not here: waiting for a batch, and running it (`gather`).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

use super::inflight::Hold;
use crate::plugins::Version;
use crate::task::Task;

/// A task of a batch.
pub(crate) type Member = (Task, Hold);

/// The further tasks of a batch.
pub(crate) type Members = mpsc::Receiver<Member>;

/// The batch of a queue that may still grow.
#[derive(Default)]
pub(crate) struct Gathering(Mutex<Option<Open>>);

struct Open {
    version: Arc<Version>,
    /// How many more tasks it takes; at least one.
    room: usize,
    members: mpsc::Sender<Member>,
}

impl Gathering {
    /// Adds a task to the batch that is open, or opens a batch for `most` tasks. A new batch is returned: its
    /// first task, and where the others arrive.
    pub(crate) fn add(
        &self,
        version: &Arc<Version>,
        mut member: Member,
        most: usize,
    ) -> Option<(Member, Members)> {
        let mut open = self.open();
        if let Some(batch) = open.as_mut().filter(|batch| Arc::ptr_eq(&batch.version, version)) {
            match batch.members.try_send(member) {
                Ok(()) => {
                    batch.room -= 1;
                    if batch.room == 0 {
                        *open = None;
                    }
                    return None;
                }
                // The batch has closed.
                Err(mpsc::error::TrySendError::Closed(back) | mpsc::error::TrySendError::Full(back)) => {
                    member = back;
                }
            }
        }
        let (members, more) = mpsc::channel(most);
        *open = Some(Open { version: version.clone(), room: most - 1, members });
        Some((member, more))
    }

    /// Closes the open batch, because no more tasks can arrive.
    pub(crate) fn close(&self) {
        *self.open() = None;
    }

    /// Drops a batch that is closed, and with it its version.
    pub(crate) fn forget_closed(&self) {
        self.open().take_if(|batch| batch.members.is_closed());
    }

    fn open(&self) -> MutexGuard<'_, Option<Open>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
