//! The attempts of one queue that are to begin, and the number of workers that begin them.
//!
//! In: attempts. Out: the attempts in their order, and whether one more worker is needed.
//!
//! Not here: the workers (`crew`).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::inflight::Hold;
use crate::plugins::Version;
use crate::task::Task;

/// The attempts of one queue that are to begin, and the number of workers that begin them.
#[derive(Default)]
pub(crate) struct Starts(Mutex<StartQueue>);

#[derive(Default)]
struct StartQueue {
    pending: VecDeque<PendingAttempt>,
    workers: usize,
}

/// An attempt that is to begin.
pub(crate) struct PendingAttempt {
    pub version: Arc<Version>,
    pub members: Vec<(Task, Hold)>,
}

impl Starts {
    /// Adds an attempt. Returns whether a worker is needed, because none is at work.
    pub(crate) fn add(&self, version: &Arc<Version>, members: Vec<(Task, Hold)>) -> bool {
        let mut queue = self.queue();
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
        let mut queue = self.queue();
        let Some(next) = queue.pending.pop_front() else {
            queue.workers -= 1;
            return None;
        };
        let is_wanted = !queue.pending.is_empty() && queue.workers < most;
        queue.workers += usize::from(is_wanted);
        Some((next, is_wanted))
    }

    fn queue(&self) -> MutexGuard<'_, StartQueue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
