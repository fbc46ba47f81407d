//! `tqhost tasks`: lists the tasks of a queue by state.
//!
//! In: a queue's name, a state, filters. Out: a table, or the list as JSON, with the cursor of the rest; the
//! fields of the tasks, if they are wanted. Not here: how they are found (`operations::list`).

use clap::Args;
use clap::builder::PossibleValuesParser;
use strum::VariantNames as _;

use super::context::open;
use super::exit::{CommandError, CommandResult};
use super::filters::TaskFilterArgs;
use super::lists::{self, ListArgs, ListItem, ListPart};
use super::output::{Out, Paint, Tone};
use super::progress::CommandProgress;
use super::status::tone;
use super::table::{Cell, TextTable};
use super::{groups, text};
use crate::clock;
use crate::config::{Config, FieldPlace, QueueRules};
use crate::mask::FieldMask;
use crate::operations::{self, GroupKind, ListRequest, ListedTask, OperationError, TaskGrouping, TaskList};
use crate::queue::listing::ListedState;

/// The most columns of an error in the list.
const ERROR_WIDTH: usize = 60;

#[derive(Debug, Args)]
pub(super) struct TasksArgs {
    /// The queue's name in the configuration
    queue: String,
    /// The state of the tasks; ended tasks are those of the queue's `events`
    #[arg(long, default_value = "queued", value_parser = PossibleValuesParser::new(ListedState::VARIANTS))]
    state: String,
    /// Count them by the value of this field, the most first; data/user/id is a place in the JSON of the
    /// field data
    #[arg(long, value_name = "FIELD")]
    by: Option<String>,
    #[command(flatten)]
    filter: TaskFilterArgs,
    #[command(flatten)]
    list: ListArgs,
}

pub(super) async fn run(config: &Config, args: TasksArgs, out: &mut Out) -> CommandResult {
    let TasksArgs { queue: name, state, by, filter, list: args } = args;
    let queue = open(config, &name).await?;
    // clap takes no other states.
    let state = state.parse().unwrap_or(ListedState::Queued);
    let filter = filter.filter(config)?;
    if let Some(by) = by {
        let place = FieldPlace::asked(&by, &filter.mask);
        let place = place.map_err(|why| CommandError::Usage(format!("--by: {by:?}: {why}")))?;
        let grouping = TaskGrouping::new(GroupKind::Field(place), state, args.cursor.as_deref())?;
        let noun = format!("{} task", state.into_str());
        return groups::list(&queue, grouping, &filter, (&noun, args.limit), out).await;
    }
    let mut progress = CommandProgress::begin()?;
    let part = async |cursor, limit| {
        let request = ListRequest { state, filter: filter.clone(), cursor, limit, with_fields: args.fields };
        let TaskList { tasks: items, examined, next } = operations::list(&queue, &request).await?;
        Ok::<_, OperationError>(ListPart { items, examined, next })
    };
    let list = lists::gather(&args, &mut progress, part).await?;
    let cut = progress.cut(list.is_whole(&args), &list.told("task"), list.next.as_deref());
    let ListPart { items: tasks, examined, next } = list;
    let list = TaskList { tasks, examined, next }.masked(&FieldMask::new(&config.admin.mask));
    if out.json {
        out.json(&list);
    } else if !list.tasks.is_empty() {
        let table = table(&list.tasks, &titles(&queue.rules), clock::now_ms(), out.paint);
        out.line(lists::below_rows(&table, list.tasks.iter().map(ListItem::fields), out.paint));
    } else if cut.is_none() {
        let matching = if filter.is_empty() { "" } else { " that match" };
        out.line(format!("Queue {name} has no {} tasks{matching}.", state.into_str()));
    }
    if let Some(cut) = cut {
        return Err(cut);
    }
    if let Some(next) = list.next.filter(|_| !out.json && !list.tasks.is_empty()) {
        let shows_more = lists::shows_more(list.tasks.len(), args.limit);
        let more = format!("There are more; {shows_more}--cursor {next} goes on.");
        out.line(out.paint.tone(Tone::Faint, &more));
    }
    Ok(())
}

/// The titles of the columns that a queue adds to its lists.
pub(super) fn titles(rules: &QueueRules) -> Vec<String> {
    rules.show.iter().map(|place| place.name.clone()).collect()
}

/// `titles` has the titles of the columns that the queue adds.
fn table(tasks: &[ListedTask], titles: &[String], now_ms: u64, paint: Paint) -> String {
    let mut table = TextTable::with_spare(&["ATTEMPT", "HOST", "WHEN"])
        .id("ID")
        .fixed(["STATUS"])
        .texts(titles)
        .figures(["ATTEMPT", "WHEN"])
        .names(["HOST"])
        .texts(["ERROR"]);
    for ListedTask { summary, columns, .. } in tasks {
        let due = summary.due_at.filter(|due| *due > now_ms);
        let due = due.map(|due| format!("in {}", text::age_ms(due - now_ms)));
        let when = summary.finished_at.or(summary.started_at).or(summary.enqueued_at);
        let ago = || when.map(|ms| text::ago(ms, now_ms));
        let first = [(&summary.id).into(), Cell::tone(summary.status.into_str(), tone(summary.status))];
        let last = [
            summary.attempt.into(),
            Cell::known(due.or_else(ago)),
            Cell::known(summary.consumer.as_ref()),
            text::cut(&text::escape(summary.error.as_deref().unwrap_or_default()), ERROR_WIDTH).into(),
        ];
        let columns = columns.iter().map(|column| Cell::known(column.as_ref()));
        table.row(first.into_iter().chain(columns).chain(last));
    }
    table.render(paint)
}
