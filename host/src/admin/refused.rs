//! Makes it slow to guess a token, and tells of it.
//!
//! In: each request with a token that is none of `[admin]`. Out: a delay before its answer, a count for the
//! metrics, and a line in the log, at most one a minute. A right token is never delayed, so nobody can shut
//! others out by guessing. A token is safe by its length (`config::admin`), not by the delay.
//!
//! Not here: comparing tokens (`tokens`).

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use crate::guarded::Guarded;

const DELAY: Duration = Duration::from_millis(500);
/// The most answers that are delayed at once: each takes a connection, of which the listener has 64.
const MAX_DELAYED: usize = 16;
const LOG_EVERY: Duration = Duration::from_secs(60);

/// Counts the tokens that were refused. Clones share it.
#[derive(Clone)]
pub(crate) struct RefusedTokens(Arc<Tries>);

struct Tries {
    count: Counter,
    places: Semaphore,
    unlogged: Guarded<Unlogged>,
}

#[derive(Default)]
struct Unlogged {
    tries: u64,
    logged: Option<Instant>,
}

impl Default for RefusedTokens {
    fn default() -> Self {
        let (count, unlogged) = (Counter::default(), Guarded::default());
        RefusedTokens(Arc::new(Tries { count, places: Semaphore::new(MAX_DELAYED), unlogged }))
    }
}

impl RefusedTokens {
    /// The counter for the metrics.
    pub(crate) fn count(&self) -> &Counter {
        &self.0.count
    }

    /// Notes a wrong token from this address, and waits before its answer.
    pub(super) async fn note(&self, from: IpAddr) {
        self.0.count.inc();
        if let Some(tries) = self.count_try(Instant::now()) {
            tracing::warn!(
                %from,
                tries,
                "requests with a wrong token of [admin] were refused (told once a minute)"
            );
        }
        if let Ok(_place) = self.0.places.try_acquire() {
            sleep(DELAY).await;
        }
    }

    /// Counts a try for the log. Returns the number of tries since its last line, if it is time for another
    /// one.
    fn count_try(&self, now: Instant) -> Option<u64> {
        let mut unlogged = self.0.unlogged.lock();
        unlogged.tries += 1;
        if unlogged.logged.is_some_and(|at| now < at + LOG_EVERY) {
            return None;
        }
        unlogged.logged = Some(now);
        Some(std::mem::take(&mut unlogged.tries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_tells_of_all_tries_once_a_minute() {
        let (refused, now) = (RefusedTokens::default(), Instant::now());
        let told =
            [0, 1, 59, 60, 61, 200].map(|seconds| refused.count_try(now + Duration::from_secs(seconds)));
        assert_eq!(told, [Some(1), None, None, Some(3), None, Some(2)]);
    }
}
