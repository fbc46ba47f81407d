//! `tqhost dead requeue`, `purge` and `export --out`.
//!
//! In: a queue, and which of its dead letters the command is for. Out: how many were requeued, deleted or
//! written. An operation on all that match goes in steps, so that Ctrl-C ends it with a figure. Not here: how
//! a step is carried out (`queue::redrive`).

use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;

use super::args::RedriveArgs;
use super::confirm::{confirm, show_sample};
use super::context::open;
use super::exit::CommandError;
use super::filters::check_choice;
use super::jobs::carry_out;
use super::kept::KeptFile;
use super::output::Out;
use super::progress::{CommandProgress, StepEnd, interrupted};
use super::text;
use crate::config::Config;
use crate::config::units::parse_rate;
use crate::operations::jobs::{BulkJob, Deed, JobOrder};
use crate::operations::{TaskSample, letter_lines, patiently, write_walk};
use crate::queue::redrive::{Counted, DeadChoice, DeadRest, DeadWalk, Redrive, SAMPLE, StepBudget};
use crate::queue::{DeadLetter, Queue, RedriveError, Redriven, TaskFilter};

/// The most that one step looks at, and for how long.
const STEP: u64 = 2_000;
const STEP_TIME: Duration = Duration::from_secs(1);

/// Which dead letters of a queue a command is for.
pub(super) struct Chosen {
    queue: Queue,
    choice: DeadChoice,
    /// The walk through those that were counted before somebody was asked, and how many they are. None: all
    /// that are there.
    counted: Option<(DeadWalk, u64)>,
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

/// Asks, unless ids are named or the answer is `yes`.
pub(super) async fn choose_for_purge(
    config: &Config,
    args: RedriveArgs,
    yes: bool,
) -> Result<Chosen, CommandError> {
    let asks = args.all && !yes;
    let mut chosen = choose(config, args).await?;
    if asks {
        ask(&mut chosen).await?;
    }
    Ok(chosen)
}

pub(super) async fn requeue(
    config: &Config,
    args: RedriveArgs,
    rate: Option<String>,
    out: &mut Out,
) -> Result<(), CommandError> {
    let chosen = choose(config, args).await?;
    let (sum, done) = match out.dry_run {
        true => (count(&chosen, Counted::Requeued, &mut Vec::new()).await?, "would be requeued"),
        false => (run(config, &chosen, Deed::Requeue, rate).await?, "requeued"),
    };
    tell(&chosen, sum, done, out)
}

pub(super) async fn purge(config: &Config, chosen: Chosen, out: &mut Out) -> Result<(), CommandError> {
    let (sum, done) = match out.dry_run {
        true => (count(&chosen, Counted::Purged, &mut Vec::new()).await?, "would be deleted"),
        false => (run(config, &chosen, Deed::Purge, None).await?, "deleted"),
    };
    tell(&chosen, sum, done, out)
}

/// Tells the result. `done` is the word for what became of the dead letters.
fn tell(chosen: &Chosen, sum: Redriven, done: &str, out: &mut Out) -> Result<(), CommandError> {
    match out.json {
        true => out.json(&sum),
        false => out.line(sentence(sum, done)),
    }
    chosen.end(sum.skipped)
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
pub(super) async fn purge_into(chosen: Chosen, path: &Path, out: &mut Out) -> Result<(), CommandError> {
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
        let done = Redriven { succeeded, skipped, without_flow: 0 };
        out.line(format!("{}; {name} has {written}", sentence(done, "deleted")));
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
            let done = Redriven { succeeded: written, skipped, without_flow: 0 };
            out.line(sentence(done, &format!("written to {name}")));
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
    let mut rest = if let Some((walk, _)) = counted {
        DeadRest::Matching(walk.clone())
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

/// Asks before all that match are deleted, and tells how many they are. Those that die after the count are
/// left alone.
async fn ask(chosen: &mut Chosen) -> Result<(), CommandError> {
    let walk = patiently(|| chosen.queue.begin_walk()).await?;
    chosen.counted = Some((walk.clone(), 0));
    let DeadChoice::All(filter) = &chosen.choice else { return Ok(()) };
    let (which, mask) = (if filter.is_empty() { "" } else { " that match" }, filter.mask.clone());
    let mut sample = Vec::new();
    let count = count(chosen, Counted::Purged, &mut sample).await?.succeeded;
    chosen.counted = Some((walk, count));
    show_sample(&TaskSample::of_letters(&chosen.queue, &sample, &mask));
    let name = &chosen.queue.rules.name;
    let question = format!("Delete {}{which} of {name} for good?", text::plural(count, "dead letter"));
    confirm(&question, "--yes", "nothing was deleted").await
}

/// Requeues or deletes them: all that match as a job.
async fn run(
    config: &Config,
    chosen: &Chosen,
    deed: Deed,
    rate: Option<String>,
) -> Result<Redriven, CommandError> {
    let Chosen { queue, choice, counted } = chosen;
    match choice {
        DeadChoice::Ids(_) => {
            let (what, done) = match deed {
                Deed::Purge => (Redrive::Purge, "deleted"),
                _ => (Redrive::Requeue(rate.and_then(|rate| parse_rate(&rate).ok())), "requeued"),
            };
            let step = queue.redrive(choice, what);
            match CommandProgress::begin()?.long_step("looking for dead letters", step).await {
                StepEnd::Done(step) => step.map_err(|error| failed(error, done)),
                StepEnd::Cut => Err(interrupted(&known(0, true, done))),
            }
        }
        DeadChoice::All(filter) => {
            let counted = counted.as_ref().map(|(walk, count)| (write_walk(walk), Some(*count)));
            let order = JobOrder { rate, counted, ..JobOrder::new(deed, TaskFilter::clone(filter)) };
            let BulkJob { done, skipped, without_flow, .. } =
                Box::pin(carry_out(config, queue, order)).await?;
            Ok(Redriven { succeeded: done, skipped, without_flow })
        }
    }
}

/// Counts them, in steps, and puts some of them into `sample`.
async fn count(
    chosen: &Chosen,
    counted: Counted,
    sample: &mut Vec<DeadLetter>,
) -> Result<Redriven, CommandError> {
    let Chosen { queue, choice, counted: begun } = chosen;
    let what = Redrive::Count(counted);
    let mut progress = CommandProgress::begin()?;
    let filter = match choice {
        DeadChoice::Ids(_) => {
            let step = progress.long_step("looking for dead letters", queue.redrive(choice, what)).await;
            return match step {
                StepEnd::Done(step) => step.map_err(|error| CommandError::from(error.cause)),
                StepEnd::Cut => Err(interrupted("nothing was changed")),
            };
        }
        DeadChoice::All(filter) => filter,
    };
    let (mut sum, mut examined) = (Redriven::default(), 0);
    let mut walk = begun.as_ref().map(|(walk, _)| walk.clone());
    loop {
        let until = (Instant::now() + STEP_TIME).into();
        let step = queue.redrive_step(filter, what, walk.take(), StepBudget { entries: STEP, until });
        match progress.step(step).await {
            StepEnd::Done(step) => {
                let step = step.map_err(|error| CommandError::from(error.cause))?;
                sum.succeeded += step.done.succeeded;
                sum.skipped += step.done.skipped;
                sum.without_flow += step.done.without_flow;
                examined += step.examined;
                sample.extend(step.sample.into_iter().take(SAMPLE - sample.len()));
                walk = step.next;
            }
            StepEnd::Cut => return Err(interrupted("nothing was changed")),
        }
        if walk.is_none() {
            return Ok(sum);
        }
        if progress.is_interrupted() {
            return Err(interrupted("nothing was changed"));
        }
        progress.tell(|| format!("{} counted, {examined} looked at", sum.succeeded));
    }
}

fn failed(error: RedriveError, what: &str) -> CommandError {
    let RedriveError { cause, succeeded, in_doubt } = error;
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

fn sentence(Redriven { succeeded, skipped, without_flow }: Redriven, what: &str) -> String {
    let why =
        if what.ends_with("requeued") { "not dead, sent again, or they can never run" } else { "not dead" };
    let skipped =
        if skipped == 0 { ", 0 skipped".to_owned() } else { format!(", {skipped} skipped ({why})") };
    let flows = match without_flow {
        0 => String::new(),
        count => format!(
            ". The flow of {count} of them has expired: its results are gone, and nothing joins its children"
        ),
    };
    format!("{} {what}{skipped}{flows}", text::plural(succeeded, "dead letter"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_numbers_are_told() {
        let told = |succeeded, skipped, without_flow| {
            sentence(Redriven { succeeded, skipped, without_flow }, "requeued")
        };
        assert_eq!(told(1, 0, 0), "1 dead letter requeued, 0 skipped");
        assert_eq!(
            told(7, 2, 0),
            "7 dead letters requeued, 2 skipped (not dead, sent again, or they can never run)"
        );
        assert!(told(7, 0, 2).contains(", 0 skipped. The flow of 2 of them has expired"));
    }

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
