//! `tqhost cancel`: cancels a task, or all that match.
//!
//! In: a queue's name, and a task's id or alias, or filters. Out: a sentence, or an object as JSON. It may be
//! repeated: the second time changes nothing. Not here: what is cancelled with a task (`operations`), how
//! Redis and the hosts carry it out (`queue`, `worker`).

use super::args::CancelArgs;
use super::confirm::{can_ask, confirm};
use super::context::{open, rules};
use super::exit::CommandError;
use super::filters::only_with_all;
use super::output::Out;
use super::text;
use crate::config::Config;
use crate::operations::{self, BulkCancel, BulkCancelled, Cancelled};
use crate::queue::{Queue, Status};

/// The message where nobody can be asked.
const ALONE: &str = "cancel --all cancels all that match: add --yes where nobody can be asked";

pub(super) async fn run(config: &Config, args: CancelArgs, out: &mut Out) -> Result<(), CommandError> {
    let CancelArgs { queue: name, id, state, filter, dry_run, yes, .. } = args;
    let filter = filter.filter();
    if let Some(id) = id {
        only_with_all(&filter, false)?;
        return one(config, &open(config, &name).await?, &id, out).await;
    }
    rules(config, &name)?;
    if !dry_run && !yes && !can_ask() {
        return Err(CommandError::Usage(ALONE.into()));
    }
    let state = state.as_deref().and_then(|state| state.parse().ok());
    let queue = open(config, &name).await?;
    let all = async |dry_run: bool| {
        let mut sum = BulkCancelled::default();
        loop {
            let cursor = sum.next.take();
            let bulk = BulkCancel { state, filter: &filter, cursor: cursor.as_deref(), dry_run };
            let done = operations::cancel_all(&config.queues, &queue, &bulk).await?;
            sum.succeeded += done.succeeded;
            sum.skipped += done.skipped;
            sum.children += done.children;
            sum.examined += done.examined;
            if done.next.is_none() {
                return Ok::<BulkCancelled, CommandError>(sum);
            }
            sum.next = done.next;
        }
    };
    if !dry_run && !yes {
        let question = format!("Cancel {} of {name}?", text::plural(all(true).await?.succeeded, "task"));
        confirm(&question, ALONE, "nothing was cancelled")?;
    }
    let done = all(dry_run).await?;
    if out.json {
        out.json(&done);
        return Ok(());
    }
    let BulkCancelled { succeeded, skipped, children, .. } = done;
    let with = if children > 0 {
        format!(", and {} of their flows", text::plural(children, "task"))
    } else {
        String::new()
    };
    out.line(match (dry_run, skipped) {
        (true, _) => format!("{} would be cancelled", text::plural(succeeded, "task")),
        (false, 0) => format!("{} cancelled{with}", text::plural(succeeded, "task")),
        (false, _) => {
            format!("{} cancelled{with}; {skipped} had ended meanwhile", text::plural(succeeded, "task"))
        }
    });
    Ok(())
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
