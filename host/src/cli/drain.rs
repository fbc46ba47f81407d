//! `tqhost drain`: cancels what waits in a queue; what runs goes on.
//!
//! In: a queue's name, filters. Out: how many were cancelled. With `--out`, each task is in a file before it
//! is cancelled, and `dead import` brings it back as a dead letter. Not here: how tasks are found and
//! cancelled (`operations::cancel`).

use std::path::Path;

use serde::Serialize;

use super::args::DrainArgs;
use super::cancel::{ManyTasks, sentence, so_far, stopped};
use super::confirm::confirm;
use super::context::open;
use super::exit::CommandError;
use super::kept::KeptFile;
use super::output::Out;
use super::progress::{CommandProgress, StepEnd, interrupted};
use super::text;
use crate::config::Config;
use crate::operations::jobs::Deed;
use crate::operations::{
    BulkCancelled, CancelWalk, OperationError, cancel_waiting, drained_lines, patiently,
};

/// Why some tasks are skipped.
const WHY: &str = "had ended or begun meanwhile";

/// The result of a drain into a file.
#[derive(Serialize)]
struct DrainedInto {
    #[serde(flatten)]
    done: BulkCancelled,
    out: String,
    /// How many the file has.
    written: u64,
}

pub(super) async fn run(config: &Config, args: DrainArgs, out: &mut Out) -> Result<(), CommandError> {
    let DrainArgs { queue: name, filter, dry_run, yes, out: file } = args;
    out.dry_run = dry_run;
    let filter = filter.filter(config)?;
    let queue = open(config, &name).await?;
    let filter = &filter;
    let mut many = ManyTasks { queue: &queue, filter, deed: Deed::Drain, only: None, counted: None };
    if !dry_run && !yes {
        let which = if filter.is_empty() { "that wait in" } else { "that wait and match in" };
        let count = text::plural(many.count().await?, "task");
        confirm(&format!("Cancel {count} {which} {name}?"), "--yes", "nothing was cancelled").await?;
    }
    if let Some(file) = file {
        return into_file(config, &many, &file, out).await;
    }
    let done = many.run(config, dry_run).await?;
    match out.json {
        true => out.json(&done),
        false => out.line(sentence(&done, dry_run, WHY)),
    }
    Ok(())
}

async fn into_file(
    config: &Config,
    many: &ManyTasks<'_>,
    path: &Path,
    out: &mut Out,
) -> Result<(), CommandError> {
    let (mut file, mut done) = (KeptFile::create(path)?, BulkCancelled::default());
    let mut progress = CommandProgress::begin()?;
    let ended = keep_and_cancel(config, many, &mut file, &mut done, &mut progress).await;
    drop(progress);
    let (name, written) = (file.name(), file.written);
    if ended.is_err() && written == 0 {
        file.remove();
    }
    ended?;
    if out.json {
        out.json(&DrainedInto { done, out: name, written });
        return Ok(());
    }
    out.line(format!("{}; {name} has {written}", sentence(&done, false, WHY)));
    Ok(())
}

async fn keep_and_cancel(
    config: &Config,
    many: &ManyTasks<'_>,
    file: &mut KeptFile,
    sum: &mut BulkCancelled,
    progress: &mut CommandProgress,
) -> Result<(), CommandError> {
    let (queue, filter, states) = (many.queue, many.filter, many.states());
    let mut walk = CancelWalk::new(states, many.counted.as_ref().map(|(begin, _)| begin.as_str()))?;
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
