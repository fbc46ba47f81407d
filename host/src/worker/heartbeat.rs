//! Keeps the leases of what is in flight, writes its progress, and stops what was lost.
//!
//! It runs until the last task is settled, also while the host stops.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::pace::Pace;
use super::shared::Shared;
use crate::admin;
use crate::queue::{Beat, Lease};

/// A lease is renewed this many times before it would end.
const BEATS_PER_LEASE: u32 = 3;
/// A beat is also how a host learns that a task was cancelled: this is the longest that takes.
pub const LATEST: Duration = Duration::from_secs(2);
/// A retired worker's: whoever serves the queue now may have the shortest lease there can be, a second.
const RETIRED: Duration = Duration::from_millis(300);
/// News of progress waits no longer than this.
const LOOK: Duration = Duration::from_secs(1);
/// Leases renewed by one call of the script.
const MAX_BATCH: usize = 100;

pub struct Heartbeat {
    pub shared: Arc<Shared>,
    /// Cancelled when another worker may serve the queue, with another lease.
    pub retired: CancellationToken,
}

impl Heartbeat {
    pub async fn run(self, stop: CancellationToken) {
        let mut every = (self.shared.queue.rules.lease / BEATS_PER_LEASE).min(LATEST);
        let mut pace = Pace::new(&self.shared.name, "heartbeat");
        loop {
            // Looking more often than beating keeps a beat from being late by a whole look.
            let look = LOOK.min(every / 4);
            tokio::select! {
                () = tokio::time::sleep(look) => {}
                () = self.retired.cancelled(), if every > RETIRED => every = RETIRED,
                () = stop.cancelled() => return,
            }
            // Due a look early rather than a look late.
            let due = self.shared.inflight.due(every.saturating_sub(look), Instant::now());
            for beats in due.chunks(MAX_BATCH) {
                tokio::select! {
                    () = self.beat(beats, &mut pace) => {}
                    () = stop.cancelled() => return,
                }
            }
        }
    }

    async fn beat(&self, beats: &[Beat], pace: &mut Pace) {
        // From before the call: the lease runs from when Redis renews it, which is later.
        let now = Instant::now();
        match self.shared.queue.heartbeat(&self.shared.consumer, beats).await {
            Ok(leases) => {
                pace.succeeded();
                let mut deleted = Vec::new();
                for (beat, lease) in beats.iter().zip(leases) {
                    match lease {
                        Lease::Renewed => self.shared.inflight.renewed(&beat.entry, now),
                        Lease::Lost => {
                            // Of an entry that was deleted, the loss has been counted.
                            let known = self.shared.inflight.is_deleted(&beat.entry);
                            if self.shared.inflight.lost(&beat.entry) && !known {
                                self.shared.metrics.lease_lost(1);
                            }
                        }
                        Lease::Cancelled if self.shared.inflight.lost(&beat.entry) => {
                            tracing::info!(
                                queue = self.shared.name.as_ref(),
                                task = beat.task_id,
                                "cancelled while it ran"
                            );
                            self.shared.metrics.settled(admin::Settled::Cancelled);
                        }
                        Lease::Deleted | Lease::Gone => {
                            if self.shared.inflight.deleted(&beat.entry) {
                                deleted.push(beat.entry.clone());
                            }
                            if lease == Lease::Gone {
                                self.shared.inflight.lost(&beat.entry);
                            }
                        }
                        Lease::Cancelled => {}
                    }
                }
                self.shared.count_deleted(&deleted);
            }
            // Tried again at the next look: a beat may come late, but never after its time to somebody else's task.
            Err(error) => {
                self.shared.inflight.unsaid(beats);
                pace.failed(&error);
            }
        }
    }
}
