//! Reads a queue's figures now and then, for the metrics.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::shared::Shared;
use crate::queue::Census;

/// Figures are at most this old.
const EVERY: Duration = Duration::from_secs(5);

pub struct CensusTaker {
    pub shared: Arc<Shared>,
}

impl CensusTaker {
    pub async fn run(self, stop: CancellationToken) {
        loop {
            match self.shared.queue.census().await {
                Ok(census) => {
                    let Census { queued, running, delayed, dead, oldest, .. } = census;
                    self.shared.metrics.census(queued, running, delayed, dead, oldest);
                }
                // The other loops say what is wrong with Redis.
                Err(error) => tracing::debug!(queue = self.shared.name.as_ref(), %error, "could not count tasks"),
            }
            tokio::select! {
                () = tokio::time::sleep(EVERY) => {}
                () = stop.cancelled() => return,
            }
        }
    }
}
