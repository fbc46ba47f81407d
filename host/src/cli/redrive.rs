//! `tqhost dead requeue`, `purge` and `export`.
//!
//! In: a queue, and which of its dead letters the command is for. Out: how many were requeued, deleted or
//! written; or one dead letter as a file for `tqhost try`. Not here: how all that match are requeued, deleted
//! or exported (`many`), how Redis carries it out (`queue::redrive`).

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use clap::Args;
use serde_json::json;

use super::context::open;
use super::exit::{CommandError, CommandResult};
use super::filters::{DeadFilterArgs, check_choice};
use super::kept::{KeptFile, WrittenFile};
use super::many::{self, ManyOptions};
use super::output::Out;
use super::progress::{CommandProgress, interrupted};
use super::readers::checked_rate;
use super::task_file::ExportedTask;
use super::text;
use crate::config::Config;
use crate::config::units::parse_rate;
use crate::operations::jobs::{Deed, JobOrder};
use crate::operations::{ManyDone, patiently};
use crate::queue::redrive::DeadChoice;
use crate::queue::{DeadLetter, Queue, RedriveError};

#[derive(Debug, Args)]
pub(super) struct RequeueArgs {
    #[command(flatten)]
    chosen: ChosenArgs,
    /// Count only, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// No faster than this, like 50/s: what failed once should not come back all at once
    #[arg(long, value_name = "RATE", value_parser = checked_rate)]
    rate: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct PurgeArgs {
    #[command(flatten)]
    chosen: ChosenArgs,
    /// Count only, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask before deleting with --all
    #[arg(long)]
    yes: bool,
    /// Keep nothing with --all: otherwise, `jobs undo` brings them back for 24 hours, and they take
    /// memory in Redis
    #[arg(long)]
    no_undo: bool,
    /// Write them to this new file, too, as JSON Lines; `dead import` brings them back
    #[arg(long, value_name = "FILE", conflicts_with_all = ["dry_run", "no_undo"])]
    out: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    #[command(flatten)]
    chosen: ChosenArgs,
    /// Write them to this new file, as JSON Lines with every byte of them, which `dead import` reads;
    /// without it, `--all` begins a job, whose file `tqhost jobs file` writes
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct ChosenArgs {
    /// The queue's name in the configuration
    queue: String,
    /// Task ids, or names that the queue's `id` gives to tasks
    #[arg(value_name = "ID", conflicts_with = "all")]
    ids: Vec<String>,
    /// All that are there now, or those of them that match the filters, which go with this option only
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    filter: DeadFilterArgs,
}

/// Finds out which dead letters are meant, and connects.
async fn choose(config: &Config, args: ChosenArgs) -> CommandResult<(Queue, DeadChoice)> {
    let filter = args.filter.filter(config)?;
    check_choice(&args.ids, args.all, &filter)?;
    let queue = open(config, &args.queue).await?;
    Ok((queue, if args.all { DeadChoice::All(Box::new(filter)) } else { DeadChoice::Ids(args.ids) }))
}

pub(super) async fn requeue(config: &Config, args: RequeueArgs, out: &mut Out) -> CommandResult {
    let RequeueArgs { chosen, dry_run, rate } = args;
    out.dry_run = dry_run;
    match choose(config, chosen).await? {
        (queue, DeadChoice::All(filter)) => {
            let order = JobOrder { rate, ..JobOrder::new(Deed::Requeue, *filter) };
            many::run(config, &queue, order, ManyOptions::default(), out).await
        }
        (queue, ids) => named(&queue, &ids, Deed::Requeue, rate, out).await,
    }
}

/// Deletes dead letters. Unless ids are named or `--yes` is given, it asks first.
pub(super) async fn purge(config: &Config, args: PurgeArgs, out: &mut Out) -> CommandResult {
    let PurgeArgs { chosen, dry_run, yes, no_undo, out: file } = args;
    out.dry_run = dry_run;
    let (queue, choice) = choose(config, chosen).await?;
    match (choice, file.as_deref()) {
        (DeadChoice::All(filter), file) => {
            let order = JobOrder { keep: !no_undo, ..JobOrder::new(Deed::Purge, *filter) };
            many::run(config, &queue, order, ManyOptions { asks: !yes, file }, out).await
        }
        (DeadChoice::Ids(ids), Some(path)) => {
            let (file, succeeded) = write_named(&queue, &ids, path, true).await?;
            let skipped = (ids.len() as u64).saturating_sub(succeeded);
            let done = ManyDone { succeeded, skipped, ..ManyDone::default() };
            many::tell(Deed::Purge, &done, Some(file), out);
            end(skipped)
        }
        (ids, None) => named(&queue, &ids, Deed::Purge, None, out).await,
    }
}

/// Requeues or deletes the dead letters that are named.
async fn named(
    queue: &Queue,
    ids: &DeadChoice,
    deed: Deed,
    rate: Option<String>,
    out: &mut Out,
) -> CommandResult {
    let what = deed.on_named(out.dry_run, rate.and_then(|rate| parse_rate(&rate).ok()))?;
    let step =
        CommandProgress::begin()?.long_step("looking for dead letters", queue.redrive(ids, what)).await;
    let step = step.ok_or_else(|| interrupted(&known(0, !out.dry_run, deed.done())))?;
    let done = ManyDone::from(step.map_err(|error| failed(error, out.dry_run, deed.done()))?);
    many::tell(deed, &done, None, out);
    end(done.skipped)
}

/// Prints one dead letter, or writes several into a file, here or in a job. All of them stay where they are.
pub(super) async fn export(config: &Config, args: ExportArgs, out: &mut Out) -> CommandResult {
    let ExportArgs { chosen, out: path } = args;
    if path.is_none() && chosen.ids.len() > 1 {
        let why = "one dead letter is printed, as `tqhost try` reads it: add --out FILE for several";
        return Err(CommandError::Usage(why.into()));
    }
    let (queue, choice) = choose(config, chosen).await?;
    let (file, skipped) = match (choice, path) {
        (DeadChoice::All(filter), None) => {
            let order = JobOrder::new(Deed::Export, *filter);
            return many::run(config, &queue, order, ManyOptions::default(), out).await;
        }
        (DeadChoice::Ids(ids), None) => {
            for id in &ids {
                let task = ExportedTask::of(&letter(&queue, id).await?, &queue.rules, config)?;
                out.line(task.write());
            }
            return Ok(());
        }
        (DeadChoice::All(filter), Some(path)) => {
            (KeptFile::create(&path)?.filled(&queue, &filter).await?.told(), 0)
        }
        (DeadChoice::Ids(ids), Some(path)) => {
            let (file, _) = write_named(&queue, &ids, &path, false).await?;
            let skipped = (ids.len() as u64).saturating_sub(file.written);
            (file, skipped)
        }
    };
    let WrittenFile { out: name, written } = file;
    let why = if skipped == 0 { "" } else { " (not dead)" };
    let letters = text::plural(written, "dead letter");
    let view = json!({ "written": written, "skipped": skipped, "out": name });
    out.show(&view, |_| format!("{letters} written to {name}, {skipped} skipped{why}"));
    end(skipped)
}

/// The end of a command on dead letters that were named: exit code 1 if it could not act on one of them.
fn end(skipped: u64) -> CommandResult {
    if skipped > 0 { Err(CommandError::Reported) } else { Ok(()) }
}

/// A dead letter that has to be there.
pub(super) async fn letter(queue: &Queue, id: &str) -> CommandResult<DeadLetter> {
    let name = &queue.rules.name;
    let letter = patiently(|| queue.dead_letter(id)).await?;
    Ok(letter.ok_or_else(|| {
        anyhow!("queue {name} has no dead letter {id:?}; `tqhost dead list {name}` shows those it has")
    })?)
}

/// Writes the dead letters with these ids into a file. With `deletes`, it then deletes those that are in the
/// file. Returns the file, and how many were deleted.
async fn write_named(
    queue: &Queue,
    ids: &[String],
    path: &Path,
    deletes: bool,
) -> CommandResult<(WrittenFile, u64)> {
    let (mut file, mut progress) = (KeptFile::create(path)?, CommandProgress::begin()?);
    let step = async {
        let letters = patiently(|| queue.dead_of(ids)).await?;
        file.add(&letters)?;
        let entries = letters.iter().map(|letter| letter.entry.as_str()).filter(|_| deletes);
        Ok::<_, CommandError>(queue.delete_dead(&entries.collect::<Vec<_>>()).await?)
    };
    let done = progress.long_step("looking for dead letters", Box::pin(step)).await;
    let cut = || Err(interrupted(&known(0, deletes, if deletes { "deleted" } else { "written" })));
    match done.unwrap_or_else(cut) {
        Ok(deleted) => Ok((file.told(), deleted)),
        Err(error) => {
            // The file stays if the dead letters that are in it may have been deleted.
            if !deletes || file.written == 0 {
                file.remove();
            }
            Err(error)
        }
    }
}

fn failed(error: RedriveError, dry_run: bool, what: &str) -> CommandError {
    let RedriveError { cause, succeeded, in_doubt } = error;
    if dry_run {
        return cause.into();
    }
    anyhow::Error::new(cause).context(known(succeeded, in_doubt, what)).into()
}

/// How many dead letters were `what`, for the error of a command that did not come to its end.
fn known(succeeded: u64, in_doubt: bool, what: &str) -> String {
    match (succeeded, in_doubt) {
        (0, false) => format!("nothing was {what}"),
        (0, true) => {
            format!("it is not known whether anything was {what}; run the command again to be sure")
        }
        (done, in_doubt) => format!(
            "{}{} {what}, not all of them; run the command again to go on",
            if in_doubt { "at least " } else { "" },
            text::plural(done, "dead letter")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_command_says_what_is_known() {
        let table = [
            (0, false, "nothing was deleted"),
            (0, true, "it is not known whether anything was deleted; run the command again to be sure"),
            (1, false, "1 dead letter deleted, not all of them; run the command again to go on"),
            (200, true, "at least 200 dead letters deleted, not all of them; run the command again to go on"),
        ];
        for (succeeded, in_doubt, told) in table {
            assert_eq!(known(succeeded, in_doubt, "deleted"), told);
        }
    }
}
