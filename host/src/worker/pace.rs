//! Backoff and log lines of a loop whose calls to Redis fail.
//!
//! In: the errors and successes of the loop. Out: how long to wait before the next try. An outage is logged
//! when it begins, every 30 s while it lasts, and when it is over. Not here: an outage of many loops
//! (`storm`).

use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use tokio::time::Instant;

use super::storm::{ANSWERS, OUTAGES};
use crate::chain::chain;
use crate::guarded::Guarded;
use crate::queue::{QueueError, QueueResult};

/// The shortest and the longest wait between two tries.
const SHORTEST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(2);
/// The longest wait where Redis is away. A connection makes few tries by itself, and work should go on soon
/// when Redis is back, or another server has taken its place.
const LONGEST_AWAY: Duration = Duration::from_millis(500);
/// How often a lasting outage is logged.
const REMIND: Duration = Duration::from_secs(30);

/// The backoff of one loop. Loops of the same kind, such as the lanes of a settler, log an outage together.
pub(crate) struct Pace {
    queue: String,
    what: &'static str,
    /// The next waits. `None` while calls succeed.
    waits: Option<ExponentialBackoff>,
    outage: Arc<Guarded<Outage>>,
}

#[derive(Default)]
struct Outage {
    /// The number of loops whose calls fail.
    loops: usize,
    since: Option<Instant>,
    /// The last logged error, and when it was logged.
    logged: Option<(Instant, String)>,
}

impl Pace {
    /// For the loop `what` of the queue `queue`.
    pub(crate) fn new(queue: &str, what: &'static str) -> Pace {
        Pace { queue: queue.to_owned(), what, waits: None, outage: Arc::default() }
    }

    /// For another loop of the same kind.
    pub(crate) fn another(&self) -> Pace {
        Pace { queue: self.queue.clone(), what: self.what, waits: None, outage: self.outage.clone() }
    }

    /// Makes a call again and again until it succeeds. `what` names the loop in the log.
    pub(crate) async fn until_done<T, F>(queue: &str, what: &'static str, call: impl Fn() -> F) -> T
    where
        F: Future<Output = QueueResult<T>>,
    {
        let mut pace = Pace::new(queue, what);
        loop {
            match call().await {
                Ok(done) => {
                    pace.succeeded();
                    return done;
                }
                Err(error) => tokio::time::sleep(pace.failed(&error)).await,
            }
        }
    }

    /// Notes the result of a step. Returns how long to wait before the next one.
    pub(crate) fn after(&mut self, step: QueueResult<Duration>) -> Duration {
        match step {
            Ok(wait) => {
                self.succeeded();
                wait
            }
            Err(error) => self.failed(&error),
        }
    }

    /// Notes an error. Returns how long to wait before the next try.
    pub(crate) fn failed(&mut self, error: &QueueError) -> Duration {
        let wait = self.failed_at(Instant::now(), chain(error));
        if error.is_connection() { wait.min(LONGEST_AWAY) } else { wait }
    }

    fn failed_at(&mut self, now: Instant, error: String) -> Duration {
        let is_first = self.waits.is_none();
        let mut outage = self.outage.lock();
        outage.loops += usize::from(is_first);
        let for_seconds = now.duration_since(*outage.since.get_or_insert(now)).as_secs();
        let is_known = outage
            .logged
            .as_ref()
            .is_some_and(|(at, logged)| now.duration_since(*at) < REMIND && (!is_first || *logged == error));
        if !is_known {
            if OUTAGES.admits(&self.queue) {
                tracing::warn!(
                    queue = self.queue,
                    r#loop = self.what,
                    for_seconds,
                    error,
                    "a call to Redis failed; trying again"
                );
            }
            outage.logged = Some((now, error));
        }
        drop(outage);
        self.waits.get_or_insert_with(waits).next().unwrap_or(LONGEST)
    }

    /// Notes that a call succeeded.
    pub(crate) fn succeeded(&mut self) {
        if let Some(since) = self.leave()
            && ANSWERS.admits(&self.queue)
        {
            let after_seconds = since.elapsed().as_secs();
            tracing::info!(queue = self.queue, r#loop = self.what, after_seconds, "Redis answers again");
        }
    }

    /// Ends the outage for this loop. Returns its beginning if it is over for all loops.
    fn leave(&mut self) -> Option<Instant> {
        self.waits.take()?;
        let mut outage = self.outage.lock();
        outage.loops -= 1;
        if outage.loops > 0 {
            return None;
        }
        std::mem::take(&mut *outage).since
    }
}

impl Drop for Pace {
    fn drop(&mut self) {
        self.leave();
    }
}

fn waits() -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(SHORTEST)
        .with_max_delay(LONGEST)
        .with_max_times(usize::MAX)
        .with_jitter()
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When something was logged last, and how many loops wait.
    fn known(pace: &Pace) -> (Option<Instant>, usize) {
        let outage = pace.outage.lock();
        (outage.logged.as_ref().map(|(at, _)| *at), outage.loops)
    }

    #[test]
    fn loops_of_one_kind_tell_of_an_outage_once() {
        let mut first = Pace::new("q", "settle");
        let mut second = first.another();
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        for seconds in 0..3 {
            first.failed_at(at(seconds), "a".into());
            second.failed_at(at(seconds), "a".into());
        }
        assert_eq!(known(&first), (Some(began), 2));
        let later = began + REMIND;
        second.failed_at(later, "a".into());
        first.failed_at(later + Duration::from_secs(1), "a".into());
        assert_eq!(known(&first), (Some(later), 2), "it goes on");
        assert_eq!(
            (first.leave(), known(&first)),
            (None, (Some(later), 1)),
            "it is not over for the other one"
        );
        first.failed_at(later, "a".into());
        assert_eq!(known(&first), (Some(later), 2), "nor new for this one");
        assert_eq!(first.leave(), None);
        first.failed_at(later + Duration::from_secs(2), "b".into());
        assert_eq!(known(&first), (Some(later + Duration::from_secs(2)), 2), "another error is told of");
        drop(first);
        assert_eq!((second.leave(), known(&second)), (Some(began), (None, 0)));
    }
}
