//! Keeps a queue tidy: removes the names of hosts that are gone for good, and finds tasks and idempotency keys that somebody's deletions
//! orphaned.
//!
//! Orphans are looked for in small pieces, as a shared Redis may hold millions of keys that are not ours. Every host does it; what one has
//! mended, the others find in order. Not here: what an orphan is (`queue::mend`); `tqhost doctor` looks at the whole queue at once.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::pace::Pace;
use super::shared::Shared;
use crate::queue::QueueError;
use crate::queue::mend::{TEND_FROM, Tended};

/// How often it looks.
pub const EVERY: Duration = Duration::from_secs(60);
/// A consumer that got nothing for so long is gone, or idle: Redis 7.0 does not count reads that bring nothing. The next read of one that lives
/// brings its name back.
const GONE: Duration = Duration::from_secs(3600);
/// Names removed by one call of the script.
const MAX_BATCH: usize = 1000;
/// Keys of the whole Redis in one step, and steps in one round.
const KEYS: usize = 2000;
const STEPS: usize = 5;
/// How long what looks orphaned has to move on.
const MOMENT: Duration = Duration::from_millis(500);

pub struct Janitor {
    pub shared: Arc<Shared>,
    pub every: Duration,
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
        let mut cursor = TEND_FROM.to_owned();
        loop {
            // What is begun may be left: each step is one script.
            let round = tokio::select! {
                round = self.round(gone, &mut cursor) => round,
                () = stop.cancelled() => return,
            };
            let wait = match round {
                Ok(()) => {
                    pace.succeeded();
                    self.every
                }
                Err(error) => pace.failed(&error).max(Duration::from_secs(1)),
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Looks at the consumers, and at the next piece of the keys.
    async fn round(&self, gone: Duration, cursor: &mut String) -> Result<(), QueueError> {
        let queue = self.shared.name.as_ref();
        let removed = self.shared.queue.sweep_consumers(gone, MAX_BATCH).await?;
        if removed > 0 {
            tracing::info!(queue, removed, "removed consumers of hosts that are gone");
        }
        for _ in 0..STEPS {
            let Tended { cursor: next, lost, never_ran, freed, expiring } = self.shared.queue.tend(cursor, KEYS, MOMENT).await?;
            *cursor = next;
            if !lost.is_empty() {
                // Those that ran were counted when their entry was missed.
                self.shared.metrics.lost_entries(never_ran);
                tracing::error!(queue, tasks = ?lost, "tasks are lost: somebody deleted them; their statuses say so now");
            }
            if freed + expiring > 0 {
                tracing::warn!(queue, keys = freed, statuses = expiring, "what was kept for tasks that are gone expires now");
            }
            if cursor == TEND_FROM {
                break;
            }
        }
        Ok(())
    }
}
