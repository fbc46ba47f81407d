//! The life of a task from its enqueueing to its end, with the attempts that failed.
//!
//! Not here: what is kept of an attempt (`queue::attempts`).

use maud::{Markup, html};

use super::layout::state;
use super::text::{age, block, data_or_none, moment, version};
use crate::builds::Builds;
use crate::clock::now_ms;
use crate::config::QueueRules;
use crate::operations::TaskView;
use crate::queue::attempts::{FailedAttempt, LOST};
use crate::queue::{Status, TaskSummary};

/// Characters of an error that stand in the line of its attempt; a longer one has a block of its own.
const IN_LINE: usize = 200;

pub(super) fn section(task: &TaskView, rules: &QueueRules, builds: &Builds) -> Markup {
    let now = now_ms();
    let attempts = task.attempts.as_deref().unwrap_or_default();
    let first = attempts.first().map(|first| first.attempt);
    html! {
        section aria-labelledby="timeline" data-live="timeline" {
            h2 id="timeline" { "Timeline" }
            (parts(&TimeParts::of(task, now)))
            ol.timeline {
                li { strong { "Enqueued" } " " (moment(task.summary.enqueued_at, now)) }
                @if first.is_some_and(|first| first > 1) {
                    li.quiet { "Attempts before this one are not kept." }
                }
                @for failed in attempts { (attempt(failed, now, builds)) }
                (present(&task.summary, now, builds))
            }
            @if !rules.keeps_failed_attempts() {
                p.note { "The queue keeps no failed attempts." }
            } @else {
                p.note {
                    "The last " (rules.failed_attempts) " attempts that failed are kept, with the end of \
                     their log, and those that ended with their host. Deferrals are not."
                }
            }
        }
    }
}

/// How long each part of a task's life took so far, in ms. None: not known.
#[derive(Debug, PartialEq)]
struct TimeParts {
    /// Before its first attempt.
    waited: Option<u64>,
    /// All attempts together.
    ran: Option<u64>,
    /// Between attempts: delayed, and waiting again.
    between: Option<u64>,
    whole: Option<u64>,
}

impl TimeParts {
    fn of(task: &TaskView, now: u64) -> TimeParts {
        let summary = &task.summary;
        let failed = task.attempts.as_deref().unwrap_or_default();
        // Attempts before the first one that is kept took some time, too.
        let are_known = failed.first().map_or(summary.attempt <= 1, |first| first.attempt == 1);
        let began = failed.first().map_or(summary.started_at, |first| Some(first.started_at));
        let end = if summary.status.is_end() { summary.finished_at } else { Some(now) };
        let last = match summary.status {
            Status::Completed => summary.started_at.zip(summary.finished_at),
            Status::Processing => summary.started_at.map(|began| (began, now)),
            _ => None,
        };
        let last = last.map(|(began, ended)| ended.saturating_sub(began));
        let all: u64 = failed.iter().map(|failed| failed.duration_ms).sum::<u64>() + last.unwrap_or(0);
        let has_run = !failed.is_empty() || last.is_some();
        let since = |from: Option<u64>, to: Option<u64>| Some(to?.saturating_sub(from?));
        let whole = since(summary.enqueued_at, end);
        let waited = if has_run { since(summary.enqueued_at, began).filter(|_| are_known) } else { whole };
        let ran = Some(all).filter(|_| has_run && are_known);
        let between = waited.zip(ran).zip(whole);
        let between = between.map(|((waited, ran), whole)| whole.saturating_sub(waited + ran));
        TimeParts { waited, ran, between: between.filter(|_| summary.attempt > 1), whole }
    }
}

fn parts(parts: &TimeParts) -> Markup {
    let shown = [
        ("Waited at first", parts.waited),
        ("Ran", parts.ran),
        ("Delayed, between attempts", parts.between),
        ("Since it was enqueued", parts.whole),
    ];
    html! {
        dl.figures {
            @for (name, ms) in shown {
                @if let Some(ms) = ms { div { dt { (name) } dd { (age(ms)) } } }
            }
        }
    }
}

fn attempt(failed: &FailedAttempt, now: u64, builds: &Builds) -> Markup {
    if failed.outcome == LOST {
        return lost(failed, now, builds);
    }
    let FailedAttempt { attempt, outcome, error, log, .. } = failed;
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

/// An attempt that ended with its host. It is not charged, so the next one has the same number.
fn lost(attempt: &FailedAttempt, now: u64, builds: &Builds) -> Markup {
    html! {
        li {
            strong { "Attempt " (attempt.attempt) } " " span.state.odd { "lost" }
            " when host " (data_or_none(Some(&attempt.consumer))) " died or fell silent at "
            (moment(Some(attempt.finished_at), now))
            @if attempt.duration_ms > 0 { ", ran for " (age(attempt.duration_ms)) }
            @if !attempt.plugin.is_empty() { div { "Version " (version(Some(&attempt.plugin), builds)) } }
        }
    }
}

/// The present state of the task, or its end.
fn present(task: &TaskSummary, now: u64, builds: &Builds) -> Markup {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(attempt: u32, started_at: u64, finished_at: u64) -> FailedAttempt {
        FailedAttempt {
            attempt,
            started_at,
            finished_at,
            duration_ms: finished_at - started_at,
            outcome: "retry".into(),
            ..FailedAttempt::default()
        }
    }

    fn parts_of(status: Status, times: [Option<u64>; 3], attempts: Vec<FailedAttempt>) -> [Option<u64>; 4] {
        let [enqueued_at, started_at, finished_at] = times;
        let attempt = attempts.last().map_or(1, |last| last.attempt + u32::from(status != Status::Failed));
        let task =
            TaskSummary { attempt, enqueued_at, started_at, finished_at, ..TaskSummary::new("7", status) };
        let view = TaskView::new("work", &task.into()).with_attempts(attempts);
        let TimeParts { waited, ran, between, whole } = TimeParts::of(&view, 10_000);
        [waited, ran, between, whole]
    }

    #[test]
    fn the_parts_of_a_life_add_up() {
        let two = || vec![failed(1, 1_100, 1_300), failed(2, 4_000, 4_500)];
        let table = [
            (
                Status::Completed,
                [Some(1_000), Some(1_020), Some(1_500)],
                vec![],
                [Some(20), Some(480), None, Some(500)],
            ),
            (
                Status::Completed,
                [Some(1_000), Some(8_000), Some(9_000)],
                two(),
                [Some(100), Some(1_700), Some(6_200), Some(8_000)],
            ),
            (
                Status::Failed,
                [Some(1_000), Some(4_000), Some(4_500)],
                two(),
                [Some(100), Some(700), Some(2_700), Some(3_500)],
            ),
            // It waits since then, or runs.
            (Status::Pending, [Some(1_000), None, None], vec![], [Some(9_000), None, None, Some(9_000)]),
            (
                Status::Processing,
                [Some(1_000), Some(2_000), None],
                vec![],
                [Some(1_000), Some(8_000), None, Some(9_000)],
            ),
            // The first attempts are not kept.
            (
                Status::Completed,
                [Some(1_000), Some(8_000), Some(9_000)],
                vec![failed(5, 6_000, 7_000)],
                [None, None, None, Some(8_000)],
            ),
        ];
        for (status, times, attempts, expected) in table {
            assert_eq!(parts_of(status, times, attempts), expected, "{status:?} {times:?}");
        }
    }
}
