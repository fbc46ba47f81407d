//! Charts of the last minutes of a queue, as SVG in the page: bars, lines, and the small chart of the
//! overview.
//!
//! In: figures of each minute. Out: markup without styles of its own; `dashboard.css` has the colours. Each
//! chart says what it shows in a title and a description, and its lines differ by more than colour. Text is
//! outside of the SVG, which is stretched to its place.
//!
//! Not here: the figures (`operations::history`), where a chart stands (`overview`, `queue_history`).

use std::fmt::Write as _;

use jiff::Timestamp;
use maud::{Markup, html};

/// The height of a chart in its own units; its width is one unit for each minute.
const HEIGHT: f64 = 100.0;
/// The part of a minute that its bar takes.
const BAR: f64 = 0.8;

/// A line of a chart: its name, and a value for each minute that has one.
pub(super) struct ChartLine<'l> {
    pub name: &'l str,
    pub values: Vec<Option<f64>>,
}

/// A chart.
pub(super) struct Chart<'c> {
    /// Unique in the page.
    pub id: &'c str,
    pub title: &'c str,
    /// Its content in words.
    pub description: String,
    /// When the first minute begins and when the last one ends, in ms since the Unix epoch.
    pub span: (u64, u64),
}

/// How many were completed and how many failed in a minute.
pub(super) type Bar = (u64, u64);

/// A chart in one cell of a table.
pub(super) fn sparkline(id: &str, title: &str, bars: &[Bar]) -> Markup {
    html! {
        svg.spark viewBox=(view(bars.len())) preserveAspectRatio="none" role="img" aria-labelledby=(id) {
            title id=(id) { (title) }
            (bar_paths(bars))
        }
    }
}

/// Bars of what was completed, with what failed on top of it.
pub(super) fn bar_chart(chart: &Chart<'_>, bars: &[Bar]) -> Markup {
    let most = bars.iter().map(|(completed, failed)| completed + failed).max().unwrap_or(0);
    let keys = html! { span.key.completed { "completed" } " " span.key.failed { "failed" } };
    frame(chart, &keys, &most.to_string(), bars.len(), &bar_paths(bars))
}

/// Lines, at most four. `show` gives the text for the highest value.
pub(super) fn line_chart(chart: &Chart<'_>, lines: &[ChartLine<'_>], show: fn(f64) -> String) -> Markup {
    let values = lines.iter().flat_map(|line| line.values.iter().flatten());
    let most = values.fold(0.0, |most: f64, value| most.max(*value));
    let minutes = lines.iter().map(|line| line.values.len()).max().unwrap_or(0);
    let keys = html! {
        @for (line, class) in lines.iter().zip(CLASSES) {
            span class={ "key " (class) } { (line.name) } " "
        }
    };
    let paths = html! {
        @for (line, class) in lines.iter().zip(CLASSES) {
            path class={ "line " (class) } d=(line_path(&line.values, most)) {}
        }
    };
    frame(chart, &keys, &show(most), minutes, &paths)
}

const CLASSES: [&str; 4] = ["first", "second", "third", "fourth"];

fn frame(chart: &Chart<'_>, keys: &Markup, most: &str, minutes: usize, paths: &Markup) -> Markup {
    let Chart { id, title, description, span: (from_ms, to_ms) } = chart;
    let (named, described) = (format!("{id}-title"), format!("{id}-text"));
    html! {
        figure.chart {
            figcaption { (title) ": " (keys) }
            div.plot {
                span.most aria-hidden="true" { (most) }
                svg viewBox=(view(minutes)) preserveAspectRatio="none" role="img"
                    aria-labelledby=(named) aria-describedby=(described) {
                    title id=(named) { (title) }
                    desc id=(described) { (description) }
                    (paths)
                }
            }
            div.times aria-hidden="true" { span { (clock(*from_ms)) } span { (clock(*to_ms)) } }
        }
    }
}

fn view(minutes: usize) -> String {
    format!("0 0 {} {HEIGHT}", minutes.max(1))
}

fn clock(ms: u64) -> String {
    let time = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    time.map_or_else(String::new, |time| time.strftime("%H:%M UTC").to_string())
}

fn bar_paths(bars: &[Bar]) -> Markup {
    let most = bars.iter().map(|(completed, failed)| completed + failed).max().unwrap_or(0).max(1);
    let height = |count: u64| count as f64 / most as f64 * HEIGHT;
    let (mut done, mut bad) = (String::new(), String::new());
    for (at, (completed, failed)) in bars.iter().enumerate() {
        let middle = HEIGHT - height(*completed);
        bar(&mut done, at, HEIGHT, middle);
        bar(&mut bad, at, middle, middle - height(*failed));
    }
    html! { path.completed d=(done) {} path.failed d=(bad) {} }
}

/// Adds a bar between two heights.
fn bar(path: &mut String, at: usize, bottom: f64, top: f64) {
    if bottom > top {
        let _ = write!(path, "M{at} {bottom:.1}V{top:.1}h{BAR}V{bottom:.1}z");
    }
}

/// A line with gaps where there is no value. A value alone is a dot.
fn line_path(values: &[Option<f64>], most: f64) -> String {
    let (mut path, mut is_drawn) = (String::new(), false);
    for (at, value) in values.iter().enumerate() {
        let Some(value) = value else {
            is_drawn = false;
            continue;
        };
        let height = if most > 0.0 { HEIGHT - value / most * HEIGHT } else { HEIGHT };
        let (letter, end) = if is_drawn { ('L', "") } else { ('M', "h0") };
        let _ = write!(path, "{letter}{:.1} {height:.1}{end}", at as f64 + 0.5);
        is_drawn = true;
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_stand_on_each_other() {
        let paths = bar_paths(&[(3, 1), (0, 0), (2, 0)]).into_string();
        assert_eq!(
            paths,
            "<path class=\"completed\" d=\"M0 100.0V25.0h0.8V100.0zM2 100.0V50.0h0.8V100.0z\"></path>\
             <path class=\"failed\" d=\"M0 25.0V0.0h0.8V25.0z\"></path>"
        );
        assert_eq!(bar_paths(&[(0, 0)]).into_string().matches("d=\"\"").count(), 2);
    }

    #[test]
    fn a_line_has_gaps() {
        let path = line_path(&[Some(0.0), Some(10.0), None, Some(5.0)], 10.0);
        assert_eq!(path, "M0.5 100.0h0L1.5 0.0M3.5 50.0h0");
        assert_eq!(line_path(&[Some(0.0)], 0.0), "M0.5 100.0h0");
    }

    #[test]
    fn what_a_chart_shows_is_said_in_words_and_escaped() {
        let chart = Chart { id: "c", title: "<b>", description: "at most 7".into(), span: (0, 3_600_000) };
        let lines = [ChartLine { name: "<i>", values: vec![Some(7.0), None] }];
        let shown = line_chart(&chart, &lines, |most| format!("{most:.0}")).into_string();
        for part in [
            "aria-labelledby=\"c-title\"",
            "<title id=\"c-title\">&lt;b&gt;</title>",
            "<desc id=\"c-text\">at most 7</desc>",
            "<span class=\"key first\">&lt;i&gt;</span>",
            "viewBox=\"0 0 2 100\"",
            "<span>00:00 UTC</span><span>01:00 UTC</span>",
            ">7</span>",
        ] {
            assert!(shown.contains(part), "{part} in {shown}");
        }
        assert!(!shown.contains("style"), "{shown}");
    }
}
