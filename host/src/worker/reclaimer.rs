//! Takes over tasks whose host died or sent no heartbeat for a whole lease.
//!
//! In: pending entries of other consumers, permits, and a working version. Out: claimed entries, handed to
//! `intake`.
//!
//! Not here: new entries, and entries delivered unseen (`fetcher`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::capacity::Permits;
use super::holding::MayClaim;
use super::idle::{Pause, Rest};
use super::pace::Pace;
use super::shared::SharedQueue;
use super::{arrivals, heartbeat, intake};
use crate::config::rules::Rate;
use crate::plugins::Version;
use crate::queue::attempts::{AbandonedEntry, LostAttempt};
use crate::queue::rate::Places;
use crate::queue::{QueueResult, hosts};

/// The bounds of the time between two looks, which is a quarter of the lease.
const EVERY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// Tasks taken over in one step.
const MAX_BATCH: usize = 50;
/// The longest time that notes for people may take.
const NOTES: Duration = Duration::from_secs(1);
/// The next look comes after the usual time.
const AS_USUAL: Duration = Duration::MAX;

pub(crate) struct Reclaimer {
    pub shared: Arc<SharedQueue>,
    /// An older worker of this host, with a longer lease, may still run tasks of the queue.
    pub follows_older_worker: bool,
}

/// All that a claim needs, except places at the queue's rate.
struct PreparedClaim {
    version: Arc<Version>,
    permits: Permits,
    right: MayClaim,
}

impl Reclaimer {
    pub(crate) async fn run(self, stop: CancellationToken) {
        let every = (self.shared.queue.rules.lease / 4).clamp(EVERY.0, EVERY.1);
        let mut pace = Pace::new(&self.shared.name, "reclaim");
        let (mut rest, mut paused) = (self.shared.idle.rest(), self.shared.idle.paused());
        let ready = async {
            if self.follows_older_worker {
                // The older worker's heartbeats may have been further apart than this lease. After this wait
                // they are not.
                tokio::time::sleep(heartbeat::LATEST).await;
            }
            let _ = paused.wait_for(|pause| *pause != Pause::Unknown).await;
        };
        stop.run_until_cancelled(ready).await;
        while !stop.is_cancelled() {
            // This is read before the look, so that a change during the look is noticed.
            let rests = *rest.borrow_and_update() != Rest::Awake;
            let (wait, settled) = match self.look(rests, &stop).await {
                Ok(next) => {
                    pace.succeeded();
                    // The jitter keeps hosts that started together from looking at the same time.
                    let usual = every.mul_f64(0.8 + 0.4 * fastrand::f64());
                    (next.unwrap_or(AS_USUAL).min(usual), next.is_none())
                }
                // The fetcher creates the group again.
                Err(error) if error.is_no_group() => (every, false),
                Err(error) => (pace.failed(&error).max(every), false),
            };
            tokio::select! {
                () = tokio::time::sleep(wait), if !settled => {}
                _ = rest.changed(), if settled => {}
                () = self.shared.older.notified() => {}
                () = stop.cancelled() => {}
            }
        }
    }

    /// Takes tasks over. Returns the longest time until the next look. `None`: there is nothing to do until
    /// the queue's rest ends.
    async fn look(&self, rests: bool, stop: &CancellationToken) -> QueueResult<Option<Duration>> {
        if rests && self.shared.queue.group().await?.is_some_and(|group| group.pending == 0) {
            return Ok(None);
        }
        self.reclaim_all(stop).await.map(Some)
    }

    /// Goes once through all pending entries, and gives the longest time until the next look. It waits for
    /// permits only if there is an entry to claim.
    async fn reclaim_all(&self, stop: &CancellationToken) -> QueueResult<Duration> {
        let shared = &self.shared;
        if !shared.idle.is_unpaused() || shared.versions.borrow().is_none() {
            return Ok(AS_USUAL);
        }
        // A held queue takes over one task, as its probe.
        if shared.holding.is_held() && !shared.holding.may_ask() {
            return Ok(AS_USUAL);
        }
        let mut from = "-".to_owned();
        // Redis skips entries with a valid lease. Claiming past them in small steps would need permits for
        // each step.
        while !from.is_empty() {
            let abandoned = shared.queue.abandoned(&from, shared.queue.rules.lease, MAX_BATCH).await?;
            if abandoned.is_empty() {
                break;
            }
            let Some(claim) = self.prepare(stop).await else { break };
            // A task that is taken over starts again, and counts for the queue's rate limit.
            let rate = shared.limits.rate();
            match shared.queue.take_places_again(rate, claim.permits.count()).await? {
                Places::Taken(places) => from = self.claim(claim, &abandoned, rate, places).await?,
                Places::Wait(wait) => {
                    claim.permits.unused();
                    claim.right.end(0).await;
                    // The next place comes to a takeover before it comes to a new task.
                    return Ok(wait);
                }
            }
        }
        Ok(AS_USUAL)
    }

    /// Waits for permits. `None`: nothing can be claimed in this look.
    async fn prepare(&self, stop: &CancellationToken) -> Option<PreparedClaim> {
        let shared = &self.shared;
        let room = shared.holding.room_after_hold().min(MAX_BATCH);
        let most = if shared.holding.is_held() { 1 } else { room };
        if most == 0 {
            return None;
        }
        let permits = stop.run_until_cancelled(shared.capacity.acquire(most)).await?;
        // Redis may have been silent before its last answer, or refused writes while the permits were waited
        // for.
        let version = shared.versions.borrow().clone().filter(|_| !shared.queue.is_just_back());
        if let Some(version) = version
            && let Some(right) = shared.holding.ask(permits.count()).await
        {
            return Some(PreparedClaim { version, permits, right });
        }
        permits.unused();
        None
    }

    /// Takes over up to `places` tasks, from the first of these entries on. Returns the place behind them;
    /// none behind the last one, or behind a probe.
    ///
    /// A claim that has begun is not cancelled: that would leave tasks that this host owns and does not run.
    async fn claim(
        &self,
        PreparedClaim { version, permits, right }: PreparedClaim,
        abandoned: &[AbandonedEntry],
        rate: Option<Rate>,
        places: usize,
    ) -> QueueResult<String> {
        let (shared, first) = (&self.shared, &abandoned[0].id);
        let claiming = shared.claiming.lock().await;
        let found = shared.queue.reclaim(&shared.consumer, first, places, shared.queue.outlived()).await;
        // If the reply was lost, this host may own entries that it did not receive. The fetcher looks for
        // them.
        let found = found.inspect_err(|_| shared.unseen.store(true, Ordering::Release))?;
        shared.end_lost(&found.lost).await;
        arrivals::note_held(shared, &found.held).await;
        // This host may run some of them still, whose leases it could not renew.
        let tasks = found.entries.iter().filter(|entry| !shared.inflight.contains(&entry.id)).count();
        // The tasks overwrite what this reads when they begin. The notes are written after that.
        let lost = shared.queue.lost_attempts(&found.entries, abandoned);
        let lost = Box::pin(in_time(shared, lost)).await.unwrap_or_default();
        if tasks > 0 {
            shared.metrics.reclaimed.inc_by(tasks as u64);
            let queue = shared.name.as_ref();
            tracing::warn!(queue, tasks, "took over tasks whose host fell silent");
        }
        let (claimed, is_probe) = (found.entries.len(), right.is_probe());
        shared.holding.claimed(&right, &found.entries, tasks);
        intake::admit(shared, &version, found.entries, intake::Delivery::Repeated, permits).await;
        drop(claiming);
        shared.queue.give_places_back(rate, places.saturating_sub(tasks)).await?;
        if !lost.is_empty() {
            Box::pin(in_time(shared, note_lost(shared, &lost))).await;
        }
        right.end(claimed).await;
        Ok(if is_probe { String::new() } else { found.cursor })
    }
}

/// Notes attempts that ended with their hosts.
async fn note_lost(shared: &SharedQueue, lost: &[LostAttempt]) -> QueueResult {
    shared.queue.note_lost(lost).await?;
    let consumers: Vec<&str> = lost.iter().map(LostAttempt::consumer).collect();
    hosts::count_lost(&shared.queue.link, &consumers).await
}

/// The outcome of a step that only serves people, for which tasks do not wait long. None: it failed.
async fn in_time<T>(shared: &SharedQueue, step: impl Future<Output = QueueResult<T>>) -> Option<T> {
    let queue = shared.name.as_ref();
    match tokio::time::timeout(NOTES, step).await {
        Ok(Ok(found)) => return Some(found),
        Ok(Err(error)) => tracing::debug!(%error, queue, "could not note lost attempts"),
        Err(_) => tracing::debug!(queue, "could not note lost attempts in time"),
    }
    None
}
