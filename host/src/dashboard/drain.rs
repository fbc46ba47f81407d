//! Drain of a queue: a page that counts what waits and asks, and the steps.
//!
//! The page begins the walk: its cursor says which tasks were there, so those that are added after the count
//! are left alone. A step is bounded; where more is left, its page has a form that goes on. Not here:
//! cancelling tasks (`operations::cancel`).

use axum::Extension;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};

use super::layout::{form_token, page};
use super::problem::PageProblem;
use super::session::Visitor;
use super::state::Dashboard;
use super::text::{data, plural};
use super::values::{Values, queue_path};
use crate::admin::audit::AuditNote;
use crate::operations::{self, BulkCancel, BulkCancelled, DRAINABLE, STEP_TIME};
use crate::queue::{Queue, TaskFilter};

async fn step(
    dashboard: &Dashboard,
    queue: &Queue,
    filter: &TaskFilter,
    cursor: &str,
    dry_run: bool,
) -> Result<BulkCancelled, PageProblem> {
    let (states, cursor, only_waiting, time) = (&DRAINABLE[..], Some(cursor), true, STEP_TIME);
    let bulk = BulkCancel { states, filter, cursor, only_waiting, dry_run, time };
    Ok(operations::cancel_part(&dashboard.api.queues(), queue, &bulk).await?)
}

/// Counts, and asks.
pub(super) async fn confirm(
    State(dashboard): State<Dashboard>,
    visitor: Extension<Visitor>,
    Path(name): Path<String>,
    values: Values,
) -> Result<Response, PageProblem> {
    let filter = values.filter(dashboard.api.mask())?;
    let queue = dashboard.api.queue(&name).await?;
    let begin = operations::cancel_walk(&queue, &DRAINABLE).await?;
    // With a filter, one step counts, as a page is bounded.
    let (count, has_more) = if filter.is_empty() {
        let census = queue.census().await?;
        (census.queued + census.delayed + census.held_tasks, false)
    } else {
        let part = step(&dashboard, &queue, &filter, &begin, true).await?;
        (part.succeeded, part.next.is_some())
    };
    let path = queue_path(&name);
    let main = html! {
        p.trail { a href=(path) { "Queue " (data(&name)) } }
        h1 { "Drain queue" }
        p.count {
            @if has_more { "At least " }
            strong { (plural(count, "task")) }
            @if count == 1 { " waits" } @else { " wait" } " in queue " (data(&name))
            ": queued, delayed or held" @if !filter.is_empty() { ", and match" } "."
        }
        (filter_form(&path, &values))
        p.error {
            "They are cancelled for good. What runs goes on. To keep them, use "
            code { "tqhost drain --out" } "."
        }
        p.note { "Tasks that producers add from now on stay, and tasks that run may be tried again." }
        @if !visitor.may_change() {
            p { "This session may only read." }
        } @else if count == 0 && !has_more {
            p { "There is nothing to do." }
        } @else {
            @let many = if has_more { "all that match".to_owned() } else { plural(count, "task") };
            (form(&visitor, &path, &values, &begin, None, &format!("Cancel {many}")))
        }
        p { a href=(path) { "Back, without a change" } }
    };
    Ok(page(&visitor, &format!("Drain {name}"), &main))
}

/// The filter, which counts again.
fn filter_form(path: &str, values: &Values) -> Markup {
    let drain = format!("{path}/drain");
    html! {
        form.filter method="get" action=(drain) role="search" aria-label="Filter of tasks that wait" {
            label { "Text in id, error or field " input name="text" value=[values.get("text")]; }
            label { "Text in the latest error " input name="error" value=[values.get("error")]; }
            label { "Latest version " input name="version" value=[values.get("version")]; }
            label { "Waits for at least "
                input name="older_than" placeholder="1h" value=[values.get("older_than")]; }
            label { "Waits for less than "
                input name="newer_than" placeholder="1h" value=[values.get("newer_than")]; }
            button { "Count" }
            @if !values.filter_pairs().is_empty() { a href=(drain) { "All that wait" } }
        }
    }
}

fn form(
    visitor: &Visitor,
    path: &str,
    values: &Values,
    cursor: &str,
    so_far: Option<[u64; 2]>,
    label: &str,
) -> Markup {
    let [succeeded, skipped] = so_far.unwrap_or_default();
    html! {
        form method="post" action={ (path) "/drain" } data-continue[so_far.is_some()] {
            (form_token(visitor))
            (values.hidden_filter())
            input type="hidden" name="cursor" value=(cursor);
            input type="hidden" name="succeeded" value=(succeeded);
            input type="hidden" name="skipped" value=(skipped);
            button.danger { (label) }
        }
    }
}

pub(super) async fn drain(
    State(dashboard): State<Dashboard>,
    visitor: Extension<Visitor>,
    Path(name): Path<String>,
    values: Values,
) -> Result<Response, PageProblem> {
    let filter = values.filter(dashboard.api.mask())?;
    let cursor = values.counted_cursor()?;
    let queue = dashboard.api.queue(&name).await?;
    let note = AuditNote::queue(&name).with_filter(&values.filter_map());
    let part = match step(&dashboard, &queue, &filter, cursor, false).await {
        Ok(part) => part,
        Err(error) => return Ok(note.on(error.into_response())),
    };
    let note = note.with_counts(part.succeeded, part.skipped);
    let so_far = [values.sum("succeeded", part.succeeded), values.sum("skipped", part.skipped)];
    let path = queue_path(&name);
    let main = html! {
        p.trail { a href=(path) { "Queue " (data(&name)) } }
        h1 { "Drain queue" }
        p.done role="status" {
            (plural(so_far[0], "task")) " "
            @if so_far[0] == 1 { "is " } @else { "are " } "cancelled"
            @if so_far[1] > 0 { ", " (so_far[1]) " skipped: they had ended or begun" }
            @if part.next.is_some() { "; more are left." }
            @else { ", and none is left that was counted." }
        }
        @if let Some(next) = &part.next {
            p.note { "With JavaScript this page goes on by itself; leave it to stop." }
            (form(&visitor, &path, &values, next, Some(so_far), "Go on"))
        }
        p { a href=(path) { "Watch queue " (data(&name)) } }
    };
    Ok(note.on(page(&visitor, "Drain", &main)))
}
