//! One task, with its relatives.
//!
//! Not here: what Redis keeps of a task (`queue::status`), sheets for people (`cli::status`).

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::error::{OperationError, OperationResult};
use super::json::{self, FieldView};
use super::tree::{BranchView, Family, family};
use crate::config::QueueRules;
use crate::config::units::show_duration;
use crate::mask::FieldMask;
use crate::queue::attempts::FailedAttempt;
use crate::queue::kept::KeptFields;
use crate::queue::repeat::patiently;
use crate::queue::{Meant, Queue, SEARCH_BOUNDS, TaskName, TaskStatus, TaskSummary};

/// A task. The names are stable; an unknown value is null. Times are milliseconds since the Unix epoch.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TaskView {
    #[serde(flatten)]
    pub summary: TaskSummary,
    pub queue: String,
    /// The handler's result: its JSON value, else its text, else `{"base64": …}`.
    pub result: Option<Value>,
    /// The task with the same idempotency key. Because of it, this one did not run.
    pub duplicate_of: Option<String>,
    /// Why its flow, or the next task of its key, was not told of its end. `tqhost doctor --fix` tells them.
    pub unfinished: Option<String>,
    pub children: Option<u64>,
    pub children_completed: Option<u64>,
    /// The first children that have not completed or started a flow that goes on, if they are enqueued.
    pub open_children: Option<Vec<BranchView>>,
    pub child_of: Option<TaskName>,
    /// The failed attempts that the queue keeps, the oldest first. Null in a stream.
    pub attempts: Option<Vec<FailedAttempt>>,
    /// The tasks that join the flows which it started.
    pub flows: Option<Vec<BranchView>>,
    /// How many tasks its handler enqueued, beside those of flows, and the first 20 of them.
    pub enqueued: u64,
    pub enqueued_tasks: Vec<TaskName>,
    /// The fields of a task that has completed, if its queue keeps them (`keep_fields`).
    pub fields: Option<Vec<FieldView>>,
    /// How large these fields are, if they are too large to be kept.
    pub fields_bytes: Option<u64>,
}

impl TaskView {
    pub(crate) fn new(queue: &str, task: &TaskStatus) -> TaskView {
        let (fields, fields_bytes) = match &task.fields {
            Some(KeptFields::Kept(fields)) => (Some(FieldView::all(fields)), None),
            Some(KeptFields::TooLarge(bytes)) => (None, Some(*bytes)),
            None => (None, None),
        };
        TaskView {
            summary: task.summary.clone(),
            queue: queue.to_owned(),
            result: task.result.as_deref().map(json::result_json),
            duplicate_of: task.duplicate_of.clone(),
            unfinished: task.unfinished.clone(),
            children: task.flow.map(|flow| flow.children),
            children_completed: task.flow.map(|flow| flow.completed),
            open_children: None,
            child_of: None,
            attempts: None,
            flows: None,
            enqueued: task.sent,
            enqueued_tasks: task.first_sent.clone(),
            fields,
            fields_bytes,
        }
    }

    /// Without the values in its fields and its result that the mask names.
    pub(crate) fn masked(mut self, mask: &FieldMask) -> TaskView {
        if let Some(result) = &mut self.result {
            mask.hide_in(result);
        }
        self.with_masked_fields(mask)
    }

    /// Without the values in its fields that the mask names.
    pub(crate) fn with_masked_fields(mut self, mask: &FieldMask) -> TaskView {
        FieldView::mask(self.fields.iter_mut().flatten(), mask);
        self
    }

    pub(crate) fn with_attempts(self, attempts: Vec<FailedAttempt>) -> TaskView {
        TaskView { attempts: Some(attempts), ..self }
    }

    pub(crate) fn with_family(self, family: Family) -> TaskView {
        let Family { child_of, below } = family;
        let open_children = self.children.map(|_| below.children);
        TaskView { open_children, child_of, flows: Some(below.flows), ..self }
    }
}

/// The task that `name` means, with its relatives. `name` is an id or an alias.
pub(crate) async fn task_view(queues: &[QueueRules], queue: &Queue, name: &str) -> OperationResult<TaskView> {
    let unknown = || OperationError::UnknownTask(unknown_task(&queue.rules, name));
    let id = patiently(|| queue.find(name, Meant::Newest)).await?.ok_or_else(unknown)?;
    let task = patiently(|| queue.status(&id)).await?.ok_or_else(unknown)?;
    let family = family(queues, queue, &task).await?;
    let attempts = patiently(|| queue.failed_attempts(&id)).await?;
    Ok(TaskView::new(&queue.rules.name, &task).with_family(family).with_attempts(attempts))
}

/// The message for a task of which nothing is known. An alias of a task that no host has seen, and a dead
/// letter without a status, may lie behind the bounds of a search.
pub(crate) fn unknown_task(rules: &QueueRules, id: &str) -> String {
    let queue = &rules.name;
    if rules.retention == Duration::ZERO {
        return format!(
            "queue {queue} knows no task {id:?}: it was never there, it ended (the queue keeps no results: \
             retention 0s), or it lies behind the {SEARCH_BOUNDS} that a search reads"
        );
    }
    let retention = show_duration(rules.retention);
    format!(
        "queue {queue} knows no task {id:?}: it was never there, it ended more than {retention} ago (the \
         queue's retention), or it lies behind the {SEARCH_BOUNDS} that a search reads"
    )
}
