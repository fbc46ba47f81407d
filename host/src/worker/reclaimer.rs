//! Takes over tasks whose host died, or fell silent for a whole lease.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::idle::{Pause, Rest};
use super::pace::Pace;
use super::shared::Shared;
use super::{heartbeat, intake};
use crate::queue::QueueError;
use crate::queue::rate::Places;

/// A quarter of the lease, within these bounds, lies between two looks.
const EVERY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// Tasks taken over in one step.
const MAX_BATCH: usize = 50;

pub struct Reclaimer {
    pub shared: Arc<Shared>,
    /// A worker of this host with a longer lease may have been there before.
    pub later: bool,
}

impl Reclaimer {
    pub async fn run(self, stop: CancellationToken) {
        let every = (self.shared.queue.rules.lease / 4).clamp(EVERY.0, EVERY.1);
        let mut pace = Pace::new(&self.shared.name, "reclaim");
        if self.later {
            // Its heartbeats were further apart than this lease may be long. From now on they are not.
            tokio::select! {
                () = tokio::time::sleep(heartbeat::LATEST) => {}
                () = stop.cancelled() => return,
            }
        }
        let mut rest = self.shared.idle.rest();
        let mut paused = self.shared.idle.paused();
        tokio::select! {
            _ = paused.wait_for(|pause| *pause != Pause::Unknown) => {}
            () = stop.cancelled() => return,
        }
        loop {
            // From before the look: what comes after it ends the rest.
            let rests = *rest.borrow_and_update() != Rest::Awake;
            let (wait, settled) = match self.look(rests, &stop).await {
                Ok(settled) => {
                    pace.succeeded();
                    // Hosts that started together should not look together for ever.
                    (every.mul_f64(0.8 + 0.4 * fastrand::f64()), settled)
                }
                // The fetcher mends this.
                Err(error) if error.is_no_group() => (every, false),
                Err(error) => (pace.failed(&error).max(every), false),
            };
            tokio::select! {
                () = tokio::time::sleep(wait), if !settled => {}
                _ = rest.changed(), if settled => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Gives whether there will be nothing to do for as long as the queue rests.
    async fn look(&self, rests: bool, stop: &CancellationToken) -> Result<bool, QueueError> {
        if rests && self.shared.queue.standing().await?.is_some_and(|standing| standing.pending == 0) {
            return Ok(true);
        }
        self.reclaim_all(stop).await.map(|()| false)
    }

    /// Goes once through all that is pending. Waits in line with the fetcher for permits, but only when there is something to do.
    /// A claim that has begun is carried through: cut short, it would leave tasks that are ours and that nobody runs.
    async fn reclaim_all(&self, stop: &CancellationToken) -> Result<(), QueueError> {
        let shared = &self.shared;
        let mut from = "-".to_owned();
        if !shared.idle.is_unpaused() || shared.versions.borrow().is_none() {
            return Ok(());
        }
        // Redis skips what is healthy: a claim that had to look at it in small steps would wait for permits at each of them.
        while let Some(first) = shared.queue.first_abandoned(&from, shared.queue.rules.lease).await? {
            // This answer may be the first one after a silence.
            if shared.queue.is_just_back() {
                return Ok(());
            }
            let permits = tokio::select! {
                permits = shared.line.acquire(MAX_BATCH) => permits,
                () = stop.cancelled() => return Ok(()),
            };
            let Some(version) = shared.versions.borrow().clone() else {
                permits.unused();
                return Ok(());
            };
            // What is taken over is started again, and counts for the queue's rate.
            let Places::Taken(places) = shared.queue.take_places(permits.count()).await? else {
                permits.unused();
                return Ok(());
            };
            let claiming = shared.claiming.lock().await;
            let found = shared.queue.reclaim(&shared.consumer, &first, places, shared.queue.outlived()).await;
            // If its reply was lost, what it claimed is ours: the fetcher looks for it.
            let found = found.inspect_err(|_| shared.unseen.store(true, Ordering::Release))?;
            shared.lost(&found.lost).await;
            if !found.entries.is_empty() {
                shared.metrics.reclaimed(found.entries.len() as u64);
                tracing::warn!(
                    queue = shared.name.as_ref(),
                    tasks = found.entries.len(),
                    "took over tasks whose host fell silent"
                );
            }
            let unused = places - found.entries.len().min(places);
            intake::admit(shared, &version, found.entries, intake::Claimed::Again, permits).await;
            drop(claiming);
            shared.queue.give_places_back(unused).await?;
            from = found.cursor;
            if from.is_empty() {
                break;
            }
        }
        Ok(())
    }
}
