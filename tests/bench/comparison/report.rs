//! Makes a table and ratios of the figures, in Markdown.
//!
//! In: the figures of each run. Out: text for the screen and for docs/performance.md. Not here: measuring
//! (`measure`), the plot (`plot`), the page (`super::page`).

use super::super::page::{Spread, grouped, machine};
use super::measure::Figures;
use super::rows::{RATIOS, ROWS, Ratio, Row};

/// One of the figures of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figure {
    Rate,
    RedisMicros,
    WorkerMicros,
    Commands,
    Memory,
    Started(usize),
    Done(usize),
}

impl Figure {
    fn of(self, figures: &Figures) -> Option<f64> {
        let Figures { drain, latency } = figures;
        match self {
            Figure::Rate => Some(drain.rate),
            Figure::RedisMicros => Some(drain.redis),
            Figure::WorkerMicros => Some(drain.worker),
            Figure::Commands => Some(drain.commands),
            Figure::Memory => Some(drain.memory),
            Figure::Started(at) => latency.started.map(|times| times[at]),
            Figure::Done(at) => latency.done.map(|times| times[at]),
        }
    }
}

/// The figures of all runs.
pub struct Results {
    reps: usize,
    /// The figures by row and repetition.
    runs: Vec<(&'static str, usize, Figures)>,
    /// The rows without figures, and why.
    missing: Vec<(&'static str, String)>,
}

impl Results {
    pub fn new(reps: usize) -> Results {
        Results { reps, runs: Vec::new(), missing: Vec::new() }
    }

    pub fn add(&mut self, row: &Row, rep: usize, figures: Figures) {
        self.runs.push((row.name, rep, figures));
    }

    pub fn left_out(&mut self, row: &Row, why: String) {
        self.missing.push((row.name, format!("left out: {why}")));
    }

    pub fn failed(&mut self, row: &Row, why: String) {
        self.missing.push((row.name, format!("a run failed: {why}")));
    }

    /// Whether all rows have figures.
    pub fn is_whole(&self) -> bool {
        self.missing.is_empty()
    }

    /// The rows with figures, the fastest first.
    pub fn rows(&self) -> Vec<&'static Row> {
        let mut rows: Vec<(&Row, f64)> =
            ROWS.iter().filter_map(|row| Some((row, self.spread(row, Figure::Rate)?.median))).collect();
        rows.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        rows.into_iter().map(|(row, _)| row).collect()
    }

    pub fn spread(&self, row: &Row, figure: Figure) -> Option<Spread> {
        Spread::of(
            self.runs
                .iter()
                .filter(|(name, ..)| *name == row.name)
                .filter_map(|(_, _, figures)| figure.of(figures))
                .collect(),
        )
    }

    /// The ratio of two rows, over the repetitions that have both.
    fn ratio(&self, ratio: &Ratio) -> Option<Spread> {
        let value = |row: &str, rep: usize| {
            let (_, _, figures) = self.runs.iter().find(|(name, of, _)| *name == row && *of == rep)?;
            ratio.figure.of(figures)
        };
        let quotient = |rep| Some(value(ratio.of, rep)? / value(ratio.to, rep)?);
        Spread::of((0..self.reps).filter_map(quotient).filter(|value| value.is_finite()).collect())
    }
}

/// The table, the ratios, and the rows without figures.
pub fn markdown(results: &Results) -> String {
    let mut text = format!("{}\n\n", machine(results.reps));
    text.push_str("| row | tasks/s | Redis µs | worker µs | commands | MiB | start ms | done ms |\n");
    text.push_str("|---|---:|---:|---:|---:|---:|---:|---:|\n");
    for row in results.rows() {
        let one = |figure: Figure, digits: usize| {
            results.spread(row, figure).map(|spread| format!("{:.digits$}", spread.median))
        };
        let cell = |figure, digits| one(figure, digits).unwrap_or_else(|| "–".to_owned());
        let pair = |at: fn(usize) -> Figure| {
            one(at(0), 2).zip(one(at(1), 2)).map_or_else(|| "–".to_owned(), |(a, b)| format!("{a} / {b}"))
        };
        let rate = results.spread(row, Figure::Rate).expect("a row with figures");
        text.push_str(&format!(
            "| {} (`{}`) | {} | {} | {} | {} | {} | {} | {} |\n",
            row.what,
            row.name,
            grouped(rate.median),
            cell(Figure::RedisMicros, 1),
            cell(Figure::WorkerMicros, 1),
            cell(Figure::Commands, 2),
            cell(Figure::Memory, 0),
            pair(Figure::Started),
            pair(Figure::Done),
        ));
    }
    text.push_str("\n| ratio within a repetition | of | median | least to most |\n|---|---|---:|---:|\n");
    for ratio in &RATIOS {
        if let Some(Spread { median, least, most }) = results.ratio(ratio) {
            let (of, to) = (ratio.of, ratio.to);
            text.push_str(&format!(
                "| `{of}` to `{to}` | {} | {median:.2} | {least:.2} to {most:.2} |\n",
                ratio.what
            ));
        }
    }
    for (name, why) in &results.missing {
        text.push_str(&format!("\n`{name}` {why}.\n"));
    }
    text
}
