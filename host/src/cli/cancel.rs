//! `tqhost cancel`: cancels a task, several, or all that match.
//!
//! In: a queue's name, and ids or aliases of tasks, or filters. Out: a sentence, or an object as JSON; of
//! several tasks also which were not cancelled and why, and then exit code 1. It may be repeated: the second
//! time changes nothing. With `--dry-run` the first time changes nothing, either. Not here: what is cancelled
//! with a task (`operations`), all that match (`many`), how hosts carry it out (`worker`).

use super::args::CancelArgs;
use super::context::open;
use super::exit::{CommandError, CommandResult};
use super::filters::check_choice;
use super::many;
use super::output::Out;
use super::refused::{RefusedTask, TaskResults, each};
use super::text;
use crate::config::Config;
use crate::operations::jobs::{Deed, JobOrder};
use crate::operations::{self, Cancelled, MOST_IDS};
use crate::queue::{Queue, Status};

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
        return many::run(config, &queue, order, (!yes, None), out).await;
    }
    if let [id] = &ids[..] {
        let task = operations::cancel(&config.queues, &queue, id, dry_run).await?;
        out.show(&task, |_| told(&task));
        return Ok(());
    }
    several(config, &queue, &ids, out).await
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

/// Cancels the tasks with these ids, or tells what that would do, one after the other.
async fn several(config: &Config, queue: &Queue, ids: &[String], out: &mut Out) -> CommandResult {
    let dry_run = out.dry_run;
    let act = async |id: &str| operations::cancel(&config.queues, queue, id, dry_run).await;
    let so_far = |results: &TaskResults<Cancelled>| {
        format!("{} of {} gone through, in their order", results.done(), text::plural(ids.len() as u64, "id"))
    };
    let (results, end) = each(ids, act, so_far).await?;
    if out.json {
        out.json(&results);
    } else {
        lines(&results, dry_run).iter().for_each(|line| out.line(line));
        results.refused.iter().for_each(RefusedTask::tell);
    }
    end
}

/// Says what was done, for people: how many tasks were cancelled, and which of them are special; or what
/// would become of each.
fn lines(results: &TaskResults<Cancelled>, dry_run: bool) -> Vec<String> {
    let count =
        |matches: fn(Status) -> bool| results.tasks.iter().filter(|task| matches(task.before)).count() as u64;
    let (cancelled, before) = (count(|before| !before.is_end()), count(|it| it == Status::Cancelled));
    let many = text::plural(cancelled, "task");
    if dry_run {
        let mut lines: Vec<String> =
            results.tasks.iter().map(|task| would_be(&task.id, task.before)).collect();
        lines.push(format!("{many} would be cancelled, of {}", text::plural(results.done() as u64, "id")));
        return lines;
    }
    let (dead, others): (Vec<_>, Vec<_>) =
        results.tasks.iter().partition(|task| task.before == Status::Failed);
    let mut lines: Vec<String> =
        dead.iter().map(|task| stays_failed(&task.id, task.children.unwrap_or(0))).collect();
    let mut sum = format!("{many} cancelled");
    let children: u64 = others.iter().filter_map(|task| task.children).sum();
    if children > 0 {
        sum += &format!(", and {} of their flows", text::plural(children, "task"));
    }
    if before > 0 {
        sum += &format!("; {before} had been cancelled before");
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
    fn several_tasks_have_one_sentence() {
        let tasks = vec![
            task("1", Status::Pending, Some(0)),
            task("2", Status::Processing, Some(3)),
            task("3", Status::Failed, Some(4)),
            task("4", Status::Cancelled, Some(0)),
        ];
        let results = TaskResults { tasks, refused: Vec::new() };
        assert_eq!(
            lines(&results, false),
            [
                "3 stays FAILED; this cancelled 4 tasks of its flow",
                "2 tasks cancelled, and 3 tasks of their flows; 1 had been cancelled before",
            ]
        );
    }

    #[test]
    fn a_look_tells_what_would_become_of_each() {
        let tasks = vec![
            task("1", Status::Pending, None),
            task("3", Status::Failed, None),
            task("4", Status::Cancelled, None),
        ];
        let results = TaskResults { tasks, refused: Vec::new() };
        assert_eq!(
            lines(&results, true),
            [
                "1 would be cancelled; it is PENDING",
                "3 would stay FAILED; the rest of its flow would be cancelled",
                "4 is CANCELLED already",
                "1 task would be cancelled, of 3 ids",
            ]
        );
    }
}
