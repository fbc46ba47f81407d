//! `tqhost retry`: lets delayed tasks run now.
//!
//! In: a queue's name, and ids or aliases of tasks. Out: a sentence for each, or an object as JSON, and exit
//! code 1 unless all of them run. It may be repeated: a task that is not delayed stays as it is. Not here:
//! what is done with a task (`operations`).

use std::time::Duration;

use serde::Serialize;

use super::args::RetryArgs;
use super::context::open;
use super::exit::CommandError;
use super::output::{Out, note};
use super::progress::{CommandProgress, StepEnd, interrupted};
use super::text;
use crate::admin::problem::ApiProblem;
use crate::clock;
use crate::config::Config;
use crate::operations::{self, OperationError, Retried};

/// The whole output as JSON. The names are stable.
#[derive(Debug, Default, Serialize)]
struct RetryView {
    tasks: Vec<Retried>,
    refused: Vec<RefusedRetry>,
}

/// A task that cannot be told to run.
#[derive(Debug, Serialize)]
struct RefusedRetry {
    /// The id or alias, as it was given.
    id: String,
    /// The code of the HTTP API.
    code: &'static str,
    why: String,
}

pub(super) async fn run(config: &Config, args: RetryArgs, out: &mut Out) -> Result<(), CommandError> {
    let RetryArgs { queue: name, ids } = args;
    let queue = open(config, &name).await?;
    let (all, mut view) = (ids.len(), RetryView::default());
    let mut progress = CommandProgress::begin()?;
    let mut failed = None;
    for id in ids {
        match progress.step(operations::retry(&queue, &id)).await {
            StepEnd::Done(Ok(retried)) => view.tasks.push(retried),
            StepEnd::Done(Err(
                error @ (OperationError::UnknownTask(_)
                | OperationError::HasEnded(_)
                | OperationError::NotDelayed(_)),
            )) => {
                let ApiProblem { code, detail } = ApiProblem::from(error);
                view.refused.push(RefusedRetry { id, code: code.into_str(), why: detail });
            }
            StepEnd::Done(Err(error)) => {
                failed = Some(CommandError::from(error).context(&so_far(&view, all)));
                break;
            }
            StepEnd::Cut => {
                failed = Some(interrupted(&so_far(&view, all)));
                break;
            }
        }
        if progress.is_interrupted() && view.tasks.len() + view.refused.len() < all {
            failed = Some(interrupted(&so_far(&view, all)));
            break;
        }
        progress.tell(|| so_far(&view, all));
    }
    drop(progress);
    if out.json {
        out.json(&view);
    } else {
        let now_ms = clock::now_ms();
        view.tasks.iter().for_each(|task| out.line(sentence(task, now_ms)));
        view.refused.iter().for_each(|refused| note(&format!("tqhost: {}", text::escape(&refused.why))));
    }
    match failed {
        Some(failed) => Err(failed),
        None if view.refused.is_empty() => Ok(()),
        None => Err(CommandError::Reported),
    }
}

fn so_far(view: &RetryView, all: usize) -> String {
    format!("{} of {} told to run", view.tasks.len(), text::plural(all as u64, "task"))
}

fn sentence(task: &Retried, now_ms: u64) -> String {
    let left = Duration::from_millis(task.was_due_at.unwrap_or(0).saturating_sub(now_ms));
    let was = if left.is_zero() { "now".to_owned() } else { format!("in {}", text::age(left)) };
    format!("{} runs now, as attempt {}; it was due {was}", text::escape(&task.id), task.attempt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_says_when_the_task_was_due() {
        let task = Retried { id: "7".into(), attempt: 3, was_due_at: Some(65_000) };
        assert_eq!(sentence(&task, 5_000), "7 runs now, as attempt 3; it was due in 1m");
        assert_eq!(sentence(&task, 65_000), "7 runs now, as attempt 3; it was due now");
    }
}
