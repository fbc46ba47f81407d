//! Hosts: what each one runs, how much room it has, and those that ended without a word.
//!
//! Not here: what a host tells of itself (`announcer`).

use maud::{Markup, html};

use super::layout::{page, state};
use super::problem::PageAnswer;
use super::state::PageCall;
use super::table::{PageCell, cell, count, figure, sorted, table, text, time};
use super::text::{NONE, age, data, grouped, plural, size};
use super::values::queue_path;
use crate::admin::base_path::at;
use crate::builds::short;
use crate::clock::now_ms;
use crate::queue::hosts::{self, HostInfo, LostHost, STOPPING};

pub(super) async fn show(PageCall { dashboard, visitor, values }: PageCall) -> PageAnswer {
    let link = dashboard.api.link().await?;
    // In a cluster, hosts whose announcements lie on a node that is away are not shown.
    let mut running = hosts::list_known(link).await?;
    running.sort_by(|a, b| a.id.cmp(&b.id));
    let lost = hosts::lost(link, now_ms()).await?;
    let main = html! {
        h1 { "Hosts" }
        section aria-labelledby="running" data-live="running" {
            h2 id="running" { (plural(running.len() as u64, "running host")) }
            @if running.is_empty() {
                p.quiet {
                    "No host has announced itself in the last 15 seconds. "
                    code { "tqhost run" } " starts one."
                }
            } @else {
                (sorted("Running hosts", running.iter().map(row), &values, &at("/hosts")))
                p.note {
                    "Runs now: attempts that run, of how many the host may run at once. Memory: bytes of \
                     the process, of how many it may use."
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

fn row(host: &HostInfo) -> Vec<PageCell<'static>> {
    let running: u64 = host.queues.iter().map(|queue| queue.running).sum();
    let up_ms = now_ms().saturating_sub(host.started_at) / 1000 * 1000;
    let name = html! {
        (data(&host.id))
        @if let Some(error) = &host.config_error {
            p.note { "Runs with an earlier configuration: " (data(error)) }
        }
    };
    let memory = html! {
        (host.memory.map_or_else(|| NONE.to_owned(), size))
        @if let Some(most) = host.memory_most { span.note { " of " (size(most)) } }
    };
    let runs = html! {
        (grouped(running)) @if let Some(most) = host.capacity { span.note { " of " (grouped(most)) } }
    };
    vec![
        cell("Host", name).by(host.id.as_str()),
        cell("State", state(state_of(host))).by(state_of(host)),
        figure("Up", age(up_ms)).by(up_ms),
        text("Version", &host.version),
        figure("Memory", memory).by(host.memory),
        figure("Runs now", runs).by(running),
        cell("Queues", queues(host)).by(host.queues.len() as u64),
        cell("Plugins", plugins(host)).by(host.plugins.len() as u64),
    ]
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
    let row = |host: &LostHost| {
        vec![
            text("Host", &host.id),
            time("Last seen", Some(host.seen_ms), now),
            count("Lost attempts", host.lost_attempts),
        ]
    };
    html! {
        @if lost.is_empty() {
            p.quiet { "None: every host that is gone said that it stops." }
        } @else {
            (table("Hosts that ended without stopping", lost.iter().map(row)))
            p.note {
                "Lost attempts are those whose tasks other hosts have taken over since then. They are not \
                 charged to the tasks; the timeline of each task has them."
            }
        }
    }
}
