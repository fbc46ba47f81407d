//! Cancels tasks that are named, with what is below them in their flows.
//!
//! In: a task's id or alias, or several. Out: what each task was before, or counts. A cancel may be repeated:
//! the second time changes nothing. Not here: all tasks that match (`cancel_all`), how Redis carries it out
//! (`queue::cancel`), the tree (`tree`).

use std::collections::HashSet;
use std::time::Duration;

use serde::Serialize;
use tokio::time::{Instant, timeout};
use utoipa::ToSchema;

use super::cursor::{self, BadCursor};
use super::error::{OperationError, OperationResult};
use super::many::ManyDone;
use super::task::unknown_task;
use super::tree;
use crate::config::QueueRules;
use crate::queue::repeat::patiently;
use crate::queue::{FlowProgress, Meant, Queue, Status, TaskName};

/// For how long one request cancels tasks by their ids, and how long it may take: the last task may have a
/// large tree, and Redis may be away.
const IDS_TIME: Duration = Duration::from_secs(10);
const LIMIT: Duration = Duration::from_secs(20);
/// The most ids in one operation.
pub(crate) const MOST_IDS: usize = 1_000;
const KIND: &str = "cancel-ids";

/// A task that is cancelled.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Cancelled {
    pub id: String,
    /// The status that it had.
    #[schema(value_type = String)]
    pub before: Status,
    /// CANCELLED; or FAILED for a dead task of which only the rest of its flow was cancelled.
    #[schema(value_type = String)]
    pub status: Status,
    /// How many tasks of its flow were cancelled with it. Not there in a dry run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub children: Option<u64>,
}

/// Cancels the task that `name` means; a dry run only tells what that would do. Fails when the task is not
/// known, or has completed or failed. A task that is dead because a child of its flow did not complete stays
/// dead, and the rest of the flow is cancelled.
pub(crate) async fn cancel(
    queues: &[QueueRules],
    queue: &Queue,
    name: &str,
    dry_run: bool,
) -> OperationResult<Cancelled> {
    let mut found = patiently(|| queue.find(name, Meant::NewestLiving)).await?;
    if found.is_none() && patiently(|| queue.may_be_listed(name)).await? {
        found = Some(name.to_owned());
    }
    let before = match &found {
        Some(id) if dry_run => match patiently(|| queue.status(id)).await? {
            None if patiently(|| queue.may_be_listed(id)).await? => Some(Status::Pending),
            task => task.map(|task| task.summary.status),
        },
        Some(id) => patiently(|| queue.cancel(id)).await?,
        None => None,
    };
    let (Some(id), Some(before)) = (found, before) else {
        return Err(OperationError::UnknownTask(unknown_task(&queue.rules, name)));
    };
    let status = status_after(queue, &id, before).await?;
    let children = match dry_run {
        true => None,
        false => Some(tree::cancel_below(queues, queue, &id).await?),
    };
    Ok(Cancelled { id, before, status, children })
}

/// The status of a task after its cancel, where it was `before`. Fails if it had ended, unless a flow goes on
/// below it.
async fn status_after(queue: &Queue, id: &str, before: Status) -> OperationResult<Status> {
    let left = |flow: FlowProgress| flow.completed < flow.children;
    if before == Status::Failed && patiently(|| queue.flow_progress(id)).await?.is_some_and(left) {
        return Ok(Status::Failed);
    }
    if !matches!(before, Status::Completed | Status::Failed) {
        return Ok(Status::Cancelled);
    }
    let mut why = format!("task {id:?} cannot be cancelled: it is {} already", before.into_str());
    for TaskName { queue, id } in
        patiently(|| queue.status(id)).await?.into_iter().flat_map(|task| task.flows)
    {
        why += &format!(". It started a flow, which you cancel with `tqhost cancel {queue} {id}`");
    }
    Err(OperationError::HasEnded(why))
}

/// Cancels the tasks with these ids or aliases, until 10 seconds have passed: an id of which nothing is known
/// is looked for among those that are queued, which may take long. The error says how many were cancelled.
pub(crate) async fn cancel_ids(
    queues: &[QueueRules],
    queue: &Queue,
    ids: &[String],
    dry_run: bool,
    cursor: Option<&str>,
) -> OperationResult<ManyDone> {
    let mut begin = 0;
    if let Some(cursor) = cursor {
        let [at] = cursor::read(KIND, cursor)?;
        begin = at.parse().ok().filter(|at| *at < ids.len()).ok_or(BadCursor)?;
    }
    let mut done = ManyDone::default();
    let step = cancel_from(queues, queue, ids, begin, dry_run, &mut done);
    let cause = match timeout(LIMIT, step).await {
        Ok(Ok(())) => return Ok(done),
        Ok(Err(error)) => Some(Box::new(error)),
        Err(_) => None,
    };
    Err(OperationError::Stopped { cause, succeeded: done.succeeded, in_doubt: true })
}

async fn cancel_from(
    queues: &[QueueRules],
    queue: &Queue,
    ids: &[String],
    begin: usize,
    dry_run: bool,
    done: &mut ManyDone,
) -> OperationResult {
    let end = Instant::now() + IDS_TIME;
    // An id that is named twice counts once. A dry run cancels nothing, so it has to notice that by itself;
    // of earlier calls it knows the names as they were sent, and not what an alias among them means.
    let mut seen: HashSet<String> = ids[..begin].iter().cloned().collect();
    for (at, id) in ids.iter().enumerate().skip(begin) {
        if at > begin && Instant::now() >= end {
            done.next = Some(cursor::write(KIND, &[&at.to_string()]));
            return Ok(());
        }
        done.examined += 1;
        match cancel(queues, queue, id, dry_run).await {
            Ok(Cancelled { id, before, children, .. }) => {
                let had_ended = before.is_end() || dry_run && !seen.insert(id);
                done.count(!had_ended);
                done.children += children.unwrap_or(0);
            }
            Err(OperationError::UnknownTask(_) | OperationError::HasEnded(_)) => done.count(false),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
