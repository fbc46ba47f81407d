//! Cancels tasks, with what is below them in their flows.
//!
//! In: a task's id or alias, ids, or a filter. Out: what each task was before, or counts. Each may be
//! repeated: the second time changes nothing. Not here: how Redis carries it out (`queue::cancel`), the tree
//! (`tree`).

use std::collections::HashSet;
use std::time::Duration;

use serde::Serialize;
use tokio::time::{Instant, timeout};
use utoipa::ToSchema;

use super::cursor::{self, BadCursor};
use super::error::{OperationError, OperationResult};
use super::list::{TaskWalk, position};
use super::many::{JobCount, ManyDone};
use super::sample::TaskSample;
use super::task::unknown_task;
use super::tree;
use crate::config::QueueRules;
use crate::queue::codec;
use crate::queue::listing::{FoundTask, ListedState};
use crate::queue::redrive::SAMPLE;
use crate::queue::repeat::patiently;
use crate::queue::{FlowProgress, Meant, Queue, Status, TaskFilter, TaskName};

/// The states from which tasks are cancelled, in this order. What becomes due meanwhile goes to the end of
/// the stream, which therefore comes later, and what a host takes meanwhile runs.
pub(crate) const CANCELLABLE: [ListedState; 4] =
    [ListedState::Delayed, ListedState::Held, ListedState::Queued, ListedState::Running];
/// How often all these states are looked at, at most. A task that ran at the beginning may be delayed, held
/// or queued where the walk has been; so it looks again until it finds none.
const ROUNDS: u8 = 3;
/// The states that a drain empties, in this order for the same reason.
pub(crate) const DRAINABLE: [ListedState; 3] = [ListedState::Delayed, ListedState::Held, ListedState::Queued];
/// The most tasks that one step looks at.
const LOOKS: u64 = 5_000;
/// For how long one request cancels tasks by their ids, and how long it may take: the last task may have a
/// large tree, and Redis may be away.
const IDS_TIME: Duration = Duration::from_secs(10);
const LIMIT: Duration = Duration::from_secs(20);
/// The most ids in one operation.
pub(crate) const MOST_IDS: usize = 1_000;
const KIND: &str = "cancel";
const IDS_KIND: &str = "cancel-ids";
/// In a cursor: the round has cancelled a task.
const FOUND: &str = "found";

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
    let found = patiently(|| queue.find(name, Meant::NewestLiving)).await?;
    let before = match &found {
        Some(id) if dry_run => patiently(|| queue.status(id)).await?.map(|task| task.status),
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
/// is looked for among those that are queued, which may take long. The error has its figure.
pub(crate) async fn cancel_ids(
    queues: &[QueueRules],
    queue: &Queue,
    ids: &[String],
    dry_run: bool,
    cursor: Option<&str>,
) -> OperationResult<ManyDone> {
    let mut begin = 0;
    if let Some(cursor) = cursor {
        let [at] = cursor::read(IDS_KIND, cursor)?;
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
    // A dry run cancels nothing, so it has to know which tasks are there again, if only by an alias.
    let mut seen: HashSet<String> = ids[..begin].iter().cloned().collect();
    for (at, id) in ids.iter().enumerate().skip(begin) {
        if at > begin && Instant::now() >= end {
            done.next = Some(cursor::write(IDS_KIND, &[&at.to_string()]));
            return Ok(());
        }
        done.examined += 1;
        match cancel(queues, queue, id, dry_run).await {
            Ok(Cancelled { id, before, children, .. }) => {
                let is_done = before.is_end() || dry_run && !seen.insert(id);
                *(if is_done { &mut done.skipped } else { &mut done.succeeded }) += 1;
                done.children += children.unwrap_or(0);
            }
            Err(OperationError::UnknownTask(_) | OperationError::HasEnded(_)) => done.skipped += 1,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Which tasks are cancelled together.
#[derive(Debug)]
pub(crate) struct BulkCancel<'b> {
    /// From these states, in this order.
    pub states: &'b [ListedState],
    pub filter: &'b TaskFilter,
    /// Where it begins: [`cancel_walk`], or the place where the step before ended.
    pub cursor: &'b str,
    /// Tasks that a host has taken stay as they are.
    pub only_waiting: bool,
}

/// Takes one step: cancels tasks that match, until 5,000 were looked at or the time has passed. Tasks that
/// come to the stream during the operation, and dead letters that are requeued meanwhile, are left out. Adds
/// to `done` what it did, also if it fails, and sets where the operation goes on.
pub(super) async fn cancel_all(
    queues: &[QueueRules],
    queue: &Queue,
    bulk: &BulkCancel<'_>,
    time: Duration,
    done: &mut ManyDone,
) -> OperationResult {
    let mut walk = CancelWalk::new(bulk.states, Some(bulk.cursor))?;
    walk.repeats = bulk.states == CANCELLABLE;
    let (looks, end) = (done.examined + LOOKS, Instant::now() + time);
    done.next = None;
    while let Some(page) = walk.page(queue, bulk.filter).await? {
        done.examined += page.examined;
        for task in &page.tasks {
            let (succeeded, skipped) = (done.succeeded, done.skipped);
            cancel_one(queues, queue, task, bulk.only_waiting, done).await?;
            walk.has_found |= done.succeeded > succeeded;
            // A later round skips what an earlier one has cancelled.
            done.skipped = if walk.round == 1 { done.skipped } else { skipped };
            if Instant::now() >= end {
                done.next = Some(walk.write(page.state, &task.position));
                return Ok(());
            }
        }
        if done.examined >= looks || Instant::now() >= end {
            done.next = walk.cursor();
            return Ok(());
        }
    }
    Ok(())
}

/// Counts the tasks that would be cancelled, until `most` were looked at or the time has passed.
pub(super) async fn cancel_count(
    queue: &Queue,
    bulk: &BulkCancel<'_>,
    most: u64,
    time: Duration,
) -> OperationResult<JobCount> {
    let mut walk = CancelWalk::new(bulk.states, Some(bulk.cursor))?;
    let (mut count, end) = (JobCount::default(), Instant::now() + time);
    while let Some(page) = walk.page(queue, bulk.filter).await? {
        count.examined += page.examined;
        count.matched += page.tasks.len() as u64;
        let some = page.tasks.iter().take(SAMPLE - count.sample.len());
        count.sample.extend(some.map(|task| TaskSample::of_task(queue, task, &bulk.filter.mask)));
        if count.examined >= most.min(LOOKS) || Instant::now() >= end {
            count.next = walk.cursor();
            break;
        }
    }
    Ok(count)
}

async fn cancel_one(
    queues: &[QueueRules],
    queue: &Queue,
    task: &FoundTask,
    only_waiting: bool,
    done: &mut ManyDone,
) -> OperationResult {
    let before = patiently(|| queue.cancel_found(task, only_waiting)).await?;
    let is_done = |before: Status| before.is_end() || only_waiting && before == Status::Processing;
    let is_cancelled = before.is_some_and(|before| !is_done(before));
    *(if is_cancelled { &mut done.succeeded } else { &mut done.skipped }) += 1;
    // The reply to this very cancel may have been lost, so what is below the task may not be cancelled yet.
    if is_cancelled || before == Some(Status::Cancelled) {
        done.children += tree::cancel_below(queues, queue, &task.status.id).await?;
    }
    Ok(())
}

/// Goes through the tasks of some states, page by page.
#[derive(Debug)]
pub(crate) struct CancelWalk<'c> {
    states: &'c [ListedState],
    /// The number of the state in which the next page is.
    at: usize,
    /// The position behind which the walk of that state begins.
    begin: Option<String>,
    walk: Option<TaskWalk>,
    /// The last entry of the stream when its tasks were first looked at. Those that come later are left out,
    /// as the walk might never end.
    last: Option<String>,
    /// Delayed and held tasks that were enqueued after this time (ms since the Unix epoch, by Redis's clock)
    /// are left out, and from the second round on all others, too. A dead letter that was requeued after it
    /// is always left out, although it was enqueued before. None: none are left out.
    until_ms: Option<u64>,
    /// Whether there are further rounds.
    repeats: bool,
    /// The number of the round.
    round: u8,
    /// Whether this round has cancelled a task.
    has_found: bool,
}

/// The cursor of an operation that has not begun: on the tasks that are there now, and on none that are added
/// later.
pub(crate) async fn cancel_walk(queue: &Queue, states: &[ListedState]) -> OperationResult<String> {
    let until_ms = Some(patiently(|| queue.now_ms()).await?);
    let last = Some(patiently(|| queue.last_queued()).await?);
    let walk = CancelWalk { last, until_ms, ..CancelWalk::new(states, None)? };
    Ok(walk.write_begin(0).unwrap_or_default())
}

/// A page of a [`CancelWalk`].
#[derive(Debug)]
pub(crate) struct CancelPage {
    pub state: ListedState,
    /// The tasks that match.
    pub tasks: Vec<FoundTask>,
    pub examined: u64,
}

impl<'c> CancelWalk<'c> {
    pub(crate) fn new(states: &'c [ListedState], cursor: Option<&str>) -> OperationResult<CancelWalk<'c>> {
        let (begin, walk, last, until_ms) = (None, None, None, None);
        let (repeats, round, has_found) = (false, 1, false);
        let mut walk = CancelWalk { states, at: 0, begin, walk, last, until_ms, repeats, round, has_found };
        let Some(cursor) = cursor else { return Ok(walk) };
        let [state, last, until, round, found, inner] = cursor::read(KIND, cursor)?;
        walk.round = round.parse().ok().filter(|round| (1..=ROUNDS).contains(round)).ok_or(BadCursor)?;
        walk.has_found = found == FOUND;
        walk.at = states.iter().position(|known| known.into_str() == state).ok_or(BadCursor)?;
        walk.last = Some(last).filter(|last| !last.is_empty());
        if walk.last.as_deref().is_some_and(|last| !codec::is_entry_id(last)) {
            return Err(BadCursor.into());
        }
        if !until.is_empty() {
            walk.until_ms = Some(until.parse().map_err(|_| BadCursor)?);
        }
        if !inner.is_empty() {
            walk.begin = Some(position(states[walk.at], &inner)?);
        }
        Ok(walk)
    }

    /// The next page; none at the end.
    pub(crate) async fn page(
        &mut self,
        queue: &Queue,
        filter: &TaskFilter,
    ) -> OperationResult<Option<CancelPage>> {
        let now_ms = patiently(|| queue.now_ms()).await?;
        loop {
            if self.at == self.states.len() && self.goes_round() {
                (self.at, self.round, self.has_found) = (0, self.round + 1, false);
            }
            let Some(&state) = self.states.get(self.at) else { return Ok(None) };
            let is_in_stream = matches!(state, ListedState::Queued | ListedState::Running);
            if state == ListedState::Queued && self.round > 1 && self.begin.is_none() && self.walk.is_none() {
                // The round before went up to here.
                self.begin = self.last.take();
            }
            if is_in_stream && self.last.is_none() {
                self.last = Some(patiently(|| queue.last_queued()).await?);
            }
            let begin = self.begin.take();
            let walk = self.walk.get_or_insert_with(|| TaskWalk::new(state, begin, usize::MAX));
            let Some(page) = walk.page(queue).await? else {
                self.leave_state();
                continue;
            };
            let (examined, mut tasks) = (page.examined as u64, page.tasks);
            if let Some(last) = self.last.as_deref().filter(|_| is_in_stream) {
                let is_later = |task: &FoundTask| codec::comes_after(&task.position, last);
                if let Some(end) = tasks.iter().position(is_later) {
                    tasks.truncate(end);
                    self.leave_state();
                }
            }
            let (until_ms, is_bounded) = (self.until_ms, !is_in_stream || self.round > 1);
            let is_newer = |task: &FoundTask| {
                let enqueued_at = if is_in_stream { task.status.enqueued_at } else { task.since_ms };
                let came_at = task.requeued_at().max(enqueued_at.filter(|_| is_bounded));
                until_ms.zip(came_at).is_some_and(|(until, at)| at > until)
            };
            tasks.retain(|task| filter.takes(&task.traits(), now_ms) && !is_newer(task));
            return Ok(Some(CancelPage { state, tasks, examined }));
        }
    }

    /// Whether there is another round behind this one.
    fn goes_round(&self) -> bool {
        self.repeats && self.round < ROUNDS && (self.round == 1 || self.has_found)
    }

    fn leave_state(&mut self) {
        (self.at, self.walk) = (self.at + 1, None);
    }

    /// The cursor behind the last page; none when nothing is left.
    fn cursor(&self) -> Option<String> {
        match self.walk.as_ref().map(TaskWalk::position) {
            Some(Some(position)) => Some(self.write(self.states[self.at], position)),
            Some(None) => self.write_begin(self.at + 1),
            None => self.write_begin(self.at),
        }
    }

    fn write(&self, state: ListedState, at: &str) -> String {
        let state = state.into_str();
        self.write_parts(state, self.round, self.has_found, &cursor::write(state, &[at]))
    }

    /// The cursor at the beginning of the state with this number, or of the next round.
    fn write_begin(&self, at: usize) -> Option<String> {
        match self.states.get(at) {
            Some(state) => Some(self.write_parts((*state).into_str(), self.round, self.has_found, "")),
            None if self.goes_round() => {
                let first = self.states.first().map_or("", |state| (*state).into_str());
                Some(self.write_parts(first, self.round + 1, false, ""))
            }
            None => None,
        }
    }

    fn write_parts(&self, state: &str, round: u8, has_found: bool, inner: &str) -> String {
        let until = self.until_ms.map(|ms| ms.to_string()).unwrap_or_default();
        let (last, found) = (self.last.as_deref().unwrap_or_default(), if has_found { FOUND } else { "" });
        cursor::write(KIND, &[state, last, &until, &round.to_string(), found, inner])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_goes_on_in_its_state_and_has_the_end_of_the_stream() {
        let walk =
            CancelWalk { last: Some("9-0".into()), ..CancelWalk::new(&DRAINABLE, None).expect("none") };
        let cursor = walk.write(ListedState::Queued, "5-0");
        let read = CancelWalk::new(&DRAINABLE, Some(&cursor)).expect("a cursor");
        assert_eq!((read.at, read.begin.as_deref(), read.last.as_deref()), (2, Some("5-0"), Some("9-0")));
        let read = walk.cursor().expect("a cursor");
        let read = CancelWalk::new(&DRAINABLE, Some(&read)).expect("a cursor");
        assert_eq!((read.at, read.begin, read.last.as_deref()), (0, None, Some("9-0")));
        assert!(CancelWalk::new(&[ListedState::Running], Some(&cursor)).is_err(), "another operation's");
        let bounded = CancelWalk { until_ms: Some(7), ..walk };
        let read = CancelWalk::new(&DRAINABLE, bounded.cursor().as_deref()).expect("a cursor");
        assert_eq!(read.until_ms, Some(7));
        for bad in [
            ["queued", "later", "", "1", "", ""],
            ["queued", "9-0", "soon", "1", "", ""],
            ["queued", "9-0", "", "4", "", ""],
        ] {
            assert!(CancelWalk::new(&DRAINABLE, Some(&cursor::write(KIND, &bad))).is_err());
        }
    }

    #[test]
    fn there_is_a_second_round_and_a_third_one_where_the_second_found_something() {
        let end = |round, has_found, repeats| {
            let walk = CancelWalk::new(&CANCELLABLE, None).expect("none");
            let walk = CancelWalk { at: CANCELLABLE.len(), round, has_found, repeats, ..walk };
            let next = walk.cursor()?;
            let next = CancelWalk::new(&CANCELLABLE, Some(&next)).expect("a cursor");
            Some((next.at, next.round, next.has_found))
        };
        assert_eq!(end(1, false, true), Some((0, 2, false)));
        assert_eq!((end(2, false, true), end(2, true, true)), (None, Some((0, 3, false))));
        assert_eq!((end(3, true, true), end(1, true, false)), (None, None));
    }
}
