//! The tasks of an instance that runs several at once, in its store.
//!
//! In: tasks that the guest takes. Out: the state of the task that the guest enters. Not here: their seats
//! (`seats`), the calls of the guest (`host::tasks`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::attempt_state::{AttemptState, Interrupts};
use super::seats::{HELD, InstanceSeats, Seated};
use super::slices::SlicedCall;

/// Ticks that the guest may compute for no task.
const STRAY_TICKS: u32 = 100;
/// The longest timeout: a year, since the clock cannot hold every one.
pub(super) const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// The tasks of an instance, in its store.
pub(super) struct SeatedTasks {
    pub(super) seats: Arc<InstanceSeats>,
    pub(super) sliced: SlicedCall,
    /// The state for calls of no task. None while no task computes, since it is in use then.
    pub(super) nobody: Option<Box<AttemptState>>,
    /// The states of the tasks that do not compute.
    pub(super) others: BTreeMap<u32, Box<AttemptState>>,
    /// The bytes of the effects of these tasks.
    pub(super) others_bytes: u64,
    pub(super) max_output: u64,
    /// Ticks in which the guest has computed for no task. None before it asks for its first task, as a start
    /// takes time.
    pub(super) strays: Option<u32>,
}

impl SeatedTasks {
    pub(super) fn entered(&self) -> Option<u32> {
        self.nobody.as_ref()?;
        self.seats.entered()
    }

    /// The bytes of the effects of all tasks but the one that computes.
    pub(super) fn bytes(&self) -> u64 {
        debug_assert_eq!(
            self.others_bytes,
            self.others.values().map(|state| state.effects.bytes()).sum::<u64>()
        );
        self.others_bytes
    }

    /// Counts a tick. Returns whether the guest has computed for no task for too long.
    pub(super) fn tick_is_stray(&mut self) -> bool {
        let Some(strays) = &mut self.strays else { return false };
        if self.nobody.is_none() {
            *strays += 1;
        }
        *strays > STRAY_TICKS
    }

    /// Whether the task that computes holds the instance although its attempt is over, or its deadline has
    /// passed by [`HELD`]: a task that is told to stop may need a moment.
    pub(super) fn is_late(&self, attempt: &AttemptState) -> bool {
        let is_over = attempt.over.as_ref().is_some_and(CancellationToken::is_cancelled)
            || Instant::now() >= attempt.deadline + HELD;
        is_over && self.seats.is_held()
    }

    /// Makes the state of a task that the guest takes. Returns its deadline.
    pub(super) fn take(&mut self, number: u32, seated: &Seated) -> Instant {
        let attempt = &seated.attempt;
        let deadline = self.seats.start_of(seated.since) + attempt.timeout.min(LONGEST);
        let interrupts = Interrupts { stop: self.seats.broken.clone(), sliced: self.sliced.clone() };
        let (log, waits) = (seated.log.clone(), seated.waits.clone());
        let mut state = AttemptState::of(attempt, log, waits, deadline, interrupts);
        state.over = Some(seated.over.clone());
        self.others.insert(number, Box::new(state));
        deadline
    }

    /// Drops the effects of a task whose attempt has an end, and refuses further ones.
    pub(super) fn refuse(&mut self, number: u32) {
        if let Some(state) = self.others.get_mut(&number) {
            self.others_bytes -= state.effects.bytes();
            state.effects.close();
            state.plugin = None;
        }
    }
}
