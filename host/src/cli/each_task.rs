//! Commands that act on several tasks of a queue, one after the other.
//!
//! In: ids, and what is done with one task. Out: the result for each task; the tasks that stay as they are,
//! each with the code of the HTTP API and the reason; and how the command ends. Not here: several queues
//! (`each_queue`), all tasks that match (`many`).

use serde::Serialize;

use super::exit::{CommandError, CommandResult};
use super::output::{Out, note};
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
    /// Returns the error if it is about more than this task.
    fn new(id: String, error: OperationError) -> OperationResult<RefusedTask> {
        match error {
            OperationError::UnknownTask(_) | OperationError::HasEnded(_) | OperationError::NotDelayed(_) => {
                let ApiProblem { code, detail } = ApiProblem::from(error);
                Ok(RefusedTask { id, code: code.into_str(), why: detail })
            }
            error => Err(error),
        }
    }
}

/// Calls `act` for one task after the other, and shows the results, of which `lines` makes text. `so_far`
/// says how far the command has come. Fails after that if it was cut off, and with exit code 1 if a task was
/// refused.
pub(super) async fn each_task<T: Serialize>(
    ids: &[String],
    act: impl AsyncFn(&str) -> OperationResult<T>,
    so_far: impl Fn(&TaskResults<T>) -> String,
    lines: impl FnOnce(&TaskResults<T>) -> Vec<String>,
    out: &mut Out,
) -> CommandResult {
    let mut results = TaskResults { tasks: Vec::new(), refused: Vec::new() };
    let progress = CommandProgress::begin()?;
    let end = go_through(ids, act, so_far, progress, &mut results).await;
    if out.json {
        out.json(&results);
    } else {
        lines(&results).iter().for_each(|line| out.line(line));
        results.refused.iter().for_each(|task| note(&format!("tqhost: {}", text::escape(&task.why))));
    }
    end
}

async fn go_through<T>(
    ids: &[String],
    act: impl AsyncFn(&str) -> OperationResult<T>,
    so_far: impl Fn(&TaskResults<T>) -> String,
    mut progress: CommandProgress,
    results: &mut TaskResults<T>,
) -> CommandResult {
    for id in ids {
        match progress.step(Box::pin(act(id))).await {
            Some(Ok(done)) => results.tasks.push(done),
            Some(Err(error)) => match RefusedTask::new(id.clone(), error) {
                Ok(refused) => results.refused.push(refused),
                Err(error) => return Err(CommandError::from(error).context(&so_far(results))),
            },
            None => return Err(interrupted(&so_far(results))),
        }
        if progress.is_interrupted() && results.done() < ids.len() {
            return Err(interrupted(&so_far(results)));
        }
        progress.tell(|| so_far(results));
    }
    if results.refused.is_empty() { Ok(()) } else { Err(CommandError::Reported) }
}
