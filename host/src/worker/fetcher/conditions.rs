//! The conditions of a claim: a working version, no pause, no hold, room in the queues that the tasks enqueue
//! to, and free permits.
//!
//! In: a [`Fetcher`]. Out: waits that end when a condition holds. Meanwhile they beat the fetcher's pulse.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Fetcher, LOOK, MAX_BYTES};
use crate::admin::FetchState;
use crate::chain::chain;
use crate::plugins::Version;
use crate::worker::capacity::Permits;
use crate::worker::idle::Pause;

/// The most entries of one claim over the shared connection, where large entries hold up other queues.
const SHARED_BATCH: usize = 10;
/// How often the fetcher looks whether the queues that its tasks enqueue to have room.
const ROOM: Duration = Duration::from_secs(1);
/// How often a queue looks after a hold whether more of its tasks may start.
const RAMP: Duration = Duration::from_millis(100);

impl Fetcher {
    /// Waits for an active version. `None`: there will be none any more.
    pub(super) async fn version(&mut self) -> Option<Arc<Version>> {
        let mut versions = self.shared.versions.clone();
        loop {
            if let Some(version) = versions.borrow_and_update().clone() {
                return Some(version);
            }
            self.leave();
            self.beat(FetchState::WaitingForPlugin).await;
            tokio::select! {
                changed = versions.changed() => changed.ok()?,
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    /// Waits while the queue is paused, or while its pause is unknown.
    pub(super) async fn unpaused(&mut self) {
        let mut paused = self.shared.idle.paused();
        loop {
            let known = paused.borrow_and_update().clone();
            if known == Pause::Unpaused {
                return;
            }
            self.leave();
            match known {
                Pause::Paused => self.beat(FetchState::Paused).await,
                Pause::Refused(why) => self.pulse.fault(why),
                Pause::Unpaused | Pause::Unknown => {}
            }
            tokio::select! {
                _ = paused.changed() => {}
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    /// Waits while the queue is held, until this host may ask for the probe.
    pub(super) async fn may_probe(&mut self) {
        let holding = self.shared.holding.clone();
        if !holding.is_held() {
            return;
        }
        self.shared.capacity.wants_more(false);
        let mut probe = std::pin::pin!(holding.may_probe());
        loop {
            self.beat(FetchState::Held).await;
            self.pulse.explain(holding.in_words());
            tokio::select! {
                () = &mut probe => return,
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    /// Waits while a queue that the tasks may enqueue to is full. So no attempt does work whose tasks would
    /// be refused.
    pub(super) async fn room(&mut self) {
        let shared = self.shared.clone();
        let has_targets = !shared.queue.rules.enqueue_to.is_empty() || shared.queue.relays();
        if !has_targets || self.had_room.is_some_and(|at| at.elapsed() < ROOM) {
            return;
        }
        let mut is_logged = false;
        loop {
            match shared.queue.full_target().await {
                Ok(None) => break,
                Ok(Some(target)) => {
                    if !std::mem::replace(&mut is_logged, true) {
                        let queue = shared.name.as_ref();
                        tracing::warn!(queue, target, "waits, because the queue that it enqueues to is full");
                    }
                    self.leave();
                    self.beat(FetchState::WaitingForRoom).await;
                }
                Err(error) => self.pulse.fault(chain(&error)),
            }
            tokio::time::sleep(ROOM).await;
        }
        self.had_room = Some(Instant::now());
    }

    /// Waits for a permit, and takes as many free permits as the next claim may ask for entries. `None`: the
    /// loop is to stop.
    pub(super) async fn permits(&self, stop: &CancellationToken) -> Option<Permits> {
        let capacity = &self.shared.capacity;
        let mut batch = self.batch.min(self.sizes.fit(MAX_BYTES));
        if self.own_link.is_none() {
            batch = batch.min(SHARED_BATCH);
        }
        batch = if self.shared.holding.is_held() { 1 } else { batch.min(self.room_after_hold(stop).await?) };
        let mut permits = std::pin::pin!(capacity.acquire(batch));
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return None,
                permits = &mut permits => return Some(permits),
                () = tokio::time::sleep(LOOK) => {
                    // Permits return as tasks are settled. While settlements fail, this wait is a fault.
                    match self.shared.settle_error() {
                        Some(why) => self.pulse.fault(why),
                        None => self.beat(FetchState::WaitingForPermit).await,
                    }
                }
            }
        }
    }

    /// Waits until tasks may start in the slow start after a hold. Returns how many. `None`: the loop is to
    /// stop.
    async fn room_after_hold(&self, stop: &CancellationToken) -> Option<usize> {
        loop {
            let room = self.shared.holding.room_after_hold();
            if room > 0 {
                return Some(room);
            }
            self.shared.capacity.wants_more(false);
            self.beat(FetchState::WaitingForPermit).await;
            stop.run_until_cancelled(tokio::time::sleep(RAMP)).await?;
        }
    }

    /// Beats the pulse while the fetcher waits for something else than Redis, if Redis is reachable.
    async fn beat(&self, state: FetchState) {
        match self.waiter.redis_is_there().await {
            Ok(()) => self.pulse.beat(state),
            Err(why) => self.pulse.fault(why),
        }
    }
}
