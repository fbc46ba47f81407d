//! `tqhost dead requeue`, `purge` and `export --out`.
//!
//! In: a queue, and which of its dead letters the command is for. Out: how many were requeued, deleted or
//! written. Not here: how all that match are requeued or deleted (`many`), how Redis carries it out
//! (`queue::redrive`).

use std::path::Path;

use serde_json::json;

use super::args::RedriveArgs;
use super::context::open;
use super::exit::{CommandError, CommandResult};
use super::filters::check_choice;
use super::jobs::WrittenFile;
use super::kept::KeptFile;
use super::many;
use super::output::Out;
use super::progress::{CommandProgress, interrupted};
use super::text;
use crate::config::Config;
use crate::config::units::parse_rate;
use crate::operations::jobs::{Deed, JobOrder};
use crate::operations::{ManyDone, patiently};
use crate::queue::redrive::DeadChoice;
use crate::queue::{Queue, RedriveError, TaskFilter};

/// Which dead letters of a queue a command is for.
pub(super) struct Chosen {
    queue: Queue,
    choice: DeadChoice,
}

impl Chosen {
    /// How the command ends: with exit code 1 if it was for an id on which it could not act. Of all that
    /// match, none is missing.
    fn end(&self, skipped: u64) -> CommandResult {
        match self.choice {
            DeadChoice::Ids(_) if skipped > 0 => Err(CommandError::Reported),
            _ => Ok(()),
        }
    }
}

async fn choose(config: &Config, args: RedriveArgs) -> CommandResult<Chosen> {
    let filter = args.filter.filter(config)?;
    check_choice(&args.ids, args.all, &filter)?;
    let queue = open(config, &args.queue).await?;
    let choice = if args.all { DeadChoice::All(Box::new(filter)) } else { DeadChoice::Ids(args.ids) };
    Ok(Chosen { queue, choice })
}

pub(super) async fn requeue(
    config: &Config,
    args: RedriveArgs,
    rate: Option<String>,
    out: &mut Out,
) -> CommandResult {
    let chosen = choose(config, args).await?;
    let Chosen { queue, choice: DeadChoice::All(filter) } = &chosen else {
        return named(&chosen, Deed::Requeue, rate, out).await;
    };
    let order = JobOrder { rate, ..JobOrder::new(Deed::Requeue, TaskFilter::clone(filter)) };
    many::run(config, queue, order, (false, None), out).await
}

/// Asks, unless ids are named or the answer is `yes`. `keeps`: the job keeps all that match for a while. With
/// a path, the dead letters are in this new file, too.
pub(super) async fn purge(
    config: &Config,
    args: RedriveArgs,
    (yes, keeps): (bool, bool),
    path: Option<&Path>,
    out: &mut Out,
) -> CommandResult {
    let chosen = choose(config, args).await?;
    let Chosen { queue, choice } = &chosen;
    match (choice, path) {
        (DeadChoice::All(filter), path) => {
            let order = JobOrder { keep: keeps, ..JobOrder::new(Deed::Purge, TaskFilter::clone(filter)) };
            many::run(config, queue, order, (!yes, path), out).await
        }
        (DeadChoice::Ids(ids), Some(path)) => {
            let (file, succeeded) = write_named(queue, ids, path, true).await?;
            let skipped = (ids.len() as u64).saturating_sub(succeeded);
            let done = ManyDone { succeeded, skipped, ..ManyDone::default() };
            many::tell(Deed::Purge, &done, Some(file), out);
            chosen.end(skipped)
        }
        (DeadChoice::Ids(_), None) => named(&chosen, Deed::Purge, None, out).await,
    }
}

/// Requeues or deletes the dead letters that are named.
async fn named(chosen: &Chosen, deed: Deed, rate: Option<String>, out: &mut Out) -> CommandResult {
    let what = deed.on_named(out.dry_run, rate.and_then(|rate| parse_rate(&rate).ok()))?;
    let step = chosen.queue.redrive(&chosen.choice, what);
    let step = CommandProgress::begin()?.long_step("looking for dead letters", step).await;
    let step = step.ok_or_else(|| interrupted(&known(0, !out.dry_run, deed.done())))?;
    let done = ManyDone::from(step.map_err(|error| failed(error, out.dry_run, deed.done()))?);
    many::tell(deed, &done, None, out);
    chosen.end(done.skipped)
}

/// Writes the dead letters into a file, and leaves them where they are.
pub(super) async fn export(config: &Config, args: RedriveArgs, path: &Path, out: &mut Out) -> CommandResult {
    let chosen = choose(config, args).await?;
    let (written, skipped) = match &chosen.choice {
        DeadChoice::Ids(ids) => {
            let written = write_named(&chosen.queue, ids, path, false).await?.0.written;
            (written, (ids.len() as u64).saturating_sub(written))
        }
        DeadChoice::All(filter) => {
            let (mut file, mut progress) = (KeptFile::create(path)?, CommandProgress::begin()?);
            if let Err(error) = file.add_all(&chosen.queue, filter, &mut progress).await {
                // A part would be taken for the whole.
                file.remove();
                return Err(error);
            }
            (file.written, 0)
        }
    };
    let name = path.display().to_string();
    let why = if skipped == 0 { "" } else { " (not dead)" };
    let letters = text::plural(written, "dead letter");
    let view = json!({ "written": written, "skipped": skipped, "out": name });
    out.show(&view, |_| format!("{letters} written to {name}, {skipped} skipped{why}"));
    chosen.end(skipped)
}

/// Writes the dead letters with these names into a file. With `deletes`, it then deletes the ones that are in
/// the file. Returns the file, and how many were deleted.
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
    match progress.long_step("looking for dead letters", Box::pin(step)).await {
        Some(Ok(deleted)) => Ok((WrittenFile::of(&file), deleted)),
        // The file stays, as its letters may have been deleted.
        Some(Err(error)) if deletes && file.written > 0 => Err(error),
        Some(Err(error)) => {
            file.remove();
            Err(error)
        }
        None => {
            if !deletes || file.written == 0 {
                file.remove();
            }
            Err(interrupted(&known(0, deletes, if deletes { "deleted" } else { "written" })))
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

/// How much of an interrupted command was done.
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
