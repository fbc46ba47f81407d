//! `tqhost dead`: list, show, export.
//!
//! In: a queue, and which of its dead letters the command is for. Out: a table, or one dead letter with its
//! fields. Not here: groups (`dead_groups`), requeue, purge and files (`redrive`), the way back (`import`),
//! how they are found (`operations::dead`).

use anyhow::anyhow;
use jiff::tz::TimeZone;
use serde::Serialize;

use super::args::{DeadCommand, DeadListArgs, ListArgs};
use super::context::open;
use super::dead_groups::{self, DEAD};
use super::exit::{CommandError, CommandResult};
use super::field_lines::{self, MOST_BYTES};
use super::filters::check_choice;
use super::output::{Out, Paint, Tone, sheet};
use super::progress::{CommandProgress, interrupted};
use super::table::{Cell, TextTable};
use super::task_file::ExportedTask;
use super::tasks::titles;
use super::{import, many, redrive, status, text, value};
use crate::clock;
use crate::config::Config;
use crate::mask::FieldMask;
use crate::operations::jobs::{self, Deed, JobOrder};
use crate::operations::{DeadList, DeadView, GroupKind, TaskGrouping, dead_list, patiently};
use crate::queue::attempts::FailedAttempt;
use crate::queue::listing::ListedState;
use crate::queue::{DeadLetter, Queue, TaskFilter};

/// The most columns of an error in the list.
const ERROR_WIDTH: usize = 80;
/// The most dead letters that are looked at to count those that match.
const COUNTED: u64 = 100_000;
/// The most characters of a field's value in `show`.
const VALUE_WIDTH: usize = 2000;

pub(super) async fn run(config: &Config, command: DeadCommand, out: &mut Out) -> CommandResult {
    match command {
        DeadCommand::List(args) => list(config, args, out).await,
        DeadCommand::Show { queue, id } => show(config, &queue, &id, out).await,
        DeadCommand::Export { chosen, out: Some(file) } => redrive::export(config, chosen, &file, out).await,
        DeadCommand::Export { chosen, out: None } => {
            let filter = chosen.filter.clone().filter(config)?;
            check_choice(&chosen.ids, chosen.all, &filter)?;
            if chosen.all {
                let queue = open(config, &chosen.queue).await?;
                let order = JobOrder::new(Deed::Export, filter);
                return many::run(config, &queue, order, (false, None), out).await;
            }
            let [id] = &chosen.ids[..] else {
                let why = "one dead letter is printed, as `tqhost try` reads it: add --out FILE for several";
                return Err(CommandError::Usage(why.into()));
            };
            out.line(exported(config, &chosen.queue, id).await?.write());
            Ok(())
        }
        DeadCommand::Requeue { chosen, dry_run, rate } => {
            out.dry_run = dry_run;
            redrive::requeue(config, chosen, rate, out).await
        }
        DeadCommand::Purge { chosen, dry_run, yes, no_undo, out: file } => {
            out.dry_run = dry_run;
            redrive::purge(config, chosen, (yes, !no_undo), file.as_deref(), out).await
        }
        DeadCommand::Import(args) => import::run(config, args, out).await,
    }
}

/// A list, as JSON.
#[derive(Serialize)]
struct ListView {
    #[serde(flatten)]
    list: DeadList,
    /// How many match in all.
    matching: u64,
    /// Whether all were looked at for this; else there may be more.
    all_counted: bool,
}

impl ListView {
    /// The sentence below the table, with the number of dead letters and the way to the rest. None: the table
    /// has all of them. `all` is the number of the queue's dead letters; `takes_all`: there is no filter.
    fn footer(&self, queue: &str, all: u64, takes_all: bool, args: &ListArgs) -> Option<String> {
        let ListView { list, matching, all_counted } = self;
        let known = if *all_counted { "" } else { "at least " };
        let in_all = text::plural(all, "dead letter");
        Some(match (list.dead.len(), &list.next) {
            (shown, Some(next)) => format!(
                "{shown} of {known}{matching}{}. {}--cursor {next} goes on.",
                if takes_all { String::new() } else { format!(" that match, of {in_all}") },
                // A list that ends because its fields are large ends there with every limit.
                if shown < args.limit { "" } else { "--limit shows more, and " }
            ),
            (0, None) if takes_all && all == 0 => format!("Queue {queue} has no dead letters."),
            (0, None) if args.cursor.is_none() => format!("None of the {in_all} of {queue} match."),
            (_, None) if takes_all => return None,
            (_, None) => format!("{known}{matching} of {in_all} match."),
        })
    }
}

/// One dead letter, as JSON.
#[derive(Serialize)]
struct LetterView {
    #[serde(flatten)]
    letter: DeadView,
    /// They are as those in `status`, as far as they are kept. `attempts` is their number.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failed_attempts: Vec<FailedAttempt>,
}

async fn list(config: &Config, args: DeadListArgs, out: &mut Out) -> CommandResult {
    let queue = open(config, &args.queue).await?;
    let filter = args.filter.clone().filter(config)?;
    // clap takes no others.
    if let Some(by) = args.by.as_deref().and_then(|by| by.parse().ok()) {
        let kind = GroupKind::Property(by);
        let grouping = TaskGrouping::new(kind, ListedState::Dead, args.list.cursor.as_deref())?;
        return dead_groups::list(&queue, grouping, &filter, (DEAD, args.list.limit), out).await;
    }
    let (limit, mut progress) = (args.list.limit, CommandProgress::begin()?);
    let list = gather(&queue, &filter, &args.list, &mut progress).await?;
    let census = progress.step(patiently(|| queue.census())).await;
    let all = census.ok_or_else(|| interrupted("nothing was counted"))??.dead;
    let (matching, all_counted) = match (&args.list.cursor, &list.next) {
        (None, None) => (list.dead.len() as u64, true),
        _ if filter.is_empty() => (all, true),
        _ => count(&queue, &filter, &mut progress).await?,
    };
    let is_whole = list.next.is_none() || list.dead.len() >= limit || field_bytes(&list) >= MOST_BYTES;
    let found =
        format!("{} found, {} looked at", text::plural(list.dead.len() as u64, "dead letter"), list.examined);
    let cut = progress.cut(is_whole && all_counted, &found, list.next.as_deref());
    let view = ListView { list: list.masked(&FieldMask::new(&config.admin.mask)), matching, all_counted };
    if out.json {
        out.json(&view);
        return cut.map_or(Ok(()), Err);
    }
    let dead = &view.list.dead;
    if !dead.is_empty() {
        let fields = dead.iter().map(|letter| letter.fields.as_deref().unwrap_or_default());
        let table = table(dead, &titles(&queue.rules), clock::now_ms(), out.paint);
        out.line(field_lines::below_rows(&table, fields, out.paint));
    }
    if let Some(cut) = cut {
        return Err(cut);
    }
    if let Some(footer) = view.footer(&queue.rules.name, all, filter.is_empty(), &args.list) {
        out.line(out.paint.tone(Tone::Faint, &footer));
    }
    Ok(())
}

/// Gathers as many dead letters as were asked for, as long as their fields are not too large together.
async fn gather(
    queue: &Queue,
    filter: &TaskFilter,
    args: &ListArgs,
    progress: &mut CommandProgress,
) -> CommandResult<DeadList> {
    let first = dead_list(queue, filter, args.cursor.as_deref(), args.limit, args.fields);
    let mut list = progress.step(first).await.ok_or_else(|| interrupted("nothing was found"))??;
    let mut bytes = field_bytes(&list);
    // One call looks at a bounded number of dead letters; the command goes on until it has enough.
    while list.dead.len() < args.limit
        && bytes < MOST_BYTES
        && !progress.is_interrupted()
        && let Some(next) = list.next.clone()
    {
        let more = dead_list(queue, filter, Some(&next), args.limit - list.dead.len(), args.fields);
        let Some(more) = progress.step(more).await else { break };
        let more = more?;
        bytes += field_bytes(&more);
        list.dead.extend(more.dead);
        list.examined += more.examined;
        list.next = more.next;
        progress.tell(|| format!("{} found, {} looked at", list.dead.len(), list.examined));
    }
    Ok(list)
}

/// How many bytes the fields in the list have.
fn field_bytes(list: &DeadList) -> usize {
    list.dead.iter().filter_map(|letter| letter.fields.as_deref()).map(field_lines::bytes).sum()
}

/// How many match, and whether all were looked at.
async fn count(
    queue: &Queue,
    filter: &TaskFilter,
    progress: &mut CommandProgress,
) -> CommandResult<(u64, bool)> {
    let order = JobOrder::new(Deed::Purge, filter.clone());
    let (mut count, mut examined, mut cursor) = (0, 0, None::<String>);
    while examined < COUNTED {
        let step = Box::pin(jobs::count(queue, &order, cursor.as_deref()));
        let Some(part) = progress.step(step).await else { break };
        let part = part?;
        count += part.matched;
        examined += part.examined;
        if part.next.is_none() {
            return Ok((count, true));
        }
        cursor = part.next;
        if progress.is_interrupted() {
            break;
        }
        progress.tell(|| format!("{count} match, {examined} looked at"));
    }
    Ok((count, false))
}

/// `titles` has the titles of the columns that the queue adds.
fn table(letters: &[DeadView], titles: &[String], now_ms: u64, paint: Paint) -> String {
    let mut table = TextTable::new(&["ATTEMPTS", "DIED"])
        .id("ID")
        .texts(["REASON"])
        .texts(titles)
        .figures(["ATTEMPTS", "DIED"])
        .texts(["ERROR"]);
    for letter in letters {
        let DeadView { letter, columns, .. } = letter;
        let first = [(&letter.id).into(), Cell::tone(&letter.reason, Tone::Warning)];
        let last = [
            letter.attempts.into(),
            text::died(letter.failed_at, now_ms).into(),
            text::cut(&text::escape(&letter.error), ERROR_WIDTH).into(),
        ];
        let columns = columns.iter().map(|column| Cell::known(column.as_ref()));
        table.row(first.into_iter().chain(columns).chain(last));
    }
    table.render(paint)
}

/// A dead letter that has to be there.
async fn letter(queue: &Queue, id: &str) -> CommandResult<DeadLetter> {
    let name = &queue.rules.name;
    let letter = patiently(|| queue.dead_letter(id)).await?;
    Ok(letter.ok_or_else(|| {
        anyhow!("queue {name} has no dead letter {id:?}; `tqhost dead list {name}` shows those it has")
    })?)
}

/// The task of a dead letter, for a trial.
pub(super) async fn exported(config: &Config, name: &str, id: &str) -> CommandResult<ExportedTask> {
    let queue = open(config, name).await?;
    ExportedTask::of(&letter(&queue, id).await?, &queue.rules, config)
}

async fn show(config: &Config, name: &str, id: &str, out: &mut Out) -> CommandResult {
    let queue = open(config, name).await?;
    let letter = letter(&queue, id).await?;
    let failed_attempts = patiently(|| queue.failed_attempts(&letter.id)).await?;
    if out.json {
        out.json(&LetterView { letter: DeadView::new(letter, true), failed_attempts });
        return Ok(());
    }
    let zone = TimeZone::system();
    out.line(render(&letter, clock::now_ms(), &zone, out.paint));
    if !failed_attempts.is_empty() {
        out.line(format!("\n{}", status::failed(&failed_attempts, &zone, out.paint)));
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
