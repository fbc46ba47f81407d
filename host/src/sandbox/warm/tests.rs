//! Tests what kept instances remember, when they are dropped, and that they never make an attempt wait.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::IDLE;
use crate::config::{Plugin, Warm};
use crate::sandbox::testing::{COMPLETED, DONE, attempt, embed, handler, module, outcome, sandbox_for};
use crate::sandbox::{Attempt, AttemptReport, Handler, Sandbox};
use crate::task::{FailureKind, Outcome, Task};

/// Counts tasks in its memory, and completes with the count as a byte. What it does after that depends on the
/// number of the attempt.
const COUNT: &str = "
    (i32.store8 (i32.const 64) (i32.add (i32.load8_u (i32.const 64)) (i32.const 1)))
    (i32.store8 (i32.const 16) (i32.const 0))
    (i32.store8 (i32.const 24) (i32.const 1))
    (i32.store (i32.const 28) (i32.const 64))
    (i32.store (i32.const 32) (i32.const 1))
    (if (i32.eq (local.get $attempt) (i32.const 2)) (then unreachable))
    (if (i32.eq (local.get $attempt) (i32.const 3)) (then (loop $l (br $l))))
    (if (i32.eq (local.get $attempt) (i32.const 4)) (then (drop (memory.grow (i32.const 1000)))))
    (if (i32.eq (local.get $attempt) (i32.const 5)) (then
        (drop (memory.grow (i32.const 2))) (i32.store (i32.const 32) (i32.const 70000))))
    (if (i32.eq (local.get $attempt) (i32.const 6)) (then (i32.store8 (i32.const 16) (i32.const 1))
        (i32.store8 (i32.const 24) (i32.const 0)) (i32.store (i32.const 32) (i32.const 512)) (i32.store
            (i32.const 36) (i32.const 5))))
    (if (i32.eq (local.get $attempt) (i32.const 7)) (then (i32.store8 (i32.const 16) (i32.const 1))
        (i32.store8 (i32.const 24) (i32.const 1)) (i32.store (i32.const 32) (i32.const 512)) (i32.store
            (i32.const 36) (i32.const 5))))
    (if (i32.eq (local.get $attempt) (i32.const 8)) (then
        (local.set $id (i32.const 20000000))
        (loop $l (br_if $l (local.tee $id (i32.sub (local.get $id) (i32.const 1)))))))
    (i32.const 16)";

const TRAPS: u32 = 2;
const LOOPS: u32 = 3;
const IS_REFUSED_MEMORY: u32 = 4;
const RETURNS_TOO_MUCH: u32 = 5;
const RETRIES: u32 = 6;
const REJECTS: u32 = 7;
/// The attempt that computes for several ticks of the engine's clock.
const COMPUTES: u32 = 8;

fn grants(idle: u32, max_tasks: u32) -> Plugin {
    Plugin {
        memory: 1 << 20,
        max_output: 64 * 1024,
        warm: Some(Warm { idle, max_tasks, concurrent: 1 }),
        ..Plugin::default()
    }
}

fn load(sandbox: &Sandbox, wasm: &[u8], grants: &Plugin) -> Handler {
    sandbox.load(&sandbox.compile(wasm).unwrap(), grants).unwrap()
}

fn nth(attempt_number: u32) -> Attempt {
    let attempt = attempt();
    let task = Task { attempt: attempt_number, ..attempt.tasks[0].clone() };
    Attempt { tasks: vec![task].into(), ..attempt }
}

fn counted(report: Option<AttemptReport>) -> u8 {
    match outcome(&report.unwrap()) {
        Outcome::Completed { result: Some(result), .. } => result[0],
        other => panic!("it did not count: {other:?}"),
    }
}

async fn counts(handler: &Handler, tasks: usize) -> Vec<u8> {
    let mut counts = Vec::new();
    for _ in 0..tasks {
        counts.push(counted(handler.run(attempt()).await));
    }
    counts
}

#[tokio::test]
async fn a_trap_ends_an_instance_and_a_reported_failure_does_not() {
    let sandbox = sandbox_for(4, 0);
    let kept = load(&sandbox, &handler(COUNT), &grants(2, 100));
    let short = |number| Attempt { timeout: Duration::from_millis(200), ..nth(number) };
    for (number, kind) in [
        (TRAPS, FailureKind::Trap),
        (LOOPS, FailureKind::BusyTimeout),
        (RETURNS_TOO_MUCH, FailureKind::OutputTooLarge),
    ] {
        assert_eq!(counts(&kept, 2).await, [1, 2]);
        let Outcome::Failed { kind: found, .. } = outcome(&kept.run(short(number)).await.unwrap()) else {
            panic!("{number} is well")
        };
        assert_eq!((found, sandbox.0.pool.kept()), (kind, 0));
    }
    // The guest survives the refusal, but the next task in its instance might not.
    assert_eq!(counts(&kept, 1).await, [1]);
    assert_eq!((counted(kept.run(nth(IS_REFUSED_MEMORY)).await), sandbox.0.pool.kept()), (2, 0));

    assert_eq!(counts(&kept, 1).await, [1]);
    assert!(matches!(outcome(&kept.run(nth(RETRIES)).await.unwrap()), Outcome::Retry { .. }));
    assert!(matches!(outcome(&kept.run(nth(REJECTS)).await.unwrap()), Outcome::Reject { .. }));
    assert_eq!(counts(&kept, 1).await, [4]);
    assert_eq!((sandbox.0.pool.kept(), sandbox.0.pool.free_places()), (1, 3));
}

#[tokio::test]
async fn an_instance_that_was_told_to_stop_is_not_used_again() {
    let sandbox = sandbox_for(4, 0);
    let kept = load(&sandbox, &handler(COUNT), &grants(2, 100));
    assert_eq!(counts(&kept, 1).await, [1]);
    let stop = CancellationToken::new();
    let running = tokio::spawn({
        let (kept, attempt) = (kept.clone(), Attempt { stop: stop.clone(), ..nth(LOOPS) });
        async move { kept.run(attempt).await }
    });
    while sandbox.0.pool.kept() > 0 {
        tokio::task::yield_now().await;
    }
    stop.cancel();
    assert!(running.await.unwrap().is_none());
    let busy = kept.clone();
    let running = tokio::spawn(async move { busy.run(nth(LOOPS)).await });
    while sandbox.0.pool.free_places() == 4 {
        tokio::task::yield_now().await;
    }
    running.abort();
    while sandbox.0.pool.free_places() < 4 {
        tokio::task::yield_now().await;
    }
    assert_eq!(counts(&kept, 1).await, [1]);
}

#[tokio::test]
async fn deadline_stop_progress_and_peak_are_those_of_the_attempt() {
    let sandbox = sandbox_for(4, 0);
    let kept = load(&sandbox, &handler(COUNT), &grants(1, 100));
    let first = Attempt { timeout: Duration::from_millis(500), ..attempt() };
    let (stop, began) = (first.stop.clone(), Instant::now());
    assert_eq!(counted(kept.run(first).await), 1);
    stop.cancel();
    // Run attempts for longer than the timeout of the first one.
    let mut count = 1;
    while began.elapsed() < Duration::from_millis(600) {
        count += 1;
        assert_eq!(counted(kept.run(nth(COMPUTES)).await), count);
    }
    let late = kept.run(Attempt { timeout: Duration::from_millis(200), ..nth(LOOPS) }).await.unwrap();
    assert!(matches!(outcome(&late), Outcome::Failed { kind: FailureKind::BusyTimeout, .. }), "{late:?}");

    let extra = r#"(import "tqhost:handler/context@0.1.0" "progress" (func $progress (param i32 i32 i32)))"#;
    let body = format!("(call $progress (local.get $attempt) (i32.const 0) (i32.const 0)) {DONE}");
    let world = "world test { import tqhost:handler/context@0.1.0; export tqhost:handler/handler@0.1.0; }";
    let kept = load(&sandbox, &embed(&module(extra, &body), world), &grants(1, 100));
    for number in 1..4 {
        let attempt = nth(number);
        let progress = attempt.progress[0].clone();
        assert_eq!(kept.run(attempt).await.unwrap().peak_memory, 65536);
        assert_eq!(progress.take(), Some((u8::try_from(number).unwrap(), String::new())));
    }
    assert_eq!(sandbox.0.pool.kept(), 1);
}

#[tokio::test]
async fn handles_that_are_left_open_do_not_pile_up() {
    let sandbox = sandbox_for(4, 0);
    let extra = r#"(import "wasi:clocks/monotonic-clock@0.2.3" "subscribe-duration" (func $subscribe
        (param i64) (result i32)))"#;
    let world =
        "world test { import wasi:clocks/monotonic-clock@0.2.3; export tqhost:handler/handler@0.1.0; }";
    // Each call leaves two handles in the table: the timer, and the pollable that waits for it.
    let leaves = "(drop (call $subscribe (i64.const 3600000000000)))".repeat(5);
    let kept = load(&sandbox, &embed(&module(extra, &format!("{leaves} {DONE}")), world), &grants(1, 100));
    for round in [1, 1, 1, 0, 1, 1, 1, 0] {
        assert_eq!(outcome(&kept.run(attempt()).await.unwrap()), COMPLETED);
        assert_eq!(sandbox.0.pool.kept(), round);
    }
}

#[tokio::test]
async fn other_grants_and_the_end_of_a_version_and_time_give_instances_up() {
    let sandbox = sandbox_for(4, 0);
    let first = load(&sandbox, &handler(COUNT), &grants(1, 100));
    assert_eq!(counts(&first, 2).await, [1, 2]);
    let second = first.with_grants(&grants(2, 100));
    assert_eq!(counts(&second, 2).await, [1, 2]);
    assert_eq!((counts(&first, 1).await, sandbox.0.pool.kept()), (vec![3], 2));
    drop(first);
    assert_eq!((sandbox.0.pool.kept(), sandbox.0.pool.free_places()), (1, 3));

    let now = Instant::now();
    let next = sandbox.0.pool.drop_idle(now).unwrap();
    assert!(next > now && next <= now + IDLE);
    assert_eq!((counts(&second, 1).await, sandbox.0.pool.kept()), (vec![3], 1));
    assert_eq!(sandbox.0.pool.drop_idle(Instant::now() + IDLE), None);
    assert_eq!((sandbox.0.pool.kept(), sandbox.0.pool.free_places()), (0, 4));
    assert_eq!(counts(&second, 1).await, [1]);
}

#[tokio::test]
async fn an_idle_instance_keeps_nobody_waiting() {
    let sandbox = sandbox_for(1, 0);
    let kept = load(&sandbox, &handler(COUNT), &grants(4, 100));
    let other = load(&sandbox, &handler(COUNT), &grants(4, 100));
    // Two handlers share one place: each takes it from the idle instance of the other.
    for _ in 0..3 {
        assert_eq!(counts(&kept, 2).await, [1, 2]);
        assert_eq!(counts(&other, 2).await, [1, 2]);
        assert_eq!((sandbox.0.pool.kept(), sandbox.0.pool.free_places()), (1, 0));
    }
    // An attempt that waits for a busy place gets it when the attempt there ends.
    let running: Vec<_> = [&kept, &other]
        .into_iter()
        .cycle()
        .take(40)
        .map(|handler| {
            let handler = handler.clone();
            tokio::spawn(async move { handler.run(attempt()).await })
        })
        .collect();
    for attempt in running {
        counted(attempt.await.unwrap());
    }
    // An attempt that is stopped while it waits leaves the line, and later attempts are not held up by it.
    let stop = CancellationToken::new();
    let busy = tokio::spawn({
        let (kept, attempt) = (kept.clone(), Attempt { stop: stop.clone(), ..nth(LOOPS) });
        async move { kept.run(attempt).await }
    });
    while sandbox.0.pool.kept() > 0 {
        tokio::task::yield_now().await;
    }
    let told = CancellationToken::new();
    told.cancel();
    assert!(other.run(Attempt { stop: told, ..attempt() }).await.is_none());
    stop.cancel();
    assert!(busy.await.unwrap().is_none());
    assert_eq!(counts(&kept, 2).await, [1, 2]);
    assert_eq!(sandbox.0.pool.kept(), 1);
}
