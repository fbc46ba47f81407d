//! A queue: figures, tasks by state, hosts and consumers; pause and resume.
//!
//! Not here: its history (`queue_history`), limits (`limits`), dead letters (`dead`), one task (`task`), a
//! new one (`enqueue`).

use std::collections::HashMap;

use axum::Extension;
use axum::extract::{Path, State};
use axum::response::{Redirect, Response};
use maud::{Markup, html};

use super::layout::{button, done, form_token, page, shown, state, table};
use super::orders::operator;
use super::problem::{PageProblem, invalid};
use super::queue_history::{self, ShownHistory};
use super::session::Visitor;
use super::state::Dashboard;
use super::text::{NONE, age, age_or_none, data, data_or_none, moment, version};
use super::values::{Values, dead_path, link, plugin_path, queue_path, task_path};
use super::{enqueue, incidents, limits};
use crate::admin::audit::AuditNote;
use crate::admin::problem::{ApiProblem, ProblemCode};
use crate::builds::Builds;
use crate::chain::chain;
use crate::clock::now_ms;
use crate::config::QueueRules;
use crate::config::units::parse_duration;
use crate::operations::history::{HistoryView, Lately, OVERVIEW, history, in_range};
use crate::operations::incidents::of_queue;
use crate::operations::marks::{self, HistoryMark};
use crate::operations::{
    self, ListRequest, ListedTask, OperationError, Pausing, QueueView, TaskList, known_builds,
};
use crate::queue::Queue;
use crate::queue::hosts::{self, HostInfo};
use crate::queue::listing::ListedState;
use crate::queue::minutes::HistoryRange;

/// Tasks on a page.
const TASKS: usize = 25;
const STATES: [ListedState; 6] = [
    ListedState::Queued,
    ListedState::Running,
    ListedState::Delayed,
    ListedState::Held,
    ListedState::Dead,
    ListedState::Ended,
];

pub(super) async fn show(
    State(dashboard): State<Dashboard>,
    visitor: Extension<Visitor>,
    Path(name): Path<String>,
    values: Values,
) -> Result<Response, PageProblem> {
    let queue = dashboard.api.queue(&name).await?;
    let hosts = hosts::list_known(&queue.link).await?;
    let view = QueueView::new(&queue.rules, &queue.census().await?, &hosts, now_ms());
    let listed = chosen_state(&values)?;
    let request = ListRequest {
        state: listed,
        filter: values.filter(dashboard.api.mask())?,
        cursor: values.get("cursor").map(str::to_owned),
        limit: TASKS,
        with_fields: false,
    };
    let tasks = match operations::list(&queue, &request).await {
        Err(error @ OperationError::NoEvents(_)) => Err(error.to_string()),
        tasks => Ok(tasks?),
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
    let main = html! {
        h1 { "Queue " (data(&name)) }
        (done(&values))
        section aria-labelledby="figures" data-live="figures" {
            h2 id="figures" { "Now" }
            (figures(&view))
            @if let Some(pause) = &view.pause { p.note { "Paused " (data(&pause.told(now_ms()))) "." } }
            @if let Some(limits) = &view.limits {
                p.note { "Limited to " (data(&limits.told(now_ms()))) "." }
            }
        }
        (incidents::section(&visitor, &found, "No incident of this queue."))
        @if visitor.may_change() {
            div.actions data-live="actions" {
                @if !view.paused { (pause_form(&visitor, &path)) }
                @if view.paused || view.held.is_some() {
                    (button(&visitor, &format!("{path}/resume"), "Resume"))
                }
                a href=(link(&format!("{path}/drain"), &values.filter_pairs())) { "Drain…" }
            }
        }
        (queue_history::section(&ShownHistory {
            rules: &queue.rules, path: &path, range, history: &history, marks: &marks,
        }))
        section aria-labelledby="tasks" data-live="tasks" {
            h2 id="tasks" { "Tasks" }
            (tabs(&path, listed))
            (filter(&path, &values, listed))
            @match &tasks {
                Ok(tasks) => (task_list(&queue.rules, tasks, listed, &values, &builds)),
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
    let wrong = |_| ApiProblem::new(ProblemCode::Invalid, format!("state: there is no state {text:?}"));
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

fn figures(view: &QueueView) -> Markup {
    html! {
        dl.figures {
            div { dt { "State" } dd { (state(&view.state)) } }
            div { dt { "Queued" } dd { (view.queued) } }
            div { dt { "Running" } dd { (view.running) } }
            div { dt { "Delayed" } dd { (view.delayed) } }
            div { dt { "Held" } dd { (view.held_tasks) } }
            div { dt { "Dead" } dd { a href=(dead_path(&view.queue)) { (view.dead) } } }
            @if let Some(outgoing) = view.outgoing {
                div { dt { "Outgoing" } dd { (outgoing) } }
            }
            div { dt { "Oldest waits" } dd { (age_or_none(view.oldest_ms)) } }
            div { dt { "Completed per second" } dd { (format!("{:.1}", view.rate)) } }
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
    }
}

fn tabs(path: &str, chosen: ListedState) -> Markup {
    html! {
        nav.tabs aria-label="Tasks by state" {
            @for listed in STATES {
                @let name: &str = listed.into_str();
                @let current = (listed == chosen).then_some("page");
                a href={ (path) "?state=" (name) "#tasks" } aria-current=[current] { (name) }
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
            label { "Text in id, error or field "
                input name="text" value=(values.get("text").unwrap_or_default()); }
            label { "Text in the error "
                input name="error" value=(values.get("error").unwrap_or_default()); }
            button { "Filter" }
        }
    }
}

fn task_list(
    rules: &QueueRules,
    list: &TaskList,
    listed: ListedState,
    values: &Values,
    builds: &Builds,
) -> Markup {
    let queue = &rules.name;
    let now = now_ms();
    let when = match listed {
        ListedState::Queued | ListedState::Held => "Enqueued",
        ListedState::Running => "Began",
        ListedState::Delayed => "Due",
        ListedState::Dead | ListedState::Ended => "Ended",
    };
    let at = |task: &ListedTask| match listed {
        ListedState::Queued | ListedState::Held => task.enqueued_at,
        ListedState::Running => task.started_at,
        ListedState::Delayed => task.due_at,
        ListedState::Dead | ListedState::Ended => task.finished_at,
    };
    let rows = html! {
        @for task in &list.tasks {
            tr {
                th scope="row" { a href=(task_path(queue, &task.id)) { (data(&task.id)) } }
                td { (state(task.status.into_str())) }
                (shown(&task.columns))
                td.number { (task.attempt) }
                td { (moment(at(task), now)) }
                td { (data_or_none(task.consumer.as_deref())) }
                td { (version(task.plugin.as_deref(), builds)) }
                td {
                    @if let Some(progress) = task.progress { (progress) " % " }
                    (data_or_none(task.error.as_deref().or(task.note.as_deref())))
                }
            }
        }
    };
    let mut columns = vec!["Id", "Status"];
    columns.extend(rules.show.iter().map(|place| place.name.as_str()));
    columns.extend(["#Attempt", when, "Host", "Version", "Error or note"]);
    html! {
        @if list.tasks.is_empty() {
            p.quiet { "None among the " (list.examined) " that were looked at." }
        } @else {
            (table(&format!("Tasks that are {}", listed.into_str()), &columns, &rows))
        }
        (next(&queue_path(queue), list.next.as_deref(), list.examined, values, listed.into_str(), "tasks"))
    }
}

/// The way on, if a list goes on.
pub(super) fn next(
    path: &str,
    cursor: Option<&str>,
    examined: usize,
    values: &Values,
    listed: &str,
    anchor: &str,
) -> Markup {
    let pairs = |cursor: &str| {
        let mut pairs = values.filter_pairs();
        pairs.push(("state", listed));
        pairs.push(("cursor", cursor));
        link(path, &pairs)
    };
    html! {
        p.pages {
            @if values.get("cursor").is_some() {
                a href={ (pairs("")) "#" (anchor) } { "To the first ones" } " "
            }
            @if let Some(cursor) = cursor {
                a href={ (pairs(cursor)) "#" (anchor) } { "Next ones" }
                span.note { " (" (examined) " were looked at)" }
            }
        }
    }
}

/// `announced` says how long ago each host has announced itself, in milliseconds.
fn hosts_table(view: &QueueView, announced: &HashMap<&str, u64>) -> Markup {
    let rows = html! {
        @for on in &view.hosts {
            tr {
                th scope="row" { (data(&on.host)) }
                td { (data(&on.version)) }
                td { (state(&on.queue.state)) }
                td.number { @match announced.get(on.host.as_str()) {
                    Some(ms) => { (age(*ms)) " ago" }
                    None => (NONE),
                } }
                td.number { (on.queue.running) }
                td.number { (on.queue.completed) }
                td.number { (on.queue.retried) }
                td.number { (on.queue.dead) }
                td.number { (format!("{:.1}", on.queue.rate)) }
            }
        }
    };
    let columns = [
        "Host",
        "Version",
        "State",
        "#Announced",
        "#Running",
        "#Completed",
        "#Retried",
        "#Dead",
        "#Per second",
    ];
    html! {
        @if view.hosts.is_empty() {
            p.quiet { "No running host has this queue." }
        } @else {
            (table("Hosts of this queue", &columns, &rows))
            @if view.versions_differ {
                p.note { "Its hosts run different versions of tqhost: finish the upgrade." }
            }
        }
    }
}

fn consumers(view: &QueueView) -> Markup {
    let rows = html! {
        @for consumer in &view.consumers {
            tr {
                th scope="row" { (data(&consumer.name)) }
                td.number { (consumer.pending) }
                td.number { (age(consumer.idle_ms)) " ago" }
            }
        }
    };
    html! {
        @if !view.consumers.is_empty() {
            (table("Consumers of the group", &["Consumer", "#Pending", "#Last heard of"], &rows))
        }
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

pub(super) async fn pause(
    State(dashboard): State<Dashboard>,
    visitor: Extension<Visitor>,
    Path(name): Path<String>,
    values: Values,
) -> Result<Response, PageProblem> {
    let time = values.get("for").map(|text| parse_duration(text.trim())).transpose();
    let time = time.map_err(|why| invalid(format!("for: {why}")))?;
    let why = values.get("why").unwrap_or_default().trim().to_owned();
    let order = Pausing { who: operator(&visitor), why, time };
    operations::pause(&dashboard.api.queue(&name).await?, &order).await?;
    Ok(AuditNote::queue(&name).on(Redirect::to(&format!("{}?done=paused", queue_path(&name)))))
}

pub(super) async fn resume(
    State(dashboard): State<Dashboard>,
    visitor: Extension<Visitor>,
    Path(name): Path<String>,
) -> Result<Response, PageProblem> {
    operations::resume(&dashboard.api.queue(&name).await?, &operator(&visitor), "").await?;
    Ok(AuditNote::queue(&name).on(Redirect::to(&format!("{}?done=resumed", queue_path(&name)))))
}
