//! Limits the rate of a plugin's log, over all of its attempts together.
//!
//! In: the size of each line. Out: whether the line fits, and how much was dropped. Without this limit, a
//! handler with many tasks would fill the disk, or the buffer for stderr, where other plugins would lose
//! their lines.
//!
//! Not here: the right of one version to log (`quota`), the limit of one attempt (`log`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A plugin may log at once what its rate allows in this many seconds.
const BURST: u64 = 8;

/// The lines of one plugin.
#[derive(Debug, Default)]
pub(super) struct Lines {
    now: Mutex<RateState>,
    /// Lines that were dropped since the host started.
    pub(super) dropped: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) struct RateState {
    /// Logged bytes that the rate has not yet paid for.
    unpaid_bytes: u64,
    paid_until: Option<Instant>,
    /// Dropped lines not yet reported. While there are any, a spawned task waits to report them.
    pub(super) unreported: Option<Dropped>,
}

#[derive(Debug, Default)]
pub(super) struct Dropped {
    pub(super) lines: u64,
    pub(super) bytes: u64,
}

impl Lines {
    /// Lines that were dropped since the host started.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    pub(super) fn now(&self) -> MutexGuard<'_, RateState> {
        // Nothing panics while it is locked.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RateState {
    pub(super) fn take(&mut self, bytes: u64, rate: u64, at: Instant) -> bool {
        let since = at.saturating_duration_since(self.paid_until.unwrap_or(at));
        let paid = (rate as f64 * since.as_secs_f64()) as u64;
        // A fraction of a byte is kept for the next call.
        if paid > 0 || self.paid_until.is_none() {
            self.unpaid_bytes = self.unpaid_bytes.saturating_sub(paid);
            self.paid_until = Some(at);
        }
        let unpaid_bytes = self.unpaid_bytes.saturating_add(bytes);
        let is_taken = unpaid_bytes <= rate.saturating_mul(BURST);
        if is_taken {
            self.unpaid_bytes = unpaid_bytes;
        }
        is_taken
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::quota::Quota;
    use super::*;

    #[test]
    fn a_burst_and_then_the_rate() {
        const RATE: u64 = 1000;
        let (mut now, began) = (RateState::default(), Instant::now());
        let mut lines = |ms: u64| {
            (0..10_000).take_while(|_| now.take(100, RATE, began + Duration::from_millis(ms))).count()
        };
        assert_eq!([lines(0), lines(50), lines(100), lines(1100), lines(1_000_000)], [80, 0, 1, 10, 80]);
    }

    #[test]
    fn frequent_lines_are_paid_for_too() {
        let (mut now, began) = (RateState::default(), Instant::now());
        assert!(now.take(8000, 1000, began));
        let taken = (0..100_000).filter(|n| now.take(1, 1000, began + Duration::from_micros(10 * n))).count();
        assert!((990..=1000).contains(&taken), "{taken} bytes in a second");
    }

    #[test]
    fn dropped_lines_are_counted() {
        let quota = Quota { share: Arc::default(), rate: 100 };
        let taken = [(); 5].map(|()| quota.take(&"p".into(), 108));
        assert_eq!((taken, quota.share.lines.dropped()), ([true, true, false, false, false], 3));
        let unreported = quota.share.lines.now().unreported.take().expect("something to tell of");
        assert_eq!((unreported.lines, unreported.bytes), (3, 900));
    }
}
