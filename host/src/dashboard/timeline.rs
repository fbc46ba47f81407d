//! The life of a task from its enqueueing to its end, with the attempts that failed.
//!
//! Not here: what is kept of an attempt (`queue::attempts`).

use maud::{Markup, html};

use super::layout::state;
use super::text::{age, block, data_or_none, moment, version};
use crate::builds::Builds;
use crate::clock::now_ms;
use crate::config::QueueRules;
use crate::operations::{AttemptView, TaskView};
use crate::queue::Status;

/// Characters of an error that stand in the line of its attempt; a longer one has a block of its own.
const IN_LINE: usize = 200;

pub(super) fn section(task: &TaskView, rules: &QueueRules, builds: &Builds) -> Markup {
    let now = now_ms();
    let attempts = task.attempts.as_deref().unwrap_or_default();
    let first = attempts.first().map(|first| first.attempt);
    html! {
        section aria-labelledby="timeline" data-live="timeline" {
            h2 id="timeline" { "Timeline" }
            ol.timeline {
                li { strong { "Enqueued" } " " (moment(task.enqueued_at, now)) }
                @if first.is_some_and(|first| first > 1) {
                    li.quiet { "Attempts before this one are not kept." }
                }
                @for failed in attempts { (attempt(failed, now, builds)) }
                (present(task, now, builds))
            }
            @if !rules.keeps_failed_attempts() {
                p.note { "The queue keeps no failed attempts." }
            } @else {
                p.note {
                    "The last " (rules.failed_attempts) " attempts that failed are kept, with the end of \
                     their log. Deferrals are not, and neither are attempts that ended with their host."
                }
            }
        }
    }
}

fn attempt(failed: &AttemptView, now: u64, builds: &Builds) -> Markup {
    let AttemptView { attempt, outcome, error, log, .. } = failed;
    let is_long = error.chars().count() > IN_LINE || error.contains('\n');
    html! {
        li {
            strong { "Attempt " (attempt) } " "
            span.state.bad { (outcome) } " "
            (moment(Some(failed.started_at), now)) ", ran for " (age(failed.duration_ms))
            div {
                "Version " (version(Some(&failed.plugin), builds))
                " on " (data_or_none(Some(&failed.consumer)))
            }
            @if is_long {
                (block(error, &format!("Error of attempt {attempt}")))
            } @else {
                div { (data_or_none(Some(error))) }
            }
            @if log.is_empty() {
                div.quiet { "It logged nothing." }
            } @else {
                details {
                    summary { "Log of attempt " (attempt) ", its last " (log.lines().count()) " lines" }
                    (block(log, &format!("Log of attempt {attempt}")))
                }
            }
        }
    }
}

/// The present state of the task, or its end.
fn present(task: &TaskView, now: u64, builds: &Builds) -> Markup {
    let ran = task.started_at.zip(task.finished_at);
    html! {
        li {
            @match task.status {
                Status::Pending => {
                    strong { "Waits for attempt " (task.attempt) }
                    @if task.due_at.is_some_and(|due| due > now) { ", due " (moment(task.due_at, now)) }
                }
                Status::Processing => {
                    strong { "Attempt " (task.attempt) " runs" } " since " (moment(task.started_at, now))
                    div {
                        "Version " (version(task.plugin.as_deref(), builds))
                        " on " (data_or_none(task.consumer.as_deref()))
                    }
                }
                Status::Completed | Status::Failed | Status::Cancelled => {
                    strong { "Ended" } " " (state(task.status.into_str())) " " (moment(task.finished_at, now))
                    @if task.status == Status::Completed {
                        div {
                            "Attempt " (task.attempt) ", version " (version(task.plugin.as_deref(), builds))
                            " on " (data_or_none(task.consumer.as_deref()))
                            @if let Some((began, ended)) = ran {
                                ", ran for " (age(ended.saturating_sub(began)))
                            }
                        }
                    }
                }
            }
        }
    }
}
