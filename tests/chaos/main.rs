//! `make chaos`: the chaos test, for any time.
//!
//! In: `--minutes N` (5), `--seed N` (a random one), `--redis always|everysec|failover` (what Redis may
//! forget; with `always` nothing, the default), `--keep` (keeps the folder of a good run). Out: a table; when
//! something is wrong, exit code 1 and a folder with evidence. The same seed gives the same plan of faults,
//! but which tasks they strike depends on the machine. Not here: the test itself (`harness`).

mod harness;
#[allow(dead_code, unused_imports, reason = "the tests use the rest")]
#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::time::Duration;

use harness::plan::Keeps;

fn main() -> ExitCode {
    // `cargo bench` adds arguments for its own harness, which are ignored.
    let args: Vec<String> = std::env::args().collect();
    let after =
        |name: &str| args.iter().skip_while(|arg| *arg != name).nth(1).filter(|value| !value.is_empty());
    let minutes: f64 =
        after("--minutes").map_or(5.0, |value| value.parse().expect("--minutes takes a number"));
    let seed: u64 = after("--seed")
        .map_or_else(|| fastrand::u64(0..1_000_000), |value| value.parse().expect("--seed takes a number"));
    let keeps = match after("--redis").map_or("always", String::as_str) {
        "always" => Keeps::All,
        "everysec" => Keeps::AllButASecond,
        "failover" => Keeps::WhatItsReplicaHas,
        other => panic!("--redis takes always, everysec or failover, not {other}"),
    };
    let keep = args.iter().any(|arg| arg == "--keep");
    println!("chaos for {minutes} minutes, seed {seed}");
    let duration = Duration::from_secs_f64(minutes * 60.0);
    let verdict =
        harness::run(harness::Wish { seed, duration, pause: Duration::from_millis(10), keeps, keep });
    println!("{}", verdict.table);
    if verdict.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
