//! `tqhost enqueue`: tasks from arguments or from a JSON Lines file.
//!
//!     arguments ──▶ one task ─────────────────┐
//!     file ──▶ every line checked ──▶ again ──┴▶ batches ──▶ Redis ──▶ ids ──▶ (--wait) ends
//!
//! A batch whose reply was lost is sent again: the ids are chosen here, and Redis recognizes those that it
//! has. Not here: how fields and lines are read (`input`), how an end is noticed (`wait`).

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use serde_json::json;

use super::args::EnqueueArgs;
use super::context::{connect, rules};
use super::exit::{CommandError, CommandResult};
use super::input::{self, JsonLines};
use super::output::{Out, note};
use super::progress::{CommandProgress, interrupted};
use super::status::tone;
use super::{text, value, wait};
use crate::config::Config;
use crate::config::units::show_duration;
use crate::operations::{TaskView, check_delay, full, patiently};
use crate::queue::{Enqueued, Link, NewTask, Queue, Status, TaskStatus, hosts};
use crate::telemetry::{Enqueueing, TraceExport, Traces};

/// The most tasks in a batch.
const BATCH: usize = 200;
/// A batch is sent when its lines have this many bytes.
const BATCH_BYTES: usize = 4 << 20;
/// The most ids that a message names.
const NAMED: usize = 10;

/// How long the spans of the tasks may take to be sent, after the command has done its work.
const LAST_SPANS: Duration = Duration::from_secs(2);

pub(super) async fn run(config: &Config, args: EnqueueArgs, out: &mut Out) -> CommandResult {
    let export = TraceExport::start(config.telemetry.as_ref(), None)?;
    let done = enqueue(config, args, export.traces.clone(), out).await;
    if !export.finish(LAST_SPANS).await {
        note("tqhost: the collector of traces (telemetry.otlp) did not take the spans of these tasks");
    }
    done
}

async fn enqueue(config: &Config, args: EnqueueArgs, traces: Traces, out: &mut Out) -> CommandResult {
    let rules = rules(config, &args.queue)?.clone();
    let delay = args.delay.unwrap_or_default();
    check_delay(&rules, delay)?;
    out.dry_run = args.dry_run;
    if args.dry_run {
        return look(&args, delay, out);
    }
    let start = Instant::now();
    let task = match &args.jsonl {
        None => Some(single(&args, delay)?),
        Some(_) => None,
    };
    let lines = args.jsonl.as_deref().map(|path| checked(path, delay)).transpose()?;
    let link = connect(config).await?;
    let mut sender = Sender {
        queue: Queue::new(rules, link.clone()),
        link,
        traces,
        traceparent: args.traceparent,
        wait: args.wait,
        ids: Vec::new(),
        sent: 0,
        duplicates: 0,
        progress: CommandProgress::begin()?,
    };
    if let Some(task) = task {
        sender.send(vec![task], &[None], out).await?;
    }
    if let Some((lines, _)) = lines {
        let sent = sender.send_lines(&lines, delay, out).await;
        if sent.is_err() {
            tell_ids(&sender.ids, out);
        }
        sent?;
        if !out.json {
            let known = if sender.duplicates > 0 {
                format!(", {} were there already", sender.duplicates)
            } else {
                String::new()
            };
            out.line(format!("{} enqueued in {}{known}", text::plural(sender.sent, "task"), args.queue));
        }
    }
    if args.wait { sender.wait(args.timeout, start, out).await } else { Ok(()) }
}

/// Tells the ids of tasks that were to be waited for, and were not printed before, as JSON.
fn tell_ids<'i>(ids: impl IntoIterator<Item = &'i String>, out: &mut Out) {
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

/// The task of the arguments.
fn single(args: &EnqueueArgs, delay: Duration) -> CommandResult<NewTask> {
    let fields = args.fields.iter().map(|arg| input::field(arg)).collect::<Result<Vec<_>, _>>()?;
    let task = NewTask::new(fields, delay).and_then(|task| match &args.key {
        Some(key) => task.with_key(key.clone()),
        None => Ok(task),
    });
    task.map_err(|error| CommandError::Usage(error.to_string()))
}

/// Opens the file, checks every line of it, and counts the tasks.
fn checked(path: &Path, delay: Duration) -> CommandResult<(JsonLines, u64)> {
    let lines = JsonLines::open(path)?;
    let checked = lines.tasks(delay)?.try_fold(0, |count, line| line.map(|_| count + 1));
    match checked {
        Err(CommandError::Failed(error)) => Err(error.context("nothing was enqueued").into()),
        Err(failure) => Err(failure),
        Ok(count) => Ok((lines, count)),
    }
}

/// Checks the task, or all lines of the file, and tells what would be enqueued.
fn look(args: &EnqueueArgs, delay: Duration, out: &mut Out) -> CommandResult {
    let count = match &args.jsonl {
        None => single(args, delay).map(|_| 1)?,
        Some(path) => checked(path, delay)?.1,
    };
    let view = json!({ "queue": args.queue, "tasks": count });
    out.show(&view, |_| format!("{} would be enqueued in {}", text::plural(count, "task"), args.queue));
    Ok(())
}

struct Sender {
    queue: Queue,
    link: Link,
    traces: Traces,
    /// The trace context of tasks that have none.
    traceparent: Option<String>,
    wait: bool,
    /// The tasks to wait for; empty without `--wait`.
    ids: Vec<String>,
    sent: u64,
    /// Tasks that were not enqueued, because another one has their idempotency key.
    duplicates: u64,
    /// How far the command is, and whether Ctrl-C was pressed.
    progress: CommandProgress,
}

impl Sender {
    async fn send_lines(&mut self, lines: &JsonLines, delay: Duration, out: &mut Out) -> CommandResult {
        let (mut tasks, mut numbers, mut bytes) = (Vec::new(), Vec::new(), 0);
        for line in lines.tasks(delay)? {
            // Every line was checked before, so a bad one means that the file was changed since.
            let line = line.map_err(|failure| self.stopped(failure))?;
            tasks.push(line.task);
            numbers.push(Some(line.number));
            bytes += line.bytes;
            if tasks.len() == BATCH || bytes >= BATCH_BYTES {
                self.send(std::mem::take(&mut tasks), &numbers, out).await?;
                (bytes, _) = (0, numbers.clear());
            }
        }
        if tasks.is_empty() { Ok(()) } else { self.send(tasks, &numbers, out).await }
    }

    /// Sends a batch, and prints its ids. `lines` has the number of each task's line; none for a task from
    /// arguments.
    async fn send(&mut self, tasks: Vec<NewTask>, lines: &[Option<u64>], out: &mut Out) -> CommandResult {
        let traced = tasks.into_iter().map(|task| {
            let trace = self.traces.enqueueing(task.traceparent().or(self.traceparent.as_deref()));
            (task.with_traceparent(trace.traceparent.clone()), trace)
        });
        let (tasks, traces): (Vec<NewTask>, Vec<Enqueueing>) = traced.unzip();
        let sending = patiently(|| self.queue.enqueue(&tasks));
        let is_file = lines.iter().any(Option::is_some);
        let replies = match self.progress.step(sending).await {
            Some(replies) => replies,
            None if is_file => return Err(interrupted(&format!("at least {}", self.so_far()))),
            None => {
                let ids: Vec<&str> = tasks.iter().map(NewTask::id).collect();
                let doubt = format!("it is not known whether task {} is in the queue", ids.join(", "));
                return Err(interrupted(&doubt));
            }
        };
        let replies = replies.map_err(|error| self.stopped(error.into()))?;
        let mut refused: Option<(Option<u64>, anyhow::Error)> = None;
        for (((task, trace), line), reply) in tasks.iter().zip(traces).zip(lines).zip(replies) {
            match reply {
                Ok(Enqueued::Accepted) => {
                    trace.accepted(&self.queue.rules.name, task.id());
                    self.enqueued(task.id(), false, line.is_some(), out);
                }
                Ok(Enqueued::Duplicate(first)) => self.enqueued(&first, true, line.is_some(), out),
                Ok(Enqueued::Full) => refused = refused.or(Some((*line, anyhow!(full(&self.queue.rules))))),
                Err(error) => refused = refused.or(Some((*line, error.into()))),
            }
        }
        let sent = self.sent;
        if is_file {
            self.progress.tell(|| format!("{} enqueued", text::plural(sent, "task")));
            if self.progress.is_interrupted() && refused.is_none() {
                return Err(interrupted(&self.so_far()));
            }
        }
        match refused {
            None => Ok(()),
            Some((Some(line), error)) => Err(self.stopped(error.context(format!("line {line}")).into())),
            Some((None, error)) => Err(error.into()),
        }
    }

    /// Prints the id of a task that is in the queue, or lets it be waited for. A duplicate is another task
    /// with the same key.
    fn enqueued(&mut self, id: &str, is_duplicate: bool, is_line: bool, out: &mut Out) {
        match is_duplicate {
            true => self.duplicates += 1,
            false => self.sent += 1,
        }
        match (out.json, self.wait, is_line) {
            (true, false, _) if is_duplicate => out.json(&json!({ "id": id, "duplicate": true })),
            (true, false, _) => out.json(&json!({ "id": id })),
            (false, _, false) => {
                if is_duplicate {
                    note("tqhost: a task with this key is there already; this is its id");
                }
                out.line(id);
            }
            _ => {}
        }
        self.ids.extend(self.wait.then(|| id.to_owned()));
    }

    /// How much was done before Ctrl-C.
    fn so_far(&self) -> String {
        let known = text::plural(self.sent + self.duplicates, "task");
        format!("the first {known} of the file are in the queue, and the others are not")
    }

    /// Adds to a failure how many tasks were sent before it.
    fn stopped(&self, failure: CommandError) -> CommandError {
        match failure {
            CommandError::Failed(error) if self.sent > 0 => {
                error.context(format!("stopped after {}", text::plural(self.sent, "task"))).into()
            }
            failure => failure,
        }
    }

    async fn wait(mut self, timeout: Option<Duration>, start: Instant, out: &mut Out) -> CommandResult {
        let name = &self.queue.rules.name;
        if !out.json && self.sent > 0 {
            let hosts = self.progress.step(hosts::list(&self.link)).await;
            if let Some(Ok(hosts)) = hosts
                && !hosts.iter().any(|host| host.queues.iter().any(|queue| queue.name == *name))
            {
                note(&format!("tqhost: no running host has the queue {name}; waiting until one does"));
            }
        }
        let retention = self.queue.rules.retention;
        let mut open = VecDeque::from(self.ids);
        let waited = open.len();
        let mut ends = Ends { single: waited == 1, ..Ends::default() };
        let waiting = wait::until_end(&self.queue, &mut open, timeout, |id, status| match status {
            Some(status) => ends.ended(name, &status, out),
            None => ends.gone(name, id, start.elapsed() >= retention, out),
        });
        let end = self.progress.unless_interrupted(waiting).await;
        if !matches!(end, Some(Ok(()))) {
            tell_ids(&open, out);
        }
        match end {
            Some(end) => end.context("stopped waiting (the tasks are enqueued)")?,
            None if open.is_empty() => {}
            None => return Err(interrupted(&stopped_waiting(&open))),
        }
        if !open.is_empty() {
            if out.json {
                for id in &open {
                    let status = self.progress.step(patiently(|| self.queue.status(id))).await;
                    let Some(status) = status else { break };
                    status?.iter().for_each(|status| out.json(&TaskView::new(name, status)));
                }
            }
            let limit = show_duration(timeout.unwrap_or_default());
            let which =
                if open.len() == 1 { open[0].clone() } else { format!("{} of {waited} tasks", open.len()) };
            return Err(anyhow!("not ended after {limit}: {which}").into());
        }
        if !ends.single && !out.json {
            out.line(ends.summary());
        }
        if ends.failed + ends.cancelled + ends.unknown > 0 { Err(CommandError::Reported) } else { Ok(()) }
    }
}

/// Prints the ends of tasks, and counts them.
#[derive(Debug, Default)]
struct Ends {
    single: bool,
    completed: u64,
    failed: u64,
    cancelled: u64,
    unknown: u64,
}

impl Ends {
    fn ended(&mut self, queue: &str, status: &TaskStatus, out: &mut Out) {
        match status.status {
            Status::Completed => self.completed += 1,
            Status::Cancelled => self.cancelled += 1,
            _ => self.failed += 1,
        }
        if out.json {
            return out.json(&TaskView::new(queue, status));
        }
        let word = out.paint.tone(tone(status.status), status.status.into_str());
        let error = status.error.as_deref().map(text::escape).filter(|_| status.status != Status::Completed);
        let error = error.map(|error| format!(": {error}")).unwrap_or_default();
        if self.single {
            let took = status
                .enqueued_at
                .zip(status.finished_at)
                .map(|(from, to)| Duration::from_millis(to.saturating_sub(from)));
            let took = took.map(|took| format!(" after {}", text::took(took))).unwrap_or_default();
            out.line(format!("{word}{took}, attempt {}{error}", status.attempt));
            if let Some(result) = &status.result {
                out.line(value::shown(result));
            }
        } else if status.status != Status::Completed {
            out.line(format!("{}  {word}{error}", status.id));
        }
    }

    /// The task has no status. When its retention may be over, it completed: a failed one would be among the
    /// dead letters.
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
        } else if self.single || !is_expired {
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
        let shown: Vec<String> = all
            .iter()
            .filter(|(count, word)| *count > 0 || *word == "completed")
            .map(|(count, word)| format!("{count} {word}"))
            .collect();
        shown.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_sent_of_a_bad_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tasks.jsonl");
        std::fs::write(&path, "{\"a\":1}\n{\"a\":}\n").expect("write");
        let Err(CommandError::Failed(error)) = checked(&path, Duration::ZERO) else {
            panic!("a bad file was taken")
        };
        let told = format!("{error:#}");
        assert!(
            told.starts_with("nothing was enqueued: ")
                && told.contains("tasks.jsonl line 2: not a JSON object: column 6:"),
            "{told}"
        );
    }

    #[test]
    fn a_wait_that_is_cut_off_names_some_tasks() {
        let open = |count: usize| (0..count).map(|n| n.to_string()).collect::<VecDeque<String>>();
        assert_eq!(stopped_waiting(&open(1)), "stopped waiting for 0; the task is enqueued");
        assert_eq!(
            stopped_waiting(&open(12)),
            "stopped waiting for 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more; the tasks are enqueued"
        );
    }

    #[test]
    fn a_summary_counts_what_happened() {
        assert_eq!(Ends::default().summary(), "0 completed");
        assert_eq!(
            Ends { completed: 998, failed: 2, ..Ends::default() }.summary(),
            "998 completed, 2 failed"
        );
    }
}
