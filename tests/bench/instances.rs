//! Section `instances`: calls of a handler per second in this process, without Redis.
//!
//! Out: the speed with a fresh instance for each call, and with warm instances. Not here: queues (`main`),
//! other languages (`languages`).

use std::fs;
use std::time::{Duration, Instant};

use tqhost::testing::config::{Plugin, Warm};
use tqhost::testing::sandbox::{Compiler, Handler, Sandbox, SandboxOptions};
use tqhost::testing::task::{Field, Outcome};

use super::attempt::{a_task, attempt};
use super::support::bench::guest_path;
use super::{RUNS, amount, median, sample};

/// Attempts at once.
const CONCURRENT: u32 = 4;
/// How long one call may take.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn calls() {
    let runs = *RUNS;
    println!("calls per second, {CONCURRENT} at once, {runs} runs of each in turn: median (least to most)");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let resume = fs::read(sample()).expect("a sample resume");
    let sandbox = Sandbox::new(SandboxOptions {
        max_concurrent: CONCURRENT,
        max_warm: CONCURRENT,
        max_memory: 128 << 20,
        compiler: Compiler::Here,
        backtraces: false,
    })
    .expect("a sandbox");
    for (guest, content, calls) in
        [("empty", &b"x".repeat(200), amount(20_000, 200)), ("resume-analyze", &resume, amount(500, 20))]
    {
        let wasm = fs::read(guest_path(guest)).expect("a guest");
        let fresh = sandbox
            .load(&sandbox.compile(&wasm).expect("it compiles"), &Plugin::default())
            .expect("a handler");
        let warm = fresh.with_grants(&Plugin {
            warm: Some(Warm { idle: CONCURRENT, max_tasks: 1000, concurrent: 1 }),
            ..Plugin::default()
        });
        let (mut of_fresh, mut of_warm) = (Vec::new(), Vec::new());
        for _ in 0..runs {
            of_fresh.push(runtime.block_on(rate(&fresh, content, calls)));
            of_warm.push(runtime.block_on(rate(&warm, content, calls)));
        }
        let base = median(&mut of_fresh);
        for (label, mut rates) in [("fresh for each", of_fresh), ("warm", of_warm)] {
            let rate = median(&mut rates);
            let times = rate / base;
            println!(
                "  {guest:15} {label:15} {rate:>9.0}  ({:.0} to {:.0})  {times:.2} times as many",
                rates[0],
                rates[rates.len() - 1]
            );
        }
    }
}

async fn rate(handler: &Handler, content: &[u8], calls: u32) -> f64 {
    let field = |name: &str, value: &[u8]| Field { name: name.into(), value: value.to_vec() };
    let tasks = a_task(vec![field("resumeId", b"1"), field("content", content)]);
    let begin = Instant::now();
    let callers: Vec<_> = (0..CONCURRENT)
        .map(|_| {
            let (handler, tasks) = (handler.clone(), tasks.clone());
            tokio::spawn(async move {
                for _ in 0..calls / CONCURRENT {
                    let report =
                        handler.run(attempt(&tasks, PATIENCE)).await.expect("it is not told to stop");
                    assert!(matches!(report.outcomes(1)[..], [Outcome::Completed { .. }]), "{report:?}");
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.expect("every call is completed");
    }
    f64::from(calls) / begin.elapsed().as_secs_f64()
}
