//! Decides whether attempts may begin on the host's own threads, which also send heartbeats and settlements.
//!
//! In: how long the first polls of attempts took. Out: whether the next ones of the queue will probably be
//! short, and whether the host has time for one.
//!
//! Not here: beginning the attempts (`crew`), and which ones may ask (`intake`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The attempts of a claim are short if they are expected to take no longer than this in a row. An idle
/// thread needs about as long until it runs them.
const SHORT: Duration = Duration::from_micros(250);
/// After a poll that was not short, no attempt of any queue begins on the host's threads for this many times
/// the time of the poll. While a guest is polled there, the host may answer nothing else.
const REST: u32 = 100;

/// Lets one attempt of all queues at a time begin on the host's threads. The lock holds the end of the rest
/// after a long poll.
#[derive(Debug, Default)]
pub(crate) struct HostTime(Mutex<Option<Instant>>);

/// The right to begin an attempt on one of the host's threads.
pub(crate) struct HostMoment<'t>(MutexGuard<'t, Option<Instant>>);

/// The time in nanoseconds that the last attempt of one queue took until it ended or waited for the first
/// time, on any thread.
#[derive(Debug)]
pub(crate) struct FirstPoll(AtomicU64);

impl HostTime {
    /// `None`: another attempt begins there now, or the rest after a long poll lasts.
    pub(crate) fn take(&self) -> Option<HostMoment<'_>> {
        // No panic poisons the lock, as panics of attempts are contained.
        let rests_until = self.0.try_lock().ok()?;
        rests_until.is_none_or(|until| until <= Instant::now()).then_some(HostMoment(rests_until))
    }
}

impl HostMoment<'_> {
    /// Gives the right back after a poll that took this long.
    pub(crate) fn took(mut self, poll: Duration) {
        if poll > SHORT {
            *self.0 = Some(Instant::now() + poll * REST);
        }
    }
}

impl Default for FirstPoll {
    /// Before the first attempt, attempts count as long.
    fn default() -> FirstPoll {
        FirstPoll(AtomicU64::new(u64::MAX))
    }
}

impl FirstPoll {
    /// Whether this many attempts in a row will probably be short.
    pub(crate) fn is_short_for(&self, attempts: usize) -> bool {
        let all = u128::from(self.0.load(Ordering::Relaxed)) * attempts as u128;
        all <= SHORT.as_nanos()
    }

    pub(crate) fn took(&self, poll: Duration) {
        self.0.store(u64::try_from(poll.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_attempt_at_a_time_begins_on_the_hosts_threads() {
        let host = HostTime::default();
        let moment = host.take().expect("nobody has it");
        assert!(host.take().is_none());
        moment.took(SHORT);
        assert!(host.take().is_some());
    }

    #[test]
    fn after_a_long_poll_the_hosts_threads_are_closed_for_a_hundred_times_as_long() {
        let host = HostTime::default();
        host.take().expect("nobody has it").took(Duration::from_secs(1));
        assert!(host.take().is_none());
        let mut until = host.0.lock().expect("nothing panicked");
        let left = until.expect("it is closed").saturating_duration_since(Instant::now());
        assert!(left > Duration::from_secs(90) && left <= Duration::from_secs(100), "{left:?}");
        *until = Some(Instant::now());
        drop(until);
        assert!(host.take().is_some());
    }

    #[test]
    fn attempts_are_expected_to_take_as_long_as_the_last_one() {
        let last = FirstPoll::default();
        assert!(!last.is_short_for(1), "nothing is known yet");
        last.took(SHORT / 10);
        assert!(last.is_short_for(10) && !last.is_short_for(11));
        last.took(SHORT * 2);
        assert!(!last.is_short_for(1));
        last.took(Duration::MAX);
        assert!(!last.is_short_for(usize::MAX));
    }
}
