//! `tqhost retry`: lets delayed tasks run now.
//!
//! In: a queue's name, and ids or aliases of tasks. Out: a sentence for each, or an object as JSON, and exit
//! code 1 unless all of them run. It may be repeated: a task that is not delayed stays as it is. With
//! `--dry-run` all of them do. Not here: what is done with a task (`operations`).

use std::time::Duration;

use super::args::RetryArgs;
use super::context::open;
use super::exit::CommandResult;
use super::output::Out;
use super::refused::{RefusedTask, TaskResults, each};
use super::text;
use crate::clock;
use crate::config::Config;
use crate::operations::{self, Retried};

pub(super) async fn run(config: &Config, args: RetryArgs, out: &mut Out) -> CommandResult {
    let RetryArgs { queue: name, ids, dry_run } = args;
    out.dry_run = dry_run;
    let queue = open(config, &name).await?;
    let act = async |id: &str| operations::retry(&queue, id, dry_run).await;
    let (results, end) = each(&ids, act, |results| so_far(results, ids.len(), dry_run)).await?;
    if out.json {
        out.json(&results);
    } else {
        let now_ms = clock::now_ms();
        results.tasks.iter().for_each(|task| out.line(sentence(task, now_ms, dry_run)));
        results.refused.iter().for_each(RefusedTask::tell);
    }
    end
}

fn so_far(results: &TaskResults<Retried>, all: usize, dry_run: bool) -> String {
    let told = if dry_run { "could be told to run" } else { "told to run" };
    format!("{} of {} {told}", results.tasks.len(), text::plural(all as u64, "task"))
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
