//! The last hour, day or week of a queue: figures, charts with marks, the same as a table, outcomes by
//! version.
//!
//! Not here: how charts are drawn (`chart`), the rest of the queue's page (`queue`).

use maud::{Markup, html};
use strum::VariantNames as _;

use super::chart::{Bar, Chart, ChartLine, StepWords, TimeAxis, bar_chart, count_end, line_chart, time_end};
use super::table::{PageCell, cell, count, figure, table, text};
use super::text::{NONE, age, data, grouped, plural, timestamp};
use super::values::{dead_path, link};
use crate::config::QueueRules;
use crate::operations::history::{HistoryView, Percentiles, SpanView, StepView, VersionView};
use crate::operations::marks::HistoryMark;
use crate::queue::minutes::HistoryRange;
use crate::queue::tally::Depth;

/// How many tasks a depth has in one place.
type CountOf = fn(Depth) -> u64;

/// The places of tasks in the chart and the table of the depth.
const PLACES: [(&str, CountOf); 4] = [
    ("waiting", |depth| depth.queued + depth.held),
    ("running", |depth| depth.running),
    ("delayed", |depth| depth.delayed),
    ("dead", |depth| depth.dead),
];

/// The history that a page shows.
pub(super) struct ShownHistory<'h> {
    pub rules: &'h QueueRules,
    /// The address of the queue's page.
    pub path: &'h str,
    pub range: HistoryRange,
    pub history: &'h Result<HistoryView, String>,
    /// The events of that time, the oldest first.
    pub marks: &'h [HistoryMark],
}

/// The section of the queue's page.
pub(super) fn section(shown: &ShownHistory) -> Markup {
    let words = shown.range.words();
    html! {
        section aria-labelledby="history" data-live="history" {
            h2 id="history" { (words[..1].to_uppercase()) (&words[1..]) }
            nav.tabs aria-label="Time of the history" {
                @for name in HistoryRange::VARIANTS {
                    @let current = (name.parse() == Ok(shown.range)).then_some("page");
                    a href={ (shown.path) "?range=" (name) "#history" } aria-current=[current] { (name) }
                }
            }
            @match shown.history {
                Ok(history) => (content(shown, history)),
                Err(why) => p.quiet { "The history cannot be read: " (data(why)) },
            }
        }
    }
}

fn content(shown: &ShownHistory, history: &HistoryView) -> Markup {
    let total = &history.total;
    // `failed` counts attempts, also of tasks that are retried; `dead` counts tasks.
    let has_ended = total.completed + total.failed > 0;
    let has_depth = history.minutes.iter().any(|step| step.depth.is_some());
    let drawn = Drawn::new(shown, history);
    html! {
        @if has_ended { (figures(total)) } @else {
            p.quiet { "Nothing has ended in " (shown.range.words()) "." }
        }
        @if has_ended || has_depth {
            div.charts {
                @if has_ended { (drawn.throughput()) }
                @if has_depth { (drawn.depth()) }
                @if total.waiting.is_some() || total.running.is_some() { (drawn.times()) }
            }
            (drawn.mark_list())
            details {
                summary { "These charts as a table" }
                (table("Steps of the charts", drawn.rows()))
            }
        }
        @if !history.versions.is_empty() {
            (table("Outcomes by version", history.versions.iter().map(version_cells)))
        }
        p.note { (note(shown.range)) }
    }
}

fn note(range: HistoryRange) -> &'static str {
    match range {
        HistoryRange::Hour => "All hosts together, by the minute. A minute is there when it is over.",
        HistoryRange::Day => "All hosts together, in steps of ten minutes. The last one goes on.",
        HistoryRange::Week => "All hosts together, in steps of an hour. The last one goes on.",
    }
}

/// The charts of a history, which share their axis of time.
struct Drawn<'h> {
    shown: &'h ShownHistory<'h>,
    history: &'h HistoryView,
    axis: TimeAxis,
}

impl<'h> Drawn<'h> {
    fn new(shown: &'h ShownHistory, history: &'h HistoryView) -> Drawn<'h> {
        let axis = TimeAxis {
            from_ms: history.minutes.first().map_or(0, |first| first.from_ms),
            step_ms: history.step_ms,
            steps: history.minutes.len(),
        };
        Drawn { shown, history, axis }
    }

    fn chart<'c>(&'c self, id: &'c str, title: &'c str, description: String) -> Chart<'c> {
        Chart { id, title, description, axis: &self.axis, marks: self.shown.marks }
    }

    /// The text of each step: its time, its values, and the marks in it.
    fn words(&self, links: bool, values: impl Fn(&StepView) -> String) -> Vec<StepWords> {
        let words = |step: &StepView| {
            let mut text = format!("{}: {}", self.axis.label(step.from_ms), values(step));
            let end_ms = step.from_ms + self.history.step_ms;
            for mark in self.shown.marks.iter().filter(|mark| (step.from_ms..end_ms).contains(&mark.at_ms)) {
                text += "; ";
                text += &mark.text;
            }
            StepWords { text, link: if links { self.tasks(step) } else { None } }
        };
        self.history.minutes.iter().map(words).collect()
    }

    /// Where the tasks are listed that ended in a step: among those that ended, if the queue keeps events,
    /// else among the dead letters. None: nothing is listed of it.
    fn tasks(&self, step: &StepView) -> Option<String> {
        let (from, to) = (step.from_ms, step.from_ms + self.history.step_ms - 1);
        let (from, to) = (timestamp(from), timestamp(to));
        let time = [("from", from.as_str()), ("to", to.as_str())];
        if self.shown.rules.events > 0 {
            let pairs = [("state", "ended"), time[0], time[1]];
            let has_ended = step.counted.completed + step.counted.dead > 0;
            return has_ended.then(|| format!("{}#tasks", link(self.shown.path, &pairs)));
        }
        (step.counted.dead > 0).then(|| link(&dead_path(&self.shown.rules.name), &time))
    }

    fn throughput(&self) -> Markup {
        let steps = &self.history.minutes;
        let bars: Vec<Bar> = steps.iter().map(|step| (step.counted.completed, step.counted.failed)).collect();
        let most = bars.iter().map(|(completed, failed)| completed + failed).max().unwrap_or(0);
        let SpanView { completed, failed, .. } = self.history.total;
        let step = match self.shown.range {
            HistoryRange::Hour => "minute",
            HistoryRange::Day => "step of ten minutes",
            HistoryRange::Week => "hour",
        };
        let (completed, failed, most) = (grouped(completed), grouped(failed), grouped(most));
        let about = format!("{completed} completed and {failed} failed; at most {most} in a {step}.");
        let words = self.words(true, |step| {
            let (completed, failed) = (grouped(step.counted.completed), grouped(step.counted.failed));
            format!("{completed} completed, {failed} failed")
        });
        let title = format!("Ended in each {step}");
        bar_chart(&self.chart("throughput", &title, about), &bars, &words)
    }

    fn line(&self, name: &'static str, value: impl Fn(&StepView) -> Option<f64>) -> ChartLine<'static> {
        ChartLine { name, values: self.history.minutes.iter().map(value).collect() }
    }

    fn depth(&self) -> Markup {
        let lines = PLACES
            .map(|(name, count)| self.line(name, move |step| step.depth.map(|depth| count(depth) as f64)));
        let last = self.history.minutes.iter().rev().find_map(|step| step.depth);
        let about = last.map_or_else(String::new, |depth| format!("At the end {}.", depth_words(depth)));
        let words =
            self.words(false, |step| step.depth.map_or_else(|| "nobody looked".to_owned(), depth_words));
        let show = |count: f64| grouped(count.round() as u64);
        line_chart(&self.chart("depth", "Tasks in each place", about), &lines, &words, count_end, show)
    }

    fn times(&self) -> Markup {
        let lines = [
            self.line("waiting", |step| Some(step.counted.waiting.as_ref()?.p95_ms)),
            self.line("running", |step| Some(step.counted.running.as_ref()?.p95_ms)),
        ];
        let SpanView { waiting, running, .. } = &self.history.total;
        let about = format!(
            "95 of 100 tasks waited for at most {} and ran for at most {}, over the whole time.",
            p95(waiting),
            p95(running)
        );
        let words = self.words(false, |step| {
            format!("waited {}, ran {}", p95(&step.counted.waiting), p95(&step.counted.running))
        });
        let chart = self.chart("times", "p95 of waiting and running", about);
        let show = |ms: f64| if ms > 0.0 { about_ms(ms) } else { "0".to_owned() };
        line_chart(&chart, &lines, &words, time_end, show)
    }

    /// The marks in words. A time that is told as an age would change the page every second.
    fn mark_list(&self) -> Markup {
        html! {
            @if !self.shown.marks.is_empty() {
                ol.marks aria-label="Marks in the charts, the newest first" {
                    @for mark in self.shown.marks.iter().rev() {
                        li {
                            time datetime=(timestamp(mark.at_ms)) { (self.axis.label(mark.at_ms)) " UTC" }
                            " " (data(&mark.text))
                        }
                    }
                }
            }
        }
    }

    /// A row for each step of which something is known, the newest first.
    fn rows(&self) -> Vec<Vec<PageCell<'static>>> {
        let is_known = |step: &&StepView| {
            let has_tasks = step.depth.is_some_and(|depth| !depth.is_zero());
            has_tasks || !step.counted.outcomes.is_empty()
        };
        let row = |step: &StepView| {
            let label = self.axis.label(step.from_ms);
            let label = match self.tasks(step) {
                Some(tasks) => html! { a href=(tasks) { (label) } },
                None => html! { (label) },
            };
            let [waiting, running, delayed, dead] = depth_counts(step.depth);
            vec![
                cell("From (UTC)", label),
                count("Completed", step.counted.completed),
                count("Failed", step.counted.failed),
                figure("Waiting", waiting),
                figure("Running", running),
                figure("Delayed", delayed),
                figure("Dead", dead),
                figure("Waited p95", p95(&step.counted.waiting)),
                figure("Ran p95", p95(&step.counted.running)),
            ]
        };
        self.history.minutes.iter().rev().filter(is_known).map(row).collect()
    }
}

fn depth_words(depth: Depth) -> String {
    PLACES.map(|(name, count)| format!("{} {name}", grouped(count(depth)))).join(", ")
}

fn depth_counts(depth: Option<Depth>) -> [String; 4] {
    PLACES.map(|(_, count)| depth.map_or_else(|| NONE.to_owned(), |depth| grouped(count(depth))))
}

fn p95(times: &Option<Percentiles>) -> String {
    times.as_ref().map_or_else(|| NONE.to_owned(), |times| about_ms(times.p95_ms))
}

fn figures(total: &SpanView) -> Markup {
    html! {
        dl.figures.wide {
            div { dt { "Completed" } dd { (grouped(total.completed)) } }
            div { dt { "Failed" } dd { (grouped(total.failed)) " (" (percent(total.error_rate)) ")" } }
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
        |times| [times.p50_ms, times.p95_ms, times.p99_ms].map(about_ms).join(" · "),
    )
}

/// A time in milliseconds with few digits.
pub(super) fn about_ms(ms: f64) -> String {
    if ms < 10.0 { format!("{ms:.1}ms") } else { age(ms.round() as u64) }
}

fn version_cells(version: &VersionView) -> Vec<PageCell<'static>> {
    vec![
        text("Version", &version.words()),
        count("Attempts", version.attempts),
        count("Completed", version.completed),
        count("Retried", version.retried),
        count("Rejected", version.rejected),
        count("Deferred", version.deferred),
        count("Unavailable", version.unavailable),
        count("Trapped", version.trapped),
        count("Timed out", version.timed_out),
        count("Other failures", version.out_of_memory + version.failed),
        figure("Time each", about_ms(version.mean_ms)),
    ]
}

/// The title of the small chart of a queue.
pub(super) fn sparkline_words(queue: &str, bars: &[Bar]) -> String {
    let (completed, failed) = bars.iter().fold((0, 0), |sum, bar| (sum.0 + bar.0, sum.1 + bar.1));
    let most = bars.iter().map(|bar| bar.0 + bar.1).max().unwrap_or(0);
    let minutes = plural(bars.len() as u64, "minute");
    format!(
        "{queue}, the last {minutes}: {} completed, {} failed, at most {} in a minute",
        grouped(completed),
        grouped(failed),
        grouped(most)
    )
}
