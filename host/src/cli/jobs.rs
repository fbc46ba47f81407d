//! `tqhost jobs`, and the work of commands on all tasks that match, which is a job.
//!
//! In: an order, or a job's id. Out: how far it is. A command that begins a job carries it out while it runs;
//! after that hosts go on with it, so Ctrl-C and a lost terminal stop nothing. Not here: the steps
//! (`operations::jobs`).

use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use anyhow::anyhow;
use clap::{Args, Subcommand};
use serde::Serialize;

use super::context::connect;
use super::control::operator;
use super::exit::{CommandError, CommandResult};
use super::kept::KeptFile;
use super::output::{Out, Paint, Tone, note, sheet};
use super::progress::{CommandProgress, interrupted};
use super::table::{Cell, TextTable};
use super::text;
use crate::clock::now_ms;
use crate::config::Config;
use crate::mask::FieldMask;
use crate::operations::jobs::{self, BulkJob, Deed, JobOrder, JobState};
use crate::operations::{self, JobProgress, find_queue};
use crate::queue::{Link, Queue, TaskFilter};

/// The width of the bar of a job, in characters.
const BAR: usize = 24;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct JobsArgs {
    /// Show this job only
    id: Option<String>,
    #[command(subcommand)]
    command: Option<JobsCommand>,
}

#[derive(Debug, Subcommand)]
enum JobsCommand {
    /// Stop a job: what it has done stays, and it does no more
    Stop {
        /// The job's id
        id: String,
    },
    /// Pause a job
    Pause {
        /// The job's id
        id: String,
    },
    /// Let a paused job go on
    Resume {
        /// The job's id
        id: String,
    },
    /// Bring back what a drain or a purge has taken away, which its job keeps for 24 hours
    Undo {
        /// The job's id
        id: String,
    },
    /// Write what a job keeps or has exported to a file, as JSON Lines, which `dead import` reads
    File {
        /// The job's id
        id: String,
        /// A new file
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
}

pub(super) async fn run(config: &Config, args: JobsArgs, out: &mut Out) -> CommandResult {
    let link = connect(config).await?;
    let change = match args.command {
        Some(JobsCommand::Stop { id }) => Some((id, JobState::Stopped)),
        Some(JobsCommand::Pause { id }) => Some((id, JobState::Paused)),
        Some(JobsCommand::Resume { id }) => Some((id, JobState::Running)),
        Some(JobsCommand::Undo { id }) => return undo(config, &link, &id, out).await,
        Some(JobsCommand::File { id, out: file }) => return file_of(config, &link, &id, &file, out).await,
        None => None,
    };
    let job = match (change, args.id) {
        (Some((id, state)), _) => jobs::change(&link, &id, state, &operator()).await?,
        (None, Some(id)) => operations::with_kept(&config.queues, &link, &id).await?,
        (None, None) => {
            let all = jobs::list(&link).await?;
            match (out.json, all.is_empty()) {
                (true, _) => out.json(&all),
                (false, true) => out.line("No job is known."),
                (false, false) => out.line(table(&all, now_ms(), out.paint)),
            }
            return Ok(());
        }
    };
    out.show(&job, |paint| detail(&job, paint));
    Ok(())
}

async fn undo(config: &Config, link: &Link, id: &str, out: &mut Out) -> CommandResult {
    let mut progress = CommandProgress::begin()?;
    let who = operator();
    let undo = Box::pin(operations::undo(&config.queues, link, id, &who, ""));
    let job = progress.step(undo).await.ok_or_else(in_doubt)??;
    let queue = find_queue(&config.queues, &job.queue, link)?;
    let job = follow(config, &queue, job, progress).await?;
    out.show(&job, |_| format!("{}, {} skipped", figure(&job, false), job.skipped));
    Ok(())
}

async fn file_of(config: &Config, link: &Link, id: &str, path: &Path, out: &mut Out) -> CommandResult {
    let job = jobs::find(link, id).await?;
    let queue = find_queue(&config.queues, &job.queue, link)?;
    let (kept, letters) = operations::kept_of(&queue, &job).await?;
    let file = write_kept(&kept, letters, KeptFile::create(path)?).await?;
    out.show(&file, |_| format!("{} written to {}", text::plural(file.written, job.deed.noun()), file.out));
    Ok(())
}

/// Writes what a job keeps into the file: at least this number of tasks.
async fn write_kept(kept: &Queue, letters: u64, mut file: KeptFile) -> CommandResult<WrittenFile> {
    let mut progress = CommandProgress::begin()?;
    match file.add_all(kept, &TaskFilter::default(), &mut progress).await {
        Ok(()) if file.written < letters => {
            let written = file.written;
            file.remove();
            Err(anyhow!("{written} of {letters} were left when they were read: no file was written").into())
        }
        Ok(()) => Ok(WrittenFile::of(&file)),
        Err(error) => {
            // A part would be taken for the whole.
            file.remove();
            Err(error)
        }
    }
}

pub(super) fn table(all: &[BulkJob], now_ms: u64, paint: Paint) -> String {
    let mut table = TextTable::new(&["SKIPPED", "WHO", "LEFT", "BEGAN", "PART"])
        .id("JOB")
        .names(["QUEUE"])
        .fixed(["WORK", "STATE"])
        .figures(["DONE", "SKIPPED", "PART", "LEFT", "BEGAN"])
        .names(["WHO"]);
    for job in all {
        let (work, state): (&str, &str) = (job.deed.into(), job.state.into());
        table.row([
            job.id.as_str().into(),
            text::escape(&job.queue).into(),
            work.into(),
            Cell::tone(state, tone(job.state)),
            job.done.into(),
            job.skipped.into(),
            job.percent().unwrap_or_else(|| text::NONE.to_owned()).into(),
            job.left().map_or_else(|| text::NONE.to_owned(), text::age).into(),
            text::ago(job.started_at, now_ms).into(),
            text::escape(&job.who).into(),
        ]);
    }
    table.render(paint)
}

fn detail(job: &BulkJob, paint: Paint) -> String {
    let (work, state): (&str, &str) = (job.deed.into(), job.state.into());
    let mut lines = vec![
        ("job", job.id.clone()),
        ("queue", text::escape(&job.queue)),
        ("work", work.to_owned()),
        ("state", paint.tone(tone(job.state), state)),
        ("done", job.done.to_string()),
        ("skipped", job.skipped.to_string()),
        ("looked at", format!("{} of {}", job.examined, job.places.max(job.examined))),
        ("who", text::escape(&job.who)),
    ];
    lines.extend(job.from.as_ref().filter(|from| **from != job.id).map(|from| ("undoes", from.clone())));
    let now = now_ms();
    lines.extend(job.kept.as_ref().filter(|kept| kept.until > now).map(|kept| {
        let left = text::age(Duration::from_millis(kept.until - now));
        ("keeps", format!("{} for {left}", text::plural(kept.tasks, job.deed.noun())))
    }));
    lines.extend(job.percent().map(|part| ("part", part)));
    lines.extend(job.per_second().map(|rate| ("speed", format!("{rate:.0}/s"))));
    lines.extend(job.left().map(|left| ("left", text::age(left))));
    lines.extend(job.rate.as_deref().map(|rate| ("no faster than", text::escape(rate))));
    lines.extend((!job.why.is_empty()).then(|| ("why", text::escape(&job.why))));
    let host = if job.host.is_empty() { "nobody now".to_owned() } else { text::escape(&job.host) };
    lines.extend((!job.state.is_over()).then_some(("carried out by", host)));
    lines.extend(job.error.as_deref().map(|error| ("error", text::escape(error))));
    sheet(paint, &lines)
}

fn tone(state: JobState) -> Tone {
    match state {
        JobState::Running => Tone::Active,
        JobState::Paused | JobState::Stopped => Tone::Warning,
        JobState::Done => Tone::Good,
        JobState::Failed => Tone::Bad,
    }
}

/// The file into which a command writes what a job keeps. The names are stable.
#[derive(Debug, Serialize)]
pub(super) struct WrittenFile {
    pub out: String,
    /// How many lines it has.
    pub written: u64,
}

impl WrittenFile {
    pub(super) fn of(file: &KeptFile) -> WrittenFile {
        WrittenFile { out: file.name(), written: file.written }
    }
}

/// Begins a job and carries it out until it is over, which it may be by another process. After Ctrl-C, hosts
/// go on with it. With a path, what it keeps is in a new file in the end. Says how it can be undone.
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
        error.context(&format!("{}, which the job keeps: {}", figure(&job, false), ways_back(&job)))
    })?;
    Ok((job, Some(written)))
}

async fn begin_and_follow(config: &Config, queue: &Queue, order: JobOrder) -> CommandResult<BulkJob> {
    let mut progress = CommandProgress::begin()?;
    let order = JobOrder { who: operator(), ..order };
    let started = progress.step(Box::pin(jobs::start(&queue.link, queue, order))).await;
    follow(config, queue, started.ok_or_else(in_doubt)??, progress).await
}

fn in_doubt() -> CommandError {
    interrupted("the job may have begun: `tqhost jobs` tells")
}

/// Carries a job out until it is over.
async fn follow(
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
    let mut figure = figure(&job, false) + ", not all of them";
    if job.kept.is_some() && job.deed.can_undo() {
        figure += &format!("; for 24 hours, {}", ways_back(&job));
    }
    match job.state {
        JobState::Stopped => Err(anyhow!("job {} was stopped: {figure}", job.id).into()),
        JobState::Failed => Err(anyhow!("{}: {figure}", job.error.unwrap_or_default()).into()),
        _ => Ok(job),
    }
}

/// How much of a job is done.
fn figure(job: &BulkJob, in_doubt: bool) -> String {
    format!("{}{}", if in_doubt { "at least " } else { "" }, job.figure())
}

/// Says that a job goes on without the command.
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
    // To run it again would not help.
    if job.done == 0 && error.is_misfit() {
        return error;
    }
    let is_away = error.is_connection();
    // Cancelling a task may have ended between the task and its flow.
    let figure = figure(job, is_away || matches!(job.deed, Deed::Cancel | Deed::Drain));
    error.context(&match job.state.is_over() {
        true if job.deed == Deed::Export => format!("{figure}, not all of them"),
        true => format!("{figure}, not all of them; run the command again to go on"),
        false => goes_on(job, true),
    })
}

/// A line for a terminal.
fn bar(job: &BulkJob) -> String {
    let part = job.part().unwrap_or_default();
    let full = (part * BAR as f64) as usize;
    let mut line = format!(
        "[{}{}] {} {}, {} looked at",
        "#".repeat(full),
        ".".repeat(BAR - full),
        job.percent().unwrap_or_default(),
        figure(job, false),
        job.examined
    );
    line += &job.left().map(|left| format!(", {} left", text::age(left))).unwrap_or_default();
    line
}
