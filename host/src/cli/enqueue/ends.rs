//! The ends of the tasks that `tqhost enqueue --wait` has added.
//!
//! In: the ids of the tasks. Out: how each of them ended, and a sum. Not here: how an end is noticed
//! (`wait`).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use serde_json::json;

use super::super::exit::{CommandError, CommandResult};
use super::super::output::{Out, note};
use super::super::progress::{CommandProgress, interrupted};
use super::super::status::tone;
use super::super::{text, value, wait};
use crate::config::units::show_duration;
use crate::operations::{TaskView, patiently};
use crate::queue::{Queue, Status, TaskStatus, hosts};

/// The most ids that a message names.
const NAMED: usize = 10;

/// Says on stderr that no running host has the queue, so that waiting may take long.
pub(super) async fn note_missing_hosts(queue: &Queue, progress: &mut CommandProgress) {
    let name = &queue.rules.name;
    let Some(Ok(hosts)) = progress.step(hosts::list(&queue.link)).await else { return };
    if !hosts.iter().any(|host| host.queues.iter().any(|queue| queue.name == *name)) {
        note(&format!("tqhost: no running host has the queue {name}; waiting until one does"));
    }
}

/// Waits until the tasks with these ids have ended, and prints how. `start` is when the command began. Exit
/// code 1 if one of them did not complete.
pub(super) async fn wait(
    queue: &Queue,
    ids: Vec<String>,
    timeout: Option<Duration>,
    start: Instant,
    mut progress: CommandProgress,
    out: &mut Out,
) -> CommandResult {
    let name = &queue.rules.name;
    let retention = queue.rules.retention;
    let mut open = VecDeque::from(ids);
    let all = open.len();
    let mut ends = Ends { is_single: all == 1, ..Ends::default() };
    let waiting = wait::until_end(queue, &mut open, timeout, |id, status| match status {
        Some(status) => ends.ended(name, &status, out),
        None => ends.gone(name, id, start.elapsed() >= retention, out),
    });
    let waited = progress.unless_interrupted(waiting).await;
    if !matches!(waited, Some(Ok(()))) {
        print_ids(&open, out);
    }
    match waited {
        Some(waited) => waited.context("stopped waiting (the tasks are enqueued)")?,
        None if open.is_empty() => {}
        None => return Err(interrupted(&stopped_waiting(&open))),
    }
    if !open.is_empty() {
        if out.json {
            for id in &open {
                let status = progress.step(patiently(|| queue.status(id))).await;
                let Some(status) = status else { break };
                status?.iter().for_each(|status| out.json(&TaskView::new(name, status)));
            }
        }
        let limit = show_duration(timeout.unwrap_or_default());
        let which = if open.len() == 1 { open[0].clone() } else { format!("{} of {all} tasks", open.len()) };
        return Err(anyhow!("not ended after {limit}: {which}").into());
    }
    if !ends.is_single && !out.json {
        out.line(ends.summary());
    }
    if ends.failed + ends.cancelled + ends.unknown > 0 { Err(CommandError::Reported) } else { Ok(()) }
}

/// Prints ids of tasks, if the output is JSON. A command that waits has not printed them before.
pub(super) fn print_ids<'i>(ids: impl IntoIterator<Item = &'i String>, out: &mut Out) {
    if out.json {
        ids.into_iter().for_each(|id| out.json(&json!({ "id": id })));
    }
}

/// Says which tasks are not waited for any more.
fn stopped_waiting(open: &VecDeque<String>) -> String {
    let named: Vec<&str> = open.iter().take(NAMED).map(String::as_str).collect();
    let more = match open.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let are = if open.len() == 1 { "the task is" } else { "the tasks are" };
    format!("stopped waiting for {}{more}; {are} enqueued", named.join(", "))
}

/// Prints the ends of tasks, and counts them.
#[derive(Debug, Default)]
struct Ends {
    /// Whether there is only one task, of which more is printed.
    is_single: bool,
    completed: u64,
    failed: u64,
    cancelled: u64,
    unknown: u64,
}

impl Ends {
    fn ended(&mut self, queue: &str, status: &TaskStatus, out: &mut Out) {
        let summary = &status.summary;
        match summary.status {
            Status::Completed => self.completed += 1,
            Status::Cancelled => self.cancelled += 1,
            _ => self.failed += 1,
        }
        if out.json {
            return out.json(&TaskView::new(queue, status));
        }
        let word = out.paint.tone(tone(summary.status), summary.status.into_str());
        let error =
            summary.error.as_deref().map(text::escape).filter(|_| summary.status != Status::Completed);
        let error = error.map(|error| format!(": {error}")).unwrap_or_default();
        if self.is_single {
            let took = match (summary.enqueued_at, summary.finished_at) {
                (Some(from), Some(to)) => {
                    format!(" after {}", text::took(Duration::from_millis(to.saturating_sub(from))))
                }
                _ => String::new(),
            };
            out.line(format!("{word}{took}, attempt {}{error}", summary.attempt));
            if let Some(result) = &status.result {
                out.line(value::shown(result));
            }
        } else if summary.status != Status::Completed {
            out.line(format!("{}  {word}{error}", summary.id));
        }
    }

    /// Notes a task without a status. If its retention may be over, it has completed, since a failed task
    /// would be among the dead letters.
    fn gone(&mut self, queue: &str, id: &str, is_expired: bool, out: &mut Out) {
        if is_expired {
            self.completed += 1;
        } else {
            self.unknown += 1;
        }
        let why = if is_expired {
            "it ended; the queue's retention is over"
        } else {
            "nothing is known of it any more: was it deleted from Redis?"
        };
        if out.json {
            out.json(&json!({ "id": id, "queue": queue, "status": null, "note": why }));
        } else if self.is_single || !is_expired {
            out.line(format!("{id}  {why}"));
        }
    }

    fn summary(&self) -> String {
        let all = [
            (self.completed, "completed"),
            (self.failed, "failed"),
            (self.cancelled, "cancelled"),
            (self.unknown, "unknown"),
        ];
        let shown = all.iter().filter(|(count, word)| *count > 0 || *word == "completed");
        shown.map(|(count, word)| format!("{count} {word}")).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_that_is_cut_off_names_some_tasks() {
        let open = |count: usize| (0..count).map(|n| n.to_string()).collect::<VecDeque<String>>();
        insta::assert_snapshot!(stopped_waiting(&open(1)), @"stopped waiting for 0; the task is enqueued");
        insta::assert_snapshot!(stopped_waiting(&open(12)), @r"
        stopped waiting for 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more; the tasks are enqueued
        ");
    }

    #[test]
    fn a_summary_counts_what_happened() {
        assert_eq!(Ends::default().summary(), "0 completed");
        let ends = Ends { completed: 998, failed: 2, ..Ends::default() };
        assert_eq!(ends.summary(), "998 completed, 2 failed");
    }
}
