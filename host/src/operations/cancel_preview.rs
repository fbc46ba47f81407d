//! Tells what cancelling a task would do, and changes nothing.
//!
//! In: a task's id or alias. Out: the status that it has and the one that it would have, or why it cannot be
//! cancelled. Not here: the cancel (`cancel`), which has the same rules.

use serde::Serialize;

use super::error::OperationError;
use super::patience::patiently;
use super::task::unknown_task;
use crate::queue::{Meant, Queue, Status, TaskName};

/// A task that would be cancelled.
#[derive(Debug, Serialize)]
pub(crate) struct CancelPreview {
    pub id: String,
    /// The status that it has.
    pub before: Status,
    /// The status that it would have: CANCELLED; or FAILED where a flow goes on below a dead task, and would
    /// do no more.
    pub status: Status,
}

/// Tells what cancelling the task that `name` means would do. Fails where the cancel would fail.
pub(crate) async fn cancel_preview(queue: &Queue, name: &str) -> Result<CancelPreview, OperationError> {
    let found = patiently(|| queue.find(name, Meant::NewestLiving)).await?;
    let task = match &found {
        Some(id) => patiently(|| queue.status(id)).await?,
        None => None,
    };
    let (Some(id), Some(task)) = (found, task) else {
        return Err(OperationError::UnknownTask(unknown_task(&queue.rules, name)));
    };
    let before = task.status;
    let flow = if before == Status::Failed { patiently(|| queue.flow_progress(&id)).await? } else { None };
    if flow.is_some_and(|flow| flow.completed < flow.children) {
        return Ok(CancelPreview { id, before, status: Status::Failed });
    }
    if matches!(before, Status::Completed | Status::Failed) {
        let mut why = format!("task {id:?} cannot be cancelled: it is {} already", before.into_str());
        for TaskName { queue, id } in task.flows {
            why += &format!(". It started a flow, which you cancel with `tqhost cancel {queue} {id}`");
        }
        return Err(OperationError::HasEnded(why));
    }
    Ok(CancelPreview { id, before, status: Status::Cancelled })
}
