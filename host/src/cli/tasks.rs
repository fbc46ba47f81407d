//! `tqhost tasks`: lists the tasks of a queue by state.
//!
//! In: a queue's name, a state, filters. Out: a table, or the list as JSON, with the cursor of the rest; the
//! fields of the tasks, if they are wanted. Not here: how they are found (`operations::list`).

use std::time::Duration;

use super::args::{ListArgs, TasksArgs};
use super::context::open;
use super::exit::{CommandError, CommandResult};
use super::field_lines::{self, MOST_BYTES};
use super::output::{Out, Paint, Tone};
use super::progress::{CommandProgress, interrupted};
use super::status::tone;
use super::table::{Cell, TextTable};
use super::{dead_groups, text};
use crate::clock;
use crate::config::{Config, FieldPlace, QueueRules};
use crate::mask::FieldMask;
use crate::operations::{self, GroupKind, ListRequest, ListedTask, TaskGrouping, TaskList};
use crate::queue::Queue;
use crate::queue::listing::ListedState;

/// The most columns of an error in the list.
const ERROR_WIDTH: usize = 60;

pub(super) async fn run(config: &Config, args: TasksArgs, out: &mut Out) -> CommandResult {
    let TasksArgs { queue: name, state, by, filter, list } = args;
    let ListArgs { fields: with_fields, limit, cursor } = list;
    let queue = open(config, &name).await?;
    // clap takes no other states.
    let state = state.parse().unwrap_or(ListedState::Queued);
    let filter = filter.filter(config)?;
    if let Some(by) = by {
        let place = FieldPlace::asked(&by, &filter.mask);
        let place = place.map_err(|why| CommandError::Usage(format!("--by: {by:?}: {why}")))?;
        let grouping = TaskGrouping::new(GroupKind::Field(place), state, cursor.as_deref())?;
        let noun = format!("{} task", state.into_str());
        return dead_groups::list(&queue, grouping, &filter, (&noun, limit), out).await;
    }
    let mut request = ListRequest { state, filter, cursor, limit, with_fields };
    let mut progress = CommandProgress::begin()?;
    let first = progress.step(operations::list(&queue, &request)).await;
    let mut list = first.ok_or_else(|| interrupted("nothing was found"))??;
    let mut bytes = field_bytes(&list);
    // One call looks at a bounded number of tasks; the command goes on until it has enough.
    while list.tasks.len() < limit
        && bytes < MOST_BYTES
        && !progress.is_interrupted()
        && let Some(next) = list.next.clone()
    {
        (request.cursor, request.limit) = (Some(next), limit - list.tasks.len());
        let Some(more) = progress.step(operations::list(&queue, &request)).await else { break };
        let more = more?;
        bytes += field_bytes(&more);
        list.tasks.extend(more.tasks);
        list.examined += more.examined;
        list.next = more.next;
        progress.tell(|| format!("{} found, {} looked at", list.tasks.len(), list.examined));
    }
    let is_whole = list.next.is_none() || list.tasks.len() >= limit || bytes >= MOST_BYTES;
    let found =
        format!("{} found, {} looked at", text::plural(list.tasks.len() as u64, "task"), list.examined);
    let cut = progress.cut(is_whole, &found, list.next.as_deref());
    let list = list.masked(&FieldMask::new(&config.admin.mask));
    show(&list, &request, limit, &queue, cut.is_some(), out);
    cut.map_or(Ok(()), Err)
}

/// The titles of the columns that a queue adds to its lists.
pub(super) fn titles(rules: &QueueRules) -> Vec<String> {
    rules.show.iter().map(|place| place.name.clone()).collect()
}

/// How many bytes the fields in the list have.
fn field_bytes(list: &TaskList) -> usize {
    list.tasks.iter().filter_map(|task| task.fields.as_deref()).map(field_lines::bytes).sum()
}

/// Shows the list. One that was interrupted says nothing of tasks that it did not look at.
fn show(list: &TaskList, request: &ListRequest, limit: usize, queue: &Queue, is_cut: bool, out: &mut Out) {
    let name = &queue.rules.name;
    if out.json {
        out.json(list);
        return;
    }
    let word = request.state.into_str();
    if list.tasks.is_empty() && is_cut {
        return;
    }
    if list.tasks.is_empty() {
        let of = if request.filter.is_empty() { "" } else { " that match" };
        out.line(format!("Queue {name} has no {word} tasks{of}."));
        return;
    }
    let fields = list.tasks.iter().map(|task| task.fields.as_deref().unwrap_or_default());
    let table = table(&list.tasks, &titles(&queue.rules), clock::now_ms(), out.paint);
    out.line(field_lines::below_rows(&table, fields, out.paint));
    if let Some(next) = list.next.as_ref().filter(|_| !is_cut) {
        // A list that ends because its fields are large ends there with every limit.
        let shows_more = if list.tasks.len() < limit { "" } else { "--limit shows more, and " };
        let more = format!("There are more; {shows_more}--cursor {next} goes on.");
        out.line(out.paint.tone(Tone::Faint, &more));
    }
}

/// `titles` has the titles of the columns that the queue adds.
fn table(tasks: &[ListedTask], titles: &[String], now_ms: u64, paint: Paint) -> String {
    let mut table = TextTable::new(&["ATTEMPT", "HOST", "WHEN"])
        .id("ID")
        .fixed(["STATUS"])
        .texts(titles)
        .figures(["ATTEMPT", "WHEN"])
        .names(["HOST"])
        .texts(["ERROR"]);
    for task in tasks {
        let due = task.due_at.filter(|due| *due > now_ms);
        let due = due.map(|due| format!("in {}", text::age(Duration::from_millis(due - now_ms))));
        let when = task.finished_at.or(task.started_at).or(task.enqueued_at);
        let ago = || when.map(|ms| text::ago(ms, now_ms));
        let first = [(&task.id).into(), Cell::tone(task.status.into_str(), tone(task.status))];
        let last = [
            task.attempt.into(),
            Cell::known(due.or_else(ago)),
            Cell::known(task.consumer.as_ref()),
            text::cut(&text::escape(task.error.as_deref().unwrap_or_default()), ERROR_WIDTH).into(),
        ];
        let columns = task.columns.iter().map(|column| Cell::known(column.as_ref()));
        table.row(first.into_iter().chain(columns).chain(last));
    }
    table.render(paint)
}
