//! A list of tasks of one state, with boxes for those that may be chosen, and the way on.
//!
//! Redis has tasks in one order only, so a list cannot be sorted; it says so. Not here: which tasks there are
//! (`operations::list`), work on chosen ones (`chosen`).

use maud::{Markup, html};

use super::chosen;
use super::layout::state;
use super::session::Visitor;
use super::table::{PageCell, cell, count, link as linked, table, text_or_none, time};
use super::text::{data_or_none, grouped, version};
use super::values::{Values, dead_path, link, queue_path, task_path};
use crate::builds::Builds;
use crate::clock::now_ms;
use crate::config::QueueRules;
use crate::mask::MASKED;
use crate::operations::{ListRequest, ListedTask, TaskList};
use crate::queue::TaskFilter;
use crate::queue::listing::ListedState;

/// Tasks on a page.
const TASKS: usize = 25;

/// Asks for one page of tasks: the first, or the one that the visitor has gone on to.
pub(super) fn list_request(state: ListedState, filter: TaskFilter, values: &Values) -> ListRequest {
    let cursor = values.get("cursor").map(str::to_owned);
    ListRequest { state, filter, cursor, limit: TASKS, with_fields: false }
}

/// A part of a list.
pub(super) struct ShownTasks<'s> {
    pub visitor: &'s Visitor,
    pub rules: &'s QueueRules,
    pub listed: ListedState,
    pub values: &'s Values,
    pub builds: &'s Builds,
}

impl ShownTasks<'_> {
    pub(super) fn section(&self, list: &TaskList) -> Markup {
        let ShownTasks { visitor, rules, listed, values, .. } = self;
        let order = match listed {
            ListedState::Queued => "the next one to run first",
            ListedState::Running => "the oldest first",
            ListedState::Delayed => "the next one due first",
            ListedState::Held => "as they are parked",
            ListedState::Dead | ListedState::Ended => "the newest first",
        };
        let deeds = chosen::deeds(visitor, *listed);
        let rows = list.tasks.iter().map(|task| {
            let mut row = chosen::tick(&deeds, &task.summary.id);
            row.extend(self.cells(task));
            row
        });
        html! {
            @if !list.tasks.is_empty() {
                (chosen::form(&rules.name, &deeds, &self.place(), &table(listed.into_str(), rows)))
                p.note { "In the order that Redis has: " (order) ". Another one would need all of them." }
            } @else if list.examined == 0 && values.filter_pairs().is_empty() {
                p.quiet { (nothing(&rules.name, *listed)) }
            } @else {
                p.quiet { "None among the " (grouped(list.examined as u64)) " that were looked at." }
            }
            (self.way_on(list))
        }
    }

    fn cells<'c>(&'c self, task: &ListedTask) -> Vec<PageCell<'c>> {
        let summary = &task.summary;
        let (when, at) = match self.listed {
            ListedState::Queued | ListedState::Held => ("Enqueued", summary.enqueued_at),
            ListedState::Running => ("Began", summary.started_at),
            ListedState::Delayed => ("Due", summary.due_at),
            ListedState::Dead => ("Died", summary.finished_at),
            ListedState::Ended => ("Ended", summary.finished_at),
        };
        let note = html! {
            @if let Some(progress) = summary.progress { (progress) " % " }
            (data_or_none(summary.error.as_deref().or(summary.note.as_deref())))
        };
        let mut row = vec![linked("Id", &task_path(&self.rules.name, &summary.id), &summary.id)];
        match self.listed {
            ListedState::Dead => row.push(text_or_none("Reason", task.reason.as_deref())),
            ListedState::Ended => row.push(cell("Status", state(summary.status.into_str()))),
            _ => {}
        }
        let shown = self.rules.show.iter().zip(&task.columns);
        row.extend(shown.map(|(place, text)| {
            let (name, text) = (&place.name, text.as_deref());
            let path = text.and_then(|text| self.alike(name, text));
            match (path, text) {
                (Some(path), Some(text)) => linked(name, &path, text),
                (_, text) => text_or_none(name, text),
            }
        }));
        row.extend([
            time(when, at, now_ms()),
            cell("Error or note", note),
            count("Attempt", summary.attempt.into()),
            cell("Version", version(summary.plugin.as_deref(), self.builds)),
            text_or_none("Host", summary.consumer.as_deref()),
        ]);
        row
    }

    /// The page with all tasks that have this value, where something can be done with them. None: a condition
    /// would not say this value, since it is hidden, cut, or has an asterisk at its end.
    fn alike(&self, field: &str, value: &str) -> Option<String> {
        let is_plain = !value.is_empty() && value.trim() == value && !value.ends_with(['*', '…']);
        if !is_plain || value == MASKED || field.contains(['=', '!']) {
            return None;
        }
        let path = match self.listed {
            ListedState::Queued | ListedState::Delayed | ListedState::Held => {
                format!("{}/drain", queue_path(&self.rules.name))
            }
            ListedState::Dead => dead_path(&self.rules.name),
            ListedState::Running | ListedState::Ended => return None,
        };
        Some(link(&path, &[("where", &format!("{field}={value}"))]))
    }

    /// The values that lead back to the list: those of the page of dead letters have no state.
    fn place(&self) -> Vec<(&str, &str)> {
        let is_of_queue = self.values.get("state").is_some() || self.listed != ListedState::Dead;
        let state = is_of_queue.then_some(("state", self.listed.into_str()));
        self.values.filter_pairs().into_iter().chain(state).collect()
    }

    /// The way on, if the list goes on.
    fn way_on(&self, list: &TaskList) -> Markup {
        let to =
            |cursor: &str| chosen::back(&self.rules.name, &[self.place(), vec![("cursor", cursor)]].concat());
        let has_begun = self.values.get("cursor").is_some();
        html! {
            @if has_begun || list.next.is_some() {
                p.pages {
                    @if has_begun { a.button href=(to("")) { "First page" } }
                    @if let Some(cursor) = &list.next {
                        a.button href=(to(cursor)) { "Next page" }
                        span.note { (grouped(list.examined as u64)) " were looked at" }
                    }
                }
            }
        }
    }
}

/// The words for a list without tasks: which ones would be there.
fn nothing(queue: &str, listed: ListedState) -> Markup {
    html! {
        @match listed {
            ListedState::Queued => {
                "No task waits for a host. " code { "tqhost enqueue " (queue) " name=value" }
                " adds one, and so does the form below."
            }
            ListedState::Running => "No task runs at present.",
            ListedState::Delayed => {
                "No task is delayed. One that is tried again later, or was enqueued for later, is here."
            }
            ListedState::Held => "No task is held. One that waits for its turn, or for its flow, is here.",
            ListedState::Dead => "No dead letter. A task that will not be tried again is here.",
            ListedState::Ended => "No task has ended lately.",
        }
    }
}
