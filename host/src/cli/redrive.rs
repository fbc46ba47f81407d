//! `tqhost dead requeue`, `purge` and `export --out`.
//!
//! In: a queue, and which of its dead letters the command is for. Out: how many were requeued, deleted or
//! written. Not here: how all that match are requeued or deleted (`many`), how Redis carries it out
//! (`queue::redrive`).

use std::path::Path;

use serde::Serialize;
use serde_json::json;

use super::args::RedriveArgs;
use super::context::open;
use super::exit::CommandError;
use super::filters::check_choice;
use super::kept::KeptFile;
use super::many::{self, sentence, view};
use super::output::Out;
use super::progress::{CommandProgress, StepEnd, interrupted};
use super::text;
use crate::config::Config;
use crate::config::units::parse_rate;
use crate::operations::jobs::{Deed, JobOrder, read_walk};
use crate::operations::{ManyDone, letter_lines, patiently};
use crate::queue::redrive::{Counted, DeadChoice, DeadRest, Redrive};
use crate::queue::{Queue, RedriveError, TaskFilter};

/// Which dead letters of a queue a command is for.
pub(super) struct Chosen {
    queue: Queue,
    choice: DeadChoice,
    /// The place of those that were counted before somebody was asked, and how many they are. None: all that
    /// are there.
    counted: Option<(String, Option<u64>)>,
}

impl Chosen {
    /// How the command ends: with exit code 1 if it was for an id on which it could not act. Of all that
    /// match, none is missing.
    fn end(&self, skipped: u64) -> Result<(), CommandError> {
        match self.choice {
            DeadChoice::Ids(_) if skipped > 0 => Err(CommandError::Reported),
            _ => Ok(()),
        }
    }
}

async fn choose(config: &Config, args: RedriveArgs) -> Result<Chosen, CommandError> {
    let filter = args.filter.filter(config)?;
    check_choice(&args.ids, args.all, &filter)?;
    let queue = open(config, &args.queue).await?;
    let choice = if args.all { DeadChoice::All(Box::new(filter)) } else { DeadChoice::Ids(args.ids) };
    Ok(Chosen { queue, choice, counted: None })
}

pub(super) async fn requeue(
    config: &Config,
    args: RedriveArgs,
    rate: Option<String>,
    out: &mut Out,
) -> Result<(), CommandError> {
    let chosen = choose(config, args).await?;
    redrive(config, chosen, Deed::Requeue, rate, false, out).await
}

/// Asks, unless ids are named or the answer is `yes`. With a path, they are written into this file first.
pub(super) async fn purge(
    config: &Config,
    args: RedriveArgs,
    yes: bool,
    path: Option<&Path>,
    out: &mut Out,
) -> Result<(), CommandError> {
    let mut chosen = choose(config, args).await?;
    let Some(path) = path else { return redrive(config, chosen, Deed::Purge, None, !yes, out).await };
    if let DeadChoice::All(filter) = &chosen.choice
        && !yes
    {
        let order = JobOrder::new(Deed::Purge, TaskFilter::clone(filter));
        chosen.counted = Some(many::ask(&chosen.queue, &order).await?);
    }
    purge_into(chosen, path, out).await
}

/// Requeues or deletes them: all that match as a job, and those that are named at once.
async fn redrive(
    config: &Config,
    chosen: Chosen,
    deed: Deed,
    rate: Option<String>,
    asks: bool,
    out: &mut Out,
) -> Result<(), CommandError> {
    let Chosen { queue, choice, .. } = &chosen;
    if let DeadChoice::All(filter) = choice {
        let order = JobOrder { rate, ..JobOrder::new(deed, TaskFilter::clone(filter)) };
        return many::run(config, queue, order, asks, out).await;
    }
    let what = match (deed, out.dry_run) {
        (Deed::Purge, true) => Redrive::Count(Counted::Purged),
        (Deed::Purge, false) => Redrive::Purge,
        (_, true) => Redrive::Count(Counted::Requeued),
        (_, false) => Redrive::Requeue(rate.and_then(|rate| parse_rate(&rate).ok())),
    };
    let step = queue.redrive(choice, what);
    let step = match CommandProgress::begin()?.long_step("looking for dead letters", step).await {
        StepEnd::Done(step) => step.map_err(|error| failed(error, out.dry_run, deed.done()))?,
        StepEnd::Cut => return Err(interrupted(&known(0, !out.dry_run, deed.done()))),
    };
    let done = ManyDone::from(step);
    match out.json {
        true => out.json(&view(deed, &done)),
        false => out.line(sentence(deed, &done, out.dry_run)),
    }
    chosen.end(done.skipped)
}

/// The result of a purge into a file.
#[derive(Debug, Serialize)]
struct PurgedInto {
    succeeded: u64,
    skipped: u64,
    out: String,
    /// How many the file has.
    written: u64,
}

/// Writes the dead letters into a file, and deletes those that were written.
async fn purge_into(chosen: Chosen, path: &Path, out: &mut Out) -> Result<(), CommandError> {
    let mut file = KeptFile::create(path)?;
    let done = keep(&chosen, &mut file, true).await;
    let (name, written) = (file.name(), file.written);
    if done.is_err() && written == 0 {
        file.remove();
    }
    let succeeded = done?;
    let skipped = match &chosen.choice {
        DeadChoice::Ids(ids) => (ids.len() as u64).saturating_sub(succeeded),
        DeadChoice::All(_) => written - succeeded,
    };
    if out.json {
        out.json(&PurgedInto { succeeded, skipped, out: name, written });
    } else {
        let done = ManyDone { succeeded, skipped, ..ManyDone::default() };
        out.line(format!("{}; {name} has {written}", sentence(Deed::Purge, &done, false)));
    }
    chosen.end(skipped)
}

/// Writes the dead letters into a file, and leaves them where they are.
pub(super) async fn export(
    config: &Config,
    args: RedriveArgs,
    path: &Path,
    out: &mut Out,
) -> Result<(), CommandError> {
    let chosen = choose(config, args).await?;
    let mut file = KeptFile::create(path)?;
    if let Err(error) = keep(&chosen, &mut file, false).await {
        // A part would be taken for the whole.
        file.remove();
        return Err(error);
    }
    let (name, written) = (file.name(), file.written);
    let skipped = match &chosen.choice {
        DeadChoice::Ids(ids) => (ids.len() as u64).saturating_sub(written),
        DeadChoice::All(_) => 0,
    };
    match out.json {
        true => out.json(&json!({ "written": written, "skipped": skipped, "out": name })),
        false => {
            let why = if skipped == 0 { "" } else { " (not dead)" };
            let letters = text::plural(written, "dead letter");
            out.line(format!("{letters} written to {name}, {skipped} skipped{why}"));
        }
    }
    chosen.end(skipped)
}

/// Writes the dead letters into the file, and deletes those that are on the disk, if `deletes` says so. Gives
/// how many were deleted.
async fn keep(chosen: &Chosen, file: &mut KeptFile, deletes: bool) -> Result<u64, CommandError> {
    let Chosen { queue, choice, counted } = chosen;
    let mut progress = CommandProgress::begin()?;
    let what = if deletes { "deleted" } else { "written" };
    let mut rest = if let Some((place, _)) = counted {
        DeadRest::Matching(read_walk(place)?)
    } else {
        let begun = patiently(|| queue.begin_chosen(choice));
        match progress.long_step("looking for dead letters", begun).await {
            StepEnd::Done(begun) => begun?,
            StepEnd::Cut => return Err(interrupted(&known(0, false, what))),
        }
    };
    let mut deleted = 0;
    loop {
        let so_far = |in_doubt| known(deleted, in_doubt, what);
        let page = match progress.step(patiently(|| queue.chosen_page(choice, &rest))).await {
            StepEnd::Done(page) => page.map_err(|error| CommandError::from(error).context(&so_far(false)))?,
            StepEnd::Cut => return Err(interrupted(&so_far(false))),
        };
        file.add(&letter_lines(&page.letters)).map_err(|error| error.context(&so_far(false)))?;
        if deletes {
            let entries: Vec<&str> = page.letters.iter().map(|letter| letter.entry.as_str()).collect();
            deleted += match progress.step(queue.delete_dead(&entries)).await {
                StepEnd::Done(Ok(count)) => count,
                StepEnd::Done(Err(error)) => {
                    let in_doubt = error.is_connection();
                    return Err(CommandError::from(error).context(&so_far(in_doubt)));
                }
                StepEnd::Cut => return Err(interrupted(&so_far(true))),
            };
        }
        let Some(next) = page.next else { return Ok(deleted) };
        rest = next;
        if progress.is_interrupted() {
            return Err(interrupted(&known(deleted, false, what)));
        }
        progress.tell(|| {
            let done = if deletes { "written and deleted" } else { "written" };
            format!("{} {done}", text::plural(file.written, "dead letter"))
        });
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
