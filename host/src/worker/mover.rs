//! Feeds a queue from its list.
//!
//! One blocking command in ten seconds while the list is empty; while the queue is full, the items stay in the list.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::pace::Pace;
use super::shared::Shared;
use crate::queue::{Link, QueueError};

/// How long one wait for an item takes at most.
pub const BLOCK: Duration = Duration::from_secs(10);
/// How long a full queue is left alone.
const FULL: Duration = Duration::from_secs(1);
/// Items moved by one call of the script.
const MAX_BATCH: usize = 100;

pub struct Mover {
    pub shared: Arc<Shared>,
    /// The list's key.
    pub list: String,
    /// For blocking waits, and for nothing else.
    pub link: Link,
}

impl Mover {
    pub async fn run(self, stop: CancellationToken) {
        let mut pace = Pace::new(&self.shared.name, "move");
        loop {
            // Waiting takes nothing, so it may be left; what moves items is one script.
            let step = tokio::select! {
                step = self.step() => step,
                () = stop.cancelled() => return,
            };
            let wait = match step {
                Ok(wait) => {
                    pace.succeeded();
                    wait
                }
                Err(error) => pace.failed(&error),
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = stop.cancelled() => {}
            }
        }
    }

    /// Gives how long to wait before the next step.
    async fn step(&self) -> Result<Duration, QueueError> {
        if !self.shared.queue.wait_for_item(&self.link, &self.list, BLOCK).await? {
            return Ok(Duration::ZERO);
        }
        let moved = self.shared.queue.move_items(&self.list, MAX_BATCH).await?;
        // There was an item, and it was not taken: by another host, which is well, or because the queue is full.
        Ok(if moved == 0 { FULL } else { Duration::ZERO })
    }
}
