//! Draws the plot of docs/performance.md: a line for each row, with a dot for each figure on a logarithmic
//! scale.
//!
//! In: the results. Out: the text of an SVG file without fonts and scripts. Not here: the table (`report`).

use std::fmt::Write as _;

use super::report::{Figure, Results};

const LINE: f64 = 22.0;
const TOP: f64 = 64.0;
const LABELS: f64 = 250.0;
const PANEL: f64 = 240.0;
const GAP: f64 = 36.0;
const FONT: &str = "font-family=\"sans-serif\" font-size=\"12\"";

/// One of the charts, which are side by side.
struct Panel {
    title: &'static str,
    /// The figures, each with its name and colour.
    series: &'static [(Figure, &'static str, &'static str)],
}

const PANELS: [Panel; 3] = [
    Panel { title: "tasks per second", series: &[(Figure::Rate, "median, least to most", "#1f77b4")] },
    Panel {
        title: "processor time per task, µs",
        series: &[(Figure::WorkerMicros, "worker", "#1f77b4"), (Figure::RedisMicros, "Redis", "#d62728")],
    },
    Panel {
        title: "enqueued to done at 200/s, ms",
        series: &[(Figure::Done(0), "median", "#1f77b4"), (Figure::Done(1), "99 of 100", "#d62728")],
    },
];

pub fn svg(results: &Results) -> String {
    let rows = results.rows();
    let (width, height) =
        (LABELS + PANELS.len() as f64 * (PANEL + GAP), TOP + rows.len() as f64 * LINE + 34.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" {FONT}>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (line, row) in rows.iter().enumerate() {
        let y = middle(line);
        if row.name.starts_with("tqhost") {
            let top = y - LINE / 2.0;
            push(
                &mut svg,
                &format!("<rect x=\"0\" y=\"{top}\" width=\"{width}\" height=\"{LINE}\" fill=\"#eef4fa\"/>"),
            );
        }
        let label = row.what.replace('`', "");
        push(
            &mut svg,
            &format!("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{label}</text>", LABELS - 10.0, y + 4.0),
        );
    }
    for (at, panel) in PANELS.iter().enumerate() {
        let left = LABELS + at as f64 * (PANEL + GAP);
        push(&mut svg, &format!("<text x=\"{left}\" y=\"18\" font-weight=\"bold\">{}</text>", panel.title));
        for (n, (_, name, colour)) in panel.series.iter().enumerate() {
            let x = left + 4.0 + n as f64 * 80.0;
            push(
                &mut svg,
                &format!(
                    "<circle cx=\"{x}\" cy=\"34\" r=\"4\" fill=\"{colour}\"/>\
                     <text x=\"{}\" y=\"38\">{name}</text>",
                    x + 8.0
                ),
            );
        }
        let spreads = |figure| rows.iter().map(move |row| results.spread(row, figure));
        let all: Vec<f64> = panel
            .series
            .iter()
            .flat_map(|(figure, ..)| spreads(*figure))
            .flatten()
            .flat_map(|spread| [spread.least, spread.most])
            .collect();
        let Some(scale) = Scale::of(&all, left) else { continue };
        let bottom = middle(rows.len()) - LINE / 2.0;
        for decade in scale.first..=scale.last {
            let (x, value) = (scale.x(10f64.powi(decade)), decimal(decade));
            push(
                &mut svg,
                &format!(
                    "<line x1=\"{x}\" x2=\"{x}\" y1=\"{}\" y2=\"{bottom}\" stroke=\"#ccc\"/>",
                    TOP - 12.0
                ),
            );
            push(
                &mut svg,
                &format!(
                    "<text x=\"{x}\" y=\"{}\" text-anchor=\"middle\" fill=\"#666\">{value}</text>",
                    bottom + 16.0
                ),
            );
        }
        for (figure, _, colour) in panel.series {
            for (line, spread) in spreads(*figure).enumerate() {
                let Some(spread) = spread else { continue };
                let (y, [x, least, most]) =
                    (middle(line), [spread.median, spread.least, spread.most].map(|value| scale.x(value)));
                let stroke = format!("stroke=\"{colour}\" stroke-width=\"2\"");
                push(
                    &mut svg,
                    &format!("<line x1=\"{least:.1}\" x2=\"{most:.1}\" y1=\"{y}\" y2=\"{y}\" {stroke}/>"),
                );
                push(&mut svg, &format!("<circle cx=\"{x:.1}\" cy=\"{y}\" r=\"4\" fill=\"{colour}\"/>"));
            }
        }
    }
    svg + "</svg>\n"
}

fn push(svg: &mut String, element: &str) {
    writeln!(svg, "{element}").expect("a String takes everything");
}

fn middle(line: usize) -> f64 {
    TOP + (line as f64 + 0.5) * LINE
}

/// A power of ten in digits.
fn decimal(decade: i32) -> String {
    let value = 10f64.powi(decade);
    match decade {
        ..0 => format!("{value}"),
        0..3 => format!("{value:.0}"),
        3..6 => format!("{:.0}k", value / 1e3),
        6.. => format!("{:.0}M", value / 1e6),
    }
}

/// A logarithmic scale over whole powers of ten.
struct Scale {
    first: i32,
    last: i32,
    left: f64,
}

impl Scale {
    fn of(values: &[f64], left: f64) -> Option<Scale> {
        let logs = || values.iter().filter(|value| **value > 0.0).map(|value| value.log10());
        let (least, most) = (logs().reduce(f64::min)?, logs().reduce(f64::max)?);
        let first = least.floor() as i32;
        // The scale has at least one power of ten.
        Some(Scale { first, last: (most.ceil() as i32).max(first + 1), left })
    }

    fn x(&self, value: f64) -> f64 {
        let log = value.max(10f64.powi(self.first)).log10();
        self.left + (log - f64::from(self.first)) / f64::from(self.last - self.first) * PANEL
    }
}
