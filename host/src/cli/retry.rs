//! `tqhost retry`: lets delayed tasks run now.
//!
//! In: a queue's name, and ids or aliases of tasks. Out: a sentence for each task, or an object as JSON, and
//! exit code 1 unless all of them run. The command may be repeated, as a task that is not delayed stays as it
//! is. With `--dry-run` every task stays as it is. Not here: what is done with a task (`operations`).

use clap::Args;

use super::context::open;
use super::each_task::{TaskResults, each_task};
use super::exit::CommandResult;
use super::output::Out;
use super::text;
use crate::clock;
use crate::config::Config;
use crate::operations::{self, Retried};

#[derive(Debug, Args)]
pub(super) struct RetryArgs {
    /// The queue's name in the configuration
    queue: String,
    /// Task ids, or names that the queue's `id` gives to tasks
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    /// Change nothing: tell what would become of each task
    #[arg(long)]
    dry_run: bool,
}

pub(super) async fn run(config: &Config, args: RetryArgs, out: &mut Out) -> CommandResult {
    let RetryArgs { queue: name, ids, dry_run } = args;
    out.dry_run = dry_run;
    let queue = open(config, &name).await?;
    let act = async |id: &str| operations::retry(&queue, id, dry_run).await;
    let so_far = |results: &TaskResults<Retried>| {
        let told = if dry_run { "could be told to run" } else { "told to run" };
        format!("{} of {} {told}", results.tasks.len(), text::plural(ids.len() as u64, "task"))
    };
    let lines = |results: &TaskResults<Retried>| {
        let now_ms = clock::now_ms();
        results.tasks.iter().map(|task| sentence(task, now_ms, dry_run)).collect()
    };
    each_task(&ids, act, so_far, lines, out).await
}

fn sentence(task: &Retried, now_ms: u64, dry_run: bool) -> String {
    let left_ms = task.was_due_at.unwrap_or(0).saturating_sub(now_ms);
    let due = if left_ms == 0 { "now".to_owned() } else { format!("in {}", text::age_ms(left_ms)) };
    let (runs, is) = if dry_run { ("would run", "is") } else { ("runs", "was") };
    format!("{} {runs} now, as attempt {}; it {is} due {due}", text::escape(&task.id), task.attempt)
}
