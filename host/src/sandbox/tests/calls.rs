//! Tests that what calls of effects hold in the host counts as memory of the guest.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;

use super::testing::{DONE, attempt, embed, module, outcome, sandbox};
use super::{Attempt, AttemptReport, grants};
use crate::config::Plugin;
use crate::effects::{ChildResult, EffectError, EffectReply, EffectSource, FlowName, OutboxTask};
use crate::guarded::Guarded;
use crate::task::{FailureKind, Field, Outcome};

/// Takes every task, and stages every flow unless it `refuses`.
#[derive(Debug, Default)]
struct Stage {
    refuses: bool,
    unstaged: Guarded<Vec<FlowName>>,
}

impl Stage {
    /// How many flows were to be deleted so far.
    fn unstaged(&self) -> usize {
        self.unstaged.lock().len()
    }
}

impl EffectSource for Stage {
    fn state(&self, _: &str, _: u64) -> EffectReply<Option<Vec<u8>>> {
        std::future::ready(Ok(None)).boxed()
    }

    fn record(&self, _: &str, _: u64) -> EffectReply<Option<Vec<Field>>> {
        std::future::ready(Ok(None)).boxed()
    }

    fn unstage(&self, flows: Vec<FlowName>) {
        self.unstaged.lock().extend(flows);
    }

    fn stage(&self, _: &FlowName, _: Vec<OutboxTask>, _: Instant) -> EffectReply<()> {
        let staged = if self.refuses { Err(EffectError::Unavailable("no Redis".into())) } else { Ok(()) };
        std::future::ready(staged).boxed()
    }

    fn results(&self, _: &str, _: u64, _: Instant) -> EffectReply<Vec<ChildResult>> {
        std::future::ready(Ok(Vec::new())).boxed()
    }

    fn new_task(
        &self,
        queue: &str,
        fields: Vec<Field>,
        delay: Duration,
        key: Option<String>,
    ) -> Result<OutboxTask, EffectError> {
        Ok(OutboxTask { id: "1".into(), queue: queue.to_owned(), fields, delay, key, is_relayed: false })
    }
}

/// Runs a guest with one page of memory that starts a flow with a child of 40,000 bytes.
async fn fans_out(memory: u64, stage: &Arc<Stage>) -> AttemptReport {
    let extra = r#"
        (import "tqhost:handler/outbox@0.1.0" "fan-out"
            (func $fan_out (param i32 i32 i32 i32 i32 i32 i64 i32 i32 i32 i32)))
        (data (i32.const 100) "q")"#;
    // A field has its name and its value; a task has its queue, its fields, a delay and no key.
    let body = format!(
        "(i32.store (i32.const 1000) (i32.const 100)) (i32.store (i32.const 1004) (i32.const 1))
        (i32.store (i32.const 1008) (i32.const 8192)) (i32.store (i32.const 1012) (i32.const 40000))
        (i32.store (i32.const 1024) (i32.const 100)) (i32.store (i32.const 1028) (i32.const 1))
        (i32.store (i32.const 1032) (i32.const 1000)) (i32.store (i32.const 1036) (i32.const 1))
        (call $fan_out (i32.const 1024) (i32.const 1) (i32.const 100) (i32.const 1) (i32.const 0)
            (i32.const 0) (i64.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 700))
        {DONE}"
    );
    let world = "world test { import tqhost:handler/outbox@0.1.0; export tqhost:handler/handler@0.1.0; }";
    let sandbox = sandbox();
    let compiled = sandbox.compile(&embed(&module(extra, &body), world)).unwrap();
    let handler = sandbox.load(&compiled, &Plugin { memory, ..grants() }).unwrap();
    handler.run(Attempt { effects: stage.clone(), ..attempt() }).await.unwrap()
}

#[tokio::test]
async fn children_that_are_being_staged_count_as_memory_of_the_guest() {
    for refuses in [false, true] {
        let stage = Arc::new(Stage { refuses, ..Stage::default() });
        let report = fans_out(1 << 20, &stage).await;
        match outcome(&report) {
            Outcome::Completed { effects: Some(effects), .. } if !refuses => {
                assert_eq!(effects.flows().len(), 1);
            }
            Outcome::Failed { kind: FailureKind::Effects, message } if refuses => {
                assert_eq!(message, "no Redis");
            }
            other => panic!("{other:?}"),
        }
        assert!((105_536..107_000).contains(&report.peak_memory), "{report:?}");
    }
    let report = fans_out(100_000, &Arc::default()).await;
    assert!(matches!(outcome(&report), Outcome::Failed { kind: FailureKind::OutOfMemory, .. }), "{report:?}");
}

#[tokio::test]
async fn children_are_deleted_when_their_effects_are_dropped_without_a_commit() {
    for (memory, refuses, commits) in
        [(1 << 20, false, false), (1 << 20, false, true), (1 << 20, true, false), (100_000, false, false)]
    {
        let stage = Arc::new(Stage { refuses, ..Stage::default() });
        let report = fans_out(memory, &stage).await;
        if let Outcome::Completed { effects: Some(effects), .. } = outcome(&report) {
            assert_eq!(stage.unstaged(), 0, "they wait for their commit");
            if commits {
                effects.mark_committed();
            }
        }
        drop(report);
        assert_eq!(stage.unstaged(), usize::from(!commits), "{memory} {refuses} {commits}");
    }
}
