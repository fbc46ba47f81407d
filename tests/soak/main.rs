//! `make soak`: rounds of tasks, with a handler replaced before each, and what host and Redis use after it.
//!
//! In: `MINUTES` (10 by default). Out: a line for each round, and a failure when more is used after the last
//! round than after the second (`support::soak::growth`). Not here: one round (`support::soak`).

#[allow(dead_code, unused_imports, reason = "the tests use the rest")]
#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use support::soak::{Soak, growth};

/// Tasks of one round.
const TASKS: usize = 24_000;
/// The fewest rounds, so that there is something to compare.
const LEAST_ROUNDS: usize = 3;
/// Replacements of a handler before the measurement. The pool of instances keeps the memories of earlier
/// versions, up to 100; after about 35 replacements the host's memory no longer grows.
const WARM_UP: usize = 50;
/// Tasks between two replacements of the warm-up.
const WARM_UP_TASKS: usize = 300;

fn main() -> ExitCode {
    let minutes: u64 =
        std::env::var("MINUTES").map_or(10, |text| text.parse().expect("MINUTES is a whole number"));
    let mut soak = Soak::start();
    for n in 1..=WARM_UP {
        replace_handler(&soak, n);
        let round = soak.round(WARM_UP_TASKS);
        if n.is_multiple_of(10) {
            println!("after {n:>3} replacements: {round}");
        }
    }
    let begin = Instant::now();
    let mut uses = Vec::new();
    while uses.len() < LEAST_ROUNDS || begin.elapsed() < Duration::from_secs(60 * minutes) {
        replace_handler(&soak, uses.len());
        let round = soak.round(TASKS);
        uses.push(round);
        println!("{:>5} s, {:>9} tasks: {round}", begin.elapsed().as_secs(), uses.len() * TASKS);
    }
    soak.stop();
    let grown = growth(&uses[1], &uses[uses.len() - 1]);
    grown.iter().for_each(|what| println!("{what}"));
    if grown.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Replaces the handler by another version.
fn replace_handler(soak: &Soak, n: usize) {
    soak.bench.install(if n.is_multiple_of(2) { "echo" } else { "echo-v2" }, "echo");
}
