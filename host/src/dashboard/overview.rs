//! The overview: incidents, and a line for each queue. While Redis is away: what this host saw last.

use axum::http::header::RETRY_AFTER;
use maud::{Markup, html};

use super::chart::{Bar, sparkline};
use super::incidents;
use super::layout::{done, page, state};
use super::problem::{PageAnswer, PageProblem};
use super::queue_history::{about_ms, percent, percentiles, sparkline_words};
use super::session::Visitor;
use super::state::{Dashboard, PageCall};
use super::strays;
use super::table::{PageCell, cell, count, figure, link, sorted};
use super::text::{NONE, age_or_none, data, grouped, moment, per_second, plural};
use super::values::{Values, dead_path, queue_path};
use crate::admin::base_path::at;
use crate::admin::problem::ProblemCode;
use crate::clock::now_ms;
use crate::operations::history::{LATELY, Lately, Percentiles, completed, failed};
use crate::operations::{Overview, QueueView, SeenOverview};
use crate::queue::minutes::QueueHistory;

/// After how many seconds a page without Redis may be asked for again.
const RETRY: u32 = 2;
const QUIET: &str = "Nothing is wrong, as far as the figures below tell.";

pub(super) async fn show(call: PageCall) -> PageAnswer {
    let PageCall { dashboard, visitor, values } = call;
    let api = &dashboard.api;
    let looked = async { Ok(dashboard.last.look(&api.queues(), api.link().await?).await?) };
    match looked.await {
        Ok(seen) => {
            let visitor = Visitor { open: seen.open(), ..visitor };
            let unread = dashboard.strays.look(api.link().await?, &api.queues()).await;
            let main = html! {
                h1 { "Overview" }
                (done(&values))
                (incidents::section(&visitor, &seen.incidents, QUIET))
                (queues(&seen, &values))
                (strays::section(&unread))
            };
            Ok(page(&visitor, "Overview", &main))
        }
        Err(problem) => before(&dashboard, &visitor, &values, problem),
    }
}

/// The page of what this host saw last, while Redis is away.
fn before(dashboard: &Dashboard, visitor: &Visitor, values: &Values, problem: PageProblem) -> PageAnswer {
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
                        strong { "Act now:" } " Redis: " (data(&problem.0.detail)) ". "
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
        (queues(&overview, values))
    };
    let mut response = page(visitor, "Redis does not answer", &main);
    *response.status_mut() = problem.0.code.status();
    response.headers_mut().insert(RETRY_AFTER, RETRY.into());
    response.extensions_mut().insert(problem.0.code);
    Ok(response)
}

fn queues(seen: &Overview, values: &Values) -> Markup {
    let Overview { hosts, queues, failed, histories, lately, .. } = seen;
    let row = |(place, queue): (usize, &QueueView)| {
        row(place, queue, histories.get(&queue.queue), lately.get(&queue.queue))
    };
    html! {
        section aria-labelledby="queues" data-live="queues" {
            h2 id="queues" { "Queues" }
            @if queues.is_empty() {
                p.quiet {
                    "No queue can be shown. A section " code { "[queues.NAME]" }
                    " in the configuration makes one; hosts take it without a restart."
                }
            } @else {
                (sorted("Queues", queues.iter().enumerate().map(row), values, &at("/")))
            }
            p.note {
                (plural((queues.len() + failed.len()) as u64, "queue")) " in the configuration of this host, "
                a href=(at("/hosts")) { (plural(hosts.len() as u64, "running host")) }
                ". Errors and times are of the last " (LATELY) " minutes: 95 of 100 tasks waited and ran for \
                 at most this time."
            }
        }
    }
}

/// `at` is the place of the queue in the list.
fn row(
    at: usize,
    queue: &QueueView,
    history: Option<&QueueHistory>,
    lately: Option<&Lately>,
) -> Vec<PageCell<'static>> {
    let counted = lately.map(|lately| &lately.counted);
    let errors = counted.and_then(|counted| counted.error_rate);
    let state = html! { (state(&queue.state)) @if queue.limits.is_some() { " limited" } };
    let dead = html! {
        @if queue.dead > 0 { a href=(dead_path(&queue.queue)) { (grouped(queue.dead)) } } @else { "0" }
    };
    vec![
        link("Queue", &queue_path(&queue.queue), &queue.queue),
        cell("State", state).by(queue.state.as_str()),
        last_hour(at, &queue.queue, history),
        count("Queued", queue.queued),
        count("Running", queue.running),
        count("Delayed", queue.delayed),
        count("Held", queue.held_tasks),
        figure("Dead", dead).by(queue.dead),
        figure("Oldest", age_or_none(queue.oldest_ms)).by(queue.oldest_ms),
        figure("Done/s", per_second(queue.rate)).by(queue.rate),
        figure("Errors", percent(errors)).by(errors),
        p95("Waited", counted.and_then(|counted| counted.waiting.as_ref())),
        p95("Ran", counted.and_then(|counted| counted.running.as_ref())),
        count("Hosts", queue.hosts.len() as u64),
    ]
}

/// The 95th percentile, with the others as a tooltip.
fn p95<'c>(column: &'c str, times: Option<&Percentiles>) -> PageCell<'c> {
    let title = format!("p50 · p95 · p99: {}", percentiles(times));
    let shown = times.map_or_else(|| NONE.to_owned(), |times| about_ms(times.p95_ms));
    figure(column, html! { span title=(title) { (shown) } }).by(times.map(|times| times.p95_ms))
}

fn last_hour(at: usize, queue: &str, history: Option<&QueueHistory>) -> PageCell<'static> {
    let minutes = history.map(|history| history.steps.as_slice()).unwrap_or_default();
    let bars: Vec<Bar> =
        minutes.iter().map(|minute| (completed(&minute.tally), failed(&minute.tally))).collect();
    let ended: u64 = bars.iter().map(|(completed, failed)| completed + failed).sum();
    if ended == 0 {
        return cell("Last hour", html! { (NONE) });
    }
    cell("Last hour", sparkline(&format!("last-hour-{at}"), &sparkline_words(queue, &bars), &bars)).by(ended)
}
