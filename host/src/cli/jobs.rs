//! `tqhost jobs`: shows the jobs of operators, pauses, stops and undoes them, and writes what they keep.
//!
//! In: a job's id, and what is to be done with the job. Out: a table, or one job as a sheet. Not here:
//! carrying a job out (`follow`), its steps (`operations::jobs`).

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::context::{connect, operator};
use super::exit::CommandResult;
use super::follow::{IN_DOUBT, follow, write_kept};
use super::kept::KeptFile;
use super::output::{Out, Paint, Tone, sheet};
use super::progress::CommandProgress;
use super::table::{Cell, TextTable};
use super::text;
use crate::clock::now_ms;
use crate::config::Config;
use crate::operations::jobs::{self, BulkJob, JobState};
use crate::operations::{self, find_queue};
use crate::queue::Link;

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
    let change = async |id: &str, state| jobs::change(&link, id, state, &operator()).await;
    let job = match args.command {
        Some(JobsCommand::Stop { id }) => change(&id, JobState::Stopped).await?,
        Some(JobsCommand::Pause { id }) => change(&id, JobState::Paused).await?,
        Some(JobsCommand::Resume { id }) => change(&id, JobState::Running).await?,
        Some(JobsCommand::Undo { id }) => return undo(config, &link, &id, out).await,
        Some(JobsCommand::File { id, out: path }) => return file(config, &link, &id, &path, out).await,
        None => match args.id {
            Some(id) => operations::with_kept(&config.queues, &link, &id).await?,
            None => {
                let all = jobs::list(&link).await?;
                out.show(&all, |paint| table(&all, now_ms(), paint));
                return Ok(());
            }
        },
    };
    out.show(&job, |paint| detail(&job, paint));
    Ok(())
}

async fn undo(config: &Config, link: &Link, id: &str, out: &mut Out) -> CommandResult {
    let mut progress = CommandProgress::begin()?;
    let who = operator();
    let no_reason = "";
    let undo = Box::pin(operations::undo(&config.queues, link, id, &who, no_reason));
    let job = progress.needed(IN_DOUBT, undo).await?;
    let queue = find_queue(&config.queues, &job.queue, link)?;
    let job = follow(config, &queue, job, progress).await?;
    out.show(&job, |_| format!("{}, {} skipped", job.figure(), job.skipped));
    Ok(())
}

async fn file(config: &Config, link: &Link, id: &str, path: &Path, out: &mut Out) -> CommandResult {
    let job = jobs::find(link, id).await?;
    let queue = find_queue(&config.queues, &job.queue, link)?;
    let (kept, letters) = operations::kept_of(&queue, &job).await?;
    let file = write_kept(&kept, letters, KeptFile::create(path)?).await?;
    out.show(&file, |_| format!("{} written to {}", text::plural(file.written, job.deed.noun()), file.out));
    Ok(())
}

fn table(all: &[BulkJob], now_ms: u64, paint: Paint) -> String {
    if all.is_empty() {
        return "No job is known.".to_owned();
    }
    let mut table = TextTable::with_spare(&["SKIPPED", "WHO", "LEFT", "BEGAN", "PART"])
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
        // It may look at more places than it counted when it began.
        ("looked at", format!("{} of {}", job.examined, job.places.max(job.examined))),
        ("who", text::escape(&job.who)),
    ];
    // The job of an import from a file names itself, as nothing is undone by it.
    let undoes = job.from.as_ref().filter(|from| **from != job.id);
    lines.extend(undoes.map(|from| ("undoes", from.clone())));
    let now = now_ms();
    lines.extend(job.kept.as_ref().filter(|kept| kept.until > now).map(|kept| {
        let left = text::age_ms(kept.until - now);
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
