//! The attempts of one queue that are to begin, and the number of workers that begin them.
//!
//! In: attempts. Out: the same, in their order, and when one more worker is needed.
//!
//! Not here: the workers (`crew`).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::inflight::Hold;
use crate::plugins::Version;
use crate::task::Task;

/// The attempts of one queue that are to begin, and the number of workers that begin them.
#[derive(Default)]
pub struct Starts(Mutex<Line>);

#[derive(Default)]
struct Line {
    starts: VecDeque<Start>,
    workers: usize,
}

/// An attempt that is to begin.
pub struct Start {
    pub version: Arc<Version>,
    pub members: Vec<(Task, Hold)>,
}

impl Starts {
    /// Adds an attempt. Returns whether a worker is needed, because none is at work.
    pub fn add(&self, version: &Arc<Version>, members: Vec<(Task, Hold)>) -> bool {
        let mut line = self.line();
        line.starts.push_back(Start { version: version.clone(), members });
        let is_first = line.workers == 0;
        if is_first {
            line.workers = 1;
        }
        is_first
    }

    /// The attempt that a worker begins next, and whether another worker is needed for the rest.
    ///
    /// `None`: nothing is left, and the worker ends.
    pub fn next(&self, most: usize) -> Option<(Start, bool)> {
        let mut line = self.line();
        let Some(next) = line.starts.pop_front() else {
            line.workers -= 1;
            return None;
        };
        let is_wanted = !line.starts.is_empty() && line.workers < most;
        line.workers += usize::from(is_wanted);
        Some((next, is_wanted))
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
