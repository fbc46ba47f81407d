//! `tqhost dead requeue` and `purge`.
//!
//! In: a queue, and which of its dead letters the command is for. Out: how many were requeued or deleted. An
//! operation on all that match goes in steps, so that Ctrl-C ends it with a figure. Not here: how a step is
//! carried out (`queue::redrive`).

use std::time::{Duration, Instant};

use super::args::RedriveArgs;
use super::confirm::{can_ask, confirm};
use super::context::{open, rules};
use super::exit::CommandError;
use super::filters::only_with_all;
use super::output::Out;
use super::progress::{CommandProgress, StepEnd, interrupted};
use super::text;
use crate::config::Config;
use crate::config::model::Rate;
use crate::queue::redrive::{DeadChoice, Redrive, StepBudget};
use crate::queue::{Queue, RedriveError, Redriven, TaskFilter};

/// The most that one step looks at, and for how long.
const STEP: u64 = 2_000;
const STEP_TIME: Duration = Duration::from_secs(1);
/// The message of a purge that has to ask.
const ALONE: &str = "purge --all deletes for good: add --yes where nobody can be asked";

/// Which dead letters of a queue a command is for.
struct Chosen {
    queue: Queue,
    choice: DeadChoice,
}

async fn choose(config: &Config, args: RedriveArgs) -> Result<Chosen, CommandError> {
    let filter = args.filter.filter();
    only_with_all(&filter, args.all)?;
    let queue = open(config, &args.queue).await?;
    let choice = if args.all { DeadChoice::All(filter) } else { DeadChoice::Ids(args.ids) };
    Ok(Chosen { queue, choice })
}

pub(super) async fn requeue(
    config: &Config,
    args: RedriveArgs,
    rate: Option<Rate>,
    out: &mut Out,
) -> Result<(), CommandError> {
    let dry_run = args.dry_run;
    let chosen = choose(config, args).await?;
    let (what, done) = match dry_run {
        true => (Redrive::Count(true), "would be requeued"),
        false => (Redrive::Requeue(rate), "requeued"),
    };
    let sum = run(&chosen, what, done).await?;
    print(sum, done, out);
    Ok(())
}

pub(super) async fn purge(
    config: &Config,
    args: RedriveArgs,
    yes: bool,
    out: &mut Out,
) -> Result<(), CommandError> {
    rules(config, &args.queue)?;
    let (dry_run, asks) = (args.dry_run, args.all && !yes && !args.dry_run);
    if asks && !can_ask() {
        return Err(CommandError::Usage(ALONE.into()));
    }
    let chosen = choose(config, args).await?;
    if asks {
        ask(&chosen).await?;
    }
    let (what, done) = match dry_run {
        true => (Redrive::Count(false), "would be deleted"),
        false => (Redrive::Purge, "deleted"),
    };
    let sum = run(&chosen, what, done).await?;
    print(sum, done, out);
    Ok(())
}

/// Asks before all that match are deleted, and tells how many they are.
async fn ask(chosen: &Chosen) -> Result<(), CommandError> {
    let is_all = matches!(&chosen.choice, DeadChoice::All(filter) if filter.is_empty());
    let which = if is_all { "" } else { " that match" };
    let count = run(chosen, Redrive::Count(false), "counted").await?.succeeded;
    let name = &chosen.queue.rules.name;
    let question = format!("Delete {}{which} of {name} for good?", text::plural(count, "dead letter"));
    confirm(&question, ALONE, "nothing was deleted")
}

/// Carries the operation out. `done` is the word for what became of the dead letters.
async fn run(chosen: &Chosen, what: Redrive, done: &str) -> Result<Redriven, CommandError> {
    let Chosen { queue, choice } = chosen;
    match choice {
        DeadChoice::Ids(_) => queue.redrive(choice, what).await.map_err(|error| failed(0, error, done)),
        DeadChoice::All(filter) => {
            let mut progress = CommandProgress::begin()?;
            all_matching(queue, filter, what, done, &mut progress).await
        }
    }
}

/// Goes through all that match, in steps.
async fn all_matching(
    queue: &Queue,
    filter: &TaskFilter,
    what: Redrive,
    done: &str,
    progress: &mut CommandProgress,
) -> Result<Redriven, CommandError> {
    let (mut sum, mut examined, mut walk) = (Redriven::default(), 0, None);
    loop {
        let until = (Instant::now() + STEP_TIME).into();
        let step = queue.redrive_step(filter, what, walk.take(), StepBudget { entries: STEP, until });
        match progress.step(step).await {
            StepEnd::Done(Ok(step)) => {
                sum.succeeded += step.done.succeeded;
                sum.skipped += step.done.skipped;
                sum.without_flow += step.done.without_flow;
                examined += step.examined;
                walk = step.next;
            }
            StepEnd::Done(Err(error)) => return Err(failed(sum.succeeded, error, done)),
            StepEnd::Cut => return Err(interrupted(&known(sum.succeeded, true, done))),
        }
        if walk.is_none() {
            return Ok(sum);
        }
        if progress.is_interrupted() {
            return Err(interrupted(&known(sum.succeeded, false, done)));
        }
        progress.tell(|| format!("{} {done}, {examined} looked at", sum.succeeded));
    }
}

/// `before`: what earlier steps did.
fn failed(before: u64, error: RedriveError, what: &str) -> CommandError {
    let RedriveError { cause, succeeded, in_doubt } = error;
    anyhow::Error::new(cause).context(known(before + succeeded, in_doubt, what)).into()
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

fn print(done: Redriven, what: &str, out: &mut Out) {
    match out.json {
        true => out.json(&done),
        false => out.line(sentence(done, what)),
    }
}

fn sentence(Redriven { succeeded, skipped, without_flow }: Redriven, what: &str) -> String {
    let why = if what.ends_with("requeued") { "not dead, or they can never run" } else { "not dead" };
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
        assert_eq!(told(7, 2, 0), "7 dead letters requeued, 2 skipped (not dead, or they can never run)");
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
