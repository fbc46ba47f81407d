//! `tqhost cancel`: cancels a task, several, or all that match.
//!
//! In: a queue's name, and ids or aliases of tasks, or filters. Out: a sentence, or an object as JSON; of
//! several tasks also which were not cancelled and why, and then exit code 1. It may be repeated: the second
//! time changes nothing. With `--dry-run` the first time changes nothing, either. Not here: what is cancelled
//! with a task (`operations`), how Redis and the hosts carry it out (`queue`, `worker`).

use std::time::Duration;

use serde::Serialize;

use super::args::CancelArgs;
use super::confirm::{confirm, show_sample};
use super::context::open;
use super::exit::CommandError;
use super::filters::check_choice;
use super::jobs::carry_out;
use super::output::Out;
use super::progress::{CommandProgress, StepEnd, interrupted};
use super::refused::{RefusedTask, TaskResults, each};
use super::text;
use crate::config::Config;
use crate::operations::jobs::{self, BulkJob, Deed, JobOrder};
use crate::operations::{
    self, BulkCancel, BulkCancelled, CancelPreview, Cancelled, MOST_IDS, OperationError,
};
use crate::queue::listing::ListedState;
use crate::queue::{Queue, Status, TaskFilter};

/// For how long one step looks at tasks, so that Ctrl-C ends the command soon.
const STEP_TIME: Duration = Duration::from_secs(1);

pub(super) async fn run(config: &Config, args: CancelArgs, out: &mut Out) -> Result<(), CommandError> {
    let CancelArgs { queue: name, ids, all, state, filter, dry_run, yes } = args;
    out.dry_run = dry_run;
    let filter = filter.filter(config)?;
    check_choice(&ids, all, &filter)?;
    if ids.len() > MOST_IDS {
        let why = format!("{} ids are too many for one command: it takes {MOST_IDS}", ids.len());
        return Err(CommandError::Usage(why));
    }
    let queue = open(config, &name).await?;
    if !all {
        return match (&ids[..], dry_run) {
            ([id], false) => one(config, &queue, id, out).await,
            ([id], true) => look(&queue, id, out).await,
            _ => several(config, &queue, &ids, dry_run, out).await,
        };
    }
    let state: Option<ListedState> = state.as_deref().and_then(|state| state.parse().ok());
    let mut many =
        ManyTasks { queue: &queue, filter: &filter, deed: Deed::Cancel, only: state, counted: None };
    if !dry_run && !yes {
        let question = format!("Cancel {} of {name}?", text::plural(many.count().await?, "task"));
        confirm(&question, "--yes", "nothing was cancelled").await?;
    }
    let done = many.run(config, dry_run).await?;
    match out.json {
        true => out.json(&done),
        false => out.line(sentence(&done, dry_run, "had ended meanwhile")),
    }
    Ok(())
}

/// Tasks that are cancelled together.
pub(super) struct ManyTasks<'m> {
    pub queue: &'m Queue,
    pub filter: &'m TaskFilter,
    pub deed: Deed,
    pub only: Option<ListedState>,
    /// The cursor of the tasks that were counted, and their number. None: the tasks that are there.
    pub counted: Option<(String, u64)>,
}

impl ManyTasks<'_> {
    pub(super) fn states(&self) -> &[ListedState] {
        jobs::states(self.deed, self.only.as_ref())
    }

    /// Counts the tasks, and shows some, before somebody is asked. Tasks that are added after the count are
    /// left alone.
    pub(super) async fn count(&mut self) -> Result<u64, CommandError> {
        let begin = jobs::begin(self.queue, self.deed, self.only.as_ref()).await?;
        let counted = self.look(Some(begin.clone())).await?;
        show_sample(&counted.sample.unwrap_or_default());
        self.counted = Some((begin, counted.succeeded));
        Ok(counted.succeeded)
    }

    /// Cancels them all, or only counts them.
    pub(super) async fn run(&self, config: &Config, dry_run: bool) -> Result<BulkCancelled, CommandError> {
        if dry_run {
            return self.look(None).await;
        }
        let counted = self.counted.clone().map(|(begin, count)| (begin, Some(count)));
        let order = JobOrder { only: self.only, counted, ..JobOrder::new(self.deed, self.filter.clone()) };
        let BulkJob { done, skipped, children, examined, .. } =
            Box::pin(carry_out(config, self.queue, order)).await?;
        Ok(BulkCancelled { succeeded: done, skipped, children, examined, next: None, sample: None })
    }

    /// Counts them in steps.
    async fn look(&self, begin: Option<String>) -> Result<BulkCancelled, CommandError> {
        let (queue, filter, states) = (self.queue, self.filter, self.states());
        let mut progress = CommandProgress::begin()?;
        let mut sum = BulkCancelled { next: begin, ..BulkCancelled::default() };
        loop {
            let (cursor, only_waiting) = (sum.next.take(), false);
            let (cursor, time) = (cursor.as_deref(), STEP_TIME);
            let bulk = BulkCancel { states, filter, cursor, only_waiting, dry_run: true, time };
            let step = Box::pin(operations::cancel_all(&[], queue, &bulk, &mut sum));
            match progress.step(step).await {
                StepEnd::Done(step) => step?,
                StepEnd::Cut => return Err(interrupted("nothing was cancelled")),
            }
            if sum.next.is_none() {
                return Ok(sum);
            }
            if progress.is_interrupted() {
                return Err(interrupted("nothing was cancelled"));
            }
            progress.tell(|| {
                format!("{} counted, {} looked at", text::plural(sum.succeeded, "task"), sum.examined)
            });
        }
    }
}

/// The error of a command that did not end. `in_doubt`: it may have done more than it knows.
pub(super) fn stopped(error: OperationError, sum: &BulkCancelled, in_doubt: bool) -> CommandError {
    let failed = CommandError::from(error);
    // To run it again would not help.
    if sum.succeeded == 0 && failed.is_misfit() {
        return failed;
    }
    failed.context(&so_far(sum, in_doubt))
}

/// How far a command came that did not end.
pub(super) fn so_far(sum: &BulkCancelled, in_doubt: bool) -> String {
    let least = if in_doubt { "at least " } else { "" };
    let many = text::plural(sum.succeeded, "task");
    format!("{least}{many} cancelled, not all of them; run the command again to go on")
}

/// Says what was done, for people. `why` says why some were skipped.
pub(super) fn sentence(done: &BulkCancelled, dry_run: bool, why: &str) -> String {
    let BulkCancelled { succeeded, skipped, children, .. } = done;
    let with = if *children > 0 {
        format!(", and {} of their flows", text::plural(*children, "task"))
    } else {
        String::new()
    };
    let many = text::plural(*succeeded, "task");
    match (dry_run, skipped) {
        (true, _) => format!("{many} would be cancelled"),
        (false, 0) => format!("{many} cancelled{with}"),
        (false, _) => format!("{many} cancelled{with}; {skipped} {why}"),
    }
}

/// Cancels one task.
async fn one(config: &Config, queue: &Queue, id: &str, out: &mut Out) -> Result<(), CommandError> {
    let cancelled = operations::cancel(&config.queues, queue, id).await?;
    if out.json {
        out.json(&cancelled);
        return Ok(());
    }
    let Cancelled { id, before, status, children } = cancelled;
    if status == Status::Failed {
        out.line(stays_failed(&id, children));
    } else {
        let with = if children > 0 {
            format!(", and {} of its flow with it", text::plural(children, "task"))
        } else {
            String::new()
        };
        out.line(format!("{} is cancelled{with}; it was {}", text::escape(&id), before.into_str()));
    }
    Ok(())
}

/// Says what became of the flow of a dead task.
fn stays_failed(id: &str, children: u64) -> String {
    let with = match children {
        0 => "no task of its flow goes on".to_owned(),
        children => format!("this cancelled {} of its flow", text::plural(children, "task")),
    };
    format!("{} stays FAILED; {with}", text::escape(id))
}

/// Tells what cancelling one task would do.
async fn look(queue: &Queue, id: &str, out: &mut Out) -> Result<(), CommandError> {
    let preview = operations::cancel_preview(queue, id).await?;
    match out.json {
        true => out.json(&preview),
        false => out.line(would_be(&preview.id, preview.before)),
    }
    Ok(())
}

fn would_be(id: &str, before: Status) -> String {
    let id = text::escape(id);
    match before {
        Status::Failed => format!("{id} would stay FAILED; the rest of its flow would be cancelled"),
        Status::Cancelled => format!("{id} is CANCELLED already"),
        before => format!("{id} would be cancelled; it is {}", before.into_str()),
    }
}

/// A task that was cancelled, or would be.
#[derive(Debug, Serialize)]
struct CancelledTask {
    id: String,
    /// The status that it had, or has.
    before: Status,
    status: Status,
    /// How many tasks of its flow were cancelled with it. None: nothing was cancelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    children: Option<u64>,
}

impl From<Cancelled> for CancelledTask {
    fn from(Cancelled { id, before, status, children }: Cancelled) -> CancelledTask {
        CancelledTask { id, before, status, children: Some(children) }
    }
}

impl From<CancelPreview> for CancelledTask {
    fn from(CancelPreview { id, before, status }: CancelPreview) -> CancelledTask {
        CancelledTask { id, before, status, children: None }
    }
}

/// Cancels the tasks with these ids, or tells what that would do, one after the other.
async fn several(
    config: &Config,
    queue: &Queue,
    ids: &[String],
    dry_run: bool,
    out: &mut Out,
) -> Result<(), CommandError> {
    let act = async |id: &str| cancel_or_look(config, queue, id, dry_run).await;
    let so_far = |results: &TaskResults<CancelledTask>| {
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

async fn cancel_or_look(
    config: &Config,
    queue: &Queue,
    id: &str,
    dry_run: bool,
) -> Result<CancelledTask, OperationError> {
    Ok(match dry_run {
        true => operations::cancel_preview(queue, id).await?.into(),
        false => operations::cancel(&config.queues, queue, id).await?.into(),
    })
}

/// Says what was done, for people: how many tasks were cancelled, and which of them are special; or what
/// would become of each.
fn lines(results: &TaskResults<CancelledTask>, dry_run: bool) -> Vec<String> {
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

    fn task(id: &str, before: Status, children: Option<u64>) -> CancelledTask {
        let status = if before == Status::Failed { Status::Failed } else { Status::Cancelled };
        CancelledTask { id: id.into(), before, status, children }
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
