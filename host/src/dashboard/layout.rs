//! The frame of every page, and the parts that several pages have.
//!
//! Not here: colours and sizes (`dashboard.css`), looking again by itself (`dashboard.js`).

use axum::response::{Html, IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};

use super::session::{FORM_TOKEN, Visitor};
use super::table::{cell, link, table, text_or_none};
use super::text::data;
use super::values::{Values, task_path};
use crate::admin::base_path::at;
use crate::operations::TaskSample;
use crate::operations::changes::MAX_WHY;
use crate::operations::state_words;

/// A page that a visitor sees.
pub(super) fn page(visitor: &Visitor, title: &str, main: &Markup) -> Response {
    Html(frame(Some(visitor), title, main).into_string()).into_response()
}

/// The main pages: their address, and their name in the header.
const PAGES: [(&str, &str); 5] = [
    ("/", "Overview"),
    ("/plugins", "Plugins"),
    ("/hosts", "Hosts"),
    ("/jobs", "Jobs"),
    ("/changes", "Changes"),
];

/// The keys that the script knows.
const KEYS: [(&str, &str); 4] = [
    ("/", "Search queues, ids and aliases"),
    ("←  →", "The values of a chart, step by step"),
    ("Enter", "The tasks of that step"),
    ("?", "This list"),
];

pub(super) fn frame(visitor: Option<&Visitor>, title: &str, main: &Markup) -> Markup {
    let path = visitor.map(|visitor| visitor.path.as_str()).unwrap_or_default();
    // Pages below a main page are marked as its parts.
    let current = |page: &str| {
        let is_below = if page == "/" { path.starts_with("/queues/") } else { path.starts_with(page) };
        if path == page { Some("page") } else { is_below.then_some("true") }
    };
    let is_login = path == "/login";
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
                    span.name { "tqhost" }
                    @if !is_login {
                        nav aria-label="Main" {
                            @for (page, name) in PAGES {
                                a href=(at(page)) aria-current=[current(page)] { (name) }
                            }
                        }
                    }
                    @if let Some(visitor) = visitor.filter(|_| !is_login) {
                        form.search method="get" action=(at("/search")) role="search"
                            aria-label="All queues" {
                            input type="search" name="q" required placeholder="Queue, id or alias ( / )"
                                aria-label="Queue, id or alias of a task" aria-keyshortcuts="/";
                        }
                        (who(visitor))
                    }
                }
                main id="main" tabindex="-1" { (main) }
                footer {
                    "All times are UTC. "
                    button.plain type="button" popovertarget="keys" { "Keys " kbd { "?" } }
                }
                dialog id="keys" popover aria-labelledby="keys-title" {
                    h2 id="keys-title" { "Keys" }
                    dl.facts { @for (key, what) in KEYS { dt { kbd { (key) } } dd { (what) } } }
                }
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

/// A text field of a form, with a label and a note below it.
pub(super) fn field(name: &str, label: &str, example: &str, note: &str) -> Markup {
    let note_id = format!("{name}-note");
    html! {
        label for=(name) { (label) }
        input id=(name) name=(name) placeholder=(example) aria-describedby=(note_id);
        p.note id=(note_id) { (note) }
    }
}

/// The field of a form for the reason of an operator. `id` is unique in the page.
pub(super) fn why_field(id: &str, proposed: &str, is_needed: bool) -> Markup {
    let note_id = format!("{id}-note");
    html! {
        label for=(id) { "Why" }
        input id=(id) name="why" maxlength=(MAX_WHY) required[is_needed] value=(proposed)
            aria-describedby=(note_id);
        p.note id=(note_id) { "It is shown to everybody who looks at the change." }
    }
}

/// A form with a button and nothing else. Nothing for visitors who may not change anything.
pub(super) fn button(visitor: &Visitor, action: &str, label: &str) -> Markup {
    html! {
        @if visitor.may_change() {
            form.inline method="post" action=(action) { (form_token(visitor)) button { (label) } }
        }
    }
}

/// Some of the tasks that a form would change.
pub(super) fn samples(queue: &str, sample: &[TaskSample]) -> Markup {
    let row = |task: &TaskSample| {
        vec![
            link("For example", &task_path(queue, &task.id), &task.id),
            text_or_none("Alias", task.alias.as_deref()),
            cell("Fields", html! { @for field in task.words() { (data(&field)) " " } }),
        ]
    };
    html! { @if !sample.is_empty() { (table("Some of them", sample.iter().map(row))) } }
}

/// A state in words, with a colour. The words say as much without it.
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
