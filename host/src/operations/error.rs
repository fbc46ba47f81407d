//! Why an operation did not do what it was asked.
//!
//! Each kind is one that callers treat differently: the commands by their exit code, the HTTP API by its
//! status and code.

use crate::chain::chain;
use crate::queue::{QueueError, RedriveError};

pub(crate) type OperationResult<T = ()> = Result<T, OperationError>;

#[derive(Debug, thiserror::Error)]
pub(crate) enum OperationError {
    /// The configuration has no such queue.
    #[error("{0}")]
    UnknownQueue(String),
    #[error("{0}")]
    UnknownTask(String),
    #[error("{0}")]
    UnknownPlugin(String),
    /// There is no such job or incident.
    #[error("{0}")]
    NotFound(String),
    /// The task has ended, so it cannot be cancelled or told to run.
    #[error("{0}")]
    HasEnded(String),
    /// The task does not wait for its time, so it cannot be told to run.
    #[error("{0}")]
    NotDelayed(String),
    /// The present state does not allow it: the version of a plugin that the caller saw running has stopped
    /// meanwhile, a version to be deployed was rolled back, or the job is over.
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
    /// Work on many tasks ended early; the error says how far it came. It may be repeated.
    #[error("{}", stop(cause.as_deref()))]
    Stopped {
        /// None: it took too long.
        cause: Option<Box<OperationError>>,
        succeeded: u64,
        /// Whether it may have done more.
        in_doubt: bool,
    },
    /// A job for whose end somebody waits came to none.
    #[error("{why}")]
    JobFailed { why: String, may_pass: bool },
    /// As many jobs are under way as may be.
    #[error("{0}")]
    TooManyJobs(String),
    /// A part of a task's tree is out of reach, or Redis cannot keep the tasks that a job takes away.
    #[error("{0}")]
    OutOfReach(String),
}

impl OperationError {
    /// The error in words. A key of another type is told with the name of its queue, and the way out.
    pub(super) fn in_queue(&self, queue: &str) -> String {
        match self {
            OperationError::Redis(error) => error.misfit(queue).unwrap_or_else(|| chain(error)),
            OperationError::Stopped { cause: Some(cause), .. } => cause.in_queue(queue),
            error => error.to_string(),
        }
    }

    /// The memory of Redis is full.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        match self {
            OperationError::Redis(error) => error.is_out_of_memory(),
            OperationError::Stopped { cause: Some(cause), .. } => cause.is_out_of_memory(),
            _ => false,
        }
    }

    /// Redis is away, starts, changes its roles or is full, so the operation may succeed later.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            OperationError::Redis(error) => error.may_pass(),
            OperationError::Stopped { cause: Some(cause), .. } => cause.may_pass(),
            _ => false,
        }
    }
}

fn stop(cause: Option<&OperationError>) -> String {
    cause.map_or_else(|| "there was no end in time".to_owned(), ToString::to_string)
}

impl From<RedriveError> for OperationError {
    fn from(RedriveError { cause, succeeded, in_doubt }: RedriveError) -> OperationError {
        OperationError::Stopped { cause: Some(Box::new(cause.into())), succeeded, in_doubt }
    }
}
