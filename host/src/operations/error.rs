//! Why an operation did not do what it was asked.
//!
//! Each kind is one that callers treat differently: the commands by their exit code, the HTTP API by its
//! status and code.

use crate::queue::{QueueError, RedriveError};

#[derive(Debug, thiserror::Error)]
pub(crate) enum OperationError {
    /// The configuration has no such queue.
    #[error("{0}")]
    UnknownQueue(String),
    #[error("{0}")]
    UnknownTask(String),
    #[error("{0}")]
    UnknownPlugin(String),
    #[error("{0}")]
    UnknownJob(String),
    #[error("{0}")]
    UnknownIncident(String),
    /// The task has ended, so it cannot be cancelled or told to run.
    #[error("{0}")]
    HasEnded(String),
    /// The task does not wait for its time, so it cannot be told to run.
    #[error("{0}")]
    NotDelayed(String),
    /// The version of a plugin that the caller saw running runs no more, or the job is over.
    #[error("{0}")]
    NotRunning(String),
    /// The request contradicts the queue's rules, or itself.
    #[error("{0}")]
    Invalid(String),
    /// The queue keeps no events.
    #[error(
        "queue {0} keeps no events, so nobody knows which of its tasks ended lately: set `events` of \
         [queues.{0}], for example to 1000"
    )]
    NoEvents(String),
    #[error(transparent)]
    Redis(#[from] QueueError),
    /// A requeue or purge ended early; the error says how far it came.
    #[error("{}", .0.cause)]
    Interrupted(RedriveError),
    /// Cancelling many tasks ended early; the figure says how far it came.
    #[error("{}; {succeeded} were cancelled before", stop(cause.as_deref()))]
    CancelStopped {
        /// None: it took too long.
        cause: Option<Box<OperationError>>,
        succeeded: u64,
    },
    /// A part of a task's tree is out of reach.
    #[error("{0}")]
    OutOfReach(String),
}

impl OperationError {
    /// Redis is away, starts, changes its roles or is full, so the same may succeed later.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            OperationError::Redis(error) => error.may_pass(),
            OperationError::Interrupted(error) => error.cause.may_pass(),
            _ => false,
        }
    }
}

fn stop(cause: Option<&OperationError>) -> String {
    cause.map_or_else(|| "there was no end in time".to_owned(), ToString::to_string)
}
