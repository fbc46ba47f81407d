//! Carries out a job that a command has begun, until the job is over.
//!
//! In: the order for a job, or a job. Out: the job at its end, and the file with what it keeps. Hosts go on
//! with the job when the command ends before, so Ctrl-C and a lost terminal stop nothing. Not here: the steps
//! of a job (`operations::jobs`), the question before it and its result (`many`).

use std::path::Path;
use std::process;

use anyhow::anyhow;

use super::context::operator;
use super::exit::{CommandError, CommandResult};
use super::kept::{KeptFile, WrittenFile};
use super::output::{Out, note};
use super::progress::{CommandProgress, interrupted};
use super::text;
use crate::config::Config;
use crate::mask::FieldMask;
use crate::operations::jobs::{self, BulkJob, Deed, JobOrder, JobState};
use crate::operations::{self, JobProgress};
use crate::queue::{Queue, QueueError, TaskFilter};

/// The width of the bar of a job, in characters.
const BAR: usize = 24;
/// Said of a job whose beginning Ctrl-C has cut off.
pub(super) const IN_DOUBT: &str = "the job may have begun: `tqhost jobs` tells";

/// Begins a job, and carries it out until it is over. With a path, a new file gets what the job keeps; else a
/// note says how to get it.
pub(super) async fn carry_out(
    config: &Config,
    queue: &Queue,
    order: JobOrder,
    path: Option<&Path>,
    out: &Out,
) -> CommandResult<(BulkJob, Option<WrittenFile>)> {
    let file = path.map(KeptFile::create).transpose()?;
    let job = match begin_and_follow(config, queue, order).await {
        Ok(job) => job,
        Err(error) => {
            file.into_iter().for_each(KeptFile::remove);
            return Err(error);
        }
    };
    let Some(file) = file else {
        if job.kept.is_some() && !out.json {
            note(&format!("tqhost: for 24 hours, {}", ways_back(&job)));
        }
        return Ok((job, None));
    };
    let written = write_kept(&queue.kept_by(&job.id), job.done, file).await.map_err(|error| {
        error.context(&format!("{}, which the job keeps: {}", job.figure(), ways_back(&job)))
    })?;
    Ok((job, Some(written)))
}

/// Writes the tasks that a job keeps into the file. Fails if there are fewer than `expected`.
pub(super) async fn write_kept(kept: &Queue, expected: u64, file: KeptFile) -> CommandResult<WrittenFile> {
    let file = file.filled(kept, &TaskFilter::default()).await?;
    let written = file.written;
    if written < expected {
        file.remove();
        let why = format!("{written} of {expected} were left when they were read: no file was written");
        return Err(anyhow!(why).into());
    }
    Ok(file.told())
}

async fn begin_and_follow(config: &Config, queue: &Queue, order: JobOrder) -> CommandResult<BulkJob> {
    let mut progress = CommandProgress::begin()?;
    let order = JobOrder { who: operator(), ..order };
    let job = progress.needed(IN_DOUBT, Box::pin(jobs::start(&queue.link, queue, order))).await?;
    follow(config, queue, job, progress).await
}

/// Carries a job out until it is over. Another process may do some or all of it.
pub(super) async fn follow(
    config: &Config,
    queue: &Queue,
    mut job: BulkJob,
    mut progress: CommandProgress,
) -> CommandResult<BulkJob> {
    let me = format!("{} ({})", operator(), process::id());
    let mask = FieldMask::new(&config.admin.mask);
    loop {
        let step = Box::pin(operations::carry_on(&config.queues, queue, &mask, &job.id, &me));
        let wait = match progress.step(step).await {
            Some(Ok(JobProgress::Over(job))) => return over(job),
            Some(Ok(JobProgress::Goes(now, wait) | JobProgress::Waits(now, wait))) => {
                job = now;
                wait
            }
            Some(Ok(JobProgress::Failed(job, error))) => return Err(failed(&job, error.into())),
            Some(Err(error)) => return Err(failed(&job, error.into())),
            None => return Err(interrupted(&goes_on(&job, true))),
        };
        if !progress.is_interrupted() {
            progress.tell(|| bar(&job));
            progress.unless_interrupted(tokio::time::sleep(wait)).await;
        }
        if progress.is_interrupted() {
            return Err(match progress.step(Box::pin(jobs::release(&queue.link, &job.id, &me))).await {
                Some(Ok(job)) if job.state.is_over() => return over(job),
                Some(Ok(job)) => interrupted(&goes_on(&job, false)),
                _ => interrupted(&goes_on(&job, true)),
            });
        }
    }
}

/// How to get back what a job keeps.
fn ways_back(job: &BulkJob) -> String {
    let id = &job.id;
    let file = format!("`tqhost jobs file {id} --out FILE` writes them to a file");
    match job.deed.can_undo() {
        true => format!("{file}, and `tqhost jobs undo {id}` brings them back"),
        false => file,
    }
}

/// The result of a job that is over.
fn over(job: BulkJob) -> CommandResult<BulkJob> {
    let mut figure = format!("{}, not all of them", job.figure());
    if job.kept.is_some() && job.deed.can_undo() {
        figure += &format!("; for 24 hours, {}", ways_back(&job));
    }
    match job.state {
        JobState::Stopped => Err(anyhow!("job {} was stopped: {figure}", job.id).into()),
        JobState::Failed => Err(anyhow!("{}: {figure}", job.error.unwrap_or_default()).into()),
        _ => Ok(job),
    }
}

/// How much of a job is done. In doubt, the last step of the job may have done more.
fn figure(job: &BulkJob, in_doubt: bool) -> String {
    format!("{}{}", if in_doubt { "at least " } else { "" }, job.figure())
}

/// Says how much is done of a job that hosts go on with.
fn goes_on(job: &BulkJob, in_doubt: bool) -> String {
    let id = &job.id;
    format!(
        "{}, and hosts with this queue go on with it as job {id}: `tqhost jobs {id}` tells how far it is, \
         and `tqhost jobs stop {id}` stops it{}",
        figure(job, in_doubt),
        if job.keep { format!(". For 24 hours, {}", ways_back(job)) } else { String::new() }
    )
}

/// The error of a command whose step failed.
fn failed(job: &BulkJob, error: CommandError) -> CommandError {
    // To run the command again would not help.
    if job.done == 0 && error.is_caused_by(QueueError::is_misfit) {
        return error;
    }
    let is_away = error.is_caused_by(QueueError::is_connection);
    // A task may have been cancelled without the tasks of its flow, and is not counted then.
    let figure = figure(job, is_away || matches!(job.deed, Deed::Cancel | Deed::Drain));
    error.context(&match job.state.is_over() {
        true if job.deed == Deed::Export => format!("{figure}, not all of them"),
        true => format!("{figure}, not all of them; run the command again to go on"),
        false => goes_on(job, true),
    })
}

/// The progress of a job, as a line for a terminal.
fn bar(job: &BulkJob) -> String {
    let part = job.part().unwrap_or_default();
    let full = (part * BAR as f64) as usize;
    let mut line = format!(
        "[{}{}] {} {}, {} looked at",
        "#".repeat(full),
        ".".repeat(BAR - full),
        job.percent().unwrap_or_default(),
        job.figure(),
        job.examined
    );
    if let Some(left) = job.left() {
        line += &format!(", {} left", text::age(left));
    }
    line
}
