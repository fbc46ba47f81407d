//! The attempts of one queue that are to begin: a line of them, and a batch that may still grow.
//!
//! Not here: beginning the attempts of the line (`crew`), and ending the batch (`gather`).

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::Notify;

use super::host_time::FirstPoll;
use super::inflight::OwnedTask;
use crate::guarded::Guarded;
use crate::plugins::Version;

/// An attempt at a task, or at the tasks of a batch, that is to begin.
pub(crate) struct PendingAttempt {
    pub version: Arc<Version>,
    pub tasks: Vec<OwnedTask>,
}

/// A batch that may still grow.
pub(crate) struct OpenBatch {
    pub attempt: PendingAttempt,
    /// Notified when no more tasks are added to the batch.
    pub ended: Arc<Notify>,
}

/// The line of attempts, and how long their first polls take.
#[derive(Default)]
pub(crate) struct Starts {
    line: Guarded<StartLine>,
    pub first_poll: FirstPoll,
}

#[derive(Default)]
struct StartLine {
    pending: VecDeque<PendingAttempt>,
    /// The number of workers that begin the pending attempts.
    workers: usize,
}

impl Starts {
    /// Adds an attempt. Returns whether the caller has to start a worker, because none is at work.
    pub(crate) fn add(&self, attempt: PendingAttempt) -> bool {
        let mut line = self.line.lock();
        line.pending.push_back(attempt);
        let needs_worker = line.workers == 0;
        line.workers += usize::from(needs_worker);
        needs_worker
    }

    /// Returns the attempt that a worker begins next, and whether this worker has to start another one, of
    /// which there are at most `most_workers`. `None`: no attempt is left, and the worker ends.
    pub(crate) fn next(&self, most_workers: usize) -> Option<(PendingAttempt, bool)> {
        let mut line = self.line.lock();
        let Some(next) = line.pending.pop_front() else {
            line.workers -= 1;
            return None;
        };
        let needs_worker = !line.pending.is_empty() && line.workers < most_workers;
        line.workers += usize::from(needs_worker);
        Some((next, needs_worker))
    }
}
