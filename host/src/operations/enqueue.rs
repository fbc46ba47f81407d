//! Enqueues one task.
//!
//! Not here: reading its fields (`fields`, and `cli::input`), many tasks at once (`cli::enqueue`).

use std::time::Duration;

use super::error::{OperationError, OperationResult};
use crate::config::QueueRules;
use crate::queue::produce::NotATask;
use crate::queue::repeat::patiently;
use crate::queue::{Enqueued, NewTask, Queue};
use crate::task::Field;

/// Refuses a delay in a queue that runs its tasks in a strict order.
pub(crate) fn check_delay(rules: &QueueRules, delay: Duration) -> OperationResult {
    if rules.turns.are_strict() && !delay.is_zero() {
        return Err(OperationError::Invalid(format!(
            "delay: the queue {} runs its tasks in a strict order (order = \"strict\"), so none can wait \
             while later ones run: enqueue it when it is due",
            rules.name
        )));
    }
    Ok(())
}

/// A task that is to be enqueued.
pub(crate) fn new_task(fields: Vec<Field>, delay: Duration, key: Option<String>) -> OperationResult<NewTask> {
    let wrong = |error: NotATask| OperationError::Invalid(error.to_string());
    let task = NewTask::new(fields, delay).map_err(wrong)?;
    match key {
        Some(key) => task.with_key(key).map_err(wrong),
        None => Ok(task),
    }
}

/// Enqueues a task. It may be repeated after an error: a task that was accepted is not accepted again.
pub(crate) async fn enqueue(queue: &Queue, task: &NewTask) -> OperationResult<Enqueued> {
    let mut replies = patiently(|| queue.enqueue(std::slice::from_ref(task))).await?;
    match replies.pop() {
        Some(reply) => Ok(reply?),
        None => Err(OperationError::Invalid("no task was given".into())),
    }
}

/// The message for a queue that has no room.
pub(crate) fn full(rules: &QueueRules) -> String {
    format!(
        "queue {} is full: {} tasks or more wait or run (max_backlog); try again later, or raise it",
        rules.name, rules.max_backlog
    )
}
