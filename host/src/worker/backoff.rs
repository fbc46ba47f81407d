//! Computes how long a failed task waits for its next attempt.
//!
//! In: the queue's backoff, the attempt, a random jitter. Out: a duration. It is pure: no clock, no random.

use std::time::Duration;

use crate::config::Backoff;

/// The wait after attempt number `attempt` (from 1) failed. `jitter` is a random number from -1 to 1.
pub(crate) fn delay(backoff: &Backoff, attempt: u32, jitter: f64) -> Duration {
    let retry = attempt.saturating_sub(1);
    match backoff {
        Backoff::None => Duration::ZERO,
        Backoff::Delays(delays) => delays.get(retry as usize).or(delays.last()).copied().unwrap_or_default(),
        Backoff::Exponential { base, max, jitter: spread } => {
            let grown =
                base.checked_mul(1u32.checked_shl(retry).unwrap_or(u32::MAX)).unwrap_or(*max).min(*max);
            grown.mul_f64((1.0 + spread * jitter.clamp(-1.0, 1.0)).max(0.0)).min(*max)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn exponential(base: u64, max: u64, jitter: f64) -> Backoff {
        Backoff::Exponential { base: Duration::from_millis(base), max: Duration::from_millis(max), jitter }
    }

    #[test]
    fn exponential_delays_double_up_to_the_maximum() {
        let waits: Vec<u128> =
            (1..=5).map(|attempt| delay(&exponential(1000, 6000, 0.0), attempt, 0.7).as_millis()).collect();
        assert_eq!(waits, [1000, 2000, 4000, 6000, 6000]);
    }

    #[test]
    fn listed_delays_are_taken_in_order_and_the_last_one_stays() {
        let delays = Backoff::Delays([10, 30, 60].map(Duration::from_secs).into());
        let waits: Vec<u64> = (1..=4).map(|attempt| delay(&delays, attempt, 1.0).as_secs()).collect();
        assert_eq!(waits, [10, 30, 60, 60]);
        assert_eq!(delay(&Backoff::None, 3, 1.0), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn jitter_stays_within_its_share_and_under_the_maximum(
            base in 1u64..100_000, factor in 1u64..100, spread in 0.0f64..=1.0,
            attempt in 1u32..5000, jitter in -1.0f64..=1.0,
        ) {
            let backoff = exponential(base, base * factor, spread);
            let plain = delay(&backoff, attempt, 0.0).as_secs_f64();
            let wait = delay(&backoff, attempt, jitter);
            prop_assert!(wait <= Duration::from_millis(base * factor));
            prop_assert!(wait.as_secs_f64() >= plain * (1.0 - spread) - 1e-6);
            prop_assert!(wait.as_secs_f64() <= plain * (1.0 + spread) + 1e-6);
        }
    }
}
