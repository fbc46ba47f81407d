//! A soak: rounds of tasks for `MINUTES` (10 by default), a handler replaced before each, and what host and Redis use after it: `make soak`.
//!
//! Out: a line for each round. It fails when more is used in the end than after the second round (`support::soak::growth`).

#[allow(dead_code, unused_imports, reason = "the tests use the rest")]
#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use support::soak::{Soak, growth};

/// Tasks of one round.
const TASKS: usize = 24_000;
/// So that there is something to compare.
const LEAST_ROUNDS: usize = 3;
/// Replacements of a handler after which the pool of instances has reached its level (35 or so were seen), and the tasks between two of them.
const WARM_UP: usize = 50;
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

/// Puts another version in place of the one that is there. The pool of instances keeps what it has used for the one before, up to 100 memories, so that
/// the host's memory goes up to a level of its own with the first dozens of replacements.
fn replace_handler(soak: &Soak, n: usize) {
    soak.bench.install(if n.is_multiple_of(2) { "echo" } else { "echo-v2" }, "echo");
}
