//! `tqhost cancel`: cancels a task, or all that match.
//!
//! In: a queue's name, and a task's id or alias, or filters. Out: a sentence, or an object as JSON. It may be
//! repeated: the second time changes nothing. Not here: what is cancelled with a task (`operations`), how
//! Redis and the hosts carry it out (`queue`, `worker`).

use std::time::Duration;

use super::args::CancelArgs;
use super::confirm::{can_ask, confirm};
use super::context::{open, rules};
use super::exit::CommandError;
use super::filters::only_with_all;
use super::output::Out;
use super::progress::{CommandProgress, StepEnd, interrupted};
use super::text;
use crate::config::Config;
use crate::operations::{self, BulkCancel, BulkCancelled, CANCELLABLE, Cancelled};
use crate::queue::listing::ListedState;
use crate::queue::{Queue, Status, TaskFilter};

/// For how long one step looks at tasks, so that Ctrl-C ends the command soon.
const STEP_TIME: Duration = Duration::from_secs(1);
/// The message where nobody can be asked.
const ALONE: &str = "cancel --all cancels all that match: add --yes where nobody can be asked";

pub(super) async fn run(config: &Config, args: CancelArgs, out: &mut Out) -> Result<(), CommandError> {
    let CancelArgs { queue: name, id, state, filter, dry_run, yes, .. } = args;
    let filter = filter.filter(config);
    if let Some(id) = id {
        only_with_all(&filter, false)?;
        return one(config, &open(config, &name).await?, &id, out).await;
    }
    rules(config, &name)?;
    if !dry_run && !yes && !can_ask() {
        return Err(CommandError::Usage(ALONE.into()));
    }
    let state: Option<ListedState> = state.as_deref().and_then(|state| state.parse().ok());
    let states = state.as_ref().map_or(&CANCELLABLE[..], std::slice::from_ref);
    let queue = open(config, &name).await?;
    let mut many =
        ManyTasks { config, queue: &queue, states, filter: &filter, only_waiting: false, begin: None };
    if !dry_run && !yes {
        let question = format!("Cancel {} of {name}?", text::plural(many.count().await?, "task"));
        confirm(&question, ALONE, "nothing was cancelled").await?;
    }
    let done = many.run(dry_run).await?;
    match out.json {
        true => out.json(&done),
        false => out.line(sentence(&done, dry_run, "had ended meanwhile")),
    }
    Ok(())
}

/// Tasks that are cancelled together.
pub(super) struct ManyTasks<'m> {
    pub config: &'m Config,
    pub queue: &'m Queue,
    pub states: &'m [ListedState],
    pub filter: &'m TaskFilter,
    /// Tasks that a host has taken stay as they are.
    pub only_waiting: bool,
    /// The cursor of those that were counted. None: all that are there.
    pub begin: Option<String>,
}

impl ManyTasks<'_> {
    /// Counts them, before somebody is asked. From then on they are those that were there, and none that are
    /// added later.
    pub(super) async fn count(&mut self) -> Result<u64, CommandError> {
        self.begin = Some(operations::cancel_walk(self.queue, self.states).await?);
        Ok(self.run(true).await?.succeeded)
    }

    /// Cancels them all, or counts them, in steps.
    pub(super) async fn run(&self, dry_run: bool) -> Result<BulkCancelled, CommandError> {
        let ManyTasks { config, queue, states, filter, only_waiting, .. } = *self;
        let mut progress = CommandProgress::begin()?;
        let mut sum = BulkCancelled { next: self.begin.clone(), ..BulkCancelled::default() };
        loop {
            let cursor = sum.next.take();
            let bulk = BulkCancel {
                states,
                filter,
                cursor: cursor.as_deref(),
                only_waiting,
                dry_run,
                time: STEP_TIME,
            };
            let step = Box::pin(operations::cancel_all(&config.queues, queue, &bulk, &mut sum));
            match progress.step(step).await {
                StepEnd::Done(Ok(())) => {}
                StepEnd::Done(Err(error)) => {
                    return Err(CommandError::from(error).context(&so_far(&sum, true)));
                }
                StepEnd::Cut => return Err(interrupted(&so_far(&sum, true))),
            }
            if sum.next.is_none() {
                return Ok(sum);
            }
            if progress.is_interrupted() {
                return Err(interrupted(&so_far(&sum, false)));
            }
            let what = if dry_run { "counted" } else { "cancelled" };
            progress.tell(|| {
                format!("{} {what}, {} looked at", text::plural(sum.succeeded, "task"), sum.examined)
            });
        }
    }
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
        let with = match children {
            0 => "no task of its flow goes on".to_owned(),
            children => format!("this cancelled {} of its flow", text::plural(children, "task")),
        };
        out.line(format!("{} stays FAILED; {with}", text::escape(&id)));
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
