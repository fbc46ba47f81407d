//! Decides when a content is tried again after a failure whose cause may pass: a machine that was busy, a
//! service that was not there yet.
//!
//! In: the last failure and its time. Out: when the same content is tried again, each time after a longer
//! pause. No IO, no clock.
//!
//! Not here: which causes may pass (`sandbox`: `LoadError::may_pass`, `CheckError::may_pass`), trying again
//! (`life`).

use std::time::{Duration, Instant};

/// After the first failure. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
/// No pause is longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(10 * 60);

/// How long the pauses between tries are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Pauses {
    pub(super) first: Duration,
    pub(super) longest: Duration,
}

impl Default for Pauses {
    fn default() -> Pauses {
        Pauses { first: FIRST_PAUSE, longest: LONGEST_PAUSE }
    }
}

/// The last failure of one plugin.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Failed {
    /// The digest of the content. `None`: the file was not read.
    pub(super) digest: Option<String>,
    pub(super) error: String,
    /// `None`: the content is not tried again with the same grants.
    again: Option<Again>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Again {
    at: Instant,
    pause: Duration,
}

impl Failed {
    /// A failure at `now`. The content is tried again after `pause`, if there is one.
    pub(super) fn new(
        digest: Option<String>,
        error: String,
        pause: Option<Duration>,
        now: Instant,
    ) -> Failed {
        Failed { digest, error, again: pause.map(|pause| Again { at: now + pause, pause }) }
    }

    pub(super) fn is_of(&self, digest: &str) -> bool {
        self.digest.as_deref() == Some(digest)
    }

    /// When it is tried again.
    pub(super) fn due(&self) -> Option<Instant> {
        self.again.map(|again| again.at)
    }

    /// Ends the pause at `now`.
    #[cfg(test)]
    pub(super) fn falls_due(&mut self, now: Instant) {
        if let Some(again) = &mut self.again {
            again.at = now;
        }
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due().is_some_and(|at| at <= now)
    }
}

impl Pauses {
    /// The pause after a failure of this content. `before` is the failure before it.
    pub(super) fn next(&self, before: Option<&Failed>, digest: &str) -> Duration {
        let before = before.filter(|failed| failed.is_of(digest)).and_then(|failed| failed.again);
        before.map_or(self.first, |again| again.pause.saturating_mul(2).min(self.longest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_begin_anew_with_another_content() {
        let (pauses, now) = (Pauses::default(), Instant::now());
        let fail = |before: Option<&Failed>, digest: &str| {
            let pause = pauses.next(before, digest);
            (pause.as_secs(), Failed::new(Some(digest.to_owned()), String::new(), Some(pause), now))
        };
        let (first, mut last) = fail(None, "a");
        let mut seen = vec![first];
        for _ in 0..8 {
            let (pause, failed) = fail(Some(&last), "a");
            seen.push(pause);
            last = failed;
        }
        assert_eq!(seen, [10, 20, 40, 80, 160, 320, 600, 600, 600]);
        assert_eq!(fail(Some(&last), "b").0, 10);
        assert!(!last.is_due(now + LONGEST_PAUSE / 2) && last.is_due(now + LONGEST_PAUSE));
        // A failure that may not pass is not tried again with these grants. With others, it begins anew.
        let bad = Failed::new(Some("a".to_owned()), String::new(), None, now);
        assert!(!bad.is_due(now + LONGEST_PAUSE * 100));
        assert_eq!(pauses.next(Some(&bad), "a"), FIRST_PAUSE);
    }
}
