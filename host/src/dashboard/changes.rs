//! The page of changes: who changed something, when and why.
//!
//! Not here: what is noted (`operations::changes`).

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};

use super::layout::{page, table};
use super::problem::PageProblem;
use super::session::Visitor;
use super::state::Dashboard;
use super::text::{NONE, data, data_or_none, moment};
use super::values::{Values, plugin_path, queue_path};
use crate::admin::base_path::at;
use crate::clock::now_ms;
use crate::operations::changes::{self, ChangeView};

/// The most changes on the page.
const CHANGES: usize = 100;

pub(super) async fn show(
    State(dashboard): State<Dashboard>,
    visitor: Extension<Visitor>,
    values: Values,
) -> Result<Response, PageProblem> {
    let (queue, plugin) = (values.get("queue"), values.get("plugin"));
    let found = changes::list(dashboard.api.link().await?, queue, plugin, CHANGES).await?;
    let main = html! {
        h1 {
            "Changes"
            @if let Some(name) = queue.or(plugin) { " of " (data(name)) }
        }
        p.note {
            "Operators made these changes, by command, by the API and by these pages. The last 500 are kept."
            @if queue.or(plugin).is_some() { " " a href=(at("/changes")) { "All changes" } }
        }
        div data-live="changes" { (change_table(&found)) }
    };
    Ok(page(&visitor, "Changes", &main))
}

/// The changes as a table.
fn change_table(found: &[ChangeView]) -> Markup {
    let now = now_ms();
    let rows = html! {
        @for change in found {
            tr {
                td { (moment(Some(change.at), now)) }
                td { (data_or_none(Some(&change.who))) }
                td { (data(&change.what)) }
                td { (subject(change)) }
                td { (data_or_none(Some(&change.detail))) }
                td { (data_or_none(Some(&change.why))) }
            }
        }
    };
    html! {
        @if found.is_empty() {
            p.quiet { "Nobody has changed anything lately." }
        } @else {
            (table("Changes", &["When", "Who", "Change", "Of", "Detail", "Why"], &rows))
        }
    }
}

fn subject(change: &ChangeView) -> Markup {
    html! {
        @match (&change.queue, &change.plugin) {
            (Some(queue), _) => a href=(queue_path(queue)) { (data(queue)) },
            (None, Some(plugin)) => a href=(plugin_path(plugin)) { (data(plugin)) },
            (None, None) => (NONE),
        }
    }
}
