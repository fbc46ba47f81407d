//! The overview: alarms in words, and a line for each queue.

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};

use super::layout::{alarm_list, done, page, state, table};
use super::problem::PageProblem;
use super::session::Visitor;
use super::state::Dashboard;
use super::text::{age_or_none, data, plural};
use super::values::{Values, dead_path, queue_path};
use crate::chain::chain;
use crate::clock::now_ms;
use crate::operations::alarms::alarms;
use crate::operations::{QueueView, queue_views};
use crate::queue::hosts;

const COLUMNS: [&str; 10] = [
    "Queue",
    "State",
    "#Queued",
    "#Running",
    "#Delayed",
    "#Held",
    "#Dead",
    "#Oldest waits",
    "#Per second",
    "#Hosts",
];

pub(super) async fn show(
    State(dashboard): State<Dashboard>,
    visitor: Extension<Visitor>,
    values: Values,
) -> Result<Response, PageProblem> {
    let api = &dashboard.api;
    let link = api.link().await?;
    let hosts = hosts::list(link).await?;
    let (mut queues, mut failed) = (Vec::new(), Vec::new());
    for (queue, view) in queue_views(&api.queues(), link, &hosts, now_ms()).await {
        match view {
            Ok(view) => queues.push(view),
            Err(error) if error.is_connection() => return Err(error.into()),
            Err(error) => failed.push((queue, chain(&error))),
        }
    }
    let alarms = alarms(&queues, &hosts, &failed);
    let main = html! {
        h1 { "Overview" }
        (done(&values))
        section aria-labelledby="alarms" data-live="alarms" {
            h2 id="alarms" { "Alarms" }
            (alarm_list(&alarms, "Nothing is wrong, as far as the figures below tell."))
        }
        section aria-labelledby="queues" data-live="queues" {
            h2 id="queues" { "Queues" }
            p.note {
                (plural((queues.len() + failed.len()) as u64, "queue")) " in the configuration of this host, "
                (plural(hosts.len() as u64, "running host")) "."
            }
            (table("Queues", &COLUMNS, &html! { @for queue in &queues { (row(queue)) } }))
        }
    };
    Ok(page(&visitor, "Overview", &main))
}

fn row(queue: &QueueView) -> Markup {
    html! {
        tr {
            th scope="row" { a href=(queue_path(&queue.queue)) { (data(&queue.queue)) } }
            td { (state(&queue.state)) }
            td.number { (queue.queued) }
            td.number { (queue.running) }
            td.number { (queue.delayed) }
            td.number { (queue.held_tasks) }
            td.number {
                @if queue.dead > 0 { a href=(dead_path(&queue.queue)) { (queue.dead) } } @else { "0" }
            }
            td.number { (age_or_none(queue.oldest_ms)) }
            td.number { (format!("{:.1}", queue.rate)) }
            td.number { (queue.hosts.len()) }
        }
    }
}
