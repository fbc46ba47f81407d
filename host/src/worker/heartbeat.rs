//! Renews the leases of entries in flight, writes their progress, and stops attempts whose lease is lost.
//!
//! In: the table of entries in flight. Out: one script call for up to 100 entries that are due.
//! The loop runs until the last task is settled, even while the host stops.
//!
//! Not here: the table (`inflight`), and who takes over a lost lease (`reclaimer`).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::notices::NoticeKind;
use super::pace::Pace;
use super::shared::SharedQueue;
use crate::queue::{HeartbeatReport, Lease};

/// The number of heartbeats within one lease.
const BEATS_PER_LEASE: u32 = 3;
/// The longest time between two heartbeats. A host also learns from them that a task was cancelled.
pub(crate) const LATEST: Duration = Duration::from_secs(2);
/// The interval of a retired worker. The queue's new worker may have the shortest possible lease, a second.
const RETIRED: Duration = Duration::from_millis(300);
/// The longest time that new progress waits to be written.
const LOOK: Duration = Duration::from_secs(1);
/// Leases renewed by one call of the script.
const MAX_BATCH: usize = 100;

pub(crate) struct Heartbeat {
    pub shared: Arc<SharedQueue>,
    /// Cancelled when another worker may serve the queue, with another lease.
    pub retired: CancellationToken,
}

impl Heartbeat {
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut every = (self.shared.queue.rules.lease / BEATS_PER_LEASE).min(LATEST);
        let mut pace = Pace::new(&self.shared.name, "heartbeat");
        let looks = async {
            loop {
                // The loop looks more often than it beats, so that a beat is not late by a whole look.
                let look = LOOK.min(every / 4);
                tokio::select! {
                    () = tokio::time::sleep(look) => {}
                    () = self.retired.cancelled(), if every > RETIRED => every = RETIRED,
                }
                // A process that was stopped for a while goes on here, and must not renew the leases of
                // attempts that it is about to stop.
                self.shared.give_up_late_attempts();
                // A beat may be early by one look, but not late.
                let due = self.shared.inflight.due(every.saturating_sub(look), Instant::now());
                for beats in due.chunks(MAX_BATCH) {
                    self.beat(beats, &mut pace).await;
                }
                self.shared.holding.keep_probe().await;
            }
        };
        // While a look waits for Redis, it gives up no late attempts.
        let guard = async {
            while self.shared.queue.rules.turns.are_limited() {
                self.shared.give_up_late_attempts();
                tokio::time::sleep(self.shared.queue.rules.lease / 20).await;
            }
        };
        let both = async { tokio::join!(looks, guard) };
        stop.run_until_cancelled(both).await;
    }

    async fn beat(&self, beats: &[HeartbeatReport], pace: &mut Pace) {
        let shared = &self.shared;
        // This time is taken before the call, so the lease ends no earlier than this host believes.
        let now = Instant::now();
        match shared.queue.heartbeat(&shared.consumer, beats).await {
            Ok(leases) => {
                pace.succeeded();
                let mut deleted = Vec::new();
                for (beat, lease) in beats.iter().zip(leases) {
                    match lease {
                        Lease::Renewed => shared.inflight.mark_renewed(&beat.entry, now),
                        Lease::Lost => {
                            // The loss of a deleted entry is counted already.
                            let known = shared.inflight.is_deleted(&beat.entry);
                            if shared.inflight.mark_lost(&beat.entry) && !known {
                                shared.metrics.lease_lost.inc();
                            }
                        }
                        Lease::Cancelled if shared.queue.rules.turns.are_limited() => {
                            shared.inflight.cancel(&beat.entry);
                        }
                        Lease::Cancelled => {
                            if shared.inflight.mark_cancelled(&beat.entry) {
                                shared.count_cancelled(&beat.task_id);
                            }
                        }
                        Lease::Deleted | Lease::Gone => {
                            if shared.inflight.mark_deleted(&beat.entry) {
                                deleted.push(beat.entry.clone());
                            }
                            if lease == Lease::Gone {
                                shared.inflight.mark_lost(&beat.entry);
                            }
                        }
                        Lease::Refused(why) => {
                            shared.inflight.restore_progress(std::slice::from_ref(beat));
                            shared.log_refused(NoticeKind::HeartbeatRefused, &beat.task_id, &why);
                        }
                    }
                }
                shared.count_deleted(&deleted);
            }
            // The next look tries again. The script checks the owner, so a late beat renews no other host's
            // lease.
            Err(error) => {
                shared.inflight.restore_progress(beats);
                pace.failed(&error);
            }
        }
    }
}
