//! Claims new entries, as many as there are free permits, for as long as there is a working plugin.
//!
//! The loop is the queue's heart: its pulse is what readiness goes by. It never ends by itself, whatever Redis does.
//!
//!     plugin there? ─▶ free permits? ─▶ delivered unseen? ─▶ XREADGROUP ─▶ intake

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::capacity::Permits;
use super::intake::{self, Claimed};
use super::pace::Pace;
use super::shared::Shared;
use crate::admin::{FetchPulse, FetchState};
use crate::chain::chain;
use crate::plugins::Version;
use crate::queue::rate::Places;
use crate::queue::{Link, QueueError};

/// How long a read waits for the first entry. Stopping takes so long at most; and an idle queue costs one command in this time.
pub const BLOCK: Duration = Duration::from_secs(1);
/// Entries claimed at once, however many permits are free: so many are marked in one script.
const MAX_BATCH: usize = 100;
/// While there is more to read than there are permits, a read waits so long for more of them: short tasks bring theirs back one by one.
const GATHER: Duration = Duration::from_millis(1);
/// How often the queue's pause is looked for.
const PAUSE_LOOK: Duration = Duration::from_secs(1);
/// How often a loop that waits for something else looks whether Redis is there.
const LOOK: Duration = Duration::from_secs(2);

pub struct Fetcher {
    shared: Arc<Shared>,
    pulse: FetchPulse,
    /// For blocking reads, and for nothing else.
    link: Link,
    looked_for_pause: Option<Instant>,
    /// Entries claimed at once, as far as the connection carries them.
    batch: usize,
    /// The last read brought all that it asked for.
    is_behind: bool,
}

/// What ended a wait.
enum Waited<T> {
    For(T),
    Stopped,
}

impl Fetcher {
    /// `link` is for blocking reads, and for nothing else.
    pub fn new(shared: Arc<Shared>, pulse: FetchPulse, link: Link) -> Fetcher {
        Fetcher { shared, pulse, link, looked_for_pause: None, batch: MAX_BATCH, is_behind: false }
    }

    pub async fn run(mut self, stop: CancellationToken) {
        let mut pace = Pace::new(&self.shared.name, "fetch");
        // The first read may wait for its first entry; that Redis answers is known sooner. Later only a read that succeeded is a beat:
        // one that is about to be tried would end a fault that goes on.
        self.beat(FetchState::Reading).await;
        while let Waited::For(version) = self.version(&stop).await {
            let claimed = match self.unpaused(&stop).await {
                Ok(Waited::Stopped) => break,
                Ok(Waited::For(())) => {
                    let Waited::For(permits) = self.permits(&stop).await else { break };
                    self.claim(&version, permits).await
                }
                Err(error) => Err(error),
            };
            match claimed {
                Ok(()) => {
                    pace.succeeded();
                    self.batch = (self.batch * 2).min(MAX_BATCH);
                }
                Err(error) => {
                    self.shared.line.wants_more(false);
                    self.shared.unseen.store(true, Ordering::Release);
                    // A batch that did not come in time may have been too much for the connection.
                    self.batch = (self.batch / 2).max(1);
                    self.pulse.fault(chain(&error));
                    if error.is_no_group() {
                        self.recreate_group().await;
                    }
                    let wait = pace.failed(&error);
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        () = stop.cancelled() => break,
                    }
                }
            }
        }
    }

    async fn claim(&mut self, version: &Arc<Version>, permits: Permits) -> Result<(), QueueError> {
        let shared = self.shared.clone();
        let count = permits.count();
        if shared.unseen.load(Ordering::Acquire) {
            // The reclaimer claims for the same consumer: between its claim and its intake, its entries would look unseen too.
            let claiming = shared.claiming.lock().await;
            let found = shared.queue.recover(&self.link, &shared.consumer, &shared.inflight.entries(), count).await?;
            shared.unseen.store(found.more, Ordering::Release);
            shared.lost(&found.lost).await;
            if !found.entries.is_empty() {
                tracing::info!(queue = shared.name.as_ref(), tasks = found.entries.len(), "took up tasks that were delivered unseen");
                intake::admit(&shared, version, found.entries, Claimed::Again, permits).await;
                drop(claiming);
                return Ok(());
            }
        }
        let places = match shared.queue.take_places(count).await? {
            Places::Taken(places) => places,
            Places::Wait(wait) => {
                permits.unused();
                shared.line.wants_more(false);
                self.pulse.beat(FetchState::Reading);
                tokio::time::sleep(wait.min(LOOK)).await;
                return Ok(());
            }
        };
        // Who shares the host's capacity does not hold any of it while there is nothing to do.
        let look_only = shared.line.is_shared();
        let since = Instant::now();
        let read = shared.queue.read(&self.link, &shared.consumer, places, if look_only { None } else { Some(BLOCK) }).await;
        // Places that are lost with an error come back by themselves, by the passing of time.
        let entries = read?;
        self.pulse.beat(FetchState::Reading);
        let (unused, found) = (places - entries.len().min(places), entries.len());
        self.is_behind = found == count;
        shared.line.wants_more(found == count);
        intake::admit(&shared, version, entries, Claimed::Read { since }, permits).await;
        shared.queue.give_places_back(unused).await?;
        if look_only && found == 0 {
            shared.queue.wait_for_new(&self.link, BLOCK).await?;
        }
        Ok(())
    }

    /// The version that runs tasks now; waits while there is none.
    async fn version(&mut self, stop: &CancellationToken) -> Waited<Arc<Version>> {
        let mut versions = self.shared.versions.clone();
        loop {
            if stop.is_cancelled() {
                return Waited::Stopped;
            }
            if let Some(version) = versions.borrow_and_update().clone() {
                return Waited::For(version);
            }
            self.shared.line.wants_more(false);
            self.beat(FetchState::WaitingForPlugin).await;
            tokio::select! {
                changed = versions.changed() => if changed.is_err() { return Waited::Stopped },
                () = tokio::time::sleep(LOOK) => {}
                () = stop.cancelled() => {}
            }
        }
    }

    /// Waits while the queue is paused. Looks once in a while only.
    async fn unpaused(&mut self, stop: &CancellationToken) -> Result<Waited<()>, QueueError> {
        while self.looked_for_pause.is_none_or(|looked| looked.elapsed() >= PAUSE_LOOK) {
            if !self.shared.queue.is_paused().await? {
                self.looked_for_pause = Some(Instant::now());
                break;
            }
            self.shared.line.wants_more(false);
            self.pulse.beat(FetchState::Paused);
            tokio::select! {
                () = tokio::time::sleep(PAUSE_LOOK) => {}
                () = stop.cancelled() => return Ok(Waited::Stopped),
            }
        }
        Ok(Waited::For(()))
    }

    /// At least one permit, and all others that are free, up to a batch.
    async fn permits(&self, stop: &CancellationToken) -> Waited<Permits> {
        let line = &self.shared.line;
        let acquire = async {
            // A queue that shares must take what it is given.
            if self.is_behind && !line.is_shared() {
                let half = (self.shared.queue.rules.concurrency as usize / 2).clamp(1, self.batch);
                line.acquire_some(half, self.batch, GATHER).await
            } else {
                line.acquire(self.batch).await
            }
        };
        let mut permits = std::pin::pin!(acquire);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Waited::Stopped,
                permits = &mut permits => return Waited::For(permits),
                () = tokio::time::sleep(LOOK) => {
                    // Permits come back when tasks are settled: while Redis refuses that, waiting for one is no progress.
                    let unsettled = self.shared.unsettled().clone();
                    match unsettled {
                        Some(why) => self.pulse.fault(why),
                        None => self.beat(FetchState::WaitingForPermit).await,
                    }
                }
            }
        }
    }

    /// A sign of life while waiting for something else than Redis, if Redis is there.
    async fn beat(&self, state: FetchState) {
        match self.link.ping().await {
            Ok(()) => self.pulse.beat(state),
            Err(error) => self.pulse.fault(chain(&error)),
        }
    }

    /// Somebody deleted the stream or the group, or everything; or only ended the read.
    async fn recreate_group(&self) {
        let queue = self.shared.name.as_ref();
        match self.shared.queue.ensure_group().await {
            Ok(false) => tracing::debug!(queue, "a read was ended; the stream and its consumer group are there"),
            Ok(true) => tracing::warn!(queue, "the stream or its consumer group was deleted; created anew, at the stream's beginning"),
            Err(error) => tracing::debug!(queue, error = chain(&error), "could not create the consumer group"),
        }
    }
}
