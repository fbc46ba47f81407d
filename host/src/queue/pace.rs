//! The pace of a step that requeues dead letters: at most at a rate, and no longer than its budget of time.
//!
//! In: a rate, a budget, and when the step before it lets this one begin. Out: how many letters may be
//! requeued at once, and when. Not here: requeueing (`redrive`).

use std::time::Duration;

use tokio::time::Instant;

use super::dead::PAGE;
use crate::config::rules::Rate;

/// The most that a step of an operation does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepBudget {
    /// Entries that it looks at.
    pub entries: u64,
    pub until: Instant,
}

/// When a step may go on: at a rate, and within its budget.
pub(super) struct Pace {
    /// None: nothing waits.
    rate: Option<Rate>,
    budget: Option<StepBudget>,
    /// Nothing is requeued before this moment.
    free_at: Option<Instant>,
    /// The beginning of the step by this machine's clock.
    begun: Instant,
    /// The same moment by Redis's clock, in milliseconds since the Unix epoch.
    begun_ms: u64,
}

impl Pace {
    /// A pace without a budget.
    pub(super) fn new(rate: Option<Rate>) -> Pace {
        Pace { rate, budget: None, free_at: None, begun: Instant::now(), begun_ms: 0 }
    }

    /// The pace of a step that begins at `now_ms` by Redis's clock, and requeues nothing before
    /// `not_before_ms`.
    pub(super) fn within(
        budget: Option<StepBudget>,
        rate: Option<Rate>,
        not_before_ms: u64,
        now_ms: u64,
    ) -> Pace {
        let mut pace = Pace { budget, begun_ms: now_ms, ..Pace::new(rate) };
        // A client sends this time. It may be wrong, or from a request with another rate, so it counts for no
        // longer than one pause of this rate.
        let longest = pace.pause(pace.at_once() as u64);
        let ahead = Duration::from_millis(not_before_ms.saturating_sub(now_ms)).min(longest);
        pace.free_at = (!ahead.is_zero()).then(|| pace.begun + ahead);
        pace
    }

    /// How many letters one call requeues: at a rate, those of a tenth of a second, at least one.
    pub(super) fn at_once(&self) -> usize {
        let Some(rate) = self.rate else { return PAGE };
        let tenth = f64::from(rate.count) / rate.per.as_secs_f64() / 10.0;
        (tenth as usize).clamp(1, PAGE)
    }

    /// The time between requeueing `count` letters and requeueing the next ones.
    fn pause(&self, count: u64) -> Duration {
        let Some(rate) = self.rate else { return Duration::ZERO };
        rate.per.mul_f64(count as f64 / f64::from(rate.count))
    }

    /// When the next letters may be requeued, by Redis's clock; 0: at once.
    pub(super) fn free_at_ms(&self) -> u64 {
        let Some(free_at) = self.free_at else { return 0 };
        self.begun_ms + free_at.saturating_duration_since(self.begun).as_millis() as u64
    }

    /// Whether the step has used up its time.
    pub(super) fn is_late(&self) -> bool {
        self.budget.is_some_and(|budget| Instant::now() >= budget.until)
    }

    /// Whether a step that has looked at this many entries has to end.
    pub(super) fn is_spent(&self, examined: u64) -> bool {
        self.is_late() || self.budget.is_some_and(|budget| examined >= budget.entries)
    }

    /// Waits until the next letters may be requeued. Returns false at once if the step would take too long.
    pub(super) async fn wait(&self) -> bool {
        let Some(free_at) = self.free_at else { return true };
        if self.budget.is_some_and(|budget| free_at > budget.until) {
            return false;
        }
        tokio::time::sleep_until(free_at).await;
        true
    }

    /// Notes that `sent` letters were requeued just now.
    pub(super) fn note(&mut self, sent: u64) {
        let pause = self.pause(sent);
        self.free_at = (!pause.is_zero()).then(|| Instant::now() + pause);
    }

    /// The time that is left to wait.
    pub(super) fn left(&self) -> Duration {
        self.free_at.map_or(Duration::ZERO, |free_at| free_at.saturating_duration_since(Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pause_fits_into_the_step_or_ends_it_and_is_never_longer_than_the_rate_asks() {
        let rate = |count, secs| Some(Rate { count, per: Duration::from_secs(secs) });
        let budget = StepBudget { entries: 1, until: Instant::now() + Duration::from_secs(10) };
        let begun = |rate, not_before_ms| Pace::within(Some(budget), rate, not_before_ms, 1_000);
        let slow = begun(rate(1, 60), u64::MAX);
        assert!(!slow.wait().await && slow.left() > Duration::from_secs(50), "{:?}", slow.left());
        assert!((1_001..=61_000).contains(&slow.free_at_ms()), "{}", slow.free_at_ms());
        assert!(begun(rate(1, 60), 1_000).wait().await, "its time has come");
        assert!(begun(None, u64::MAX).wait().await, "there is no rate");
        let mut quick = begun(rate(100, 1), 0);
        quick.note(10);
        assert!(quick.left() <= Duration::from_millis(100) && quick.wait().await);
    }
}
