//! Tests handlers that take batches: which function gets which tasks, and how their replies are counted.

use std::sync::Arc;

use super::super::testing::{self, COMPLETED, DONE, attempt, embed, embed_in, handler, module, outcome};
use super::super::{Attempt, Ended, Handler, Interfaces, LoadError, component};
use crate::config;
use crate::task::{FailureKind, Outcome, Progress, Task};

const WORLD: &str =
    "world test { export tqhost:handler/handler@0.1.0; export tqhost:extensions/batch-handler@0.1.0; }";

/// The interface of handler.wit before there was `tqhost:extensions`.
const BEFORE: &str = "interface batch-handler {
    use types.{task, failure};
    handle-batch: func(tasks: list<task>) -> list<result<option<list<u8>>, failure>>;
}";

/// Rejects a task that is alone.
const REJECTS: &str =
    "(i32.store8 (i32.const 16) (i32.const 1)) (i32.store8 (i32.const 24) (i32.const 1)) (i32.const 16)";

/// A function for batches in the interface of this name. It gives `results` results. Memory that is zero
/// reads as results that are ok and empty.
fn batch(interface: &str, results: &str) -> String {
    format!(
        r#"(func (export "{interface}#handle-batch") (param $tasks i32)
            (param $count i32) (result i32)
            (i32.store (i32.const 512) (i32.const 1024))
            (i32.store (i32.const 516) {results})
            (i32.const 512))"#
    )
}

/// A handler that rejects a task that is alone, and gives `results` results for a batch.
fn batching(results: &str) -> Vec<u8> {
    embed(&module(&batch(component::BATCH_OFFERED, results), REJECTS), WORLD)
}

/// Embeds the component type of `world`, with a handler.wit that has this interface as well.
fn embed_before(wat: &str, world: &str, interface: &str) -> Vec<u8> {
    embed_in(wat, world, &format!("{}{interface}", include_str!("../../../wit/handler.wit")))
}

fn load(wasm: &[u8]) -> Result<Handler, LoadError> {
    let sandbox = testing::sandbox();
    sandbox.load(&sandbox.compile(wasm)?, &config::Plugin { memory: 16 << 20, ..config::Plugin::default() })
}

fn several(count: usize) -> Attempt {
    let task = |n: usize| Task { id: n.to_string(), ..testing::task() };
    Attempt {
        tasks: Arc::new((0..count).map(task).collect()),
        progress: vec![Progress::default(); count],
        ..attempt()
    }
}

#[tokio::test]
async fn several_tasks_go_to_the_batch_handler_and_one_to_the_handler() {
    let handler = load(&batching("(local.get $count)")).unwrap();
    assert!(handler.takes_batches());
    let report = handler.run(several(3)).await.unwrap();
    let Ended::Each(outcomes) = &report.ended else { panic!("{report:?}") };
    assert_eq!(outcomes[..], [const { COMPLETED }; 3]);
    assert!(matches!(outcome(&handler.run(several(1)).await.unwrap()), Outcome::Reject { .. }));
}

#[tokio::test]
async fn a_batch_handler_is_taken_by_the_name_of_before_unless_there_is_the_name_of_now() {
    let [now, before] = [component::BATCH_OFFERED, component::BATCH_BEFORE];
    let all = "(local.get $count)";
    let table = [
        (vec![before], batch(before, all)),
        (vec![before, now], format!("{} {}", batch(before, "(i32.const 0)"), batch(now, all))),
    ];
    for (names, functions) in table {
        let exports: String = names.iter().map(|name| format!("export {name}; ")).collect();
        let world = format!("world test {{ export tqhost:handler/handler@0.1.0; {exports}}}");
        let handler = load(&embed_before(&module(&functions, REJECTS), &world, BEFORE)).unwrap();
        let report = handler.run(several(2)).await.unwrap();
        let Ended::Each(outcomes) = &report.ended else { panic!("{names:?}: {report:?}") };
        assert!(matches!(outcomes[..], [Outcome::Completed { .. }, Outcome::Completed { .. }]), "{names:?}");
    }
}

#[tokio::test]
async fn another_number_of_results_is_the_failure_of_the_call() {
    for (results, count) in
        [("(i32.const 2)", 2), ("(i32.const 0)", 0), ("(i32.add (local.get $count) (i32.const 1))", 4)]
    {
        let report = load(&batching(results)).unwrap().run(several(3)).await.unwrap();
        let Ended::Failed { kind: FailureKind::Trap, message } = &report.ended else { panic!("{report:?}") };
        assert_eq!(*message, format!("the handler gave {count} results for 3 tasks"));
    }
}

#[tokio::test]
async fn a_list_of_more_results_than_fit_is_a_trap() {
    // The handler claims to give four thousand million results, but its memory has one page.
    let report = load(&batching("(i32.const -1)")).unwrap().run(several(3)).await.unwrap();
    assert!(matches!(report.ended, Ended::Failed { kind: FailureKind::Trap, .. }), "{report:?}");
}

#[tokio::test]
async fn results_that_share_their_bytes_are_no_larger_together_than_a_memory() {
    // Each result is the same MiB of the memory, and the host would hold it as often as there are tasks.
    let batch = r#"(func (export "tqhost:extensions/batch-handler@0.1.0#handle-batch") (param $tasks i32)
        (param $count i32) (result i32)
        (local $left i32) (local $at i32)
        (if (i32.eq (memory.grow (i32.const 16)) (i32.const -1)) (then unreachable))
        (local.set $left (local.get $count)) (local.set $at (i32.const 1024))
        (loop $next
            (i64.store (local.get $at) (i64.const 0))
            (i32.store8 (i32.add (local.get $at) (i32.const 8)) (i32.const 1))
            (i32.store (i32.add (local.get $at) (i32.const 12)) (i32.const 65536))
            (i32.store (i32.add (local.get $at) (i32.const 16)) (i32.const 1048576))
            (local.set $at (i32.add (local.get $at) (i32.const 40)))
            (br_if $next (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
        (i32.store (i32.const 512) (i32.const 1024))
        (i32.store (i32.const 516) (local.get $count))
        (i32.const 512))"#;
    let handler = load(&embed(&module(batch, DONE), WORLD)).unwrap();
    let report = handler.run(several(8)).await.unwrap();
    let Ended::Each(outcomes) = &report.ended else { panic!("{report:?}") };
    let is_whole = |outcome: &Outcome| match outcome {
        Outcome::Completed { result: Some(result), .. } => result.len() == 1 << 20,
        _ => false,
    };
    assert!(outcomes.iter().all(is_whole));
    let report = handler.run(several(20)).await.unwrap();
    assert!(
        matches!(report.ended, Ended::Failed { kind: FailureKind::OutputTooLarge, .. }),
        "more than the 16 MiB that are granted"
    );
}

#[tokio::test]
async fn a_handler_without_a_batch_handler_is_never_taken_to_have_run_several() {
    let handler = load(&handler(DONE)).unwrap();
    assert!(!handler.takes_batches());
    assert!(matches!(handler.run(several(2)).await.unwrap().ended, Ended::Failed { .. }));
}

#[tokio::test]
async fn a_warm_instance_counts_each_task_of_a_batch() {
    let sandbox = testing::sandbox_for(1, 1);
    let compiled = sandbox.compile(&batching("(local.get $count)")).unwrap();
    for (max_tasks, kept) in [(3, 0), (4, 1)] {
        let grants = config::Plugin {
            memory: 16 << 20,
            warm: Some(config::Warm { idle: 1, max_tasks, concurrent: 1 }),
            ..config::Plugin::default()
        };
        let handler = sandbox.load(&compiled, &grants).unwrap();
        handler.run(several(3)).await.unwrap();
        assert_eq!(sandbox.0.pool.kept(), kept, "after 3 of {max_tasks}");
    }
}

#[test]
fn a_batch_handler_of_another_shape_is_refused_when_it_is_loaded() {
    let other =
        BEFORE.replace("handle-batch: func(tasks: list<task>)", "handle-batch: func(tasks: list<u8>)");
    assert_ne!(BEFORE, other);
    let world =
        "world test { export tqhost:handler/handler@0.1.0; export tqhost:handler/batch-handler@0.1.0; }";
    let batch = batch(component::BATCH_BEFORE, "(i32.const 0)");
    let Err(error) = load(&embed_before(&module(&batch, DONE), world, &other)) else { panic!("loaded") };
    insta::assert_snapshot!(error, @r"
    the types do not match wit/handler.wit: the function `handle-batch`: expected `record` found `u8`
    ");

    for package in ["tqhost:handler", "tqhost:extensions"] {
        let other = format!("{package}/batch-handler@0.2.0");
        let found = Interfaces {
            exports: vec!["tqhost:handler/handler@0.1.0".into(), other.clone()],
            imports: Vec::new(),
        };
        let error = found.check().expect_err("another version").to_string();
        let why = "but this tqhost runs tqhost:extensions/batch-handler@0.1.0";
        assert_eq!(error, format!("it exports {other}, {why}"));
    }
}
