//! Tasks that a command for several of them cannot act on.
//!
//! In: the error of one task. Out: the code of the HTTP API and the reason, for JSON and for people; or the
//! error again, where it is none of that task alone. Not here: the exit code (the commands).

use serde::Serialize;

use super::output::note;
use super::text;
use crate::admin::problem::ApiProblem;
use crate::operations::OperationError;

/// A task that stays as it is. The names are stable.
#[derive(Debug, Serialize)]
pub(super) struct RefusedTask {
    /// The id or alias, as it was given.
    id: String,
    /// The code of the HTTP API.
    code: &'static str,
    why: String,
}

impl RefusedTask {
    /// The task `id`, for this reason. An error that is about more than this task comes back.
    pub(super) fn new(id: String, error: OperationError) -> Result<RefusedTask, OperationError> {
        match error {
            OperationError::UnknownTask(_) | OperationError::HasEnded(_) | OperationError::NotDelayed(_) => {
                let ApiProblem { code, detail } = ApiProblem::from(error);
                Ok(RefusedTask { id, code: code.into_str(), why: detail })
            }
            error => Err(error),
        }
    }

    /// Tells people why, on stderr.
    pub(super) fn tell(&self) {
        note(&format!("tqhost: {}", text::escape(&self.why)));
    }
}
