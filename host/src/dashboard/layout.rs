//! The frame of every page, and the parts that several pages have.
//!
//! Not here: colours and sizes (`dashboard.css`), looking again by itself (`dashboard.js`).

use axum::response::{Html, IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};

use super::session::{FORM_TOKEN, Visitor};
use super::text::{data, data_or_none};
use super::values::{Values, task_path};
use crate::admin::base_path::at;
use crate::operations::TaskSample;
use crate::operations::state_words;

/// A page that a visitor sees.
pub(super) fn page(visitor: &Visitor, title: &str, main: &Markup) -> Response {
    Html(frame(Some(visitor), title, main).into_string()).into_response()
}

pub(super) fn frame(visitor: Option<&Visitor>, title: &str, main: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title {
                    @if let Some(open) = visitor.map(|visitor| visitor.open).filter(|open| *open > 0) {
                        "(" (open) ") "
                    }
                    (title) " – tqhost"
                }
                link rel="icon" type="image/svg+xml" href=(at("/favicon.svg"));
                link rel="stylesheet" href=(at("/dashboard.css"));
                script src=(at("/dashboard.js")) defer {}
            }
            body {
                a.skip href="#main" { "Skip to the content" }
                header {
                    nav aria-label="Main" {
                        span.name { "tqhost" }
                        a href=(at("/")) { "Overview" }
                        a href=(at("/plugins")) { "Plugins" }
                        a href=(at("/hosts")) { "Hosts" }
                        a href=(at("/jobs")) { "Jobs" }
                        a href=(at("/changes")) { "Changes" }
                    }
                    @if let Some(visitor) = visitor {
                        form.search method="get" action=(at("/search")) role="search"
                            aria-label="All queues" {
                            input type="search" name="q" required placeholder="Queue, id or alias ( / )"
                                aria-label="Queue, id or alias of a task" aria-keyshortcuts="/";
                        }
                        (who(visitor))
                    }
                }
                main id="main" tabindex="-1" { (main) }
            }
        }
    }
}

fn who(visitor: &Visitor) -> Markup {
    html! {
        div.who {
            // The script puts its switch here.
            span id="live" {}
            @let is_known = visitor.caller.is_known();
            @if is_known {
                span.note {
                    (data(&visitor.caller.name))
                    @if !visitor.may_change() { ", reading only" }
                }
            }
            @if is_known && visitor.session.is_none() { a href=(at("/login")) { "Log in with a token" } }
            @if visitor.session.is_some() {
                form method="post" action=(at("/logout")) { (form_token(visitor)) button { "Log out" } }
            }
        }
    }
}

/// The field that each form with a change has.
pub(super) fn form_token(visitor: &Visitor) -> Markup {
    html! { input type="hidden" name=(FORM_TOKEN) value=(visitor.form_token); }
}

/// A form with a button and nothing else. Nothing for visitors who may not change anything.
pub(super) fn button(visitor: &Visitor, action: &str, label: &str) -> Markup {
    html! {
        @if visitor.may_change() {
            form.inline method="post" action=(action) { (form_token(visitor)) button { (label) } }
        }
    }
}

/// A table that scrolls by itself where the screen is narrow. The name of a column with figures begins with
/// `#`, which is not shown.
pub(super) fn table(caption: &str, columns: &[&str], rows: &Markup) -> Markup {
    html! {
        div.scroll role="region" aria-label=(caption) tabindex="0" {
            table {
                caption.unseen { (caption) }
                thead { tr { @for column in columns { (heading(column)) } } }
                tbody { (rows) }
            }
        }
    }
}

fn heading(column: &str) -> Markup {
    match column.strip_prefix('#') {
        Some(figures) => html! { th.number scope="col" { (figures) } },
        None => html! { th scope="col" { (column) } },
    }
}

/// The cells of what a queue shows of a task, one for each of its columns.
pub(super) fn shown(columns: &[Option<String>]) -> Markup {
    html! { @for text in columns { td { (data_or_none(text.as_deref())) } } }
}

/// Some of the tasks that a form would change.
pub(super) fn samples(queue: &str, sample: &[TaskSample]) -> Markup {
    let rows = html! {
        @for task in sample {
            tr {
                th scope="row" { a href=(task_path(queue, &task.id)) { (data(&task.id)) } }
                td { (data_or_none(task.alias.as_deref())) }
                td { @for field in task.words() { (data(&field)) " " } }
            }
        }
    };
    html! {
        @if !sample.is_empty() { (table("Some of them", &["For example", "Alias", "Fields"], &rows)) }
    }
}

/// A state in words, with a colour that says no more than the words.
pub(super) fn state(text: &str) -> Markup {
    let kind = match text {
        "reading" | "waiting-for-permit" | "waiting-for-turn" | "active" | "running" | "done"
        | "COMPLETED" => "good",
        "stalled" | "no-host" | "missing" | "failed" | "quarantined" | "withdrawn" | "rolled-back"
        | "self-check-failed" | "FAILED" => "bad",
        "paused" | "stopped" | "held" | "waiting-for-plugin" | "stopping" | "CANCELLED" => "odd",
        _ => "plain",
    };
    html! { span class={ "state " (kind) } { (state_words(text)) } }
}

/// Tells what the change has done that led to this page. Only these words are shown, whatever the address
/// says.
pub(super) fn done(values: &Values) -> Markup {
    let text = match values.get("done") {
        Some("paused") => "The queue is paused in all hosts.",
        Some("resumed") => "The queue is resumed in all hosts.",
        Some("limited") => "The queue is limited in all hosts within seconds.",
        Some("unlimited") => "The queue is limited by its configuration alone again.",
        Some("enqueued") => "The task is in the queue.",
        Some("duplicate") => "There was a task with this key before: this one.",
        Some("cancelled") => "The task is cancelled.",
        Some("retried") => "The task is due now: it runs when a host has room.",
        Some("requeued") => "The task is in the queue again.",
        Some("reloading") => "All hosts look at the file of the plugin within seconds.",
        Some("withdrawn") => {
            "The version is withdrawn: hosts that run it go back within seconds. Where one has nothing to go \
             back to, the queues of the plugin wait."
        }
        Some("lifted") => "The version may run again: hosts that have its file take it within seconds.",
        Some("acknowledged") => "The incident is acknowledged, on all hosts.",
        Some("reopened") => "The incident is open again.",
        Some("logged-out") => "You are logged out.",
        _ => return html! {},
    };
    html! { p.done role="status" { (text) } }
}
