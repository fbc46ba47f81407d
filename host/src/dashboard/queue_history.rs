//! The last hour of a queue: figures, charts, outcomes by version.
//!
//! Not here: how charts are drawn (`chart`), the rest of the queue's page (`queue`).

use maud::{Markup, html};

use super::chart::{Bar, Chart, ChartLine, bar_chart, line_chart};
use super::layout::table;
use super::text::{NONE, age, data, plural};
use crate::operations::history::{HistoryView, MinuteView, Percentiles, SpanView, VersionView};
use crate::queue::minutes::{Depth, MINUTE_MS};

/// The columns of outcomes by version.
pub(super) const COLUMNS: [&str; 11] = [
    "Version",
    "#Attempts",
    "#Completed",
    "#Retried",
    "#Rejected",
    "#Deferred",
    "#Unavailable",
    "#Trapped",
    "#Timed out",
    "#Other failures",
    "#Time each",
];

/// The section of the queue's page.
pub(super) fn section(history: &Result<HistoryView, String>) -> Markup {
    html! {
        section aria-labelledby="history" data-live="history" {
            h2 id="history" { "The last hour" }
            @match history {
                Ok(history) => (shown(history)),
                Err(why) => p.quiet { "The history cannot be read: " (data(why)) },
            }
        }
    }
}

fn shown(history: &HistoryView) -> Markup {
    let total = &history.total;
    let has_ended = total.completed + total.failed > 0;
    let has_depth = history.minutes.iter().any(|minute| minute.depth.is_some());
    html! {
        @if has_ended { (figures(total)) } @else { p.quiet { "Nothing has ended in the last hour." } }
        @if has_ended || has_depth {
            div.charts {
                @if has_ended { (throughput(history)) }
                @if has_depth { (depth(history)) }
                @if total.waiting.is_some() || total.running.is_some() { (times(history)) }
            }
        }
        @if !history.versions.is_empty() {
            (table("Outcomes by version", &COLUMNS, &html! {
                @for version in &history.versions { tr { (version_cells(version)) } }
            }))
        }
        p.note { "All hosts together, by the minute. A minute is there when it is over." }
    }
}

fn figures(total: &SpanView) -> Markup {
    html! {
        dl.figures.wide {
            div { dt { "Completed" } dd { (total.completed) } }
            div { dt { "Failed" } dd { (total.failed) " (" (percent(total.error_rate)) ")" } }
            div { dt { "Waited p50 · p95 · p99" } dd { (percentiles(total.waiting.as_ref())) } }
            div { dt { "Ran p50 · p95 · p99" } dd { (percentiles(total.running.as_ref())) } }
        }
    }
}

/// A part in percent.
pub(super) fn percent(part: Option<f64>) -> String {
    match part {
        Some(part) if part > 0.0 && part < 0.001 => "< 0.1 %".to_owned(),
        Some(part) => format!("{:.1} %", part * 100.0),
        None => NONE.to_owned(),
    }
}

/// The three percentiles of times.
pub(super) fn percentiles(times: Option<&Percentiles>) -> String {
    times.map_or_else(
        || NONE.to_owned(),
        |times| [times.p50_ms, times.p95_ms, times.p99_ms].map(about).join(" · "),
    )
}

/// A time in milliseconds with few digits.
pub(super) fn about(ms: f64) -> String {
    if ms < 10.0 { format!("{ms:.1}ms") } else { age(ms.round() as u64) }
}

fn chart<'c>(history: &HistoryView, id: &'c str, title: &'c str, description: String) -> Chart<'c> {
    let minutes = &history.minutes;
    let from_ms = minutes.first().map_or(0, |minute| minute.from_ms);
    let to_ms = minutes.last().map_or(0, |minute| minute.from_ms + MINUTE_MS);
    Chart { id, title, description, span: (from_ms, to_ms) }
}

fn throughput(history: &HistoryView) -> Markup {
    let bars: Vec<Bar> =
        history.minutes.iter().map(|minute| (minute.counted.completed, minute.counted.failed)).collect();
    let most = bars.iter().map(|(completed, failed)| completed + failed).max().unwrap_or(0);
    let SpanView { completed, failed, .. } = history.total;
    let words = format!("{completed} completed and {failed} failed; at most {most} in a minute.");
    bar_chart(&chart(history, "throughput", "Ended in each minute", words), &bars)
}

fn depth(history: &HistoryView) -> Markup {
    let line = |name, of: fn(Depth) -> u64| ChartLine {
        name,
        values: history.minutes.iter().map(|minute| minute.depth.map(|depth| of(depth) as f64)).collect(),
    };
    let lines = [
        line("waiting", |depth| depth.queued + depth.held),
        line("running", |depth| depth.running),
        line("delayed", |depth| depth.delayed),
        line("dead", |depth| depth.dead),
    ];
    let last = history.minutes.iter().rev().find_map(|minute| minute.depth);
    let words = last.map_or_else(String::new, |Depth { queued, running, delayed, held, dead, .. }| {
        format!("At the end {} waiting, {running} running, {delayed} delayed, {dead} dead.", queued + held)
    });
    let count = |most: f64| format!("{most:.0}");
    line_chart(&chart(history, "depth", "Tasks in each place", words), &lines, count)
}

fn times(history: &HistoryView) -> Markup {
    let line = |name, of: fn(&MinuteView) -> &Option<Percentiles>| ChartLine {
        name,
        values: history.minutes.iter().map(|one| of(one).as_ref().map(|times| times.p95_ms)).collect(),
    };
    let lines = [
        line("waiting", |minute| &minute.counted.waiting),
        line("running", |minute| &minute.counted.running),
    ];
    let total = |times: &Option<Percentiles>| times.as_ref().map_or(NONE.to_owned(), |one| about(one.p95_ms));
    let words = format!(
        "95 of 100 tasks waited for at most {} and ran for at most {}, over the whole time.",
        total(&history.total.waiting),
        total(&history.total.running)
    );
    line_chart(&chart(history, "times", "p95 of waiting and running", words), &lines, about)
}

/// The cells of a version, in the order of [`COLUMNS`].
pub(super) fn version_cells(version: &VersionView) -> Markup {
    html! {
        th scope="row" { (data(&version.words())) }
        td.number { (version.attempts) }
        td.number { (version.completed) }
        td.number { (version.retried) }
        td.number { (version.rejected) }
        td.number { (version.deferred) }
        td.number { (version.unavailable) }
        td.number { (version.trapped) }
        td.number { (version.timed_out) }
        td.number { (version.out_of_memory + version.failed) }
        td.number { (about(version.mean_ms)) }
    }
}

/// The title of the small chart of a queue.
pub(super) fn sparkline_words(queue: &str, bars: &[Bar]) -> String {
    let (completed, failed) = bars.iter().fold((0, 0), |sum, bar| (sum.0 + bar.0, sum.1 + bar.1));
    let most = bars.iter().map(|bar| bar.0 + bar.1).max().unwrap_or(0);
    let minutes = plural(bars.len() as u64, "minute");
    format!("{queue}, the last {minutes}: {completed} completed, {failed} failed, at most {most} in a minute")
}
