//! Brings back jobs of Sidekiq that are due, as the poller of Sidekiq does: from its sorted sets into the
//! list of the queue, from which the [`Mover`](super::mover) takes them. Where hosts and processes of Sidekiq
//! do so beside each other, each job is moved once.
//!
//! In: a queue with a list of Sidekiq. Out: items in the list.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::pace::Pace;
use super::shared::SharedQueue;
use crate::queue::QueueResult;

/// The usual time between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// The most jobs that one call of the script looks at, and the most calls for one set in one look.
const MAX_BATCH: usize = 100;
const MAX_CALLS: usize = 10;

pub(crate) struct Poller {
    pub shared: Arc<SharedQueue>,
    /// The keys of the sorted sets.
    pub sets: [String; 2],
}

impl Poller {
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut pace = Pace::new(&self.shared.name, "poll");
        // How many jobs at the beginning of each set the next look skips: they are due, but of other queues.
        let mut skipped = [0; 2];
        let steps = async {
            loop {
                // One host is enough; two at once do no harm.
                let looked =
                    if self.shared.idle.has_duty() { self.look(&mut skipped).await } else { Ok(EVERY) };
                let wait = pace.after(looked);
                // The jitter keeps hosts that started together from looking at the same time.
                tokio::time::sleep(wait.mul_f64(0.8 + 0.4 * fastrand::f64())).await;
            }
        };
        // A step can be cancelled: one script moves the jobs.
        stop.run_until_cancelled(steps).await;
    }

    /// Returns how long to wait before the next look.
    async fn look(&self, skipped: &mut [u64; 2]) -> QueueResult<Duration> {
        for (set, from) in self.sets.iter().zip(skipped) {
            for _ in 0..MAX_CALLS {
                let next = self.shared.queue.move_due(set, *from, MAX_BATCH).await?;
                *from = next.unwrap_or(0);
                if next.is_none() {
                    break;
                }
            }
        }
        Ok(EVERY)
    }
}
