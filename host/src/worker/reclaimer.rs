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

/// The shortest and the longest time between two looks. Between these, it is a quarter of the lease.
const SHORTEST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(5);
/// The most tasks that one claim takes over.
const MAX_BATCH: usize = 50;
/// The longest time that tasks wait for notes that only people read.
const NOTES: Duration = Duration::from_secs(1);
/// The longest wait before the next look, where nothing calls for an earlier one.
const AS_USUAL: Duration = Duration::MAX;

pub(crate) struct Reclaimer {
    pub shared: Arc<SharedQueue>,
    /// An older worker of this host, with a longer lease, may still run tasks of the queue.
    pub follows_older_worker: bool,
}

/// All that a claim needs, except places of the queue's rate limit.
struct PreparedClaim {
    version: Arc<Version>,
    permits: Permits,
    right: MayClaim,
}

impl Reclaimer {
    pub(crate) async fn run(self, stop: CancellationToken) {
        let every = (self.shared.queue.rules.lease / 4).clamp(SHORTEST, LONGEST);
        let mut pace = Pace::new(&self.shared.name, "reclaim");
        let (mut rest, mut paused) = (self.shared.idle.rest(), self.shared.idle.paused());
        let ready = async {
            if self.follows_older_worker {
                // The older worker may have sent heartbeats less often than this lease needs. Since it is
                // retired, it sends them often enough, and has begun with that after this wait.
                tokio::time::sleep(heartbeat::LATEST).await;
            }
            let _ = paused.wait_for(|pause| *pause != Pause::Unknown).await;
        };
        stop.run_until_cancelled(ready).await;
        while !stop.is_cancelled() {
            // This is read before the look, so that a change during the look is noticed.
            let rests = *rest.borrow_and_update() != Rest::Awake;
            let (wait, sleeps_until_woken) = match self.look(rests, &stop).await {
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
                () = tokio::time::sleep(wait), if !sleeps_until_woken => {}
                _ = rest.changed(), if sleeps_until_woken => {}
                () = self.shared.takeover_wanted.notified() => {}
                () = stop.cancelled() => {}
            }
        }
    }

    /// Takes tasks over. Returns the longest wait before the next look. `None`: nothing can be taken over
    /// until the queue's rest ends.
    async fn look(&self, rests: bool, stop: &CancellationToken) -> QueueResult<Option<Duration>> {
        if rests && self.shared.queue.group().await?.is_some_and(|group| group.pending == 0) {
            return Ok(None);
        }
        self.reclaim_all(stop).await.map(Some)
    }

    /// Goes once through all pending entries. Returns the longest wait before the next look. It waits for
    /// permits only if there is an entry to claim.
    async fn reclaim_all(&self, stop: &CancellationToken) -> QueueResult<Duration> {
        let shared = &self.shared;
        if !shared.idle.is_unpaused() || shared.versions.borrow().is_none() {
            return Ok(AS_USUAL);
        }
        // A queue on hold takes over one task, as its probe.
        if shared.holding.is_held() && !shared.holding.may_ask() {
            return Ok(AS_USUAL);
        }
        let mut from = "-".to_owned();
        // `abandoned` passes over entries with a valid lease without a permit, and a claim needs permits.
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
                    // Takeovers come before new tasks: the next place is for them.
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
        // During the wait for permits, Redis may have been away or refused writes, so that leases of living
        // hosts have ended.
        let version = shared.versions.borrow().clone().filter(|_| !shared.queue.is_just_back());
        if let Some(version) = version
            && let Some(right) = shared.holding.ask(permits.count()).await
        {
            return Some(PreparedClaim { version, permits, right });
        }
        permits.unused();
        None
    }

    /// Takes over up to `places` tasks, from the first of these entries on. Returns the entry to go on from;
    /// empty after the last one, and after a probe.
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
        // A consumer that lived on after an entry's last heartbeat for the time `outlived` is no dead host:
        // the lost task counts no crash.
        let found = shared.queue.reclaim(&shared.consumer, first, places, shared.queue.outlived()).await;
        // If the reply was lost, this host may own entries that it did not receive. The fetcher looks for
        // them.
        let found = found.inspect_err(|_| shared.unseen.store(true, Ordering::Release))?;
        // Entries that somebody deleted while they were pending.
        shared.end_lost(&found.lost).await;
        arrivals::note_held(shared, &found.held).await;
        // This host may still run some of these tasks, if it could not renew their leases.
        let tasks = found.entries.iter().filter(|entry| !shared.inflight.contains(&entry.id)).count();
        // Attempts that ended with their hosts are read now, since the tasks overwrite them when they begin,
        // and are noted below, once the tasks have begun.
        let attempts = shared.queue.lost_attempts(&found.entries, abandoned);
        let attempts = Box::pin(in_time(shared, attempts)).await.unwrap_or_default();
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
        if !attempts.is_empty() {
            Box::pin(in_time(shared, note_lost(shared, &attempts))).await;
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

/// Waits for a step that only serves people, but not for long. Returns its result; `None`: it failed.
async fn in_time<T>(shared: &SharedQueue, step: impl Future<Output = QueueResult<T>>) -> Option<T> {
    let queue = shared.name.as_ref();
    match tokio::time::timeout(NOTES, step).await {
        Ok(Ok(found)) => return Some(found),
        Ok(Err(error)) => tracing::debug!(%error, queue, "could not note lost attempts"),
        Err(_) => tracing::debug!(queue, "could not note lost attempts in time"),
    }
    None
}
