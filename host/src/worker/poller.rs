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
/// Jobs that one call of the script looks at, and the most calls for one set in one look.
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
        // How many jobs of other queues, which are due and stay, the next look passes over.
        let mut passed = [0; 2];
        let steps = async {
            loop {
                // One host is enough; two at once do no harm.
                let looked = match self.shared.idle.has_duty() {
                    true => self.look(&mut passed).await,
                    false => Ok(EVERY),
                };
                let wait = pace.after(looked);
                // The jitter keeps hosts that started together from looking at the same time.
                tokio::time::sleep(wait.mul_f64(0.8 + 0.4 * fastrand::f64())).await;
            }
        };
        // A step can be cancelled: one script moves the jobs.
        stop.run_until_cancelled(steps).await;
    }

    /// Returns how long to wait before the next look.
    async fn look(&self, passed: &mut [u64; 2]) -> QueueResult<Duration> {
        for (set, from) in self.sets.iter().zip(passed) {
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
