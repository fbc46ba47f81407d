//! Cancels tasks, with what is below them in their flows.
//!
//! In: a task's id or alias, ids, or a filter. Out: what each task was before, or counts. Each may be
//! repeated: the second time changes nothing. Not here: how Redis carries it out (`queue::cancel`), the tree
//! (`tree`).

use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;
use utoipa::ToSchema;

use super::cursor::{self, BadCursor};
use super::error::OperationError;
use super::list::{TaskWalk, position};
use super::patience::patiently;
use super::task::unknown_task;
use super::tree;
use crate::config::QueueRules;
use crate::queue::listing::{FoundTask, ListedState};
use crate::queue::{FlowProgress, Meant, Queue, Status, TaskFilter, TaskName};

/// The states from which tasks are cancelled, in this order.
pub(crate) const CANCELLABLE: [ListedState; 4] =
    [ListedState::Queued, ListedState::Delayed, ListedState::Held, ListedState::Running];
/// The most tasks that one step looks at, and for how long.
const LOOKS: u64 = 5_000;
const TIME: Duration = Duration::from_secs(10);
const KIND: &str = "cancel";

/// A task that is cancelled.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Cancelled {
    pub id: String,
    /// The status that it had.
    #[schema(value_type = String)]
    pub before: Status,
    /// CANCELLED; or FAILED where a flow went on below a dead task, and does no more.
    #[schema(value_type = String)]
    pub status: Status,
    /// How many tasks of its flow were cancelled with it.
    pub children: u64,
}

/// Cancels the task that `name` means. Fails when the task is not known, or has completed or failed. A task
/// that is dead because a child of its flow did not complete stays dead, and the rest of the flow is
/// cancelled.
pub(crate) async fn cancel(
    queues: &[QueueRules],
    queue: &Queue,
    name: &str,
) -> Result<Cancelled, OperationError> {
    let found = patiently(|| queue.find(name, Meant::NewestLiving)).await?;
    let before = match &found {
        Some(id) => patiently(|| queue.cancel(id)).await?,
        None => None,
    };
    let (Some(id), Some(before)) = (found, before) else {
        return Err(OperationError::UnknownTask(unknown_task(&queue.rules, name)));
    };
    let left = |flow: FlowProgress| flow.completed < flow.children;
    let flow_goes_on =
        before == Status::Failed && patiently(|| queue.flow_progress(&id)).await?.is_some_and(left);
    if matches!(before, Status::Completed | Status::Failed) && !flow_goes_on {
        let mut why = format!("task {id:?} cannot be cancelled: it is {} already", before.into_str());
        for TaskName { queue, id } in
            patiently(|| queue.status(&id)).await?.into_iter().flat_map(|task| task.flows)
        {
            why += &format!(". It started a flow, which you cancel with `tqhost cancel {queue} {id}`");
        }
        return Err(OperationError::HasEnded(why));
    }
    let children = tree::cancel_below(queues, queue, &id).await?;
    let status = if flow_goes_on { Status::Failed } else { Status::Cancelled };
    Ok(Cancelled { id, before, status, children })
}

/// Which tasks are cancelled together.
#[derive(Debug)]
pub(crate) struct BulkCancel<'b> {
    /// None: from all states in which a task can be cancelled.
    pub state: Option<ListedState>,
    pub filter: &'b TaskFilter,
    pub cursor: Option<&'b str>,
    /// Only counts them.
    pub dry_run: bool,
}

/// The result of cancelling many tasks, or of one step of it.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct BulkCancelled {
    /// Cancelled by this call; with `dry_run`: would be.
    pub succeeded: u64,
    /// Asked for, and not known, or ended already.
    pub skipped: u64,
    /// Tasks of their flows that were cancelled with them.
    pub children: u64,
    /// How many places were looked at.
    pub examined: u64,
    /// The cursor with which the operation goes on; null when nothing is left.
    pub next: Option<String>,
}

/// Cancels the tasks with these ids or aliases.
pub(crate) async fn cancel_ids(
    queues: &[QueueRules],
    queue: &Queue,
    ids: &[String],
    dry_run: bool,
) -> Result<BulkCancelled, OperationError> {
    let mut done = BulkCancelled::default();
    for id in ids {
        done.examined += 1;
        if dry_run {
            let found = patiently(|| queue.find(id, Meant::NewestLiving)).await?;
            let status = match &found {
                Some(id) => patiently(|| queue.status(id)).await?,
                None => None,
            };
            let lives = status.is_some_and(|task| !task.status.is_end());
            *(if lives { &mut done.succeeded } else { &mut done.skipped }) += 1;
            continue;
        }
        match cancel(queues, queue, id).await {
            Ok(Cancelled { before, children, .. }) if !before.is_end() => {
                done.succeeded += 1;
                done.children += children;
            }
            Ok(Cancelled { children, .. }) => {
                done.skipped += 1;
                done.children += children;
            }
            Err(OperationError::UnknownTask(_) | OperationError::HasEnded(_)) => done.skipped += 1,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Takes one step: cancels tasks that match, until 5,000 were looked at or 10 seconds have passed. Tasks that
/// were enqueued during the operation may be cancelled too.
pub(crate) async fn cancel_all(
    queues: &[QueueRules],
    queue: &Queue,
    bulk: &BulkCancel<'_>,
) -> Result<BulkCancelled, OperationError> {
    let states: &[ListedState] = match &bulk.state {
        Some(state) => std::slice::from_ref(state),
        None => &CANCELLABLE,
    };
    let (mut at, mut begin) =
        bulk.cursor.map(|cursor| place(states, cursor)).transpose()?.unwrap_or_default();
    let now_ms = patiently(|| queue.now_ms()).await?;
    let (mut done, end) = (BulkCancelled::default(), Instant::now() + TIME);
    while let Some(state) = states.get(at) {
        let mut walk = TaskWalk::new(*state, begin.take(), usize::MAX);
        while let Some(page) = walk.page(queue).await? {
            done.examined += page.examined as u64;
            let chosen = page.tasks.iter().filter(|task| bulk.filter.takes(&task.traits(), now_ms));
            for task in chosen {
                if bulk.dry_run {
                    done.succeeded += 1;
                } else {
                    cancel_one(queues, queue, task, &mut done).await?;
                }
                if Instant::now() >= end {
                    done.next = Some(write(*state, &task.position));
                    return Ok(done);
                }
            }
            if let Some(position) = walk.position()
                && (done.examined >= LOOKS || Instant::now() >= end)
            {
                done.next = Some(write(*state, position));
                return Ok(done);
            }
        }
        at += 1;
    }
    Ok(done)
}

async fn cancel_one(
    queues: &[QueueRules],
    queue: &Queue,
    task: &FoundTask,
    done: &mut BulkCancelled,
) -> Result<(), OperationError> {
    let before = patiently(|| queue.cancel_found(task)).await?;
    if before.is_some_and(|before| !before.is_end()) {
        done.succeeded += 1;
        done.children += tree::cancel_below(queues, queue, &task.status.id).await?;
    } else {
        done.skipped += 1;
    }
    Ok(())
}

fn write(state: ListedState, at: &str) -> String {
    let state = state.into_str();
    cursor::write(KIND, &[state, &cursor::write(state, &[at])])
}

/// The number of a state in the order, and the position in it.
fn place(states: &[ListedState], cursor: &str) -> Result<(usize, Option<String>), OperationError> {
    let [state, inner] = cursor::read(KIND, cursor)?;
    let at = states.iter().position(|known| known.into_str() == state).ok_or(BadCursor)?;
    Ok((at, Some(position(states[at], &inner)?)))
}
