//! `tqhost enqueue`: tasks from arguments or from a JSON Lines file.
//!
//!     arguments ──▶ one task ─────────────────┐
//!     file ──▶ every line checked ──▶ again ──┴▶ batches ──▶ Redis ──▶ ids ──▶ (--wait) ends
//!
//! A batch whose reply was lost is sent again. This adds no task twice, as the ids are chosen here. Not here:
//! how fields and lines are read (`input`), waiting for the ends (`ends`).

mod ends;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use clap::Args;
use serde_json::json;

use super::context::{connect, rules};
use super::exit::{CommandError, CommandResult};
use super::input::{self, JsonLines};
use super::output::{Out, note};
use super::progress::{CommandProgress, interrupted};
use super::readers::parse_context;
use super::text;
use crate::config::Config;
use crate::config::units::parse_duration;
use crate::operations::{check_delay, full, patiently};
use crate::queue::{Enqueued, NewTask, Queue};
use crate::telemetry::{Enqueueing, TraceExport, Traces};

/// The most tasks in a batch.
const BATCH: usize = 200;
/// A batch is sent when its lines have this many bytes.
const BATCH_BYTES: usize = 4 << 20;
/// How long the spans of the tasks may take to be sent, after the command has done its work.
const LAST_SPANS: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub(super) struct EnqueueArgs {
    /// The queue's name in the configuration
    queue: String,
    /// The fields of one task: name=value, or name=@FILE for the content of a file (name=@@text is the text
    /// @text)
    #[arg(value_name = "NAME=VALUE", conflicts_with = "jsonl", required_unless_present = "jsonl")]
    fields: Vec<OsString>,
    /// Many tasks: a file with a JSON object on each line, whose values become the fields (- is stdin).
    /// Nothing is enqueued unless every line is good
    #[arg(long, value_name = "FILE")]
    jsonl: Option<PathBuf>,
    /// Enqueue nothing: check the task, or all lines, and tell how many tasks that is, without Redis
    #[arg(long, conflicts_with_all = ["key", "wait"])]
    dry_run: bool,
    /// The task's idempotency key: while a task with the same key lives, and for the queue's window after it,
    /// no second one is enqueued, and the first one's id is printed
    #[arg(long, value_name = "KEY", conflicts_with = "jsonl")]
    key: Option<String>,
    /// Let the tasks start only after this time, like 10s or 1h30m
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    delay: Option<Duration>,
    /// The W3C trace context that the tasks belong to, for those that have no field traceparent
    #[arg(long, value_name = "CONTEXT", value_parser = parse_context)]
    traceparent: Option<String>,
    /// Wait until the tasks have ended and print what became of them; exit with 1 when one failed
    #[arg(long)]
    wait: bool,
    /// Wait no longer than this, like 5m; then exit with 1 (the tasks go on)
    #[arg(long, value_name = "DURATION", requires = "wait", value_parser = parse_duration)]
    timeout: Option<Duration>,
}

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
    // Whatever can be wrong is found before anything is sent.
    let source = match &args.jsonl {
        None => TaskSource::Arguments(single(&args, delay)?),
        Some(path) => TaskSource::Lines(checked(path, delay)?.0),
    };
    let link = connect(config).await?;
    let mut sender = Sender {
        queue: Queue::new(rules, link),
        traces,
        traceparent: args.traceparent,
        wait: args.wait,
        ids: Vec::new(),
        sent: 0,
        duplicates: 0,
        progress: CommandProgress::begin()?,
    };
    match source {
        TaskSource::Arguments(task) => sender.send(vec![task], &[None], out).await?,
        TaskSource::Lines(lines) => {
            let sent = sender.send_lines(&lines, delay, out).await;
            if sent.is_err() {
                ends::print_ids(&sender.ids, out);
            }
            sent?;
            if !out.json {
                let mut told = format!("{} enqueued in {}", text::plural(sender.sent, "task"), args.queue);
                if sender.duplicates > 0 {
                    told += &format!(", {} were there already", sender.duplicates);
                }
                out.line(told);
            }
        }
    }
    if !args.wait {
        return Ok(());
    }
    let Sender { queue, ids, sent, mut progress, .. } = sender;
    if !out.json && sent > 0 {
        ends::note_missing_hosts(&queue, &mut progress).await;
    }
    ends::wait(&queue, ids, args.timeout, start, progress, out).await
}

/// The place that the tasks come from.
enum TaskSource {
    Arguments(NewTask),
    Lines(JsonLines),
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

/// Opens the file, and checks every line of it. Returns the file, and the number of its tasks.
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

/// Sends tasks to Redis, and prints their ids.
struct Sender {
    queue: Queue,
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
            // Every line was good before, so a bad one means that the file has changed.
            let line = line.map_err(|failure| self.stopped(failure))?;
            tasks.push(line.task);
            numbers.push(Some(line.number));
            bytes += line.bytes;
            if tasks.len() == BATCH || bytes >= BATCH_BYTES {
                self.send(std::mem::take(&mut tasks), &numbers, out).await?;
                numbers.clear();
                bytes = 0;
            }
        }
        if tasks.is_empty() { Ok(()) } else { self.send(tasks, &numbers, out).await }
    }

    /// Sends a batch, and prints its ids. `lines` has the number of each task's line, and none for the task
    /// of the arguments.
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

    /// Prints the id of a task that is in the queue, and notes it if the command waits for the end of the
    /// task. A duplicate is the task that was there before with the same key.
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
}
