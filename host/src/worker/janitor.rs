//! Keeps the group tidy: removes the names of hosts that are gone for good.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Shared;
use super::pace::Pace;

/// How often it looks.
const EVERY: Duration = Duration::from_secs(60);
/// A consumer that asked for nothing for so long is gone: a living one asks every second.
const GONE: Duration = Duration::from_secs(3600);
/// Names removed by one call of the script.
const MAX_BATCH: usize = 1000;

pub struct Janitor {
    pub shared: Arc<Shared>,
}

impl Janitor {
    pub async fn run(self, stop: CancellationToken) {
        let queue = self.shared.name.as_ref();
        match self.shared.queue.other_groups().await {
            Ok(groups) if groups.is_empty() => {}
            Ok(groups) => {
                tracing::warn!(
                    queue,
                    ?groups,
                    "the stream has other consumer groups; entries are deleted when they are settled, read by these or not"
                );
            }
            Err(error) => tracing::debug!(queue, %error, "could not look for other groups"),
        }
        // A pause lets go of nothing that is pending, however long it is; and a lease may be longer than an hour.
        let gone = GONE.max(self.shared.queue.rules.lease * 2);
        let mut pace = Pace::new(queue, "janitor");
        loop {
            let wait = match self.shared.queue.sweep_consumers(gone, MAX_BATCH).await {
                Ok(removed) => {
                    pace.succeeded();
                    if removed > 0 {
                        tracing::info!(queue, removed, "removed consumers of hosts that are gone");
                    }
                    EVERY
                }
                Err(error) => pace.failed(&error).max(Duration::from_secs(1)),
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = stop.cancelled() => return,
            }
        }
    }
}
