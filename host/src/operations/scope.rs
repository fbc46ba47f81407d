//! Which tasks a job is on: where it begins, how many they are, some of them.
//!
//! In: an order. Out: counts of what is there, and nothing is changed. Not here: the work (`jobs`).

use std::time::Duration;

use tokio::time::Instant;

use super::cancel_all::{BulkCancel, CANCELLABLE, CancelWalk, DRAINABLE, cancel_count, cancel_walk};
use super::dead::{read_walk, redrive_walk, write_walk};
use super::deed::Deed;
use super::error::OperationResult;
use super::many::JobCount;
use super::sample::TaskSample;
use crate::queue::listing::ListedState;
use crate::queue::redrive::{Counted, Redrive, StepBudget};
use crate::queue::{Census, Queue, TaskFilter};

/// For how long one request counts, and how many dead letters it looks at.
const COUNT: Duration = Duration::from_secs(10);
const COUNT_LOOKS: u64 = 10_000;

/// An order for a job.
#[derive(Debug, Clone)]
pub(crate) struct JobOrder {
    pub deed: Deed,
    pub filter: TaskFilter,
    /// The only state of tasks that are cancelled.
    pub only: Option<ListedState>,
    pub rate: Option<String>,
    /// Keeps the tasks that it takes away, if it can: see [`Deed::can_undo`].
    pub keep: bool,
    /// The job whose kept tasks it brings back.
    pub from: Option<String>,
    /// None: a new one.
    pub id: Option<String>,
    pub who: String,
    pub why: String,
    /// The place that [`begin`] returned before the tasks were counted, and how many they are, if that is
    /// known. None: the tasks that are there now.
    pub counted: Option<(String, Option<u64>)>,
}

impl JobOrder {
    pub(crate) fn new(deed: Deed, filter: TaskFilter) -> JobOrder {
        let (who, why, keep) = (String::new(), String::new(), deed.can_undo());
        let (only, rate, from, id, counted) = (None, None, None, None, None);
        JobOrder { deed, filter, only, rate, keep, from, id, who, why, counted }
    }
}

/// The states from which tasks are cancelled, in their order.
pub(crate) fn states(deed: Deed, only: Option<&ListedState>) -> &[ListedState] {
    match (deed, only) {
        (Deed::Drain, _) => &DRAINABLE,
        (_, Some(only)) => std::slice::from_ref(only),
        (_, None) => &CANCELLABLE,
    }
}

/// How many places a job looks at.
pub(crate) fn places(census: &Census, deed: Deed, only: Option<&ListedState>) -> u64 {
    let in_state = |state: &ListedState| match state {
        ListedState::Queued => census.queued,
        ListedState::Running => census.running,
        ListedState::Delayed => census.delayed,
        ListedState::Held => census.held_tasks,
        ListedState::Dead | ListedState::Ended => 0,
    };
    if deed.is_of_dead() { census.dead } else { states(deed, only).iter().map(in_state).sum() }
}

/// The place at which a job begins: on the tasks that are there now, and on none that come later.
pub(crate) async fn begin(queue: &Queue, deed: Deed, only: Option<&ListedState>) -> OperationResult<String> {
    if deed.is_of_dead() { redrive_walk(queue).await } else { cancel_walk(queue, states(deed, only)).await }
}

/// Refuses a place at which this job cannot begin: a client may have made it up.
pub(super) fn check_place(place: &str, deed: Deed, only: Option<&ListedState>) -> OperationResult {
    match deed.is_of_dead() {
        true => read_walk(place).map(drop),
        false => CancelWalk::read(states(deed, only), place).map(drop),
    }
}

/// Counts the tasks that a job would be on, for some seconds. `cursor` is where the count before ended.
pub(crate) async fn count(
    queue: &Queue,
    order: &JobOrder,
    cursor: Option<&str>,
) -> OperationResult<JobCount> {
    look(queue, order, cursor, COUNT_LOOKS, Counted::Requeued).await
}

/// Counts the tasks with less work for Redis: dead letters that a requeue would leave are counted, too.
pub(crate) async fn rough_count(
    queue: &Queue,
    order: &JobOrder,
    cursor: Option<&str>,
) -> OperationResult<JobCount> {
    look(queue, order, cursor, COUNT_LOOKS, Counted::Tried).await
}

/// Some of the tasks that a job would be on, where all are meant and need no count.
pub(crate) async fn sample(queue: &Queue, order: &JobOrder) -> OperationResult<JobCount> {
    look(queue, order, None, 1, Counted::Tried).await
}

/// Looks at up to `most` tasks. `requeued` says which dead letters a requeue counts.
async fn look(
    queue: &Queue,
    order: &JobOrder,
    cursor: Option<&str>,
    most: u64,
    requeued: Counted,
) -> OperationResult<JobCount> {
    let JobOrder { deed, filter, only, counted, .. } = order;
    let begin = match (counted, cursor) {
        (Some((place, _)), _) => place.clone(),
        (None, Some(cursor)) => cursor.to_owned(),
        (None, None) => begin(queue, *deed, only.as_ref()).await?,
    };
    let cursor = cursor.unwrap_or(&begin);
    let what = match deed {
        Deed::Cancel | Deed::Drain => {
            let states = states(*deed, only.as_ref());
            let bulk = BulkCancel { states, filter, cursor, only_waiting: false };
            return Ok(JobCount { begin: begin.clone(), ..cancel_count(queue, &bulk, most, COUNT).await? });
        }
        Deed::Requeue => Redrive::Count(requeued),
        Deed::Purge | Deed::Export | Deed::Import => Redrive::Count(Counted::Purged),
    };
    let budget = StepBudget { entries: most, until: Instant::now() + COUNT };
    let step = queue.redrive_step(filter, what, read_walk(cursor)?, budget).await?;
    Ok(JobCount {
        matched: step.done.succeeded,
        skipped: step.done.skipped,
        without_flow: step.done.without_flow,
        examined: step.examined,
        next: step.next.map(|walk| write_walk(&walk)),
        sample: TaskSample::of_letters(queue, &step.sample, &filter.mask),
        begin,
    })
}
