//! The search over all queues: names of queues, and ids and aliases of tasks.
//!
//! In: the text of the box at the top of each page. Out: the page of the only thing that it means, or a list.
//! Not here: texts in fields and errors, which the page of a queue filters by.

use axum::response::{IntoResponse, Redirect};
use maud::html;

use super::layout::page;
use super::problem::PageAnswer;
use super::state::PageCall;
use super::text::data;
use super::values::{queue_path, task_path};
use crate::operations::find_everywhere;
use crate::queue::codec::MAX_ID_BYTES;

/// The most results on the page.
const MOST: usize = 100;

pub(super) async fn show(PageCall { dashboard, visitor, values }: PageCall) -> PageAnswer {
    let text = values.get("q").unwrap_or_default().trim();
    let queues = dashboard.api.queues();
    let named: Vec<&str> =
        queues.iter().map(|rules| rules.name.as_str()).filter(|name| name.contains(text)).collect();
    let is_id = !text.is_empty() && text.len() <= MAX_ID_BYTES;
    let tasks = match is_id {
        true => find_everywhere(&queues, dashboard.api.link().await?, text).await,
        false => Vec::new(),
    };
    match (named.as_slice(), tasks.as_slice()) {
        ([name], []) => return Ok(Redirect::to(&queue_path(name)).into_response()),
        ([], [(queue, id)]) => return Ok(Redirect::to(&task_path(queue, id)).into_response()),
        _ => {}
    }
    let main = html! {
        h1 { "Search" }
        @if named.is_empty() && tasks.is_empty() {
            p.quiet {
                "No queue has " (data(text)) " in its name, and no task has this id or alias. A task that "
                "has ended is known until the end of its queue's retention; its dead letter is found by the "
                "text filter of the queue's dead letters."
            }
        }
        ul.found {
            @for (queue, id) in tasks.iter().take(MOST) {
                li { "Task " a href=(task_path(queue, id)) { (data(id)) } " of queue " (data(queue)) }
            }
            @for name in named.iter().take(MOST) {
                li { "Queue " a href=(queue_path(name)) { (data(name)) } }
            }
        }
        @if tasks.len() > MOST || named.len() > MOST { p.note { "Only the first " (MOST) " are shown." } }
    };
    Ok(page(&visitor, "Search", &main))
}
