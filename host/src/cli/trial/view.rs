//! The end of a trial, as text and as JSON.
//!
//! In: the report of an attempt, and how long each run took. Out: what `tqhost try` prints. Not here: the
//! trial itself (`trial`), the lines of the handler's log (`log`).

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::output::{Out, Tone};
use super::super::{text, value};
use super::effects::TrialEffects;
use super::log::LogLine;
use crate::clock::ms;
use crate::config;
use crate::effects::{FlowName, OutboxTask};
use crate::operations::result_json;
use crate::plugins::Single;
use crate::sandbox::{AttemptReport, Ended};
use crate::task::{Outcome, Task};

/// A trial that has ended.
pub(super) struct Tried<'t> {
    pub handler: &'t Path,
    pub single: &'t Single,
    /// How long the self-check took; none for a handler without one.
    pub self_check: Option<Duration>,
    pub tasks: &'t [Task],
    pub grants: &'t config::Plugin,
    /// The attempt of the last run.
    pub report: &'t AttemptReport,
    /// How long each run took, the fastest first. The time of a run includes making an instance for it.
    pub durations: Vec<Duration>,
    pub progress: Option<(u8, String)>,
    pub log: Vec<LogLine>,
    /// The children of the flows of all tasks.
    pub staged: Vec<(FlowName, Vec<OutboxTask>)>,
    /// The path and the size of each blob.
    pub blobs: Vec<(String, u64)>,
}

/// How a task ended.
#[derive(Debug)]
struct EndView {
    outcome: &'static str,
    /// Why the sandbox ended the attempt.
    kind: Option<&'static str>,
    message: Option<String>,
    /// After how long the handler asks to be tried again.
    after_ms: Option<u64>,
    result: Option<Value>,
}

impl Tried<'_> {
    /// The end of the task. For a batch, their common end ([`EndView::of_all`]), and the end of each task.
    fn ends(&self) -> (EndView, Option<Vec<EndView>>) {
        let outcomes = self.report.outcomes(self.tasks.len());
        match &outcomes[..] {
            [outcome] => (EndView::new(outcome), None),
            several => {
                let ends = several.iter().map(EndView::new).collect();
                (EndView::of_all(self.report, several), Some(ends))
            }
        }
    }

    /// The duration of the fastest run, of the median one, and of the slowest one.
    fn times(&self) -> [Duration; 3] {
        let last = self.durations.len().saturating_sub(1);
        [0, self.durations.len() / 2, last].map(|at| self.durations.get(at).copied().unwrap_or_default())
    }

    /// The trial as JSON. The names are stable; a value that does not apply is null.
    pub(super) fn json(&self) -> Value {
        let Tried { handler, single, self_check, grants, report, progress, log, .. } = self;
        let (end, each) = self.ends();
        let outcomes = report.outcomes(self.tasks.len());
        let effects = |outcome: &Outcome| self.effects(outcome).map(|effects| effects.json());
        let task = |((task, end), outcome): ((&Task, EndView), &Outcome)| {
            let EndView { outcome: word, kind, message, after_ms, result } = end;
            json!({
                "id": task.id, "outcome": word, "kind": kind, "message": message, "after_ms": after_ms,
                "result": result, "effects": effects(outcome),
            })
        };
        let tasks = each.map(|each| self.tasks.iter().zip(each).zip(&outcomes).map(task).collect::<Vec<_>>());
        let of_all = if let [outcome] = &outcomes[..] { effects(outcome) } else { None };
        let blob = |(path, bytes): &(String, u64)| json!({ "path": path, "bytes": bytes });
        let [least, median, most] = self.times().map(millis);
        json!({
            "handler": handler.display().to_string(),
            "version": single.digest,
            "bytes": single.bytes,
            "compile_ms": millis(single.took),
            "from_cache": single.from_cache,
            "self_check_ms": self_check.map(millis),
            "outcome": end.outcome,
            "kind": end.kind,
            "message": end.message,
            "after_ms": end.after_ms,
            "result": end.result,
            "effects": of_all,
            "blobs": self.blobs.iter().map(blob).collect::<Vec<_>>(),
            "tasks": tasks,
            "progress": progress.as_ref().map(|(percent, note)| json!({ "percent": percent, "note": note })),
            "log": log,
            "run_ms": median,
            "least_ms": least,
            "most_ms": most,
            "runs": self.durations.len(),
            "instance": if grants.warm.is_some() { "warm" } else { "per-task" },
            "peak_memory": report.peak_memory,
            "backtrace": report.backtrace,
        })
    }

    pub(super) fn render(&self, out: &mut Out) {
        let Tried { report, grants, tasks, .. } = self;
        if let Some((percent, note)) = &self.progress {
            out.line(format!("progress {percent}%  {}", text::escape(note)));
        }
        let memory = format!("{} of {} memory", text::size(report.peak_memory), text::size(grants.memory));
        let [least, median, most] = self.times().map(took);
        let how =
            if grants.warm.is_some() { "in instances that are kept" } else { "each in a fresh instance" };
        let runs = match self.durations.len() {
            1 => String::new(),
            runs => format!(" (median of {runs} runs, {how}: {least} to {most})"),
        };
        let (end, each) = self.ends();
        let said = out.paint.tone(end.tone(), end.outcome);
        out.line(format!("{said} in {median}{runs}, {memory}"));
        let outcomes = report.outcomes(tasks.len());
        match each {
            None => {
                let lines = [end.words(), outcomes.first().and_then(result)];
                lines.into_iter().flatten().for_each(|line| out.line(line));
                outcomes.first().into_iter().for_each(|outcome| self.tell_effects(outcome, out));
            }
            Some(_) if matches!(report.ended, Ended::Failed { .. }) => {
                out.line(end.words().unwrap_or_default());
                out.line("a host would run each of these tasks again, alone");
            }
            Some(ends) => {
                for ((task, end), outcome) in tasks.iter().zip(&ends).zip(&outcomes) {
                    let said = out.paint.tone(end.tone(), end.outcome);
                    let words = end.words().or_else(|| result(outcome)).unwrap_or_default();
                    out.line(format!("{}  {said}  {words}", text::escape(&task.id)).trim_end());
                    self.tell_effects(outcome, out);
                }
            }
        }
        for (path, bytes) in &self.blobs {
            out.line(format!("blob {}, {}", text::escape(path), text::size(*bytes)));
        }
        report.backtrace.iter().for_each(|line| out.line(text::escape(line)));
    }
}

impl Tried<'_> {
    /// The effects that a host would commit. A task that has not completed has none.
    fn effects<'t>(&'t self, outcome: &'t Outcome) -> Option<TrialEffects<'t>> {
        let Outcome::Completed { effects: Some(effects), .. } = outcome else { return None };
        Some(TrialEffects { effects, staged: &self.staged })
    }

    fn tell_effects(&self, outcome: &Outcome, out: &mut Out) {
        let Some(effects) = self.effects(outcome) else { return };
        out.line(out.paint.tone(Tone::Faint, "effects, which a host commits with the task:"));
        effects.lines().into_iter().for_each(|line| out.line(format!("  {line}")));
    }
}

impl EndView {
    fn new(outcome: &Outcome) -> EndView {
        let (outcome, message, after) = match outcome {
            Outcome::Completed { result, .. } => {
                let result = result.as_deref().map(result_json);
                return EndView { result, ..EndView::named("completed") };
            }
            Outcome::Failed { kind, message } => {
                let (kind, message) = (Some(kind.into_str()), Some(message.clone()));
                return EndView { kind, message, ..EndView::named("failed") };
            }
            Outcome::Retry { message, after } => ("retry", message, *after),
            Outcome::Unavailable { message, after } => ("unavailable", message, *after),
            Outcome::Reject { message } => ("reject", message, None),
            Outcome::Defer { message, after } => ("defer", message, Some(*after)),
        };
        EndView { message: Some(message.clone()), after_ms: after.map(ms), ..EndView::named(outcome) }
    }

    fn named(outcome: &'static str) -> EndView {
        EndView { outcome, kind: None, message: None, after_ms: None, result: None }
    }

    /// The common end of a batch: `failed` if the call failed, the end of the tasks if all of them ended in
    /// the same way, else `mixed`.
    fn of_all(report: &AttemptReport, outcomes: &[Outcome]) -> EndView {
        if let (Ended::Failed { .. }, [first, ..]) = (&report.ended, outcomes) {
            return EndView::new(first);
        }
        let mut ends: Vec<&str> = outcomes.iter().map(|outcome| EndView::new(outcome).outcome).collect();
        ends.dedup();
        EndView::named(if let [same] = ends[..] { same } else { "mixed" })
    }

    fn tone(&self) -> Tone {
        match self.outcome {
            "completed" => Tone::Good,
            "reject" | "failed" => Tone::Bad,
            _ => Tone::Warning,
        }
    }

    /// The error, and after how long the handler asks to be tried again.
    fn words(&self) -> Option<String> {
        let after = self
            .after_ms
            .map(|after_ms| format!("again after {}", text::took(Duration::from_millis(after_ms))));
        let message = self.message.as_deref().map(text::escape);
        let words: Vec<String> =
            [self.kind.map(str::to_owned), message, after].into_iter().flatten().collect();
        (!words.is_empty()).then(|| words.join(": "))
    }
}

fn result(outcome: &Outcome) -> Option<String> {
    let Outcome::Completed { result, .. } = outcome else { return None };
    Some(result.as_deref().map_or_else(|| "no result".to_owned(), value::shown))
}

pub(super) fn is_completed(report: &AttemptReport, tasks: usize) -> bool {
    report.outcomes(tasks).iter().all(|outcome| matches!(outcome, Outcome::Completed { .. }))
}

fn millis(duration: Duration) -> f64 {
    // The timer is exact to the microsecond.
    duration.as_micros() as f64 / 1000.0
}

/// A duration for display. Times below 100 ms have two decimals, since users compare them.
pub(super) fn took(duration: Duration) -> String {
    if duration < Duration::from_millis(100) {
        format!("{:.2}ms", millis(duration))
    } else {
        text::took(duration)
    }
}
