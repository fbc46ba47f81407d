//! The overview: incidents, and a line for each queue. While Redis is away: what this host saw last.

use axum::Extension;
use axum::extract::State;
use axum::http::header::RETRY_AFTER;
use axum::response::Response;
use maud::{Markup, html};

use super::chart::{Bar, sparkline};
use super::incidents;
use super::layout::{done, page, state, table};
use super::problem::PageProblem;
use super::queue_history::{percent, percentiles, sparkline_words};
use super::session::Visitor;
use super::state::Dashboard;
use super::text::{NONE, age_or_none, data, moment, plural};
use super::values::{Values, dead_path, queue_path};
use crate::admin::base_path::at;
use crate::admin::problem::ProblemCode;
use crate::clock::now_ms;
use crate::operations::history::{LATELY, Lately, completed, failed};
use crate::operations::{Overview, QueueView, SeenOverview};
use crate::queue::minutes::QueueHistory;

/// After how many seconds a page without Redis may be asked for again.
const RETRY: u32 = 2;
const QUIET: &str = "Nothing is wrong, as far as the figures below tell.";

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
    let looked = async { Ok(dashboard.last.look(&api.queues(), api.link().await?).await?) };
    match looked.await {
        Ok(seen) => {
            let visitor = Visitor { open: seen.open(), ..visitor.0 };
            let main = html! {
                h1 { "Overview" }
                (done(&values))
                (incidents::section(&visitor, &seen.incidents, QUIET))
                (queues(&seen))
            };
            Ok(page(&visitor, "Overview", &main))
        }
        Err(problem) => before(&dashboard, &visitor, problem),
    }
}

/// The page of what this host saw last, while Redis is away.
fn before(dashboard: &Dashboard, visitor: &Visitor, problem: PageProblem) -> Result<Response, PageProblem> {
    let is_away = problem.0.code == ProblemCode::RedisUnavailable;
    let Some(SeenOverview { at_ms, overview }) = dashboard.last.seen().filter(|_| is_away) else {
        return Err(problem);
    };
    let main = html! {
        h1 { "Overview" }
        section.incidents aria-labelledby="incidents" data-live="incidents" {
            h2 id="incidents" { "Redis does not answer" }
            ul.alarms {
                li.urgent {
                    p role="alert" {
                        strong { "Act now: " } "Redis: " (data(&problem.0.detail)) ". "
                        span.way-out { "Start it, or repair the way to it. Hosts go on when it answers." }
                    }
                    p.note {
                        "The queues are shown as they were at " (moment(Some(at_ms), now_ms()))
                        ", with " (plural(overview.open() as u64, "open incident"))
                        ". This page comes back by itself."
                    }
                }
            }
        }
        (queues(&overview))
    };
    let mut response = page(visitor, "Redis does not answer", &main);
    *response.status_mut() = problem.0.code.status();
    response.headers_mut().insert(RETRY_AFTER, RETRY.into());
    response.extensions_mut().insert(problem.0.code);
    Ok(response)
}

fn queues(seen: &Overview) -> Markup {
    let Overview { hosts, queues, failed, histories, lately, .. } = seen;
    let rows = html! {
        @for (place, queue) in queues.iter().enumerate() {
            (row(place, queue, histories.get(&queue.queue), lately.get(&queue.queue)))
        }
    };
    html! {
        section aria-labelledby="queues" data-live="queues" {
            h2 id="queues" { "Queues" }
            (table("Queues", &COLUMNS, &rows))
            p.note {
                (plural((queues.len() + failed.len()) as u64, "queue")) " in the configuration of this host, "
                a href=(at("/hosts")) { (plural(hosts.len() as u64, "running host")) }
                ". Errors and times are of the last " (LATELY) " minutes."
            }
        }
    }
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
