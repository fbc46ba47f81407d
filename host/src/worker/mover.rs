//! Moves the items of a queue's list into the queue, as tasks.
//!
//! While the list is empty, this costs one blocking command in ten seconds. While the queue is full, the
//! items stay in the list. A queue with several lists has a loop for each: it waits for its own list, and
//! moves the items of all of them.
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
/// The first and the longest wait before the next try while the queue is full.
const FIRST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// The most items that one call of the script moves.
const MAX_BATCH: usize = 100;

pub(crate) struct Mover {
    pub shared: Arc<SharedQueue>,
    /// The keys of the queue's lists, the most urgent first.
    pub lists: Vec<String>,
    /// The index of the list that this loop waits for.
    pub waits_for: usize,
    /// The connection for blocking waits. Only this loop may use it.
    pub link: Link,
}

impl Mover {
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut pace = Pace::new(&self.shared.name, "move");
        let mut wait_if_full = FIRST_WAIT;
        let steps = async {
            loop {
                let wait = pace.after(self.step(&mut wait_if_full).await);
                tokio::time::sleep(wait).await;
            }
        };
        // A step can be cancelled: waiting takes no item, and one script moves the items.
        stop.run_until_cancelled(steps).await;
    }

    /// Returns how long to wait before the next step.
    async fn step(&self, wait_if_full: &mut Duration) -> QueueResult<Duration> {
        let list = &self.lists[self.waits_for];
        if !self.shared.queue.wait_for_item(&self.link, list, BLOCK).await? {
            return Ok(Duration::ZERO);
        }
        let moved = self.shared.queue.move_items(&self.lists, MAX_BATCH).await?;
        if moved > 0 {
            *wait_if_full = FIRST_WAIT;
            return Ok(Duration::ZERO);
        }
        // Another loop or host took the item, or the queue is full.
        let wait = *wait_if_full;
        *wait_if_full = LONGEST_WAIT.min(wait * 2);
        Ok(wait)
    }
}
