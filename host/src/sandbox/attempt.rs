//! What an attempt is given, and how it went.
//!
//! Not here: running it (`handler`).

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::task::{FailureKind, Outcome, Progress, Task};

/// One run of a handler.
#[derive(Debug)]
pub struct Attempt {
    /// One, for its `handle`; or several of one queue, for its `handle-batch`, if it has that
    /// ([`super::Handler::takes_batches`]).
    pub tasks: Arc<Vec<Task>>,
    pub plugin: Arc<str>,
    /// Attempts allowed in all: 1 + max_retries.
    pub max_attempts: u32,
    /// Over instantiation and call, not over the wait for a free place.
    pub timeout: Duration,
    /// Of each task.
    pub progress: Vec<Progress>,
    /// Ends the attempt without a report.
    pub stop: CancellationToken,
}

/// How an attempt went.
#[derive(Debug, Clone)]
pub struct Report {
    pub ended: Ended,
    /// Bytes of all memories of the instance together, at most; also what earlier attempts have left there.
    pub peak_memory: u64,
    /// Of instantiation and call.
    pub duration: Duration,
}

/// What a call of the handler came to.
#[derive(Debug, Clone)]
pub enum Ended {
    /// The handler came back, with the outcome of each task, in their order.
    Each(Vec<Outcome>),
    /// It did not, or gave another number of results than there were tasks. With several tasks this says
    /// nothing of any of them.
    Failed { kind: FailureKind, message: String },
}

impl Report {
    /// Of each task, also where none is to blame: what is shown to people.
    pub fn outcomes(&self, tasks: usize) -> Vec<Outcome> {
        match &self.ended {
            Ended::Each(outcomes) => outcomes.clone(),
            Ended::Failed { kind, message } => {
                vec![Outcome::Failed { kind: *kind, message: message.clone() }; tasks]
            }
        }
    }
}
