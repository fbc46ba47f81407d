//! What a loop does about errors of Redis: says so once, waits a little longer each time, and says when it is over.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use tokio::time::Instant;

use crate::chain::chain;
use crate::queue::QueueError;

/// The waits between tries grow from the first of these to the second.
const WAIT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// An outage that goes on is mentioned this often.
const REMIND: Duration = Duration::from_secs(30);

/// The errors of one loop.
pub struct Pace {
    queue: String,
    what: &'static str,
    outage: Option<Outage>,
}

struct Outage {
    since: Instant,
    said: Instant,
    waits: ExponentialBackoff,
}

impl Pace {
    /// For the loop `what` of the queue `queue`.
    pub fn new(queue: &str, what: &'static str) -> Pace {
        Pace { queue: queue.to_owned(), what, outage: None }
    }

    /// Notes an error and gives how long to wait before the next try.
    pub fn failed(&mut self, error: &QueueError) -> Duration {
        let now = Instant::now();
        let Pace { queue, what, outage } = self;
        let fresh = outage.is_none();
        let outage = outage.get_or_insert_with(|| Outage { since: now, said: now, waits: waits() });
        if fresh || now.duration_since(outage.said) >= REMIND {
            outage.said = now;
            let for_seconds = now.duration_since(outage.since).as_secs();
            tracing::warn!(queue, r#loop = what, for_seconds, error = chain(error), "Redis does not do its part; trying again");
        }
        outage.waits.next().unwrap_or(WAIT.1)
    }

    /// Notes that it works.
    pub fn succeeded(&mut self) {
        if let Some(outage) = self.outage.take() {
            let after_seconds = outage.since.elapsed().as_secs();
            tracing::info!(queue = self.queue, r#loop = self.what, after_seconds, "Redis answers again");
        }
    }
}

fn waits() -> ExponentialBackoff {
    ExponentialBuilder::default().with_min_delay(WAIT.0).with_max_delay(WAIT.1).with_max_times(usize::MAX).with_jitter().build()
}
