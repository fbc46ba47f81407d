//! `tqhost cancel`: cancels a task, several, or all that match.
//!
//! In: a queue's name, and ids or aliases of tasks, or filters. Out: a sentence, or an object as JSON; for
//! several tasks also which of them were not cancelled and why, and then exit code 1. A command that is
//! repeated changes nothing, and with `--dry-run` no command does. Not here: what is cancelled with a task
//! (`operations`), all that match (`many`), how hosts carry it out (`worker`).

use clap::Args;
use clap::builder::PossibleValuesParser;

use super::context::open;
use super::each_task::{TaskResults, each_task};
use super::exit::{CommandError, CommandResult};
use super::filters::{TaskFilterArgs, check_choice};
use super::many::{self, ManyOptions};
use super::output::Out;
use super::text;
use crate::config::Config;
use crate::operations::jobs::{Deed, JobOrder};
use crate::operations::{self, Cancelled, MOST_IDS};
use crate::queue::Status;

#[derive(Debug, Args)]
pub(super) struct CancelArgs {
    /// The queue's name in the configuration
    queue: String,
    /// Task ids, at most 1000, as enqueue printed them; or names that the queue's `id` gives to tasks
    #[arg(value_name = "ID", conflicts_with = "all")]
    ids: Vec<String>,
    /// All that have not ended, or those of them that match the filters
    #[arg(long)]
    all: bool,
    /// With --all: only those in this state
    #[arg(
        long,
        requires = "all",
        conflicts_with = "ids",
        value_parser = PossibleValuesParser::new(["queued", "delayed", "held", "running"])
    )]
    state: Option<String>,
    #[command(flatten)]
    filter: TaskFilterArgs,
    /// Change nothing: tell what would become of each task; with --all, only count them
    #[arg(long)]
    dry_run: bool,
    /// With --all: do not ask before cancelling
    #[arg(long, requires = "all", conflicts_with = "ids")]
    yes: bool,
}

pub(super) async fn run(config: &Config, args: CancelArgs, out: &mut Out) -> CommandResult {
    let CancelArgs { queue: name, ids, all, state, filter, dry_run, yes } = args;
    out.dry_run = dry_run;
    let filter = filter.filter(config)?;
    check_choice(&ids, all, &filter)?;
    if ids.len() > MOST_IDS {
        let why = format!("{} ids are too many for one command: it takes {MOST_IDS}", ids.len());
        return Err(CommandError::Usage(why));
    }
    let queue = open(config, &name).await?;
    if all {
        let only = state.as_deref().and_then(|state| state.parse().ok());
        let order = JobOrder { only, ..JobOrder::new(Deed::Cancel, filter) };
        return many::run(config, &queue, order, ManyOptions { asks: !yes, file: None }, out).await;
    }
    if let [id] = &ids[..] {
        let task = operations::cancel(&config.queues, &queue, id, dry_run).await?;
        out.show(&task, |_| told(&task));
        return Ok(());
    }
    let act = async |id: &str| operations::cancel(&config.queues, &queue, id, dry_run).await;
    let so_far = |results: &TaskResults<Cancelled>| {
        format!("{} of {} gone through, in their order", results.done(), text::plural(ids.len() as u64, "id"))
    };
    each_task(&ids, act, so_far, |results| lines(results, dry_run), out).await
}

/// Says what became of one task, or would.
fn told(task: &Cancelled) -> String {
    let Cancelled { id, before, status, children } = task;
    let Some(children) = *children else { return would_be(id, *before) };
    if *status == Status::Failed {
        return stays_failed(id, children);
    }
    let with = match children {
        0 => String::new(),
        children => format!(", and {} of its flow with it", text::plural(children, "task")),
    };
    format!("{} is cancelled{with}; it was {}", text::escape(id), before.into_str())
}

/// Says what became of the flow of a dead task.
fn stays_failed(id: &str, children: u64) -> String {
    let with = match children {
        0 => "no task of its flow goes on".to_owned(),
        children => format!("this cancelled {} of its flow", text::plural(children, "task")),
    };
    format!("{} stays FAILED; {with}", text::escape(id))
}

fn would_be(id: &str, before: Status) -> String {
    let id = text::escape(id);
    match before {
        Status::Failed => format!("{id} would stay FAILED; the rest of its flow would be cancelled"),
        Status::Cancelled => format!("{id} is CANCELLED already"),
        before => format!("{id} would be cancelled; it is {}", before.into_str()),
    }
}

/// The results for people: a line for each task that had failed, and how many were cancelled. Of a dry run, a
/// line for each task, and how many would be cancelled.
fn lines(results: &TaskResults<Cancelled>, dry_run: bool) -> Vec<String> {
    let (mut lines, mut cancelled, mut cancelled_before, mut children) = (Vec::new(), 0, 0, 0);
    for task in &results.tasks {
        let of_flow = task.children.unwrap_or(0);
        match task.before {
            _ if dry_run => lines.push(would_be(&task.id, task.before)),
            Status::Failed => lines.push(stays_failed(&task.id, of_flow)),
            _ => children += of_flow,
        }
        cancelled += u64::from(!task.before.is_end());
        cancelled_before += u64::from(task.before == Status::Cancelled);
    }
    let many = text::plural(cancelled, "task");
    if dry_run {
        lines.push(format!("{many} would be cancelled, of {}", text::plural(results.done() as u64, "id")));
        return lines;
    }
    let mut sum = format!("{many} cancelled");
    if children > 0 {
        sum += &format!(", and {} of their flows", text::plural(children, "task"));
    }
    if cancelled_before > 0 {
        sum += &format!("; {cancelled_before} had been cancelled before");
    }
    lines.push(sum);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(id: &str, before: Status, children: Option<u64>) -> Cancelled {
        let status = if before == Status::Failed { Status::Failed } else { Status::Cancelled };
        Cancelled { id: id.into(), before, status, children }
    }

    #[test]
    fn several_tasks_have_one_sentence_and_a_dry_run_one_for_each() {
        let results = |children: [Option<u64>; 4]| {
            let before = [Status::Pending, Status::Processing, Status::Failed, Status::Cancelled];
            let tasks = (1..).zip(before).zip(children);
            let tasks =
                tasks.map(|((id, before), children)| task(&format!("{id}"), before, children)).collect();
            TaskResults { tasks, refused: Vec::new() }
        };
        insta::assert_snapshot!(lines(&results([Some(0), Some(3), Some(4), Some(0)]), false).join("\n"), @r"
        3 stays FAILED; this cancelled 4 tasks of its flow
        2 tasks cancelled, and 3 tasks of their flows; 1 had been cancelled before
        ");
        insta::assert_snapshot!(lines(&results([None; 4]), true).join("\n"), @r"
        1 would be cancelled; it is PENDING
        2 would be cancelled; it is PROCESSING
        3 would stay FAILED; the rest of its flow would be cancelled
        4 is CANCELLED already
        2 tasks would be cancelled, of 4 ids
        ");
    }
}
