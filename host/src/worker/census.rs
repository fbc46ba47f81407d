//! Reads a queue's figures every few seconds for the metrics.
//!
//! The figures of a resting queue are read only while they can change. The host with the queue's duties also
//! looks whether a producer trims entries away that no host has read.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::idle::Rest;
use super::shared::SharedQueue;
use crate::queue::QueueError;

/// The greatest age of a figure, except the number of dead letters of a resting queue.
const EVERY: Duration = Duration::from_secs(5);

pub(crate) struct CensusTaker {
    pub shared: Arc<SharedQueue>,
}

impl CensusTaker {
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut rest = self.shared.idle.rest();
        let mut trimmed = None;
        let counts = async {
            loop {
                let rests = *rest.borrow_and_update() != Rest::Awake;
                let settled = match self.shared.queue.census().await {
                    Ok(census) => {
                        let is_empty = census.queued + census.running + census.delayed == 0;
                        self.shared.metrics.counted(census);
                        rests && is_empty
                    }
                    // The other loops say what is wrong with Redis.
                    Err(error) => {
                        tracing::debug!(queue = self.shared.name.as_ref(), %error, "could not count tasks");
                        false
                    }
                };
                if self.shared.idle.has_duty()
                    && let Err(error) = self.look_for_trims(&mut trimmed).await
                {
                    tracing::debug!(queue = self.shared.name.as_ref(), %error, "could not look for trims");
                }
                // The figures of a resting queue do not change until it wakes.
                if settled {
                    let _ = rest.changed().await;
                }
                tokio::time::sleep(EVERY).await;
            }
        };
        stop.run_until_cancelled(counts).await;
    }

    /// Counts and tells what was trimmed unread since the look before. `before` is what that look found.
    async fn look_for_trims(&self, before: &mut Option<u64>) -> Result<(), QueueError> {
        let Some(stand) = self.shared.queue.stand().await? else { return Ok(()) };
        let Some(now) = stand.trimmed_unread() else { return Ok(()) };
        let lost = new_trims(before.replace(now), now);
        if lost > 0 {
            self.shared.metrics.lost_entries.inc_by(lost);
            tracing::error!(
                queue = self.shared.name.as_ref(),
                at_least = lost,
                length = stand.length,
                added = stand.added,
                "tasks are lost: a producer trimmed them from the stream before any host read them; \
                 take MAXLEN and MINID out of its XADD"
            );
        }
        Ok(())
    }
}

/// The least number of entries that were trimmed between two looks. Those of the first look were lost before.
/// Newer versions of Redis begin anew when the group reads on.
fn new_trims(before: Option<u64>, now: u64) -> u64 {
    before.map_or(0, |before| if now >= before { now - before } else { now })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_trimmed_task_counts_once() {
        let looks = [3, 3, 5, 0, 2, 2];
        let mut before = None;
        let counted: Vec<u64> = looks.iter().map(|now| new_trims(before.replace(*now), *now)).collect();
        assert_eq!(counted, [0, 0, 2, 0, 2, 0]);
    }
}
