//! A task and an attempt at it that no queue has delivered, for programs that run handlers themselves: this
//! benchmark, and the fuzz targets.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tqhost::testing::queue::NoEffects;
use tqhost::testing::sandbox::Attempt;
use tqhost::testing::task::{Field, Origin, Progress, Task};
use tqhost::testing::telemetry::AttemptTrace;

/// A task with these fields, as if it had been delivered.
pub fn a_task(fields: Vec<Field>) -> Arc<Vec<Task>> {
    Arc::new(vec![Task {
        id: "1-0".into(),
        queue: "work".into(),
        entry: "1-0".into(),
        fields,
        attempt: 1,
        deferrals: 0,
        crashes: 0,
        fence: 1,
        enqueued_at_ms: 1_767_225_600_000,
        waits_since_ms: None,
        delay: None,
        origin: Origin::Producer,
        joins: None,
        traceparent: None,
        reserved: Vec::new(),
    }])
}

/// An attempt at the task.
pub fn attempt(tasks: &Arc<Vec<Task>>, timeout: Duration) -> Attempt {
    Attempt {
        tasks: tasks.clone(),
        plugin: "work".into(),
        max_attempts: 1,
        timeout,
        progress: vec![Progress::default()],
        effects: Arc::new(NoEffects::default()),
        trace: AttemptTrace::default(),
        disturbed: 0,
        stop: CancellationToken::new(),
    }
}
