//! `tqhost dead`: the list of dead letters, and one of them.
//!
//! In: a queue, a filter or an id. Out: a table, or one dead letter with its fields. Not here: groups
//! (`groups`), requeue, purge and export (`redrive`), the way back (`import`), how dead letters are
//! found (`operations::dead`).

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use jiff::tz::TimeZone;
use serde::Serialize;
use strum::VariantNames as _;

use super::context::open;
use super::exit::CommandResult;
use super::filters::DeadFilterArgs;
use super::groups::{self, DEAD};
use super::import::{self, DeadImportArgs};
use super::lists::{self, ListArgs, ListItem, ListPart};
use super::output::{Out, Paint, Tone, sheet};
use super::progress::CommandProgress;
use super::redrive::{self, ExportArgs, PurgeArgs, RequeueArgs, letter};
use super::table::{Cell, TextTable};
use super::tasks::titles;
use super::{status, text, value};
use crate::clock;
use crate::config::Config;
use crate::mask::FieldMask;
use crate::operations::jobs::{self, Deed, JobCount, JobOrder};
use crate::operations::{
    DeadList, DeadView, GroupBy, GroupKind, OperationError, TaskGrouping, dead_list, patiently,
};
use crate::queue::attempts::FailedAttempt;
use crate::queue::listing::ListedState;
use crate::queue::{DeadLetter, Queue, TaskFilter};

/// The most columns of an error in the list.
const ERROR_WIDTH: usize = 80;
/// The most dead letters that are looked at to count those that match.
const COUNTED: u64 = 100_000;
/// The most characters of a field's value in `show`.
const VALUE_WIDTH: usize = 2000;

#[derive(Debug, Subcommand)]
pub(super) enum DeadCommand {
    /// List dead letters, the newest first; or count them in groups
    List(DeadListArgs),
    /// Print a dead letter as a file for `tqhost try`: the task with its id, attempt, limits and fields; or
    /// write several to a file, here or in a job of the hosts
    Export(ExportArgs),
    /// Show a dead letter with its fields
    Show {
        /// The queue's name in the configuration
        queue: String,
        /// The task's id, or the name that the queue's `id` gives to it
        id: String,
    },
    /// Bring dead letters back into the queue, as tasks on their first attempt
    Requeue(RequeueArgs),
    /// Delete dead letters; with --all, they can be brought back for 24 hours
    Purge(PurgeArgs),
    /// Bring back dead letters that `dead purge --out` or a download wrote; those that are there already are
    /// left out
    Import(DeadImportArgs),
}

#[derive(Debug, Args)]
pub(super) struct DeadListArgs {
    /// The queue's name in the configuration
    queue: String,
    /// Count them in groups: by their error, by version, reason or hour (UTC); or by cause, which is reason,
    /// version and error together
    #[arg(long, value_parser = PossibleValuesParser::new(GroupBy::VARIANTS))]
    by: Option<String>,
    #[command(flatten)]
    filter: DeadFilterArgs,
    #[command(flatten)]
    list: ListArgs,
}

pub(super) async fn run(config: &Config, command: DeadCommand, out: &mut Out) -> CommandResult {
    match command {
        DeadCommand::List(args) => list(config, args, out).await,
        DeadCommand::Show { queue, id } => show(config, &queue, &id, out).await,
        DeadCommand::Export(args) => redrive::export(config, args, out).await,
        DeadCommand::Requeue(args) => redrive::requeue(config, args, out).await,
        DeadCommand::Purge(args) => redrive::purge(config, args, out).await,
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
                lists::shows_more(shown, args.limit)
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
    let DeadListArgs { queue: name, by, filter, list: args } = args;
    let queue = open(config, &name).await?;
    let filter = filter.filter(config)?;
    // clap takes no others.
    if let Some(by) = by.as_deref().and_then(|by| by.parse().ok()) {
        let kind = GroupKind::Property(by);
        let grouping = TaskGrouping::new(kind, ListedState::Dead, args.cursor.as_deref())?;
        return groups::list(&queue, grouping, &filter, (DEAD, args.limit), out).await;
    }
    let mut progress = CommandProgress::begin()?;
    let part = async |cursor: Option<String>, limit| {
        let list = dead_list(&queue, &filter, cursor.as_deref(), limit, args.fields).await?;
        Ok::<_, OperationError>(ListPart { items: list.dead, examined: list.examined, next: list.next })
    };
    let list = lists::gather(&args, &mut progress, part).await?;
    let all = progress.needed("nothing was counted", patiently(|| queue.census())).await?.dead;
    let (matching, all_counted) = match (&args.cursor, &list.next) {
        (None, None) => (list.items.len() as u64, true),
        _ if filter.is_empty() => (all, true),
        _ => count(&queue, &filter, &mut progress).await?,
    };
    let is_whole = list.is_whole(&args) && all_counted;
    let cut = progress.cut(is_whole, &list.told(DEAD), list.next.as_deref());
    let ListPart { items: dead, examined, next } = list;
    let list = DeadList { dead, examined, next }.masked(&FieldMask::new(&config.admin.mask));
    let view = ListView { list, matching, all_counted };
    let dead = &view.list.dead;
    if out.json {
        out.json(&view);
    } else if !dead.is_empty() {
        let table = table(dead, &titles(&queue.rules), clock::now_ms(), out.paint);
        out.line(lists::below_rows(&table, dead.iter().map(ListItem::fields), out.paint));
    }
    if let Some(cut) = cut {
        return Err(cut);
    }
    let footer = view.footer(&name, all, filter.is_empty(), &args);
    if let Some(footer) = footer.filter(|_| !out.json) {
        out.line(out.paint.tone(Tone::Faint, &footer));
    }
    Ok(())
}

/// How many match, and whether all were looked at.
async fn count(
    queue: &Queue,
    filter: &TaskFilter,
    progress: &mut CommandProgress,
) -> CommandResult<(u64, bool)> {
    let order = JobOrder::new(Deed::Purge, filter.clone());
    let mut all = JobCount::default();
    while all.examined < COUNTED {
        let cursor = all.next.clone();
        let part = Box::pin(jobs::count(queue, &order, cursor.as_deref()));
        let Some(part) = progress.step(part).await else { break };
        all.add(part?);
        if all.next.is_none() {
            return Ok((all.matched, true));
        }
        if progress.is_interrupted() {
            break;
        }
        progress.tell(|| format!("{} match, {} looked at", all.matched, all.examined));
    }
    Ok((all.matched, false))
}

/// `titles` has the titles of the columns that the queue adds.
fn table(letters: &[DeadView], titles: &[String], now_ms: u64, paint: Paint) -> String {
    let mut table = TextTable::with_spare(&["ATTEMPTS", "DIED"])
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

async fn show(config: &Config, name: &str, id: &str, out: &mut Out) -> CommandResult {
    let queue = open(config, name).await?;
    let letter = letter(&queue, id).await?;
    let failed_attempts = patiently(|| queue.failed_attempts(&letter.id)).await?;
    let zone = TimeZone::system();
    let shown = render(&letter, clock::now_ms(), &zone, out.paint)
        + &status::failed_below(&failed_attempts, &zone, out.paint);
    out.show(&LetterView { letter: DeadView::new(letter, true), failed_attempts }, |_| shown);
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
    let field = |(name, value): &(Vec<u8>, Vec<u8>)| {
        let mut shown = value::shown(value);
        if let Some((end, _)) = shown.char_indices().nth(VALUE_WIDTH) {
            shown.truncate(end);
            shown += &format!("… ({} in all; --json shows them)", text::size(value.len() as u64));
        }
        (text::escape(&String::from_utf8_lossy(name)), shown)
    };
    let fields: Vec<(String, String)> = letter.fields.iter().map(field).collect();
    format!("{}\n\n{}\n{}", sheet(paint, &lines), paint.tone(Tone::Title, "FIELDS"), sheet(paint, &fields))
}
