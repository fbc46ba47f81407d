//! The end of a trial, as text and as JSON.
//!
//! In: the report of an attempt, and how long each run took. Out: what `tqhost try` prints. Not here: the
//! trial itself (`trial`), the lines of the handler's log (`trial_log`).

use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::super::output::{Out, Tone};
use super::super::trial_log::LogLine;
use super::super::{text, value};
use crate::config;
use crate::operations::result_json;
use crate::plugins::Single;
use crate::sandbox::{AttemptReport, Ended};
use crate::task::{Outcome, Task};

/// The attempt as JSON. The names are stable; a value that does not apply is null.
#[derive(Debug, Serialize)]
pub(super) struct TryView {
    handler: String,
    version: String,
    bytes: u64,
    compile_ms: f64,
    /// Whether the compiled code came from the cache.
    from_cache: bool,
    /// How long the self-check took; null for a handler without one.
    pub(super) self_check_ms: Option<f64>,
    /// The end of the task. For a batch: `failed` if the call failed, the end of all tasks if they ended
    /// alike, else `mixed`.
    #[serde(flatten)]
    end: EndView,
    /// For a batch: the end of each task.
    tasks: Option<Vec<TriedTask>>,
    progress: Option<ProgressView>,
    log: Vec<LogLine>,
    /// The median time of all runs: the call, and making the instance where one was made for it.
    run_ms: f64,
    /// The time of the fastest run.
    least_ms: f64,
    /// The time of the slowest run.
    most_ms: f64,
    runs: usize,
    /// By the plugin's configuration: `per-task` for a fresh instance in each run, `warm` where one is kept.
    pub(super) instance: &'static str,
    /// In bytes.
    peak_memory: u64,
    /// With `--backtrace`: the calls in which the handler failed, the innermost first.
    backtrace: Vec<String>,
}

#[derive(Debug, Serialize)]
struct EndView {
    outcome: &'static str,
    /// Why the sandbox ended the attempt.
    kind: Option<&'static str>,
    message: Option<String>,
    /// After how long the handler asks to be tried again.
    after_ms: Option<u64>,
    result: Option<Value>,
}

#[derive(Debug, Serialize)]
struct TriedTask {
    id: String,
    #[serde(flatten)]
    end: EndView,
}

#[derive(Debug, Serialize)]
struct ProgressView {
    percent: u8,
    note: String,
}

impl TryView {
    pub(super) fn new(
        path: &Path,
        single: &Single,
        (tasks, report): (&[Task], &AttemptReport),
        mut durations: Vec<Duration>,
        progress: Option<(u8, String)>,
        log: Vec<LogLine>,
    ) -> TryView {
        durations.sort();
        let nth = |n: usize| durations.get(n).copied().map_or(0.0, millis);
        let outcomes = report.outcomes(tasks.len());
        let (end, each) = match &outcomes[..] {
            [outcome] => (EndView::new(outcome), None),
            several => {
                let views = tasks
                    .iter()
                    .zip(several)
                    .map(|(task, outcome)| TriedTask { id: task.id.clone(), end: EndView::new(outcome) });
                (EndView::of_all(report, several), Some(views.collect()))
            }
        };
        TryView {
            handler: path.display().to_string(),
            version: single.digest.clone(),
            bytes: single.bytes,
            compile_ms: millis(single.took),
            from_cache: single.from_cache,
            self_check_ms: None,
            end,
            tasks: each,
            progress: progress.map(|(percent, note)| ProgressView { percent, note }),
            log,
            run_ms: nth(durations.len() / 2),
            least_ms: nth(0),
            most_ms: nth(durations.len().saturating_sub(1)),
            runs: durations.len(),
            instance: "per-task",
            peak_memory: report.peak_memory,
            backtrace: report.backtrace.clone(),
        }
    }

    pub(super) fn render(
        &self,
        report: &AttemptReport,
        tasks: &[Task],
        grants: &config::Plugin,
        out: &mut Out,
    ) {
        if let Some(ProgressView { percent, note }) = &self.progress {
            out.line(format!("progress {percent}%  {}", text::escape(note)));
        }
        let memory = format!("{} of {} memory", text::size(self.peak_memory), text::size(grants.memory));
        let runs = match self.runs {
            1 => String::new(),
            runs => {
                let how = if grants.warm.is_some() {
                    "in instances that are kept"
                } else {
                    "each in a fresh instance"
                };
                format!(
                    " (median of {runs} runs, {how}: {} to {})",
                    took(ms(self.least_ms)),
                    took(ms(self.most_ms))
                )
            }
        };
        let said = out.paint.tone(self.end.tone(), self.end.outcome);
        out.line(format!("{said} in {}{runs}, {memory}", took(ms(self.run_ms))));
        let outcomes = report.outcomes(tasks.len());
        match &self.tasks {
            None => {
                for line in [self.end.words(), outcomes.first().and_then(result)].into_iter().flatten() {
                    out.line(line);
                }
            }
            Some(_) if matches!(report.ended, Ended::Failed { .. }) => {
                out.line(self.end.words().unwrap_or_default());
                out.line("a host would run each of these tasks again, alone");
            }
            Some(views) => {
                for (TriedTask { id, end }, outcome) in views.iter().zip(&outcomes) {
                    let said = out.paint.tone(end.tone(), end.outcome);
                    let words = end.words().or_else(|| result(outcome)).unwrap_or_default();
                    out.line(format!("{}  {said}  {words}", text::escape(id)).trim_end());
                }
            }
        }
        for line in &self.backtrace {
            out.line(text::escape(line));
        }
    }
}

impl EndView {
    fn new(outcome: &Outcome) -> EndView {
        let mut view = EndView::named("completed");
        let after_ms = |after: Duration| u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        match outcome {
            Outcome::Completed { result, .. } => view.result = result.as_deref().map(result_json),
            Outcome::Retry { message, after } => {
                (view.outcome, view.message, view.after_ms) =
                    ("retry", Some(message.clone()), after.map(after_ms));
            }
            Outcome::Unavailable { message, after } => {
                (view.outcome, view.message, view.after_ms) =
                    ("unavailable", Some(message.clone()), after.map(after_ms));
            }
            Outcome::Reject { message } => (view.outcome, view.message) = ("reject", Some(message.clone())),
            Outcome::Defer { message, after } => {
                (view.outcome, view.message, view.after_ms) =
                    ("defer", Some(message.clone()), Some(after_ms(*after)));
            }
            Outcome::Failed { kind, message } => {
                (view.outcome, view.kind, view.message) =
                    ("failed", Some(kind.into_str()), Some(message.clone()));
            }
        }
        view
    }

    fn named(outcome: &'static str) -> EndView {
        EndView { outcome, kind: None, message: None, after_ms: None, result: None }
    }

    /// The common end of a batch.
    fn of_all(report: &AttemptReport, outcomes: &[Outcome]) -> EndView {
        if let (Ended::Failed { .. }, [first, ..]) = (&report.ended, outcomes) {
            return EndView::new(first);
        }
        let mut ends: Vec<&str> = outcomes.iter().map(|outcome| EndView::new(outcome).outcome).collect();
        ends.dedup();
        EndView::named(if let [alike] = ends[..] { alike } else { "mixed" })
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

pub(super) fn millis(duration: Duration) -> f64 {
    // To the microsecond: the timer is not more exact.
    duration.as_micros() as f64 / 1000.0
}

fn ms(value: f64) -> Duration {
    Duration::from_micros((value * 1000.0) as u64)
}

/// A duration for display. Times below 100 ms have two decimals, since users compare them.
pub(super) fn took(duration: Duration) -> String {
    if duration < Duration::from_millis(100) {
        format!("{:.2}ms", millis(duration))
    } else {
        text::took(duration)
    }
}
