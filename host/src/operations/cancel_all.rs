//! Cancels all tasks that match a filter, in steps.
//!
//! In: states, a filter, and the place where the step before ended. Out: counts, and the place where the next
//! step goes on. A step may be repeated: what is cancelled stays as it is. Not here: tasks that are named
//! (`cancel`), the jobs that take the steps (`job_step`).

use std::time::Duration;

use tokio::time::Instant;

use super::cursor::{self, BadCursor};
use super::error::OperationResult;
use super::list::{TaskWalk, position};
use super::many::{JobCount, ManyDone};
use super::sample::TaskSample;
use super::tree;
use crate::config::QueueRules;
use crate::queue::codec;
use crate::queue::listing::{FoundTask, ListedState};
use crate::queue::redrive::SAMPLE;
use crate::queue::repeat::patiently;
use crate::queue::{Queue, Status, TaskFilter};

/// The states from which tasks are cancelled, in this order. Tasks that become due meanwhile go to the end of
/// the stream, which therefore is looked at later. Tasks that a host takes meanwhile run.
pub(crate) const CANCELLABLE: [ListedState; 4] =
    [ListedState::Delayed, ListedState::Held, ListedState::Queued, ListedState::Running];
/// How often all these states are looked at, at most. A task that ran at the beginning may be delayed, held
/// or queued where the walk has been; so the walk looks again until it finds none.
const ROUNDS: u8 = 3;
/// The states that a drain empties, in this order for the same reason.
pub(crate) const DRAINABLE: [ListedState; 3] = [ListedState::Delayed, ListedState::Held, ListedState::Queued];
/// The most tasks that one step looks at.
const LOOKS: u64 = 5_000;
const KIND: &str = "cancel";
/// In a cursor: the round has cancelled a task.
const FOUND: &str = "found";

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
/// the counts to `done`, also if it fails, and sets where the operation goes on.
pub(super) async fn cancel_all(
    queues: &[QueueRules],
    queue: &Queue,
    bulk: &BulkCancel<'_>,
    time: Duration,
    done: &mut ManyDone,
) -> OperationResult {
    let mut walk = CancelWalk::read(bulk.states, bulk.cursor)?;
    walk.repeats = bulk.states == CANCELLABLE;
    let (looks, end) = (done.examined + LOOKS, Instant::now() + time);
    done.next = None;
    while let Some(page) = walk.page(queue, bulk.filter).await? {
        done.examined += page.examined;
        for task in &page.tasks {
            let before = patiently(|| queue.cancel_found(task, bulk.only_waiting)).await?;
            let is_left = |before: Status| bulk.only_waiting && before == Status::Processing;
            let is_cancelled = before.is_some_and(|before| !before.is_end() && !is_left(before));
            walk.has_cancelled |= is_cancelled;
            // A later round skips what an earlier one has cancelled, which is not to be counted again.
            if is_cancelled || walk.round == 1 {
                done.count(is_cancelled);
            }
            // The reply to an earlier try may have been lost, before the tasks below it were cancelled.
            if is_cancelled || before == Some(Status::Cancelled) {
                done.children += tree::cancel_below(queues, queue, &task.summary.id).await?;
            }
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
    let mut walk = CancelWalk::read(bulk.states, bulk.cursor)?;
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

/// Goes through the tasks of some states, page by page.
#[derive(Debug)]
pub(super) struct CancelWalk<'c> {
    states: &'c [ListedState],
    /// The number of the state in which the next page is.
    at: usize,
    /// The position behind which the walk of that state begins.
    begin: Option<String>,
    walk: Option<TaskWalk>,
    /// The last entry of the stream when its tasks were first looked at. Later ones are left out, as the walk
    /// might never end.
    last: Option<String>,
    /// Delayed and held tasks that were enqueued after this time (ms since the Unix epoch, by Redis's clock)
    /// are left out, and from the second round on all others, too. A task that was requeued after this time
    /// is left out in each round, although it was enqueued before. None: no task is left out.
    until_ms: Option<u64>,
    /// Whether there are further rounds at all.
    repeats: bool,
    /// The number of the round.
    round: u8,
    /// Whether this round has cancelled a task.
    has_cancelled: bool,
}

/// The cursor of an operation that has not begun: on the tasks that are there now, and on none that are added
/// later.
pub(super) async fn cancel_walk(queue: &Queue, states: &[ListedState]) -> OperationResult<String> {
    let until_ms = Some(patiently(|| queue.now_ms()).await?);
    let last = Some(patiently(|| queue.last_queued()).await?);
    let walk = CancelWalk { last, until_ms, ..CancelWalk::new(states) };
    Ok(walk.write_begin(0).unwrap_or_default())
}

/// A page of a [`CancelWalk`].
#[derive(Debug)]
struct CancelPage {
    state: ListedState,
    /// The tasks that match.
    tasks: Vec<FoundTask>,
    examined: u64,
}

impl<'c> CancelWalk<'c> {
    /// A walk through all tasks of these states.
    fn new(states: &'c [ListedState]) -> CancelWalk<'c> {
        let (begin, walk, last, until_ms) = (None, None, None, None);
        let (repeats, round, has_cancelled) = (false, 1, false);
        CancelWalk { states, at: 0, begin, walk, last, until_ms, repeats, round, has_cancelled }
    }

    /// The walk that goes on at this cursor.
    pub(super) fn read(states: &'c [ListedState], cursor: &str) -> OperationResult<CancelWalk<'c>> {
        let mut walk = CancelWalk::new(states);
        let [state, last, until, round, found, inner] = cursor::read(KIND, cursor)?;
        walk.round = round.parse().ok().filter(|round| (1..=ROUNDS).contains(round)).ok_or(BadCursor)?;
        walk.has_cancelled = found == FOUND;
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
    async fn page(&mut self, queue: &Queue, filter: &TaskFilter) -> OperationResult<Option<CancelPage>> {
        let now_ms = patiently(|| queue.now_ms()).await?;
        loop {
            if self.at == self.states.len() && self.has_next_round() {
                (self.at, self.round, self.has_cancelled) = (0, self.round + 1, false);
            }
            let Some(&state) = self.states.get(self.at) else { return Ok(None) };
            let is_in_stream = matches!(state, ListedState::Queued | ListedState::Running);
            if state == ListedState::Queued && self.round > 1 && self.begin.is_none() && self.walk.is_none() {
                // The round before went up to this entry.
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
            tasks.retain(|task| filter.takes(&task.traits(), now_ms) && !self.is_newer(task, is_in_stream));
            return Ok(Some(CancelPage { state, tasks, examined }));
        }
    }

    /// Whether a task came after the operation had begun.
    fn is_newer(&self, task: &FoundTask, is_in_stream: bool) -> bool {
        // In the first round, `last` bounds the stream.
        let is_bounded = !is_in_stream || self.round > 1;
        let enqueued_at = if is_in_stream { task.summary.enqueued_at } else { task.since_ms };
        let came_at = task.requeued_at().max(enqueued_at.filter(|_| is_bounded));
        self.until_ms.zip(came_at).is_some_and(|(until, at)| at > until)
    }

    /// Whether there is another round behind this one.
    fn has_next_round(&self) -> bool {
        self.repeats && self.round < ROUNDS && (self.round == 1 || self.has_cancelled)
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
        self.write_parts(state, self.round, self.has_cancelled, &cursor::write(state, &[at]))
    }

    /// The cursor at the beginning of the state with this number, or of the next round.
    fn write_begin(&self, at: usize) -> Option<String> {
        match self.states.get(at) {
            Some(state) => Some(self.write_parts((*state).into_str(), self.round, self.has_cancelled, "")),
            None if self.has_next_round() => {
                let first = self.states.first().map_or("", |state| (*state).into_str());
                Some(self.write_parts(first, self.round + 1, false, ""))
            }
            None => None,
        }
    }

    fn write_parts(&self, state: &str, round: u8, has_cancelled: bool, inner: &str) -> String {
        let until = self.until_ms.map(|ms| ms.to_string()).unwrap_or_default();
        let (last, found) =
            (self.last.as_deref().unwrap_or_default(), if has_cancelled { FOUND } else { "" });
        cursor::write(KIND, &[state, last, &until, &round.to_string(), found, inner])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_goes_on_in_its_state_and_has_the_end_of_the_stream() {
        let walk = CancelWalk { last: Some("9-0".into()), ..CancelWalk::new(&DRAINABLE) };
        let cursor = walk.write(ListedState::Queued, "5-0");
        let read = CancelWalk::read(&DRAINABLE, &cursor).expect("a cursor");
        assert_eq!((read.at, read.begin.as_deref(), read.last.as_deref()), (2, Some("5-0"), Some("9-0")));
        let read = walk.cursor().expect("a cursor");
        let read = CancelWalk::read(&DRAINABLE, &read).expect("a cursor");
        assert_eq!((read.at, read.begin, read.last.as_deref()), (0, None, Some("9-0")));
        assert!(CancelWalk::read(&[ListedState::Running], &cursor).is_err(), "another operation's");
        let bounded = CancelWalk { until_ms: Some(7), ..walk };
        let read = CancelWalk::read(&DRAINABLE, &bounded.cursor().expect("a cursor")).expect("a cursor");
        assert_eq!(read.until_ms, Some(7));
        for bad in [
            ["queued", "later", "", "1", "", ""],
            ["queued", "9-0", "soon", "1", "", ""],
            ["queued", "9-0", "", "4", "", ""],
        ] {
            assert!(CancelWalk::read(&DRAINABLE, &cursor::write(KIND, &bad)).is_err());
        }
    }

    #[test]
    fn there_is_a_second_round_and_a_third_one_where_the_second_found_something() {
        let end = |round, has_cancelled, repeats| {
            let walk = CancelWalk::new(&CANCELLABLE);
            let walk = CancelWalk { at: CANCELLABLE.len(), round, has_cancelled, repeats, ..walk };
            let next = walk.cursor()?;
            let next = CancelWalk::read(&CANCELLABLE, &next).expect("a cursor");
            Some((next.at, next.round, next.has_cancelled))
        };
        assert_eq!(end(1, false, true), Some((0, 2, false)));
        assert_eq!((end(2, false, true), end(2, true, true)), (None, Some((0, 3, false))));
        assert_eq!((end(3, true, true), end(1, true, false)), (None, None));
    }
}
