//! A task: its state and why it waits, timeline, fields, result and error, its relatives, what it enqueued;
//! cancel and requeue.
//!
//! Fields are looked up where the task is. Those of a task that has completed are there if its queue keeps
//! them, and nothing keeps those of one that was cancelled.

use std::borrow::Cow;

use axum::extract::Path;
use maud::{Markup, html};

use super::layout::{button, done, page, state};
use super::problem::{PageAnswer, changed, done_at};
use super::state::PageCall;
use super::text::{self, block, data, data_or_none, moment, size, version};
use super::timeline;
use super::values::{queue_path, task_path};
use super::{enqueue, flow};
use crate::admin::audit::AuditNote;
use crate::admin::problem::{ApiProblem, ProblemCode};
use crate::builds::Builds;
use crate::clock::now_ms;
use crate::mask::FieldMask;
use crate::operations::{
    self, FieldView, OperationError, OperationResult, QueueView, TaskView, known_builds, waits,
};
use crate::queue::codec::RawFields;
use crate::queue::kept::MOST_KEPT;
use crate::queue::listing::ListedState;
use crate::queue::redrive::Redrive;
use crate::queue::{Queue, Status, hosts};

/// The most fields that are shown.
const FIELDS: usize = 50;

/// A task where it lies now.
struct LocatedTask {
    state: ListedState,
    reason: Option<String>,
    attempts: u32,
    /// As they are, for a copy.
    fields: Vec<FieldView>,
    alias: Option<Vec<u8>>,
    /// Why it waits.
    waits: Vec<String>,
}

impl LocatedTask {
    fn new(
        queue: &Queue,
        state: ListedState,
        fields: &RawFields,
        mask: &FieldMask,
        attempts: u32,
    ) -> LocatedTask {
        let (alias, fields) = (queue.alias_in(fields, mask), FieldView::all(fields));
        LocatedTask { state, reason: None, attempts, fields, alias, waits: Vec::new() }
    }
}

pub(super) async fn show(call: PageCall, Path((name, id)): Path<(String, String)>) -> PageAnswer {
    let PageCall { dashboard, visitor, values } = call;
    let queue = dashboard.api.queue(&name).await?;
    let mask = dashboard.api.mask();
    let mut task = operations::task_view(&dashboard.api.queues(), &queue, &id).await?;
    let found = find(&queue, &mut task, mask).await?;
    let task = task.masked(mask);
    let found = found.as_ref();
    // The address may have the alias of a task whose fields are gone.
    let alias = found.and_then(|found| found.alias.as_ref().map(|alias| String::from_utf8_lossy(alias)));
    let alias = alias.or((task.summary.id != id).then_some(Cow::Borrowed(id.as_str())));
    // Labels are those of the hosts that answer.
    let builds = known_builds(&hosts::list_known(&queue.link).await.unwrap_or_default());
    let path = task_path(&name, &task.summary.id);
    let main = html! {
        p.trail { a href=(queue_path(&name)) { "Queue " (data(&name)) } }
        h1 { "Task " (data(&task.summary.id)) }
        (done(&values))
        section aria-labelledby="state" data-live="state" {
            h2 id="state" { "State" }
            @for why in found.map(|found| found.waits.as_slice()).unwrap_or_default() {
                p.waits { (data(why)) }
            }
            (facts(&task, found, alias.as_deref(), &builds))
            @if let Some(error) = task.summary.error.as_deref().filter(|error| !error.is_empty()) {
                h3 { "Latest error" }
                (block(error, "Latest error"))
            }
            @if let Some(result) = &task.result {
                h3 { "Result" }
                (text::value(result, "Result"))
            }
        }
        // It is there when it is empty, too: it takes the place of a button that was there before.
        @if visitor.may_change() {
            div.actions data-live="actions" {
                @match task.summary.status {
                    Status::Completed | Status::Cancelled => {}
                    Status::Failed => (button(&visitor, &format!("{path}/requeue"), "Requeue")),
                    _ => {
                        @if found.is_some_and(|found| found.state == ListedState::Delayed) {
                            (button(&visitor, &format!("{path}/retry"), "Run now"))
                        }
                        (button(&visitor, &format!("{path}/cancel"), "Cancel"))
                    }
                }
            }
        }
        (timeline::section(&task, &queue.rules, &builds))
        (flow::section(&task))
        (flow::enqueued(&task))
        section aria-labelledby="fields" {
            h2 id="fields" { "Fields" }
            (fields(&task, found, mask))
        }
        @if let Some(found) = found.filter(|_| visitor.may_change()) {
            (enqueue::copy_section(&visitor, &queue.rules, &found.fields, mask))
        }
    };
    Ok(page(&visitor, &format!("Task {id}"), &main))
}

fn facts(task: &TaskView, found: Option<&LocatedTask>, alias: Option<&str>, builds: &Builds) -> Markup {
    let summary = &task.summary;
    let now = now_ms();
    html! {
        dl.facts {
            dt { "Status" }
            dd {
                (state(summary.status.into_str()))
                @if let Some(found) = found.filter(|_| !summary.status.is_end()) {
                    " (" (found.state.into_str()) ")"
                }
                @if let Some(progress) = summary.progress { " " (progress) " %" }
            }
            @if let Some(alias) = alias { dt { "Alias" } dd { (data(alias)) } }
            @if let Some(note) = &summary.note { dt { "Note" } dd { (data(note)) } }
            @if let Some(found) = found {
                @if let Some(reason) = &found.reason { dt { "Dead because" } dd { (data(reason)) } }
                dt { "Attempt" } dd { (found.attempts.max(summary.attempt)) }
            } @else {
                dt { "Attempt" } dd { (summary.attempt) }
            }
            dt { "Version that ran last" } dd { (version(summary.plugin.as_deref(), builds)) }
            dt { "Host" } dd { (data_or_none(summary.consumer.as_deref())) }
            dt { "Enqueued" } dd { (moment(summary.enqueued_at, now)) }
            dt { "Began" } dd { (moment(summary.started_at, now)) }
            @if summary.due_at.is_some() { dt { "Due" } dd { (moment(summary.due_at, now)) } }
            dt { "Ended" } dd { (moment(summary.finished_at, now)) }
            @if let Some(first) = &task.duplicate_of {
                dt { "Duplicate of" }
                dd { a href=(task_path(&task.queue, first)) { (data(first)) } }
            }
            @if let Some(why) = &task.unfinished {
                dt { "Flow or next task not told" }
                dd { (data(why)) }
            }
        }
    }
}

fn fields(task: &TaskView, found: Option<&LocatedTask>, mask: &FieldMask) -> Markup {
    let Some(found) = found else {
        let why = match (task.summary.status, task.fields_bytes) {
            (_, Some(bytes)) => format!(
                "They have {}, and at most {} are kept of a task that has completed.",
                size(bytes),
                size(MOST_KEPT as u64)
            ),
            (Status::Completed, _) => {
                "The task has completed, and nothing keeps its fields. New tasks of the queue keep them with \
                 keep_fields = true in its configuration."
                    .to_owned()
            }
            (status, _) if status.is_end() => "The task has ended, and nothing keeps its fields.".to_owned(),
            _ => "It was not found among the first tasks of its queue.".to_owned(),
        };
        return html! { p.quiet { (why) } };
    };
    let mut shown: Vec<FieldView> = found.fields.iter().take(FIELDS).cloned().collect();
    FieldView::mask(&mut shown, mask);
    let name = |field: &FieldView| match field.name.as_str() {
        Some(name) => name.to_owned(),
        None => field.name.to_string(),
    };
    html! {
        dl.fields {
            @for field in &shown {
                @let name = name(field);
                dt { (data(&name)) }
                dd { (text::value(&field.value, &name)) }
            }
        }
        @if found.fields.len() > FIELDS { p.note { "There are " (found.fields.len() - FIELDS) " more." } }
    }
}

/// Looks for the task where tasks of its status are. The fields that a completed one keeps are taken from it.
async fn find(queue: &Queue, task: &mut TaskView, mask: &FieldMask) -> OperationResult<Option<LocatedTask>> {
    Ok(match task.summary.status {
        Status::Pending | Status::Processing => living(queue, task, mask).await?,
        Status::Failed => queue.dead_named(&task.summary.id).await?.map(|letter| {
            let found = LocatedTask::new(queue, ListedState::Dead, &letter.fields, mask, letter.attempts);
            LocatedTask { reason: Some(letter.reason), ..found }
        }),
        Status::Completed => task.fields.take().map(|fields| {
            let fields = FieldView::raw(&fields);
            LocatedTask::new(queue, ListedState::Ended, &fields, mask, task.summary.attempt)
        }),
        Status::Cancelled => None,
    })
}

async fn living(queue: &Queue, task: &TaskView, mask: &FieldMask) -> OperationResult<Option<LocatedTask>> {
    let Some((state, found)) = queue.located(&task.summary.id).await? else { return Ok(None) };
    let waits = if state == ListedState::Running {
        Vec::new()
    } else {
        let (now, hosts) = (now_ms(), hosts::list_known(&queue.link).await?);
        let view = QueueView::new(&queue.rules, &queue.census().await?, &hosts, now);
        waits::reasons(&view, &queue.rules, (state, &found), now)
    };
    let located = LocatedTask::new(queue, state, &found.fields, mask, found.summary.attempt);
    Ok(Some(LocatedTask { reason: found.reason, waits, ..located }))
}

pub(super) async fn cancel(call: PageCall, Path((name, id)): Path<(String, String)>) -> PageAnswer {
    let queue = call.dashboard.api.queue(&name).await?;
    let done = operations::cancel(&call.dashboard.api.queues(), &queue, &id, false).await;
    let place = done.map(|done| format!("{}?done=cancelled", task_path(&name, &done.id)));
    changed(AuditNote::task(&name, &id), place)
}

pub(super) async fn retry(call: PageCall, Path((name, id)): Path<(String, String)>) -> PageAnswer {
    let queue = call.dashboard.api.queue(&name).await?;
    let done = operations::retry(&queue, &id, false).await;
    let place = done.map(|done| format!("{}?done=retried", task_path(&name, &done.id)));
    changed(AuditNote::task(&name, &id), place)
}

pub(super) async fn requeue(call: PageCall, Path((name, id)): Path<(String, String)>) -> PageAnswer {
    let note = AuditNote::task(&name, &id);
    let queue = call.dashboard.api.queue(&name).await?;
    let done = match queue.redrive_named(std::slice::from_ref(&id), Redrive::Requeue(None)).await {
        Ok(done) => done,
        Err(error) => return changed(note, Err(OperationError::from(error))),
    };
    let note = note.with_counts(done.succeeded, done.skipped);
    if done.succeeded == 0 {
        let detail = format!("task {id:?} is not among the dead letters (any more), or can never run");
        return changed(note, Err(ApiProblem::new(ProblemCode::UnknownTask, detail)));
    }
    done_at(note, &task_path(&name, &id), "requeued")
}
