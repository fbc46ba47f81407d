//! A task: its state, timeline, fields, result and error, its relatives; cancel and requeue.
//!
//! Fields are looked up where the task is. Nothing keeps the fields of a task that has completed or was
//! cancelled.

use axum::Extension;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};

use super::flow;
use super::layout::{button, done, page, state};
use super::problem::PageProblem;
use super::session::Visitor;
use super::state::Dashboard;
use super::text::{self, block, data, data_or_none, moment, version};
use super::timeline;
use super::values::{Values, queue_path, task_path};
use crate::admin::audit::AuditNote;
use crate::admin::problem::{ApiProblem, ProblemCode};
use crate::builds::Builds;
use crate::clock::now_ms;
use crate::operations::{self, FieldView, OperationError, TaskView, known_builds, redrive_ids};
use crate::queue::hosts;
use crate::queue::listing::{FoundTask, ListedState};
use crate::queue::redrive::Redrive;
use crate::queue::{Queue, Status};

/// The most fields that are shown.
const FIELDS: usize = 50;

/// A task where it lies now.
struct LocatedTask {
    state: ListedState,
    reason: Option<String>,
    attempts: u32,
    fields: Vec<FieldView>,
}

pub(super) async fn show(
    State(dashboard): State<Dashboard>,
    visitor: Extension<Visitor>,
    Path((name, id)): Path<(String, String)>,
    values: Values,
) -> Result<Response, PageProblem> {
    let queue = dashboard.api.queue(&name).await?;
    let mask = dashboard.api.mask();
    let task = operations::task_view(&dashboard.api.queues(), &queue, &id).await?.masked(mask);
    let mut found = find(&queue, &task).await?;
    if let Some(found) = &mut found {
        FieldView::mask(&mut found.fields, mask);
    }
    // Labels are those of the hosts that answer.
    let builds = known_builds(&hosts::list_known(&queue.link).await.unwrap_or_default());
    let path = task_path(&name, &task.id);
    let main = html! {
        p.trail { a href=(queue_path(&name)) { "Queue " (data(&name)) } }
        h1 { "Task " (data(&task.id)) }
        (done(&values))
        section aria-labelledby="state" data-live="state" {
            h2 id="state" { "State" }
            (facts(&task, found.as_ref(), &builds))
            @if let Some(error) = task.error.as_deref().filter(|error| !error.is_empty()) {
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
                @match task.status {
                    Status::Completed | Status::Cancelled => {}
                    Status::Failed => (button(&visitor, &format!("{path}/requeue"), "Requeue")),
                    _ => {
                        @if found.as_ref().is_some_and(|found| found.state == ListedState::Delayed) {
                            (button(&visitor, &format!("{path}/retry"), "Run now"))
                        }
                        (button(&visitor, &format!("{path}/cancel"), "Cancel"))
                    }
                }
            }
        }
        (timeline::section(&task, &queue.rules, &builds))
        (flow::section(&task))
        section aria-labelledby="fields" {
            h2 id="fields" { "Fields" }
            (fields(&task, found.as_ref()))
        }
    };
    Ok(page(&visitor, &format!("Task {id}"), &main))
}

fn facts(task: &TaskView, found: Option<&LocatedTask>, builds: &Builds) -> Markup {
    let now = now_ms();
    html! {
        dl.facts {
            dt { "Status" }
            dd {
                (state(task.status.into_str()))
                @if let Some(found) = found { " (" (found.state.into_str()) ")" }
                @if let Some(progress) = task.progress { " " (progress) " %" }
            }
            @if let Some(note) = &task.note { dt { "Note" } dd { (data(note)) } }
            @if let Some(found) = found {
                @if let Some(reason) = &found.reason { dt { "Dead because" } dd { (data(reason)) } }
                dt { "Attempt" } dd { (found.attempts.max(task.attempt)) }
            } @else {
                dt { "Attempt" } dd { (task.attempt) }
            }
            dt { "Version that ran last" } dd { (version(task.plugin.as_deref(), builds)) }
            dt { "Host" } dd { (data_or_none(task.consumer.as_deref())) }
            dt { "Enqueued" } dd { (moment(task.enqueued_at, now)) }
            dt { "Began" } dd { (moment(task.started_at, now)) }
            @if task.due_at.is_some() { dt { "Due" } dd { (moment(task.due_at, now)) } }
            dt { "Ended" } dd { (moment(task.finished_at, now)) }
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

fn fields(task: &TaskView, found: Option<&LocatedTask>) -> Markup {
    let Some(found) = found else {
        let why = if task.status.is_end() {
            "The task has ended, and nothing keeps its fields."
        } else {
            "It was not found among the first tasks of its queue."
        };
        return html! { p.quiet { (why) } };
    };
    let name = |field: &FieldView| match field.name.as_str() {
        Some(name) => name.to_owned(),
        None => field.name.to_string(),
    };
    html! {
        dl.fields {
            @for field in found.fields.iter().take(FIELDS) {
                @let name = name(field);
                dt { (data(&name)) }
                dd { (text::value(&field.value, &name)) }
            }
        }
        @if found.fields.len() > FIELDS { p.note { "There are " (found.fields.len() - FIELDS) " more." } }
    }
}

/// Looks for the task where tasks of its status are.
async fn find(queue: &Queue, task: &TaskView) -> Result<Option<LocatedTask>, OperationError> {
    match task.status {
        Status::Pending | Status::Processing => {}
        Status::Failed => return dead(queue, &task.id).await,
        Status::Completed | Status::Cancelled => return Ok(None),
    }
    let located = |(state, found): (ListedState, FoundTask)| LocatedTask {
        state,
        reason: found.reason,
        attempts: found.status.attempt,
        fields: FieldView::all(&found.fields),
    };
    Ok(queue.located(&task.id).await?.map(located))
}

async fn dead(queue: &Queue, id: &str) -> Result<Option<LocatedTask>, OperationError> {
    let letter = queue.dead_named(id).await?;
    Ok(letter.map(|letter| LocatedTask {
        state: ListedState::Dead,
        fields: FieldView::all(&letter.fields),
        attempts: letter.attempts,
        reason: Some(letter.reason),
    }))
}

pub(super) async fn cancel(
    State(dashboard): State<Dashboard>,
    Path((name, id)): Path<(String, String)>,
) -> Result<Response, PageProblem> {
    let note = AuditNote::task(&name, &id);
    let queue = dashboard.api.queue(&name).await?;
    match operations::cancel(&dashboard.api.queues(), &queue, &id).await {
        Ok(cancelled) => {
            let page = format!("{}?done=cancelled", task_path(&name, &cancelled.id));
            Ok(note.on(Redirect::to(&page)))
        }
        Err(error) => Ok(note.on(PageProblem::from(error).into_response())),
    }
}

pub(super) async fn retry(
    State(dashboard): State<Dashboard>,
    Path((name, id)): Path<(String, String)>,
) -> Result<Response, PageProblem> {
    let note = AuditNote::task(&name, &id);
    let queue = dashboard.api.queue(&name).await?;
    match operations::retry(&queue, &id).await {
        Ok(retried) => Ok(note.on(Redirect::to(&format!("{}?done=retried", task_path(&name, &retried.id))))),
        Err(error) => Ok(note.on(PageProblem::from(error).into_response())),
    }
}

pub(super) async fn requeue(
    State(dashboard): State<Dashboard>,
    Path((name, id)): Path<(String, String)>,
) -> Result<Response, PageProblem> {
    let note = AuditNote::task(&name, &id);
    let queue = dashboard.api.queue(&name).await?;
    let done = match redrive_ids(&queue, std::slice::from_ref(&id), Redrive::Requeue(None), None).await {
        Ok(done) => done,
        Err(error) => return Ok(note.on(PageProblem::from(error).into_response())),
    };
    let note = note.with_counts(done.succeeded, done.skipped);
    if done.succeeded == 0 {
        let detail = format!("task {id:?} is not among the dead letters (any more), or can never run");
        return Ok(note.on(PageProblem(ApiProblem::new(ProblemCode::UnknownTask, detail)).into_response()));
    }
    Ok(note.on(Redirect::to(&format!("{}?done=requeued", task_path(&name, &id)))))
}
