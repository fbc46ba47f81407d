//! The way back: another job brings back the tasks that a job has taken away.
//!
//! In: the id of a job. Out: the job that brings its tasks back, which is begun if there is none yet. Two
//! requests at the same moment get the same job, as its id is made of the other's.
//!
//! Not here: how each task comes back once (`queue::undo`), the file (`letters`).

use super::deed::Deed;
use super::error::{OperationError, OperationResult};
use super::find::find_queue;
use super::jobs::{self, BulkJob, JobOrder, JobState};
use crate::config::QueueRules;
use crate::queue::repeat::patiently;
use crate::queue::{Link, Queue, TaskFilter};

/// An undo that was stopped or has failed can be begun again, up to this number of times in all.
const MOST_TIMES: u32 = 20;

/// Begins to bring back the tasks that a job keeps: those of a drain wait again, and those of a purge are
/// dead letters again.
pub(crate) async fn undo(
    queues: &[QueueRules],
    link: &Link,
    id: &str,
    who: &str,
    why: &str,
) -> OperationResult<BulkJob> {
    let job = jobs::find(link, id).await?;
    if job.deed == Deed::Export {
        return Err(OperationError::NotRunning(format!("job {id} is an export, which took nothing away")));
    }
    if !job.state.is_over() {
        return Err(OperationError::NotRunning(format!("job {id} is under way: stop it first")));
    }
    // Its last step may still take tasks away, which the undo would not bring back.
    let now_ms = patiently(|| link.now_ms()).await?;
    if job.has_lease(now_ms) {
        return Err(OperationError::NotRunning(format!(
            "job {id} ends its last step at present: ask again in a second"
        )));
    }
    let queue = find_queue(queues, &job.queue, link)?;
    for number in 1..=MOST_TIMES {
        let undo = format!("{id}-undo{number}");
        match jobs::find(link, &undo).await {
            Ok(undo) if !undo.state.is_over() => return Ok(undo),
            Ok(_) => {}
            Err(OperationError::NotFound(_)) => return begin(&queue, &job, undo, who, why).await,
            Err(error) => return Err(error),
        }
    }
    Err(OperationError::NotRunning(format!("job {id} was to be undone {MOST_TIMES} times")))
}

async fn begin(
    queue: &Queue,
    undone: &BulkJob,
    id: String,
    who: &str,
    why: &str,
) -> OperationResult<BulkJob> {
    kept_of(queue, undone).await?;
    let deed = if undone.deed == Deed::Drain { Deed::Requeue } else { Deed::Import };
    let order = JobOrder {
        from: Some(undone.id.clone()),
        id: Some(id),
        who: who.to_owned(),
        why: why.to_owned(),
        ..JobOrder::new(deed, TaskFilter::default())
    };
    jobs::start(&queue.link, queue, order).await
}

/// A job, with the number of tasks that it keeps at this moment.
pub(crate) async fn with_kept(queues: &[QueueRules], link: &Link, id: &str) -> OperationResult<BulkJob> {
    let mut job = jobs::find(link, id).await?;
    if job.kept.is_some()
        && let Ok(queue) = find_queue(queues, &job.queue, link)
    {
        job.kept = patiently(|| queue.kept_tasks(&job.id)).await?;
    }
    Ok(job)
}

/// The queue with the tasks that a job keeps in the place of its dead letters, and their number. Refuses a
/// job that keeps nothing, or only a part of an export.
pub(crate) async fn kept_of(queue: &Queue, job: &BulkJob) -> OperationResult<(Queue, u64)> {
    let is_export = job.deed == Deed::Export;
    if is_export && job.state != JobState::Done {
        let (id, state): (_, &str) = (&job.id, job.state.into());
        return Err(OperationError::NotRunning(format!("job {id} is {state}: its file is not whole")));
    }
    match patiently(|| queue.kept_tasks(&job.id)).await? {
        Some(kept) => Ok((queue.kept_by(&job.id), kept.tasks)),
        None if is_export && job.done == 0 => Ok((queue.kept_by(&job.id), 0)),
        None => Err(OperationError::NotFound(format!(
            "job {} keeps nothing (any more): for 24 hours an export keeps its file, and a drain or a purge \
             what it takes away, unless it was told not to",
            job.id
        ))),
    }
}
