//! The page of changes: who changed something, when and why.
//!
//! Not here: what is noted (`operations::changes`).

use maud::{Markup, html};

use super::layout::page;
use super::problem::PageAnswer;
use super::state::PageCall;
use super::table::{cell, sorted, text, time};
use super::text::{NONE, data};
use super::values::{plugin_path, queue_path};
use crate::admin::base_path::at;
use crate::clock::now_ms;
use crate::operations::changes::{self, ChangeView};

/// The most changes on the page.
const CHANGES: usize = 100;

pub(super) async fn show(PageCall { dashboard, visitor, values }: PageCall) -> PageAnswer {
    let (queue, plugin) = (values.get("queue"), values.get("plugin"));
    let found = changes::list(dashboard.api.link().await?, queue, plugin, CHANGES).await?;
    let now = now_ms();
    let row = |change: &ChangeView| {
        vec![
            time("When", Some(change.at), now),
            text("Who", &change.who),
            text("Change", &change.what),
            cell("Of", subject(change)).by(change.subject()),
            text("Detail", &change.detail),
            text("Why", &change.why),
        ]
    };
    let main = html! {
        h1 {
            "Changes"
            @if let Some(name) = queue.or(plugin) { " of " (data(name)) }
        }
        p.note {
            "Operators made these changes, by command, by the API and by these pages. The newest 100 are \
             shown, and the last 500 are kept."
            @if queue.or(plugin).is_some() { " " a href=(at("/changes")) { "All changes" } }
        }
        section aria-label="All changes" data-live="changes" {
            @if found.is_empty() {
                p.quiet {
                    "Nobody has changed anything lately. Pauses, limits, jobs, deploys, rollbacks and \
                     acknowledgements are noted here, with their reason; " code { "tqhost changes" }
                    " shows the same."
                }
            } @else {
                (sorted("Changes", found.iter().map(row), &values, &at("/changes")))
            }
        }
    };
    Ok(page(&visitor, "Changes", &main))
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
