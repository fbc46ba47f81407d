//! The end of one attempt, on its way to Redis.
//!
//! In: a verdict on a task that this host holds. Out: a [`Job`] for the settler. How many there may be at once, and with how many bytes, is the
//! matter of [`Room`].

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::inflight::Hold;
use crate::queue::Ending;

/// Bytes that a job may hold for one unit of room.
const BYTES_PER_UNIT: usize = 64 << 10;
/// Units of a queue's room: so many tasks may wait to be settled at least, and at most four for each attempt that may run.
const UNITS: (usize, usize) = (256, 4096);

/// The end of one attempt, on its way to Redis.
#[derive(Debug)]
pub struct Job {
    pub ending: Ending,
    pub label: crate::admin::Settled,
    /// Given up when the settlement is known.
    pub hold: Hold,
    _room: OwnedSemaphorePermit,
}

/// What may wait to be settled at once, in tasks and in bytes. An attempt that ends while there is no room keeps its permit to run until there is.
#[derive(Debug, Clone)]
pub struct Room {
    units: Arc<Semaphore>,
    most: usize,
}

impl Room {
    /// For a queue of which so many attempts may run at once.
    pub fn new(concurrency: usize) -> Room {
        let most = concurrency.saturating_mul(4).clamp(UNITS.0, UNITS.1);
        Room { units: Arc::new(Semaphore::new(most)), most }
    }

    /// Waits until there is room for this end. The permit to run comes back then.
    pub async fn job(&self, ending: Ending, label: crate::admin::Settled, mut hold: Hold) -> Option<Job> {
        // One that is larger than all there is takes all of it.
        let units = (1 + ending.bytes() / BYTES_PER_UNIT).min(self.most);
        let _room = self.units.clone().acquire_many_owned(u32::try_from(units).unwrap_or(u32::MAX)).await.ok()?;
        hold.has_run();
        Some(Job { ending, label, hold, _room })
    }
}
