//! `tqhost queues QUEUE --history`: what became of a queue's tasks in each minute of the last hour, or in
//! longer steps of a day or a week.
//!
//! In: a queue's name, a range. Out: a table with a row for each step, or the answer of the HTTP API as JSON.
//! Not here: the counts and percentiles (`operations::history`).

use std::time::Duration;

use clap::builder::PossibleValuesParser;
use jiff::tz::TimeZone;
use strum::VariantNames as _;

use super::context::open;
use super::exit::CommandResult;
use super::output::{Out, Paint, Tone};
use super::table::{Cell, TextTable};
use super::text;
use crate::config::Config;
use crate::operations::history::{HistoryView, SpanView};
use crate::operations::{known_builds, patiently};
use crate::queue::hosts;
use crate::queue::minutes::{HistoryRange, MINUTE_MS, in_range};

pub(super) async fn run(config: &Config, name: &str, range: HistoryRange, out: &mut Out) -> CommandResult {
    let queue = open(config, name).await?;
    let builds = known_builds(&patiently(|| hosts::list_known(&queue.link)).await?);
    let view = HistoryView::of(name, &patiently(|| in_range(&queue, range)).await?, &builds);
    out.show(&view, |paint| match view.minutes.iter().any(|step| has_counts(&step.counted)) {
        true => table(&view, &TimeZone::system(), paint),
        false => format!("Nothing happened to tasks of {name} in {}.", range.words()),
    });
    Ok(())
}

/// The names of ranges, for the arguments.
pub(super) fn ranges() -> PossibleValuesParser {
    PossibleValuesParser::new(HistoryRange::VARIANTS)
}

fn has_counts(counted: &SpanView) -> bool {
    !counted.outcomes.is_empty() || counted.waiting.is_some() || counted.running.is_some()
}

/// The steps from the first one in which something was counted, and all of them together.
fn table(view: &HistoryView, zone: &TimeZone, paint: Paint) -> String {
    let spare = &["WAIT P50", "RUN P50", "WAIT P99", "RUN P99", "WAIT P95", "RUN P95", "ERRORS", "FAILED"];
    let mut table = TextTable::with_spare(spare)
        .fixed(["TIME"])
        .figures(["COMPLETED", "FAILED", "ERRORS"])
        .figures(["WAIT P50", "WAIT P95", "WAIT P99", "RUN P50", "RUN P95", "RUN P99"]);
    let form = if view.step_ms > MINUTE_MS { "%m-%d %H:%M" } else { "%H:%M" };
    for step in view.minutes.iter().skip_while(|step| !has_counts(&step.counted)) {
        table.row(row(text::local(step.from_ms, zone, form), &step.counted));
    }
    table.row(row("total".to_owned(), &view.total));
    table.render(paint)
}

fn row(time: String, counted: &SpanView) -> Vec<Cell> {
    let tone = if counted.failed > 0 { Tone::Bad } else { Tone::Plain };
    let errors = counted.error_rate.map(|rate| format!("{:.1}%", rate * 100.0));
    let mut cells = vec![time.into(), counted.completed.into(), Cell::tone(counted.failed.to_string(), tone)];
    cells.push(Cell::known(errors));
    for times in [&counted.waiting, &counted.running] {
        let times = times.as_ref().map(|times| [times.p50_ms, times.p95_ms, times.p99_ms].map(short_time));
        cells.extend((0..3).map(|at| Cell::known(times.as_ref().map(|times| &times[at]))));
    }
    cells
}

/// A time with tenths of a millisecond if it is short.
fn short_time(ms: f64) -> String {
    if ms < 10.0 { format!("{ms:.1}ms") } else { text::took(Duration::from_millis(ms as u64)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::history::{Percentiles, StepView};

    #[test]
    fn a_row_has_counts_errors_and_times() {
        let times = |p50_ms| Some(Percentiles { count: 7, p50_ms, p95_ms: 1_500.0, p99_ms: 65_000.0 });
        let busy = SpanView {
            completed: 7,
            failed: 1,
            error_rate: Some(0.125),
            outcomes: [("completed", 7), ("retried", 1)].into(),
            waiting: times(0.42),
            ..SpanView::default()
        };
        let minute = |number: u64, counted| StepView { from_ms: number * 60_000, counted, depth: None };
        let minutes =
            vec![minute(0, SpanView::default()), minute(1, busy.clone()), minute(2, SpanView::default())];
        let view = |step_ms, minutes| HistoryView {
            queue: "work".into(),
            step_ms,
            total: busy.clone(),
            minutes,
            versions: Vec::new(),
        };
        let table = |view| table(&view, &TimeZone::UTC, Paint::default());
        let day = table(view(600_000, vec![minute(10, busy.clone())]));
        assert!(day.contains("\n01-01 00:10 "), "{day}");
        let table = table(view(60_000, minutes));
        let rows: Vec<String> =
            table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            rows[1..],
            [
                "00:01 7 1 12.5% 0.4ms 1.5s 1m 5s – – –",
                "00:02 0 0 – – – – – – –",
                "total 7 1 12.5% 0.4ms 1.5s 1m 5s – – –",
            ]
        );
    }
}
