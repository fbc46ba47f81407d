//! `tqhost retry`: lets delayed tasks run now.
//!
//! In: a queue's name, and ids or aliases of tasks. Out: a sentence for each, or an object as JSON, and exit
//! code 1 unless all of them run. It may be repeated: a task that is not delayed stays as it is. With
//! `--dry-run` all of them do. Not here: what is done with a task (`operations`).

use std::time::Duration;

use serde::Serialize;

use super::args::RetryArgs;
use super::context::open;
use super::exit::CommandError;
use super::output::Out;
use super::progress::{CommandProgress, StepEnd, interrupted};
use super::refused::RefusedTask;
use super::text;
use crate::clock;
use crate::config::Config;
use crate::operations::{self, OperationError, Retried};
use crate::queue::Queue;

/// The whole output as JSON. The names are stable.
#[derive(Debug, Default, Serialize)]
struct RetryView {
    tasks: Vec<Retried>,
    refused: Vec<RefusedTask>,
}

pub(super) async fn run(config: &Config, args: RetryArgs, out: &mut Out) -> Result<(), CommandError> {
    let RetryArgs { queue: name, ids, dry_run } = args;
    let queue = open(config, &name).await?;
    let (all, mut view) = (ids.len(), RetryView::default());
    let mut progress = CommandProgress::begin()?;
    let mut failed = None;
    for id in ids {
        let ended = progress.step(Box::pin(retry_or_look(&queue, &id, dry_run))).await;
        match ended {
            StepEnd::Done(Ok(retried)) => view.tasks.push(retried),
            StepEnd::Done(Err(error)) => match RefusedTask::new(id, error) {
                Ok(refused) => view.refused.push(refused),
                Err(error) => {
                    failed = Some(CommandError::from(error).context(&so_far(&view, all, dry_run)));
                    break;
                }
            },
            StepEnd::Cut => {
                failed = Some(interrupted(&so_far(&view, all, dry_run)));
                break;
            }
        }
        if progress.is_interrupted() && view.tasks.len() + view.refused.len() < all {
            failed = Some(interrupted(&so_far(&view, all, dry_run)));
            break;
        }
        progress.tell(|| so_far(&view, all, dry_run));
    }
    drop(progress);
    if out.json {
        out.json(&view);
    } else {
        let now_ms = clock::now_ms();
        view.tasks.iter().for_each(|task| out.line(sentence(task, now_ms, dry_run)));
        view.refused.iter().for_each(RefusedTask::tell);
    }
    match failed {
        Some(failed) => Err(failed),
        None if view.refused.is_empty() => Ok(()),
        None => Err(CommandError::Reported),
    }
}

async fn retry_or_look(queue: &Queue, id: &str, dry_run: bool) -> Result<Retried, OperationError> {
    if dry_run { operations::retry_preview(queue, id).await } else { operations::retry(queue, id).await }
}

fn so_far(view: &RetryView, all: usize, dry_run: bool) -> String {
    let told = if dry_run { "could be told to run" } else { "told to run" };
    format!("{} of {} {told}", view.tasks.len(), text::plural(all as u64, "task"))
}

fn sentence(task: &Retried, now_ms: u64, dry_run: bool) -> String {
    let left = Duration::from_millis(task.was_due_at.unwrap_or(0).saturating_sub(now_ms));
    let due = if left.is_zero() { "now".to_owned() } else { format!("in {}", text::age(left)) };
    let (runs, is) = if dry_run { ("would run", "is") } else { ("runs", "was") };
    format!("{} {runs} now, as attempt {}; it {is} due {due}", text::escape(&task.id), task.attempt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_says_when_the_task_was_due() {
        let task = Retried { id: "7".into(), attempt: 3, was_due_at: Some(65_000) };
        assert_eq!(sentence(&task, 5_000, false), "7 runs now, as attempt 3; it was due in 1m");
        assert_eq!(sentence(&task, 65_000, false), "7 runs now, as attempt 3; it was due now");
        assert_eq!(sentence(&task, 5_000, true), "7 would run now, as attempt 3; it is due in 1m");
    }
}
