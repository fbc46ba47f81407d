//! A queue: figures, tasks by state, hosts and consumers; pause and resume.
//!
//! Not here: its history (`queue_history`), limits (`limits`), dead letters (`dead`), one task (`task`), a
//! new one (`enqueue`).

use std::collections::HashMap;

use axum::extract::Path;
use maud::{Markup, html};

use super::layout::{button, done, form_token, page, state};
use super::list::{ShownTasks, list_request};
use super::problem::{PageAnswer, done_at};
use super::queue_history::{self, ShownHistory};
use super::session::Visitor;
use super::state::PageCall;
use super::table::{cell, count, figure, table, text};
use super::text::{NONE, age, age_or_none, data, grouped, moment, per_second};
use super::values::{Values, dead_path, link, plugin_path, queue_path};
use super::{enqueue, incidents, limits};
use crate::admin::audit::AuditNote;
use crate::admin::problem::{ApiProblem, invalid};
use crate::chain::chain;
use crate::clock::now_ms;
use crate::operations::history::{HistoryView, Lately, OVERVIEW, history};
use crate::operations::incidents::of_queue;
use crate::operations::marks::{self, HistoryMark};
use crate::operations::{self, OperationError, QueueOnHost, QueueView, known_builds};
use crate::queue::Queue;
use crate::queue::hosts::{self, HostInfo};
use crate::queue::listing::ListedState;
use crate::queue::minutes::{HistoryRange, in_range};

const STATES: [ListedState; 6] = [
    ListedState::Queued,
    ListedState::Running,
    ListedState::Delayed,
    ListedState::Held,
    ListedState::Dead,
    ListedState::Ended,
];

pub(super) async fn show(call: PageCall, Path(name): Path<String>) -> PageAnswer {
    let PageCall { dashboard, visitor, values } = call;
    let queue = dashboard.api.queue(&name).await?;
    let hosts = hosts::list_known(&queue.link).await?;
    let view = QueueView::new(&queue.rules, &queue.census().await?, &hosts, now_ms());
    let listed = chosen_state(&values)?;
    let request = list_request(listed, values.filter(dashboard.api.mask())?, &values);
    let list = match operations::list(&queue, &request).await {
        Err(error @ OperationError::NoEvents(_)) => Err(error.to_string()),
        list => Ok(list?),
    };
    let history = match history(&queue, OVERVIEW).await {
        Err(error) if error.is_connection() => return Err(error.into()),
        history => history.map_err(|error| chain(&error)),
    };
    let lately = history.as_ref().ok().map(Lately::of);
    let range = chosen_range(&values)?;
    let history = match (range, history) {
        (HistoryRange::Hour, history) => history,
        (range, _) => in_range(&queue, range).await.map_err(|error| chain(&error)),
    };
    let builds = known_builds(&hosts);
    let history = history.map(|history| HistoryView::of(&name, &history, &builds));
    let marks = marks(&queue, &hosts, &history).await;
    let found = of_queue(&queue.link, &view, &hosts, lately.as_ref()).await?;
    let announced = hosts::announced_ago(&queue.link, view.hosts.iter().map(|on| on.host.as_str())).await?;
    let path = queue_path(&name);
    let tasks =
        ShownTasks { visitor: &visitor, rules: &queue.rules, listed, values: &values, builds: &builds };
    let main = html! {
        h1 { "Queue " (data(&name)) }
        (done(&values))
        section aria-labelledby="figures" data-live="figures" {
            h2 id="figures" { "Now" }
            (figures(&view, &path))
        }
        (incidents::section(&visitor, &found, ""))
        @if visitor.may_change() {
            div.actions data-live="actions" { (actions(&visitor, &view, &path, &values)) }
        }
        (queue_history::section(&ShownHistory {
            rules: &queue.rules, path: &path, range, history: &history, marks: &marks,
        }))
        section aria-labelledby="tasks" data-live="tasks" {
            h2 id="tasks" { "Tasks" }
            (tabs(&path, listed))
            (filter(&path, &values, listed))
            @match &list {
                Ok(list) => (tasks.section(list)),
                Err(why) => p.quiet { (why) },
            }
        }
        @if visitor.may_change() {
            (limits::form(&visitor, &queue.rules, view.limits.as_ref()))
            (enqueue::section(&visitor, &path))
        }
        section aria-labelledby="hosts" data-live="hosts" {
            h2 id="hosts" { "Hosts and consumers" }
            (hosts_table(&view, &announced))
            (consumers(&view))
        }
    };
    Ok(page(&visitor, &format!("Queue {name}"), &main))
}

fn chosen_state(values: &Values) -> Result<ListedState, ApiProblem> {
    let Some(text) = values.get("state") else { return Ok(ListedState::Queued) };
    let wrong = |_| invalid(format!("state: there is no state {text:?}"));
    text.parse().map_err(wrong)
}

fn chosen_range(values: &Values) -> Result<HistoryRange, ApiProblem> {
    let Some(text) = values.get("range") else { return Ok(HistoryRange::default()) };
    text.parse().map_err(|_| invalid(format!("range: there is no range {text:?}")))
}

/// The events in the time of a history, as marks.
async fn marks(queue: &Queue, hosts: &[HostInfo], history: &Result<HistoryView, String>) -> Vec<HistoryMark> {
    match history.as_ref().ok().and_then(|history| history.minutes.first()) {
        Some(first) => marks::marks(queue, hosts, first.from_ms).await,
        None => Vec::new(),
    }
}

fn figures(view: &QueueView, path: &str) -> Markup {
    let places = [
        ("Queued", ListedState::Queued, view.queued),
        ("Running", ListedState::Running, view.running),
        ("Delayed", ListedState::Delayed, view.delayed),
        ("Held", ListedState::Held, view.held_tasks),
    ];
    html! {
        dl.figures {
            div { dt { "State" } dd { (state(&view.state)) } }
            @for (name, listed, count) in places {
                div { dt { (name) } dd { a href=(list_of(path, listed)) { (grouped(count)) } } }
            }
            div { dt { "Dead" } dd { a href=(dead_path(&view.queue)) { (grouped(view.dead)) } } }
            @if let Some(outgoing) = view.outgoing {
                div { dt { "Outgoing" } dd { (grouped(outgoing)) } }
            }
            div { dt { "Oldest waits" } dd { (age_or_none(view.oldest_ms)) } }
            div { dt { "Completed/s" } dd { (per_second(view.rate)) } }
        }
        p.note {
            "Stream " (data(&view.stream)) ", group " (data(&view.group)) ", plugin "
            a href=(plugin_path(&view.plugin)) { (data(&view.plugin)) } "."
            @if let Some(node) = &view.node { " Its node of the cluster is " (data(node)) "." }
            @if let Some(schedule) = &view.schedule {
                " Schedule " (data(&schedule.cron.join("; "))) " (" (data(&schedule.timezone)) "), next: "
                (moment(schedule.next_ms, now_ms())) "."
            }
        }
        @if let Some(pause) = &view.pause { p.note { "Paused " (data(&pause.told(now_ms()))) "." } }
        @if let Some(limits) = &view.limits { p.note { "Limited to " (data(&limits.told(now_ms()))) "." } }
    }
}

fn list_of(path: &str, listed: ListedState) -> String {
    format!("{path}?state={}#tasks", listed.into_str())
}

fn tabs(path: &str, chosen: ListedState) -> Markup {
    html! {
        nav.tabs aria-label="Tasks by state" {
            @for listed in STATES {
                @let current = (listed == chosen).then_some("page");
                a href=(list_of(path, listed)) aria-current=[current] { (listed.into_str()) }
            }
        }
    }
}

/// A form that only looks.
fn filter(path: &str, values: &Values, listed: ListedState) -> Markup {
    html! {
        form.filter method="get" action=(path) role="search" aria-label="Filter of tasks" {
            input type="hidden" name="state" value=(listed.into_str());
            (values.condition_inputs())
            (values.time_inputs())
            (values.inputs(&[
                ("Text in id, error or field", "text", None),
                ("Text in the error", "error", None),
            ]))
            button { "Filter" }
        }
    }
}

/// `announced` says how long ago each host has announced itself, in milliseconds.
fn hosts_table(view: &QueueView, announced: &HashMap<&str, u64>) -> Markup {
    let ago = |host: &str| match announced.get(host) {
        Some(ms) => format!("{} ago", age(*ms)),
        None => NONE.to_owned(),
    };
    let row = |on: &QueueOnHost| {
        vec![
            text("Host", &on.host),
            text("Version", &on.version),
            cell("State", state(&on.queue.state)),
            figure("Announced", ago(&on.host)),
            count("Running", on.queue.running),
            count("Completed", on.queue.completed),
            count("Retried", on.queue.retried),
            count("Dead", on.queue.dead),
            figure("Per second", per_second(on.queue.rate)),
        ]
    };
    html! {
        @if view.hosts.is_empty() {
            p.quiet {
                "No running host has this queue: start one with it in its configuration, by "
                code { "tqhost run" } "."
            }
        } @else {
            (table("Hosts of this queue", view.hosts.iter().map(row)))
            @if view.versions_differ {
                p.note { "Its hosts run different versions of tqhost: finish the upgrade." }
            }
        }
    }
}

fn consumers(view: &QueueView) -> Markup {
    let rows = view.consumers.iter().map(|consumer| {
        vec![
            text("Consumer", &consumer.name),
            count("Pending", consumer.pending),
            figure("Last heard of", format!("{} ago", age(consumer.idle_ms))),
        ]
    });
    html! { @if !view.consumers.is_empty() { (table("Consumers of the group", rows)) } }
}

/// The ways to stop the queue and to let it go on.
fn actions(visitor: &Visitor, view: &QueueView, path: &str, values: &Values) -> Markup {
    html! {
        @if !view.paused { (pause_form(visitor, path)) }
        @if view.paused || view.held.is_some() { (button(visitor, &format!("{path}/resume"), "Resume")) }
        a.button href=(link(&format!("{path}/drain"), &values.filter_pairs())) { "Drain…" }
    }
}

/// A button that pauses the queue, beside its reason and time.
fn pause_form(visitor: &Visitor, path: &str) -> Markup {
    html! {
        form.inline method="post" action={ (path) "/pause" } {
            (form_token(visitor))
            label { "Why " input name="why" maxlength="200"; }
            label { "For " input name="for" placeholder="30m" size="5"; }
            button { "Pause" }
        }
    }
}

pub(super) async fn pause(call: PageCall, Path(name): Path<String>) -> PageAnswer {
    let PageCall { dashboard, visitor, values } = call;
    let (why, time) = (values.trimmed("why"), values.duration("for")?);
    operations::pause(&dashboard.api.queue(&name).await?, &visitor.caller.name, why, time).await?;
    done_at(AuditNote::queue(&name), &queue_path(&name), "paused")
}

pub(super) async fn resume(call: PageCall, Path(name): Path<String>) -> PageAnswer {
    let queue = call.dashboard.api.queue(&name).await?;
    operations::resume(&queue, &call.visitor.caller.name, "").await?;
    done_at(AuditNote::queue(&name), &queue_path(&name), "resumed")
}
