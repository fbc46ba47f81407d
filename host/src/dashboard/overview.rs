//! The overview: alarms in words, and a line for each queue.

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};

use super::chart::{Bar, sparkline};
use super::layout::{alarm_list, done, page, state, table};
use super::problem::PageProblem;
use super::queue_history::{percent, percentiles, sparkline_words};
use super::session::Visitor;
use super::state::Dashboard;
use super::text::{NONE, age_or_none, data, plural};
use super::values::{Values, dead_path, queue_path};
use crate::operations::history::{LATELY, Lately, completed, failed};
use crate::operations::{Overview, QueueView, overview};
use crate::queue::minutes::QueueHistory;

const COLUMNS: [&str; 14] = [
    "Queue",
    "State",
    "Last hour",
    "#Queued",
    "#Running",
    "#Delayed",
    "#Held",
    "#Dead",
    "#Oldest waits",
    "#Per second",
    "#Errors",
    "#Waited p50 · p95 · p99",
    "#Ran p50 · p95 · p99",
    "#Hosts",
];

pub(super) async fn show(
    State(dashboard): State<Dashboard>,
    visitor: Extension<Visitor>,
    values: Values,
) -> Result<Response, PageProblem> {
    let api = &dashboard.api;
    let Overview { hosts, queues, failed, histories, lately, alarms } =
        overview(&api.queues(), api.link().await?).await?;
    let rows = html! {
        @for (at, queue) in queues.iter().enumerate() {
            (row(at, queue, histories.get(&queue.queue), lately.get(&queue.queue)))
        }
    };
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
                (plural(hosts.len() as u64, "running host")) ". Errors and times are of the last "
                (LATELY) " minutes."
            }
            (table("Queues", &COLUMNS, &rows))
        }
    };
    Ok(page(&visitor, "Overview", &main))
}

/// `at` is the place of the queue in the list.
fn row(at: usize, queue: &QueueView, history: Option<&QueueHistory>, lately: Option<&Lately>) -> Markup {
    let counted = lately.map(|lately| &lately.counted);
    html! {
        tr {
            th scope="row" { a href=(queue_path(&queue.queue)) { (data(&queue.queue)) } }
            td { (state(&queue.state)) @if queue.limits.is_some() { " limited" } }
            td { (last_hour(at, &queue.queue, history)) }
            td.number { (queue.queued) }
            td.number { (queue.running) }
            td.number { (queue.delayed) }
            td.number { (queue.held_tasks) }
            td.number {
                @if queue.dead > 0 { a href=(dead_path(&queue.queue)) { (queue.dead) } } @else { "0" }
            }
            td.number { (age_or_none(queue.oldest_ms)) }
            td.number { (format!("{:.1}", queue.rate)) }
            td.number { (percent(counted.and_then(|counted| counted.error_rate))) }
            td.number { (percentiles(counted.and_then(|counted| counted.waiting.as_ref()))) }
            td.number { (percentiles(counted.and_then(|counted| counted.running.as_ref()))) }
            td.number { (queue.hosts.len()) }
        }
    }
}

fn last_hour(at: usize, queue: &str, history: Option<&QueueHistory>) -> Markup {
    let minutes = history.map(|history| history.steps.as_slice()).unwrap_or_default();
    let bars: Vec<Bar> =
        minutes.iter().map(|minute| (completed(&minute.tally), failed(&minute.tally))).collect();
    if bars.iter().all(|bar| *bar == (0, 0)) {
        return html! { (NONE) };
    }
    sparkline(&format!("last-hour-{at}"), &sparkline_words(queue, &bars), &bars)
}
