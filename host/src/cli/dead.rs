//! `tqhost dead`: list, show, export, requeue, purge.
//!
//! In: a queue, and which of its dead letters the command is for. Out: a table, one dead letter with its
//! fields, or how many were requeued or purged. Not here: how they are found and moved (`queue::dead`).

use std::time::Duration;

use anyhow::anyhow;
use jiff::tz::TimeZone;

use super::args::{DeadCommand, FilterArgs, RedriveArgs};
use super::confirm::{can_ask, confirm};
use super::context::open;
use super::exit::CommandError;
use super::output::{Align, Cell, Out, Paint, TextTable, Tone, sheet};
use super::task_file::ExportedTask;
use super::{text, value};
use crate::clock;
use crate::config::Config;
use crate::operations::{DeadView, patiently};
use crate::queue::redrive::{DeadChoice, Redrive};
use crate::queue::{DeadLetter, Queue, RedriveError, Redriven, TaskFilter};

/// The most columns of an error in the list.
const ERROR_WIDTH: usize = 80;
/// The message of a purge that has to ask.
const ALONE: &str = "purge --all deletes for good: add --yes where nobody can be asked";
/// The most characters of a field's value in `show`.
const VALUE_WIDTH: usize = 2000;

pub(super) async fn run(config: &Config, command: DeadCommand, out: &mut Out) -> Result<(), CommandError> {
    match command {
        DeadCommand::List { queue, filter, limit } => list(config, &queue, filter, limit, out).await,
        DeadCommand::Show { queue, id } => show(config, &queue, &id, out).await,
        DeadCommand::Export { queue, id } => {
            let task = exported(config, &queue, &id).await?;
            out.line(task.write());
            Ok(())
        }
        DeadCommand::Requeue { chosen: args, rate } => {
            let queue = open(config, &args.queue).await?;
            if args.dry_run {
                print(count(&queue, &args, Redrive::Count(true)).await?, "would be requeued", out);
                return Ok(());
            }
            let done =
                queue.requeue(&choice(&args), rate).await.map_err(|error| interrupted(error, "requeued"))?;
            print(done, "requeued", out);
            Ok(())
        }
        DeadCommand::Purge { chosen: args, yes } => {
            super::context::rules(config, &args.queue)?;
            if args.all && !yes && !args.dry_run && !can_ask() {
                return Err(CommandError::Usage(ALONE.into()));
            }
            let queue = open(config, &args.queue).await?;
            if args.dry_run {
                print(count(&queue, &args, Redrive::Count(false)).await?, "would be deleted", out);
                return Ok(());
            }
            if args.all && !yes {
                ask(&queue, &args).await?;
            }
            let done = queue.purge(&choice(&args)).await.map_err(|error| interrupted(error, "deleted"))?;
            print(done, "deleted", out);
            Ok(())
        }
    }
}

async fn list(
    config: &Config,
    name: &str,
    filter: FilterArgs,
    limit: usize,
    out: &mut Out,
) -> Result<(), CommandError> {
    let queue = open(config, name).await?;
    let FilterArgs { reason, text, older_than, newer_than } = filter;
    let filter = TaskFilter { reason, text, older_than, newer_than, ..TaskFilter::default() };
    let is_filtered = !filter.is_empty();
    let letters = patiently(|| queue.dead_letters(&filter, limit)).await?;
    if out.json {
        out.json(&letters.iter().map(|letter| DeadView::new(letter, false)).collect::<Vec<_>>());
        return Ok(());
    }
    let all = patiently(|| queue.census()).await?.dead;
    if !letters.is_empty() {
        out.line(table(&letters, clock::now_ms(), out.paint));
    }
    let shown = letters.len() as u64;
    let footer = match (shown, is_filtered) {
        (0, true) => format!("None of the {} of {name} match.", text::plural(all, "dead letter")),
        (0, false) if all == 0 => format!("Queue {name} has no dead letters."),
        (_, true) if letters.len() == limit => {
            format!(
                "The first {shown} that match, of {} in all; --limit shows more.",
                text::plural(all, "dead letter")
            )
        }
        (_, false) if shown < all => {
            format!("{shown} of {}; --limit shows more.", text::plural(all, "dead letter"))
        }
        (_, true) => format!("{shown} of {} match.", text::plural(all, "dead letter")),
        (_, false) => return Ok(()),
    };
    out.line(out.paint.tone(Tone::Faint, &footer));
    Ok(())
}

fn table(letters: &[DeadLetter], now_ms: u64, paint: Paint) -> String {
    let mut table = TextTable::new(&[
        ("ID", Align::Left),
        ("REASON", Align::Left),
        ("ATTEMPTS", Align::Right),
        ("DIED", Align::Right),
        ("ERROR", Align::Left),
    ]);
    for letter in letters {
        let ago =
            || format!("{} ago", text::age(Duration::from_millis(now_ms.saturating_sub(letter.failed_at))));
        // 0: another program wrote this dead letter, without a time.
        let died = if letter.failed_at == 0 { text::NONE.to_owned() } else { ago() };
        table.row([
            text::escape(&letter.id).into(),
            Cell::tone(text::escape(&letter.reason), Tone::Warning),
            letter.attempts.into(),
            died.into(),
            text::cut(&text::escape(&letter.error), ERROR_WIDTH).into(),
        ]);
    }
    table.render(paint)
}

/// A dead letter that has to be there.
async fn letter(queue: &Queue, id: &str) -> Result<DeadLetter, CommandError> {
    let name = &queue.rules.name;
    let letter = patiently(|| queue.dead_letter(id)).await?;
    Ok(letter.ok_or_else(|| {
        anyhow!("queue {name} has no dead letter {id:?}; `tqhost dead list {name}` shows those it has")
    })?)
}

/// The task of a dead letter, for a trial.
pub(super) async fn exported(config: &Config, name: &str, id: &str) -> Result<ExportedTask, CommandError> {
    let queue = open(config, name).await?;
    ExportedTask::of(&letter(&queue, id).await?, &queue.rules, config)
}

async fn show(config: &Config, name: &str, id: &str, out: &mut Out) -> Result<(), CommandError> {
    let letter = letter(&open(config, name).await?, id).await?;
    match out.json {
        true => out.json(&DeadView::new(&letter, true)),
        false => out.line(render(&letter, clock::now_ms(), &TimeZone::system(), out.paint)),
    }
    Ok(())
}

fn render(letter: &DeadLetter, now_ms: u64, zone: &TimeZone, paint: Paint) -> String {
    let time = |ms| if ms == 0 { String::new() } else { text::when(ms, now_ms, zone) };
    let mut lines = vec![
        ("task", text::escape(&letter.id)),
        ("entry", letter.entry.clone()),
        ("queue", text::escape(&letter.queue)),
        ("reason", paint.tone(Tone::Bad, &text::escape(&letter.reason))),
        ("error", text::escape_block(&letter.error)),
        ("attempts", letter.attempts.to_string()),
        ("enqueued", time(letter.enqueued_at)),
        ("died", time(letter.failed_at)),
        ("plugin", text::escape(&letter.plugin)),
        ("consumer", text::escape(&letter.consumer)),
    ];
    lines.retain(|(_, value)| !value.is_empty());
    let fields: Vec<(String, String)> = letter
        .fields
        .iter()
        .map(|(name, value)| {
            let all = value::shown(value);
            let cut: String = all.chars().take(VALUE_WIDTH).collect();
            let rest = if cut.len() < all.len() {
                format!("… ({} in all; --json shows them)", text::size(value.len() as u64))
            } else {
                String::new()
            };
            (text::escape(&String::from_utf8_lossy(name)), cut + &rest)
        })
        .collect();
    let fields: Vec<(&str, String)> =
        fields.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    format!("{}\n\n{}\n{}", sheet(paint, &lines), paint.tone(Tone::Title, "FIELDS"), sheet(paint, &fields))
}

fn filter(args: &RedriveArgs) -> TaskFilter {
    let RedriveArgs { reason, text, older_than, newer_than, .. } = args.clone();
    TaskFilter { reason, text, older_than, newer_than, ..TaskFilter::default() }
}

fn choice(args: &RedriveArgs) -> DeadChoice {
    match args.all {
        true => DeadChoice::All(filter(args)),
        false => DeadChoice::Ids(args.ids.clone()),
    }
}

fn interrupted(error: RedriveError, what: &str) -> CommandError {
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

/// Asks before all of a queue's dead letters are deleted. Where stdin is no terminal, `--yes` is required.
/// Asks before all that match are deleted, and tells how many they are.
async fn ask(queue: &Queue, args: &RedriveArgs) -> Result<(), CommandError> {
    let which = if filter(args).is_empty() { "" } else { " that match" };
    let count = count(queue, args, Redrive::Count(false)).await?.succeeded;
    let question =
        format!("Delete {}{which} of {} for good?", text::plural(count, "dead letter"), args.queue);
    confirm(&question, ALONE, "nothing was deleted")
}

async fn count(queue: &Queue, args: &RedriveArgs, what: Redrive) -> Result<Redriven, CommandError> {
    queue.redrive(&choice(args), what).await.map_err(|error| error.cause.into())
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
