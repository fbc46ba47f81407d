//! Reads a queue's figures every few seconds for the metrics.
//!
//! The figures of a resting queue are read only while they can change.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::idle::Rest;
use super::shared::SharedQueue;

/// The greatest age of a figure, except the number of dead letters of a resting queue.
const EVERY: Duration = Duration::from_secs(5);

pub(crate) struct CensusTaker {
    pub shared: Arc<SharedQueue>,
}

impl CensusTaker {
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut rest = self.shared.idle.rest();
        let counts = async {
            loop {
                let rests = *rest.borrow_and_update() != Rest::Awake;
                let settled = match self.shared.queue.census().await {
                    Ok(census) => {
                        let is_empty = census.queued + census.running + census.delayed == 0;
                        *self.shared.metrics.census() = census;
                        rests && is_empty
                    }
                    // The other loops say what is wrong with Redis.
                    Err(error) => {
                        tracing::debug!(queue = self.shared.name.as_ref(), %error, "could not count tasks");
                        false
                    }
                };
                // The figures of a resting queue do not change until it wakes.
                if settled {
                    let _ = rest.changed().await;
                }
                tokio::time::sleep(EVERY).await;
            }
        };
        stop.run_until_cancelled(counts).await;
    }
}
