//! Commands that act on several tasks, one after the other, and those on which they cannot act.
//!
//! In: ids, and what is done with one task. Out: the results; the tasks that stay as they are, each with the
//! code of the HTTP API and the reason, for JSON and for people; and how the command ends.

use serde::Serialize;

use super::exit::{CommandError, CommandResult};
use super::output::note;
use super::progress::{CommandProgress, interrupted};
use super::text;
use crate::admin::problem::ApiProblem;
use crate::operations::{OperationError, OperationResult};

/// The whole output as JSON. The names are stable.
#[derive(Debug, Serialize)]
pub(super) struct TaskResults<T> {
    pub tasks: Vec<T>,
    pub refused: Vec<RefusedTask>,
}

impl<T> TaskResults<T> {
    /// How many ids were gone through.
    pub(super) fn done(&self) -> usize {
        self.tasks.len() + self.refused.len()
    }
}

/// Does something with one task after the other, and tells with `so_far` how far it has come. Returns what
/// came of it, and how the command ends after that is shown: with an error if it was cut off, and with exit
/// code 1 if a task was refused.
pub(super) async fn each<T>(
    ids: &[String],
    act: impl AsyncFn(&str) -> OperationResult<T>,
    so_far: impl Fn(&TaskResults<T>) -> String,
) -> CommandResult<(TaskResults<T>, CommandResult)> {
    let mut results = TaskResults { tasks: Vec::new(), refused: Vec::new() };
    let mut progress = CommandProgress::begin()?;
    for id in ids {
        match progress.step(Box::pin(act(id))).await {
            Some(Ok(done)) => results.tasks.push(done),
            Some(Err(error)) => match RefusedTask::new(id.clone(), error) {
                Ok(refused) => results.refused.push(refused),
                Err(error) => {
                    let failed = CommandError::from(error).context(&so_far(&results));
                    return Ok((results, Err(failed)));
                }
            },
            None => {
                let cut = interrupted(&so_far(&results));
                return Ok((results, Err(cut)));
            }
        }
        if progress.is_interrupted() && results.done() < ids.len() {
            let cut = interrupted(&so_far(&results));
            return Ok((results, Err(cut)));
        }
        progress.tell(|| so_far(&results));
    }
    let end = if results.refused.is_empty() { Ok(()) } else { Err(CommandError::Reported) };
    Ok((results, end))
}

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
    fn new(id: String, error: OperationError) -> OperationResult<RefusedTask> {
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
