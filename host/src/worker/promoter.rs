//! Brings delayed tasks back when they are due.
//!
//! This host's own parked tasks wake the loop, so they come back on time; it also looks once a second, for those of hosts that died.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::pace::Pace;
use super::shared::Shared;

/// The longest time between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// Tasks moved by one call of the script, which keeps Redis busy for well under a millisecond with it.
const MAX_BATCH: usize = 100;

pub struct Promoter {
    pub shared: Arc<Shared>,
}

impl Promoter {
    pub async fn run(self, stop: CancellationToken) {
        let mut pace = Pace::new(&self.shared.name, "promote");
        loop {
            let wait = match self.shared.queue.promote(MAX_BATCH).await {
                Ok(promoted) => {
                    pace.succeeded();
                    if promoted.lost > 0 {
                        self.shared.metrics.lost_entries(promoted.lost);
                        tracing::error!(
                            queue = self.shared.name.as_ref(),
                            tasks = promoted.lost,
                            "delayed tasks were deleted by somebody else"
                        );
                    }
                    promoted.next_due.unwrap_or(LOOK).min(LOOK)
                }
                Err(error) => pace.failed(&error),
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.shared.parked.notified() => {}
                () = stop.cancelled() => return,
            }
        }
    }
}
