//! Moves the items of a queue's list into the queue, as tasks.
//!
//! While the list is empty, this costs one blocking command in ten seconds. While the queue is full, the
//! items stay in the list.
//!
//! In: a queue with a list. Out: tasks in the queue, in the order of the list.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::pace::Pace;
use super::shared::SharedQueue;
use crate::queue::{Link, QueueResult};

/// The longest time of one wait for an item.
pub(crate) const BLOCK: Duration = Duration::from_secs(10);
/// The wait before the next try when the queue is full.
const FULL: Duration = Duration::from_secs(1);
/// Items moved by one call of the script.
const MAX_BATCH: usize = 100;

pub(crate) struct Mover {
    pub shared: Arc<SharedQueue>,
    /// The list's key.
    pub list: String,
    /// The connection for blocking waits. Only this loop may use it.
    pub link: Link,
}

impl Mover {
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut pace = Pace::new(&self.shared.name, "move");
        let steps = async {
            loop {
                let wait = pace.after(self.step().await);
                tokio::time::sleep(wait).await;
            }
        };
        // A step can be cancelled: waiting takes no item, and one script moves the items.
        stop.run_until_cancelled(steps).await;
    }

    /// Returns how long to wait before the next step.
    async fn step(&self) -> QueueResult<Duration> {
        if !self.shared.queue.wait_for_item(&self.link, &self.list, BLOCK).await? {
            return Ok(Duration::ZERO);
        }
        let moved = self.shared.queue.move_items(&self.list, MAX_BATCH).await?;
        // If nothing was moved, another host took the item, or the queue is full.
        Ok(if moved == 0 { FULL } else { Duration::ZERO })
    }
}
