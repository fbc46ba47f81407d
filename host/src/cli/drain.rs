//! `tqhost drain`: cancels what waits in a queue; what runs goes on.
//!
//! In: a queue's name, filters. Out: how many were cancelled. With `--out`, each task is in a file before it
//! is cancelled, and `dead import` brings it back as a dead letter. Not here: how tasks are found and
//! cancelled (`operations::cancel`).

use std::path::Path;

use serde_json::json;

use super::args::DrainArgs;
use super::context::open;
use super::exit::CommandError;
use super::kept::KeptFile;
use super::many::{self, sentence, view};
use super::output::Out;
use super::progress::{CommandProgress, StepEnd, interrupted};
use super::text;
use crate::config::Config;
use crate::operations::jobs::{Deed, JobOrder, begin, states};
use crate::operations::{CancelWalk, ManyDone, OperationError, cancel_waiting, drained_lines, patiently};
use crate::queue::Queue;

pub(super) async fn run(config: &Config, args: DrainArgs, out: &mut Out) -> Result<(), CommandError> {
    let DrainArgs { queue: name, filter, dry_run, yes, out: file } = args;
    out.dry_run = dry_run;
    let mut order = JobOrder::new(Deed::Drain, filter.filter(config)?);
    let queue = open(config, &name).await?;
    let Some(file) = file else { return many::run(config, &queue, order, !yes, out).await };
    if !yes {
        order.counted = Some(many::ask(&queue, &order).await?);
    }
    into_file(config, &queue, &order, &file, out).await
}

async fn into_file(
    config: &Config,
    queue: &Queue,
    order: &JobOrder,
    path: &Path,
    out: &mut Out,
) -> Result<(), CommandError> {
    let (mut file, mut done) = (KeptFile::create(path)?, ManyDone::default());
    let ended = keep_and_cancel(config, (queue, order), &mut file, &mut done).await;
    let (name, written) = (file.name(), file.written);
    if ended.is_err() && written == 0 {
        file.remove();
    }
    ended?;
    if out.json {
        let mut view = view(Deed::Drain, &done);
        (view["out"], view["written"]) = (json!(name), json!(written));
        out.json(&view);
        return Ok(());
    }
    out.line(format!("{}; {name} has {written}", sentence(Deed::Drain, &done, false)));
    Ok(())
}

async fn keep_and_cancel(
    config: &Config,
    (queue, order): (&Queue, &JobOrder),
    file: &mut KeptFile,
    sum: &mut ManyDone,
) -> Result<(), CommandError> {
    let mut progress = CommandProgress::begin()?;
    let (filter, states) = (&order.filter, states(Deed::Drain, None));
    let begin = match &order.counted {
        Some((begin, _)) => begin.clone(),
        None => begin(queue, Deed::Drain, None).await?,
    };
    let mut walk = CancelWalk::new(states, Some(&begin))?;
    loop {
        let read = async {
            let page = walk.page(queue, filter).await?;
            Ok::<_, OperationError>((page, patiently(|| queue.now_ms()).await?))
        };
        let (page, now_ms) = match progress.step(read).await {
            StepEnd::Done(page) => page.map_err(|error| stopped(error, sum, false))?,
            StepEnd::Cut => return Err(interrupted(&so_far(sum, false))),
        };
        let Some(mut page) = page else { return Ok(()) };
        sum.examined += page.examined;
        // A task that waits for its flow cannot be written, so it stays.
        page.tasks.retain(|task| !task.waits_for_flow());
        let lines = drained_lines(&queue.rules.name, &page.tasks, now_ms);
        file.add(&lines).map_err(|error| error.context(&so_far(sum, false)))?;
        let step = Box::pin(cancel_waiting(&config.queues, queue, &page.tasks, sum));
        match progress.step(step).await {
            StepEnd::Done(Ok(())) => {}
            StepEnd::Done(Err(error)) => return Err(stopped(error, sum, true)),
            StepEnd::Cut => return Err(interrupted(&so_far(sum, true))),
        }
        if progress.is_interrupted() {
            return Err(interrupted(&format!("{}; {} has them", so_far(sum, false), file.name())));
        }
        progress.tell(|| format!("{} written and cancelled", text::plural(sum.succeeded, "task")));
    }
}

/// The error of a command that did not end. `in_doubt`: it may have done more than it knows.
fn stopped(error: OperationError, sum: &ManyDone, in_doubt: bool) -> CommandError {
    let failed = CommandError::from(error);
    // To run it again would not help.
    if sum.succeeded == 0 && failed.is_misfit() {
        return failed;
    }
    failed.context(&so_far(sum, in_doubt))
}

/// How far a command came that did not end.
fn so_far(sum: &ManyDone, in_doubt: bool) -> String {
    let least = if in_doubt { "at least " } else { "" };
    let many = text::plural(sum.succeeded, "task");
    format!("{least}{many} cancelled, not all of them; run the command again to go on")
}
