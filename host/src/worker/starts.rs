//! The attempts of one queue that are to begin: a line of them, and a batch that may still grow.
//!
//! Not here: beginning the attempts of the line (`crew`), and ending the batch (`gather`).

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::Notify;

use super::host_time::FirstPoll;
use super::inflight::Ownership;
use crate::guarded::Guarded;
use crate::plugins::Version;
use crate::task::Task;

/// The line of attempts, the number of workers that begin them, and how long their first polls take.
#[derive(Default)]
pub(crate) struct Starts {
    line: Guarded<StartQueue>,
    pub first_poll: FirstPoll,
}

#[derive(Default)]
struct StartQueue {
    pending: VecDeque<PendingAttempt>,
    workers: usize,
}

pub(crate) struct PendingAttempt {
    pub version: Arc<Version>,
    pub members: Vec<(Task, Ownership)>,
}

/// A batch that may still grow.
pub(crate) struct OpenBatch {
    pub version: Arc<Version>,
    pub members: Vec<(Task, Ownership)>,
    /// Notified when it does not grow any more.
    pub ended: Arc<Notify>,
}

impl Starts {
    /// Adds an attempt. Returns whether a worker is needed, because none is at work.
    pub(crate) fn add(&self, version: &Arc<Version>, members: Vec<(Task, Ownership)>) -> bool {
        let mut queue = self.line.lock();
        queue.pending.push_back(PendingAttempt { version: version.clone(), members });
        let is_first = queue.workers == 0;
        if is_first {
            queue.workers = 1;
        }
        is_first
    }

    /// The attempt that a worker begins next, and whether another worker is needed for the rest.
    ///
    /// `None`: nothing is left, and the worker ends.
    pub(crate) fn next(&self, most: usize) -> Option<(PendingAttempt, bool)> {
        let mut queue = self.line.lock();
        let Some(next) = queue.pending.pop_front() else {
            queue.workers -= 1;
            return None;
        };
        let is_wanted = !queue.pending.is_empty() && queue.workers < most;
        queue.workers += usize::from(is_wanted);
        Some((next, is_wanted))
    }
}
