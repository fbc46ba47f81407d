//! Section `peers`: tqhost next to bare loops over Redis Streams and to other task queues.
//!
//! Every repetition runs all rows once, in a random order, each with a new Redis.
//!
//! In, from the environment: `REPS` (repetitions, 3), `PEERS` (the names of rows; all), `SCALE` (a factor on
//! the number of tasks, 1), `LATENCY=0` (leaves out the latency), `WRITE=1`. Out: a table with medians and
//! spreads, and ratios of rows within a repetition. With `WRITE=1` they also replace the figures and the plot
//! of docs/performance.md. As a test, a row that cannot be measured is an error.
//!
//! Not here: the rows (`rows`), how one is run (`measure`), the presentation (`report`, `plot`), the programs
//! (`peers/`).

mod measure;
mod plot;
mod report;
mod rows;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use super::page::{self, repository};
use super::{IS_TEST, amount, from_env};
use measure::Figures;
use report::Results;
use rows::{ROWS, Row, Worker};

/// The plot of docs/performance.md.
const PLOT: &str = "performance-peers.svg";

/// The folder that a part of the set-up made, or why there is none.
type Found = Result<PathBuf, String>;

/// The parts of the set-up that were run, each with its folder.
#[derive(Default)]
pub struct Setup(BTreeMap<&'static str, Found>);

impl Setup {
    /// The folder of one of the parts of scripts/bench-peers.sh.
    fn folder(&mut self, part: &'static str) -> Found {
        self.0.entry(part).or_insert_with(|| set_up(part)).clone()
    }

    /// Sets up everything that a row needs, or says why it cannot be had.
    fn ready(&mut self, row: &Row) -> Result<measure::Places, String> {
        let programs = self.folder(amount("programs", "programs-for-tests"))?;
        let bullmq =
            if matches!(row.worker, Worker::Bullmq) { self.folder("bullmq")? } else { PathBuf::new() };
        let redis = if row.newer_redis { Some(self.folder("redis")?) } else { None };
        Ok(measure::Places { programs, bullmq, redis })
    }
}

pub fn peers() {
    let (reps, scale) = (from_env("REPS", amount(3, 1)), from_env("SCALE", amount(1.0, 0.01)));
    let (with_latency, write) = (from_env("LATENCY", 1u8) != 0, from_env("WRITE", 0u8) != 0);
    println!("peers: {reps} repetitions, each with all rows in an order of its own");
    let mut results = Results::new(reps);
    let mut setup = Setup::default();
    let mut rows = Vec::new();
    for row in wanted() {
        match setup.ready(row) {
            Ok(places) => rows.push((row, places)),
            Err(why) => {
                println!("  {:24} left out: {why}", row.name);
                results.left_out(row, why);
            }
        }
    }
    for rep in 0..reps {
        fastrand::Rng::with_seed(rep as u64).shuffle(&mut rows);
        for (row, places) in &rows {
            let begin = Instant::now();
            let run = || {
                let drain = measure::drain(row, places, scale);
                let latency = (with_latency && row.latency).then(|| measure::latency(row, places));
                Figures { drain, latency: latency.unwrap_or_default() }
            };
            // A row that fails is left out, and the others go on. The error is on stderr.
            match catch_unwind(AssertUnwindSafe(run)) {
                Ok(figures) => {
                    let (rate, took) = (figures.drain.rate, begin.elapsed().as_secs());
                    println!("  {} of {reps}  {:24} {rate:>9.0} tasks/s  (took {took} s)", rep + 1, row.name);
                    results.add(row, rep, figures);
                }
                Err(cause) => {
                    let why = cause.downcast_ref::<String>().map_or("it panicked", String::as_str);
                    let why = why.lines().next().unwrap_or_default().to_owned();
                    println!("  {} of {reps}  {:24} failed: {why}", rep + 1, row.name);
                    results.failed(row, why);
                }
            }
        }
    }
    let text = report::markdown(&results);
    println!("\n{text}");
    assert!(!*IS_TEST || results.is_whole(), "there are rows without figures");
    if write {
        let docs = repository().join("docs");
        std::fs::write(docs.join(PLOT), plot::svg(&results)).expect("write the plot");
        let image = format!("![tasks per second, processor time and latency of all rows]({PLOT})");
        page::replace("peers", &format!("{image}\n\n{text}"));
    }
}

/// The rows that `PEERS` names, or all. A test leaves out loops that compile the runtime of a language, for
/// which programs without optimisation need minutes.
fn wanted() -> Vec<&'static Row> {
    let names = std::env::var("PEERS").unwrap_or_default();
    let names: Vec<&str> = names.split_whitespace().collect();
    for name in &names {
        let known: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
        assert!(known.contains(name), "PEERS: there is no row `{name}`; there are {}", known.join(" "));
    }
    let is_for_tests =
        |row: &Row| !matches!(row.worker, Worker::Loops(_, Some("in-javascript" | "in-python")));
    ROWS.iter()
        .filter(
            |row| if names.is_empty() { !*IS_TEST || is_for_tests(row) } else { names.contains(&row.name) },
        )
        .collect()
}

/// Runs a part of scripts/bench-peers.sh.
pub fn set_up(part: &str) -> Found {
    println!("  getting ready: {part}");
    let script = repository().join("scripts/bench-peers.sh");
    let output =
        Command::new(script).arg(part).stdin(Stdio::null()).output().expect("run scripts/bench-peers.sh");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    let said = text(&output.stderr);
    if output.status.success() {
        return Ok(PathBuf::from(text(&output.stdout)));
    }
    eprintln!("{said}");
    Err(said
        .lines()
        .last()
        .unwrap_or("scripts/bench-peers.sh failed")
        .trim_start_matches("bench-peers: ")
        .to_owned())
}
