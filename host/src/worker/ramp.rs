//! The slow start of one queue in this host after a hold, so that the load of a service that came back grows
//! step by step. By the end of the first second one task has started, by the end of the next one two, then
//! four, and so on for ten seconds.
//!
//! In: when the hold ended, and how many tasks have started since. Out: how many more may start now.
//!
//! Not here: the hold (`holding`), waiting (`fetcher`).

use std::time::Duration;

use tokio::time::Instant;

use crate::guarded::Guarded;

/// How long the slow start lasts.
const LASTS: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Ramp(Guarded<Option<RampStarts>>);

#[derive(Debug)]
struct RampStarts {
    since: Instant,
    count: usize,
}

impl Ramp {
    pub(super) fn begin(&self) {
        *self.0.lock() = Some(RampStarts { since: Instant::now(), count: 0 });
    }

    /// Ends the slow start, because the queue is held again.
    pub(super) fn end(&self) {
        *self.0.lock() = None;
    }

    /// How many more tasks may start now.
    pub(super) fn room(&self) -> usize {
        let mut starts = self.0.lock();
        let room = starts.as_ref().and_then(|starts| room(starts.since.elapsed(), starts.count));
        if room.is_none() {
            *starts = None;
        }
        room.unwrap_or(usize::MAX)
    }

    pub(super) fn started(&self, tasks: usize) {
        if let Some(starts) = &mut *self.0.lock() {
            starts.count += tasks;
        }
    }
}

/// How many more tasks may start this long after the hold. None: the slow start is over.
fn room(elapsed: Duration, started: usize) -> Option<usize> {
    (elapsed < LASTS).then(|| (1_usize << elapsed.as_secs()).saturating_sub(started))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_as_many_have_started_after_each_second_until_ten_have_passed() {
        let (mut started, mut starts) = (0, Vec::new());
        for second in 0..10 {
            let more = room(Duration::from_millis(second * 1000 + 999), started).expect("a slow start");
            starts.push(more);
            started += more;
        }
        assert_eq!(starts, [1, 1, 2, 4, 8, 16, 32, 64, 128, 256]);
        assert_eq!(room(LASTS, started), None);
        // Seconds without tasks are not lost, and what a host took over at once counts.
        assert_eq!(
            [0, 3, 50].map(|started| room(Duration::from_secs(3), started)),
            [Some(8), Some(5), Some(0)]
        );
    }

    #[test]
    fn another_hold_ends_it() {
        let ramp = Ramp::default();
        assert_eq!(ramp.room(), usize::MAX);
        ramp.begin();
        ramp.started(1);
        assert_eq!(ramp.room(), 0);
        ramp.end();
        assert_eq!(ramp.room(), usize::MAX);
    }
}
