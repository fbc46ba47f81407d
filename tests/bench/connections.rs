//! Section `connections`: what a kept connection saves a task that makes one HTTP request.
//!
//! Every repetition runs each case with `keep_alive` of 4 seconds and without, in a random order, each with a
//! new Redis and a server on the same machine. Elsewhere the network's round trips are saved as well: one
//! for a connection, and one or two more for TLS.
//!
//! In, from the environment: `REPS` (repetitions, 5), `WRITE=1`. Out: a table with medians and spreads, and
//! ratios within each repetition. With `WRITE=1` the table also replaces the one of docs/performance.md.

use std::fs;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use super::page::{Spread, grouped, machine, replace};
use super::support::{Authority, Bench, Web, within};
use super::{REPS, amount, from_env, quiet_host};

/// The section's name.
const NAME: &str = "connections";
/// Tasks of one run.
static TASKS: LazyLock<usize> = LazyLock::new(|| amount(3_000, 30));
const PATIENCE: Duration = Duration::from_secs(120);

/// The cases: whether with TLS, and how many tasks at once.
const CASES: [(bool, usize, &str); 4] = [
    (false, 1, "http, one at a time"),
    (true, 1, "https, one at a time"),
    (false, 10, "http, ten at once"),
    (true, 10, "https, ten at once"),
];

pub fn costs() {
    let (reps, tasks, write) = (*REPS, *TASKS, from_env("WRITE", 0u8) != 0);
    println!("connections: {reps} repetitions of {tasks} tasks with one request each");
    let mut runs: Vec<[Vec<f64>; 2]> = vec![<[Vec<f64>; 2]>::default(); CASES.len()];
    for rep in 0..reps {
        let mut order: Vec<(usize, usize)> =
            (0..CASES.len()).flat_map(|case| [(case, 0), (case, 1)]).collect();
        fastrand::Rng::with_seed(rep as u64).shuffle(&mut order);
        for (at, kept) in order {
            let (secure, concurrency, what) = CASES[at];
            let rate = measure(secure, concurrency, ["0s", "4s"][kept]);
            println!("  {} of {reps}  {what:22} {:>9} tasks/s", rep + 1, grouped(rate));
            runs[at][kept].push(rate);
        }
    }
    let text = table(reps, &runs);
    println!("\n{text}");
    if write {
        replace(NAME, &text);
    }
}

/// Tasks per second of a backlog.
fn measure(secure: bool, concurrency: usize, keep_alive: &str) -> f64 {
    let authority = Authority::new();
    let (web, origin) = if secure {
        let web = Web::start_tls(&authority, "localhost");
        let origin = format!("https://localhost:{}", web.port);
        (web, origin)
    } else {
        let web = Web::start();
        let origin = web.origin();
        (web, origin)
    };
    let queues = format!(
        "[queues.work]\nplugin = \"fetches\"\nconcurrency = {concurrency}\nmax_retries = 0\n\
         [plugins.fetches]\nallowed_hosts = [\"{origin}\"]\n\
         http = {{ keep_alive = \"{keep_alive}\", ca = \"ca.pem\" }}\n"
    );
    let mut bench = Bench::with_redis(&queues, &["--appendonly", "no"]);
    fs::write(bench.dir.path().join("ca.pem"), authority.pem()).expect("write the certificate");
    let (tasks, mut pipe) = (*TASKS, redis::pipe());
    for _ in 0..tasks {
        pipe.cmd("XADD").arg("work").arg("*").arg("url").arg(format!("{origin}/kept")).ignore();
    }
    pipe.query::<()>(&mut bench.db).expect("XADD");
    let host = quiet_host(&bench);
    bench.install("fetches", "fetches");
    let left =
        |bench: &mut Bench| redis::cmd("XLEN").arg("work").query::<usize>(&mut bench.db).expect("XLEN");
    within(PATIENCE, "a tenth is done", || (left(&mut bench) <= tasks - tasks / 10).then_some(()));
    let (first, begin) = (left(&mut bench), Instant::now());
    within(PATIENCE, "all are done", || (left(&mut bench) == 0).then_some(()));
    let seconds = begin.elapsed().as_secs_f64();
    assert_eq!(web.requests(), tasks, "every task got its page");
    assert_eq!(web.connections() == tasks, keep_alive == "0s", "{} connections", web.connections());
    host.stop();
    first as f64 / seconds
}

fn table(reps: usize, runs: &[[Vec<f64>; 2]]) -> String {
    let spread = |values: Vec<f64>| Spread::of(values).expect("a run");
    let mut text = format!("{}\n\n", machine(reps));
    text.push_str("| requests | tasks/s without | tasks/s kept | ratio |\n|---|---:|---:|---:|\n");
    for ((.., what), [without, kept]) in CASES.iter().zip(runs) {
        let ratio = spread(kept.iter().zip(without).map(|(kept, without)| kept / without).collect());
        text.push_str(&format!(
            "| {what} | {} | {} | {:.2} ({:.2} to {:.2}) |\n",
            grouped(spread(without.clone()).median),
            grouped(spread(kept.clone()).median),
            ratio.median,
            ratio.least,
            ratio.most,
        ));
    }
    text
}
