//! Charts of a queue's history, as SVG in the page: bars, lines, and the small chart of the overview.
//!
//! In: figures of each step, and marks of what happened meanwhile. Out: markup without styles of its own;
//! `dashboard.css` has the colours. Each chart says what it shows in a title and a description, and its lines
//! differ by more than colour. Text is outside of the drawing, which is stretched to its place.
//!
//! Each step has a place of its own that tells its values when the pointer is on it; `dashboard.js` lets the
//! keyboard go from one to the next. The same values stand in a table (`queue_history`).
//!
//! Not here: the figures (`operations::history`), where a chart stands (`overview`, `queue_history`).

use std::fmt::Write as _;

use maud::{Markup, html};

use super::text::{grouped, time_of};
use crate::operations::marks::HistoryMark;

/// The height of a chart in its own units; its width is one unit for each step.
const HEIGHT: f64 = 1000.0;
/// The part of a step that its bar takes.
const BAR: f64 = 0.8;
/// The least height of a count that is not zero, so that a single failure beside thousands is seen.
const LEAST: f64 = 25.0;
/// The length of a value alone, as a part of its step.
const DOT: f64 = 0.8;
/// The parts of the axis of time between its labels.
const PARTS: u64 = 4;
const DAY_MS: u64 = 86_400_000;
/// The ends that an axis may have, in seconds, where times are longer than ten seconds.
const LONG_TIMES: [u32; 14] =
    [20, 30, 60, 120, 300, 600, 1_200, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400, 172_800];

/// A line of a chart: its name, and a value for each step that has one.
pub(super) struct ChartLine<'l> {
    pub name: &'l str,
    pub values: Vec<Option<f64>>,
}

/// The steps of a history on the axis of time.
pub(super) struct TimeAxis {
    /// When the first step begins, in ms since the Unix epoch.
    pub from_ms: u64,
    pub step_ms: u64,
    pub steps: usize,
}

/// A chart.
pub(super) struct Chart<'c> {
    /// Unique in the page.
    pub id: &'c str,
    pub title: &'c str,
    /// Its content in words.
    pub description: String,
    pub axis: &'c TimeAxis,
    pub marks: &'c [HistoryMark],
}

/// The values of a step in words, and where its tasks are listed.
pub(super) struct StepWords {
    pub text: String,
    pub link: Option<String>,
}

/// How many were completed and how many failed in a step.
pub(super) type Bar = (u64, u64);

impl TimeAxis {
    pub(super) fn end_ms(&self) -> u64 {
        self.from_ms + self.step_ms * self.steps as u64
    }

    /// The beginning of a step, as short as the other ones allow.
    pub(super) fn label(&self, ms: u64) -> String {
        let form = if self.step_ms * self.steps as u64 > DAY_MS { "%b %d %H:%M" } else { "%H:%M" };
        time_of(ms).map_or_else(String::new, |time| time.strftime(form).to_string())
    }

    /// The place of a moment in steps, if it is one of this time.
    fn place(&self, ms: u64) -> Option<f64> {
        let since = ms.checked_sub(self.from_ms)?;
        (ms < self.end_ms()).then(|| since as f64 / self.step_ms as f64)
    }

    fn labels(&self) -> impl Iterator<Item = (u64, &'static str, String)> {
        let length = self.step_ms * self.steps as u64;
        (0..=PARTS).map(move |part| {
            let anchor = match part {
                0 => "start",
                PARTS => "end",
                _ => "middle",
            };
            (part * 100 / PARTS, anchor, self.label(self.from_ms + length * part / PARTS))
        })
    }
}

/// A round number that is not less than `most`, as the end of an axis.
fn round_up(most: f64) -> f64 {
    let power = 10f64.powf(most.max(1.0).log10().floor());
    [1.0, 2.0, 4.0, 6.0, 10.0].into_iter().map(|part| part * power).find(|end| *end >= most).unwrap_or(most)
}

/// The end of an axis of counts. Half of it is a count, too.
pub(super) fn count_end(most: f64) -> f64 {
    if most <= 2.0 { 2.0 } else { round_up(most) }
}

/// The end of an axis of times in ms, which people can halve.
pub(super) fn time_end(most: f64) -> f64 {
    if most <= 10_000.0 {
        return round_up(most);
    }
    LONG_TIMES.into_iter().map(|end| f64::from(end) * 1_000.0).find(|end| *end >= most).unwrap_or(most)
}

/// A chart in one cell of a table.
pub(super) fn sparkline(id: &str, title: &str, bars: &[Bar]) -> Markup {
    html! {
        svg.spark viewBox=(view(bars.len())) preserveAspectRatio="none" role="img" aria-labelledby=(id) {
            title id=(id) { (title) }
            (bar_paths(bars, highest(bars).max(1) as f64))
        }
    }
}

/// Bars of the completed tasks, with the failures on top of them.
pub(super) fn bar_chart(chart: &Chart<'_>, bars: &[Bar], words: &[StepWords]) -> Markup {
    let end = count_end(highest(bars) as f64);
    let keys = html! { span.key.completed { "completed" } " " span.key.failed { "failed" } };
    frame(chart, &keys, end, |count| grouped(count.round() as u64), &bar_paths(bars, end), words)
}

/// Lines, at most four. `end` gives the end of the axis for the highest value, and `show` the text of a
/// value.
pub(super) fn line_chart(
    chart: &Chart<'_>,
    lines: &[ChartLine<'_>],
    words: &[StepWords],
    end: fn(f64) -> f64,
    show: fn(f64) -> String,
) -> Markup {
    let values = lines.iter().flat_map(|line| line.values.iter().flatten());
    let end = end(values.fold(0.0, |most: f64, value| most.max(*value)));
    let keys = html! {
        @for (line, class) in lines.iter().zip(CLASSES) {
            span class={ "key " (class) } { (line.name) } " "
        }
    };
    let paths = html! {
        @for (line, class) in lines.iter().zip(CLASSES) {
            path class={ "line " (class) } d=(line_path(&line.values, end)) {}
        }
    };
    frame(chart, &keys, end, show, &paths, words)
}

const CLASSES: [&str; 4] = ["first", "second", "third", "fourth"];

fn frame(
    chart: &Chart<'_>,
    keys: &Markup,
    end: f64,
    show: fn(f64) -> String,
    paths: &Markup,
    words: &[StepWords],
) -> Markup {
    let Chart { id, title, description, axis, marks } = chart;
    let (named, described) = (format!("{id}-title"), format!("{id}-text"));
    let view = view(axis.steps);
    html! {
        figure.chart {
            figcaption { (title) ": " (keys) }
            div.scale aria-hidden="true" {
                @for part in [1.0, 0.5, 0.0] { span { (show(end * part)) } }
            }
            div.plot data-chart=(title) {
                svg viewBox=(view) preserveAspectRatio="none" role="img"
                    aria-labelledby=(named) aria-describedby=(described) {
                    title id=(named) { (title) }
                    desc id=(described) { (description) }
                    path.grid d=(grid(axis.steps)) {}
                    (paths)
                    path.mark d=(mark_path(axis, marks)) {}
                }
                (places(&view, words))
            }
            svg.times aria-hidden="true" {
                @for (at, anchor, label) in axis.labels() {
                    text x={ (at) "%" } y="1em" text-anchor=(anchor) { (label) }
                }
            }
            p.readout aria-live="polite" {}
        }
    }
}

/// The places of the steps, above the drawing.
fn places(view: &str, words: &[StepWords]) -> Markup {
    html! {
        svg.steps viewBox=(view) preserveAspectRatio="none" aria-hidden="true" {
            @for (at, StepWords { text, link }) in words.iter().enumerate() {
                @let place = html! { title { (text) } rect x=(at) width="1" height=(HEIGHT) {} };
                @if let Some(link) = link {
                    a href=(link) tabindex="-1" { (place) }
                } @else {
                    g { (place) }
                }
            }
        }
    }
}

fn view(steps: usize) -> String {
    format!("0 0 {} {HEIGHT}", steps.max(1))
}

/// The lines behind the labels of both axes, except those at the edges.
fn grid(steps: usize) -> String {
    let mut path = format!("M0 {}H{steps}", HEIGHT / 2.0);
    for part in 1..PARTS {
        let _ = write!(path, "M{:.2} 0V{HEIGHT}", (steps as u64 * part) as f64 / PARTS as f64);
    }
    path
}

fn mark_path(axis: &TimeAxis, marks: &[HistoryMark]) -> String {
    let places = marks.iter().filter_map(|mark| axis.place(mark.at_ms));
    places.map(|at| format!("M{at:.2} 0V{HEIGHT}")).collect()
}

fn highest(bars: &[Bar]) -> u64 {
    bars.iter().map(|(completed, failed)| completed + failed).max().unwrap_or(0)
}

fn bar_paths(bars: &[Bar], end: f64) -> Markup {
    let height = |count: u64| if count == 0 { 0.0 } else { (count as f64 / end * HEIGHT).max(LEAST) };
    let (mut done, mut bad) = (String::new(), String::new());
    for (at, (completed, failed)) in bars.iter().enumerate() {
        let middle = (HEIGHT - height(*completed)).max(height(*failed));
        bar(&mut done, at, HEIGHT, middle);
        bar(&mut bad, at, middle, middle - height(*failed));
    }
    html! { path.completed d=(done) {} path.failed d=(bad) {} }
}

/// Adds a bar between two heights. An overview has tens of thousands of bars, and whole numbers are written
/// six times as fast as fractions.
fn bar(path: &mut String, at: usize, bottom: f64, top: f64) {
    let [bottom, top] = [bottom, top].map(|height| height.round() as u32);
    if bottom > top {
        let _ = write!(path, "M{at} {bottom}V{top}h{BAR}V{bottom}z");
    }
}

/// A line with gaps where there is no value. A value alone is a short line.
fn line_path(values: &[Option<f64>], end: f64) -> String {
    let (mut path, mut is_drawn) = (String::new(), false);
    for (at, value) in values.iter().enumerate() {
        let Some(value) = value else {
            is_drawn = false;
            continue;
        };
        let height = if end > 0.0 { HEIGHT - value / end * HEIGHT } else { HEIGHT };
        let is_alone = !is_drawn && !matches!(values.get(at + 1), Some(Some(_)));
        let (letter, place) = if is_drawn { ('L', at as f64 + 0.5) } else { ('M', at as f64 + 0.5) };
        let place = if is_alone { place - DOT / 2.0 } else { place };
        let _ = write!(path, "{letter}{place:.1} {height:.0}");
        if is_alone {
            let _ = write!(path, "h{DOT}");
        }
        is_drawn = true;
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_stand_on_each_other() {
        let paths = bar_paths(&[(3, 1), (0, 0), (2, 0)], 4.0).into_string();
        assert_eq!(
            paths,
            "<path class=\"completed\" d=\"M0 1000V250h0.8V1000zM2 1000V500h0.8V1000z\"></path>\
             <path class=\"failed\" d=\"M0 250V0h0.8V250z\"></path>"
        );
        assert_eq!(bar_paths(&[(0, 0)], 2.0).into_string().matches("d=\"\"").count(), 2);
    }

    #[test]
    fn one_failure_beside_thousands_is_seen_and_stays_inside() {
        let paths = bar_paths(&[(49_057, 1), (50_000, 1)], 50_000.0).into_string();
        assert!(paths.contains("class=\"failed\" d=\"M0 25V0h0.8V25zM1 25V0h0.8V25z\""), "{paths}");
    }

    #[test]
    fn a_line_has_gaps_and_a_value_alone_has_a_length() {
        let path = line_path(&[Some(0.0), Some(10.0), None, Some(5.0)], 10.0);
        assert_eq!(path, "M0.5 1000L1.5 0M3.1 500h0.8");
        assert_eq!(line_path(&[Some(0.0)], 0.0), "M0.1 1000h0.8");
    }

    #[test]
    fn an_axis_ends_with_a_round_number() {
        let counts = [(0.0, 2.0), (1.0, 2.0), (3.0, 4.0), (10.0, 10.0), (49_058.0, 60_000.0)];
        for (most, end) in counts {
            assert_eq!(count_end(most), end, "{most}");
        }
        let times =
            [(0.4, 1.0), (3.0, 4.0), (9_999.0, 10_000.0), (12_000.0, 20_000.0), (61_000.0, 120_000.0)];
        for (most, end) in times {
            assert_eq!(time_end(most), end, "{most}");
        }
    }

    #[test]
    fn a_mark_stands_at_its_moment_and_outside_of_the_time_there_is_none() {
        let axis = TimeAxis { from_ms: 600_000, step_ms: 60_000, steps: 60 };
        let marks = [599_999, 600_000, 690_000, 4_200_000];
        let marks = marks.map(|at_ms| HistoryMark { at_ms, text: "loaded".into() });
        assert_eq!(mark_path(&axis, &marks), "M0.00 0V1000M1.50 0V1000");
        let labels: Vec<String> =
            axis.labels().map(|(at, anchor, label)| format!("{at} {anchor} {label}")).collect();
        assert_eq!(
            labels,
            ["0 start 00:10", "25 middle 00:25", "50 middle 00:40", "75 middle 00:55", "100 end 01:10"]
        );
        let week = TimeAxis { from_ms: 0, step_ms: 3_600_000, steps: 168 };
        assert_eq!(week.label(3_600_000), "Jan 01 01:00");
    }

    #[test]
    fn values_of_a_chart_are_said_in_words_and_escaped() {
        let axis = TimeAxis { from_ms: 0, step_ms: 60_000, steps: 2 };
        let chart = Chart { id: "c", title: "<b>", description: "at most 7".into(), axis: &axis, marks: &[] };
        let lines = [ChartLine { name: "<i>", values: vec![Some(7.0), None] }];
        let words =
            |text: &str, link: Option<&str>| StepWords { text: text.into(), link: link.map(str::to_owned) };
        let words = [words("00:00 <7>", Some("?from=\"1\"")), words("00:01 none", None)];
        let shown = line_chart(&chart, &lines, &words, count_end, |most| format!("{most:.0}")).into_string();
        for part in [
            "aria-labelledby=\"c-title\"",
            "<title id=\"c-title\">&lt;b&gt;</title>",
            "<desc id=\"c-text\">at most 7</desc>",
            "<span class=\"key first\">&lt;i&gt;</span>",
            "viewBox=\"0 0 2 1000\"",
            "<span>10</span><span>5</span><span>0</span>",
            "<a href=\"?from=&quot;1&quot;\" tabindex=\"-1\"><title>00:00 &lt;7&gt;</title><rect x=\"0\"",
            "<g><title>00:01 none</title>",
        ] {
            assert!(shown.contains(part), "{part} in {shown}");
        }
        assert!(!shown.contains("style"), "{shown}");
    }
}
