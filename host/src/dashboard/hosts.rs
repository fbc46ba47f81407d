//! Hosts: what each one runs, how much room it has, and those that ended without a word.
//!
//! Not here: what a host tells of itself (`announcer`).

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};

use super::layout::{page, state, table};
use super::problem::PageProblem;
use super::session::Visitor;
use super::state::Dashboard;
use super::text::{NONE, age, data, moment, plural, size};
use super::values::queue_path;
use crate::builds::short;
use crate::clock::now_ms;
use crate::queue::hosts::{self, HostInfo, LostHost, STOPPING};

const COLUMNS: [&str; 8] = ["Host", "State", "#Up", "Version", "#Memory", "#Runs now", "Queues", "Plugins"];

pub(super) async fn show(
    State(dashboard): State<Dashboard>,
    visitor: Extension<Visitor>,
) -> Result<Response, PageProblem> {
    let link = dashboard.api.link().await?;
    let mut running = hosts::list_known(link).await?;
    running.sort_by(|a, b| a.id.cmp(&b.id));
    let lost = hosts::lost(link, now_ms()).await?;
    let main = html! {
        h1 { "Hosts" }
        section aria-labelledby="running" data-live="running" {
            h2 id="running" { (plural(running.len() as u64, "running host")) }
            @if running.is_empty() {
                p.quiet { "No host has announced itself in the last 15 seconds." }
            } @else {
                (table("Running hosts", &COLUMNS, &html! { @for host in &running { (row(host)) } }))
                p.note {
                    "Runs now: attempts, of those that the host may run at once. Memory is that of the \
                     process, of what it may use."
                }
            }
        }
        section aria-labelledby="lost" data-live="lost" {
            h2 id="lost" { "Ended without stopping in the last hour" }
            (lost_table(&lost))
        }
    };
    Ok(page(&visitor, "Hosts", &main))
}

fn row(host: &HostInfo) -> Markup {
    let running: u64 = host.queues.iter().map(|queue| queue.running).sum();
    html! {
        tr {
            th scope="row" { (data(&host.id)) @if let Some(error) = &host.config_error {
                p.note { "Runs with an earlier configuration: " (data(error)) }
            } }
            td { (state(state_of(host))) }
            td.number { (age(now_ms().saturating_sub(host.started_at) / 1000 * 1000)) }
            td { (data(&host.version)) }
            td.number {
                @match host.memory {
                    Some(bytes) => (size(bytes)),
                    None => (NONE),
                }
                @if let Some(most) = host.memory_most { span.note { " of " (size(most)) } }
            }
            td.number { (running) @if let Some(most) = host.capacity { span.note { " of " (most) } } }
            td { (queues(host)) }
            td { (plugins(host)) }
        }
    }
}

/// The state of a host in a word.
fn state_of(host: &HostInfo) -> &'static str {
    let queues = &host.queues;
    if queues.iter().any(|queue| queue.state == "stalled") {
        "stalled"
    } else if !queues.is_empty() && queues.iter().all(|queue| queue.state == STOPPING) {
        STOPPING
    } else {
        "running"
    }
}

fn queues(host: &HostInfo) -> Markup {
    html! {
        details {
            summary { (plural(host.queues.len() as u64, "queue")) }
            ul {
                @for queue in &host.queues {
                    li {
                        a href=(queue_path(&queue.name)) { (data(&queue.name)) } " " (state(&queue.state))
                        " " (queue.running) " run"
                    }
                }
            }
        }
    }
}

fn plugins(host: &HostInfo) -> Markup {
    html! {
        details {
            summary { (plural(host.plugins.len() as u64, "plugin")) }
            ul {
                @for plugin in &host.plugins {
                    li {
                        (data(&plugin.name)) " " (state(&plugin.state)) " "
                        @if let Some(version) = &plugin.version { code title=(version) { (short(version)) } }
                    }
                }
            }
        }
    }
}

fn lost_table(lost: &[LostHost]) -> Markup {
    let now = now_ms();
    let rows = html! {
        @for host in lost {
            tr {
                th scope="row" { (data(&host.id)) }
                td { (moment(Some(host.seen_ms), now)) }
                td.number { (host.lost_attempts) }
            }
        }
    };
    html! {
        @if lost.is_empty() {
            p.quiet { "None: every host that is gone said that it stops." }
        } @else {
            (table("Hosts that ended without stopping", &["Host", "Last seen", "#Lost attempts"], &rows))
            p.note {
                "Lost attempts are those whose tasks other hosts have taken over since then. They are not \
                 charged to the tasks; the timeline of each task has them."
            }
        }
    }
}
