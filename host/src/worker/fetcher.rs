//! Claims new entries of one queue while a plugin version works and permits are free.
//!
//! In: a working version, permits, and the queue's pause, hold and rate limit. Out: claimed entries, handed
//! to `intake`. Readiness depends on this loop's pulse. The loop ends only when it is stopped, whatever Redis
//! does.
//!
//!     version? ─▶ permits? ─▶ entries delivered unseen? ─▶ XREADGROUP ─▶ intake
//!                                                              └─▶ empty for a while: rests until woken
//!
//! A busy queue has its own connection for blocking reads. A resting queue has none: its first read does not
//! block, and uses a connection that all queues of the host share.
//!
//! Not here: tasks of dead hosts (`reclaimer`), and how tasks begin (`intake`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::arrivals;
use super::capacity::Permits;
use super::holding::MayClaim;
use super::idle::Pause;
use super::intake::{self, Delivery};
use super::pace::Pace;
use super::shared::SharedQueue;
use super::storm::DELETED;
use super::waiter::{Seat, Waiter, Wake};
use crate::admin::{FetchPulse, FetchState};
use crate::chain::chain;
use crate::config::rules::Rate;
use crate::plugins::Version;
use crate::queue::rate::Places;
use crate::queue::turns::ClaimStop;
use crate::queue::wait::{self, StreamPosition};
use crate::queue::{Link, QueueResult, Redis, StreamEntry};

/// How long a read waits for the first entry, and so the longest time that stopping takes.
const BLOCK: Duration = Duration::from_secs(1);
/// The most entries of one claim.
const MAX_BATCH: usize = 200;
/// The bytes that a read may bring, estimated from recent entries. Redis cannot bound a read in bytes.
const MAX_BYTES: usize = 4 << 20;
/// The most entries of one claim over the shared connection, where large entries hold up other queues.
const SHARED_BATCH: usize = 10;
/// A queue rests after this many blocking reads in a row that returned no entry.
const QUIET: u32 = 5;
/// How long a resting queue keeps its connection. The network may close one that is idle for longer.
const KEEP: Duration = Duration::from_secs(30);
/// How often the fetcher checks that Redis is reachable while it waits for something else.
const LOOK: Duration = Duration::from_secs(2);
/// How often it looks whether the queues that its tasks enqueue to have room.
const ROOM: Duration = Duration::from_secs(1);
/// How often it looks whether tasks of other hosts have ended, while as many run as may.
const TURN: Duration = Duration::from_secs(1);
/// How often a queue that was held until a moment ago looks whether more of its tasks may start.
const RAMP: Duration = Duration::from_millis(100);

pub(crate) struct Fetcher {
    shared: Arc<SharedQueue>,
    pulse: FetchPulse,
    redis: Redis,
    waiter: Waiter,
    /// The shared connection, for reads that do not block.
    reads: Link,
    /// This queue's own connection, for blocking reads only.
    own: Option<Link>,
    /// The queue's seat at the waiter, while it is idle.
    seat: Option<(Seat, StreamPosition)>,
    /// Blocking reads in a row that returned no entry.
    quiet: u32,
    /// When the waiter woke the queue last.
    woken: Option<Instant>,
    /// The last two wakes were less than [`BLOCK`] apart.
    is_woken_often: bool,
    /// The most entries of the next claim. It is halved after an error and doubled after a success.
    batch: usize,
    sizes: Sizes,
    /// When the targets of the queue's tasks last had room.
    had_room: Option<Instant>,
    /// Places that were taken at a rate for a read that failed. It may have delivered tasks unseen.
    booked: (Option<Rate>, usize),
}

/// The size in bytes of the largest recent entry; None before the first one.
#[derive(Default)]
struct Sizes(Option<usize>);

impl Sizes {
    /// Notes the sizes of a read's entries. A large entry counts for several reads, since others may follow.
    fn saw(&mut self, entries: &[StreamEntry]) {
        if let Some(largest) = entries.iter().map(StreamEntry::bytes).max() {
            let before = self.0.unwrap_or(0);
            self.0 = Some(largest.max(before - before / 8));
        }
    }

    /// How many entries fit into `bytes`: at least one.
    fn fit(&self, bytes: usize) -> usize {
        self.0.map_or(usize::MAX, |largest| (bytes / largest.max(1)).max(1))
    }
}

/// Whether the next read should come at once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Read {
    /// There is more, or may be soon.
    Busy,
    /// There is nothing more for now.
    Drained,
    /// As many tasks of the queue run, in all hosts together, as may.
    AtLimit,
}

impl Fetcher {
    pub(crate) fn new(
        shared: Arc<SharedQueue>,
        pulse: FetchPulse,
        redis: Redis,
        waiter: Waiter,
        reads: Link,
    ) -> Fetcher {
        Fetcher {
            shared,
            pulse,
            redis,
            waiter,
            reads,
            own: None,
            seat: None,
            woken: None,
            is_woken_often: false,
            batch: MAX_BATCH,
            sizes: Sizes::default(),
            quiet: 0,
            had_room: None,
            booked: (None, 0),
        }
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut pace = Pace::new(&self.shared.name, "fetch");
        while let Some(Some(version)) = stop.run_until_cancelled(self.version()).await
            && stop.run_until_cancelled(self.unpaused()).await.is_some()
            && stop.run_until_cancelled(self.may_probe()).await.is_some()
            && stop.run_until_cancelled(self.room()).await.is_some()
            && let Some(permits) = self.permits(&stop).await
        {
            let claimed = match self.claim(&version, permits).await {
                Ok(Read::Busy) => {
                    self.wake();
                    Ok(())
                }
                Ok(Read::Drained) => self.rest(&stop).await,
                Ok(Read::AtLimit) => {
                    self.wait_for_turn(&stop).await;
                    Ok(())
                }
                Err(error) => Err(error),
            };
            match claimed {
                Ok(()) => {
                    pace.succeeded();
                    self.batch = (self.batch * 2).min(MAX_BATCH);
                }
                Err(error) => {
                    self.shared.unseen.store(true, Ordering::Release);
                    self.leave();
                    // A batch that did not arrive in time may be too large for the connection.
                    self.batch = (self.batch / 2).max(1);
                    self.pulse.fault(chain(&error));
                    if error.is_no_group() {
                        self.recreate_group().await;
                    }
                    let wait = pace.failed(&error);
                    stop.run_until_cancelled(tokio::time::sleep(wait)).await;
                }
            }
        }
        // The worker that takes over the queue shares its place, and may not be able to use it yet.
        self.leave();
    }

    async fn claim(&mut self, version: &Arc<Version>, permits: Permits) -> QueueResult<Read> {
        let shared = self.shared.clone();
        let count = permits.count();
        // A queue that was woken reads without waiting, and goes on resting if there is no more than that.
        let rests = self.seat.as_ref().is_some_and(|(seat, _)| seat.is_waited_for());
        let waits = self.own.is_some() && !rests;
        let Some(right) = shared.holding.ask(count).await else {
            permits.unused();
            shared.capacity.wants_more(false);
            return Ok(Read::Busy);
        };
        let permits = match shared.unseen.load(Ordering::Acquire) {
            false => permits,
            true => match self.recover(version, &right, permits).await? {
                Some(permits) => permits,
                None => return Ok(Read::Busy),
            },
        };
        let link = self.own.as_ref().unwrap_or(&self.reads);
        let rate = shared.limits.rate();
        let places = match shared.queue.take_places(rate, count).await? {
            Places::Taken(places) => places,
            Places::Wait(wait) => {
                permits.unused();
                shared.capacity.wants_more(false);
                self.pulse.beat(FetchState::Reading);
                right.end(0).await;
                tokio::time::sleep(wait.min(LOOK)).await;
                return Ok(Read::Busy);
            }
        };
        let block = (waits && shared.may_block_in_read()).then_some(BLOCK);
        let since = Instant::now();
        let mut stopped_by = ClaimStop::Empty;
        // After an error, the search for unseen tasks gives the places back that none of them has.
        self.booked = (rate, places);
        let entries = if shared.queue.rules.turns.are_limited() {
            let claimed = shared.queue.claim(link, &shared.consumer, places).await?;
            stopped_by = claimed.stopped_by;
            arrivals::note_held(&shared, &claimed.held).await;
            claimed.entries
        } else {
            self.read(link, places, block).await?
        };
        self.booked = (None, 0);
        self.pulse.beat(if right.is_probe() { FetchState::Held } else { FetchState::Reading });
        let (unused, found) = (places - entries.len().min(places), entries.len());
        self.sizes.saw(&entries);
        if let (Some((seat, _)), Some(last)) = (&self.seat, entries.last()) {
            seat.claimed(last.id.clone());
        }
        shared.holding.claimed(&right, &entries, found);
        // In its slow start after a hold a queue may not take what it would be granted, so others get it.
        let may_take = !right.is_probe() && shared.holding.room_after_hold() >= MAX_BATCH;
        shared.capacity.wants_more(may_take && (found == count || stopped_by == ClaimStop::Enough));
        intake::admit(&shared, version, entries, Delivery::First { since }, permits).await;
        right.end(found).await;
        shared.queue.give_places_back(rate, unused).await?;
        Ok(self.after_claim(stopped_by, found, count, rests, waits))
    }

    /// Claims tasks again that were delivered in a reply that was lost. Returns the permits if there is none.
    async fn recover(
        &mut self,
        version: &Arc<Version>,
        right: &MayClaim,
        permits: Permits,
    ) -> QueueResult<Option<Permits>> {
        let shared = &self.shared;
        let link = self.own.as_ref().unwrap_or(&self.reads);
        // The reclaimer claims for the same consumer. Until it has admitted its entries, they look unseen.
        let claiming = shared.claiming.lock().await;
        let known = shared.inflight.entries();
        let found = shared.queue.recover(link, &shared.consumer, &known, permits.count()).await?;
        shared.unseen.store(found.more, Ordering::Release);
        shared.end_lost(&found.lost).await;
        let (rate, booked) = &mut self.booked;
        *booked -= found.entries.len().min(*booked);
        if !found.more {
            shared.queue.give_places_back(*rate, *booked).await?;
            *booked = 0;
        }
        if found.entries.is_empty() {
            return Ok(Some(permits));
        }
        let (queue, tasks) = (shared.name.as_ref(), found.entries.len());
        tracing::info!(queue, tasks, "found tasks that were delivered in a reply that was lost");
        shared.holding.claimed(right, &found.entries, tasks);
        intake::admit(shared, version, found.entries, Delivery::Repeated, permits).await;
        drop(claiming);
        Ok(None)
    }

    /// Decides on the next read. The last claim asked for `count` tasks and returned `found`.
    fn after_claim(
        &mut self,
        stopped_by: ClaimStop,
        found: usize,
        count: usize,
        rests: bool,
        waits: bool,
    ) -> Read {
        match stopped_by {
            ClaimStop::Limit => return Read::AtLimit,
            ClaimStop::Older => {
                self.shared.older.notify_one();
                return Read::AtLimit;
            }
            ClaimStop::Enough => {
                self.own.get_or_insert_with(|| self.redis.link_blocking_for(BLOCK));
                return Read::Busy;
            }
            ClaimStop::Empty => {}
        }
        if rests {
            // Blocking reads suit a queue that is woken often, or that still has its connection. They get the
            // next entries sooner, and end at once when the stream is deleted.
            let stays = found == 0 || found < count && self.own.is_none();
            return if stays && !self.is_woken_often { Read::Drained } else { Read::Busy };
        }
        // The next reads block, on this connection.
        self.own.get_or_insert_with(|| self.redis.link_blocking_for(BLOCK));
        self.quiet = if found == 0 && waits { self.quiet + 1 } else { 0 };
        // For a queue that may not block in a read, the waiter waits at once.
        let is_quiet = self.quiet >= if self.shared.may_block_in_read() { QUIET } else { 1 };
        if is_quiet { Read::Drained } else { Read::Busy }
    }

    /// Reads up to `places` entries. While nothing is known of their sizes, the first one tells how many more
    /// fit.
    async fn read(
        &self,
        link: &Link,
        places: usize,
        block: Option<Duration>,
    ) -> QueueResult<Vec<StreamEntry>> {
        let SharedQueue { queue, consumer, .. } = &*self.shared;
        let first = if self.sizes.0.is_some() { places } else { 1 };
        let mut entries = queue.read(link, consumer, first, block).await?;
        if entries.len() == first && first < places {
            let mut sizes = Sizes::default();
            sizes.saw(&entries);
            let more = sizes.fit(MAX_BYTES).min(places - first);
            entries.extend(queue.read(link, consumer, more, None).await?);
        }
        Ok(entries)
    }

    /// Takes a seat at the waiter, and once a round includes it, rests until it is woken. It holds no permit.
    async fn rest(&mut self, stop: &CancellationToken) -> QueueResult {
        let shared = self.shared.clone();
        if self.seat.is_none() {
            // If the group is missing, the next read reports it.
            let Some(group) = shared.queue.group().await? else { return Ok(()) };
            let position = shared.queue.after(group);
            self.seat = Some((self.waiter.enter(position.clone(), self.pulse.clone()), position));
        }
        let Some((seat, position)) = &mut self.seat else { return Ok(()) };
        if !seat.is_waited_for() {
            // A queue that may not block in a read waits without claiming.
            if let Some(own) = self.own.as_ref().filter(|_| !shared.may_block_in_read()) {
                // The next wait is for what comes after an entry that another host has claimed.
                let found = wait::wait_for_any(own, std::slice::from_ref(position), BLOCK).await?;
                *position = found.ready.into_iter().next_back().unwrap_or_else(|| position.clone());
            }
            return Ok(());
        }
        let (mut versions, mut paused) = (shared.versions.clone(), shared.idle.paused());
        shared.idle.rests();
        let woken = tokio::select! {
            wake = seat.wake() => {
                // After an error, Redis may have delivered entries that this host never received.
                shared.unseen.fetch_or(wake == Wake::Ended, Ordering::AcqRel);
                wake
            }
            _ = versions.wait_for(Option::is_none) => Wake::Ended,
            _ = paused.wait_for(|known| *known != Pause::Unpaused) => Wake::Ended,
            () = stop.cancelled() => Wake::Ended,
            () = tokio::time::sleep(KEEP), if self.own.is_some() => {
                self.own = None;
                Wake::Look
            }
        };
        match woken {
            Wake::New => {
                let before = self.woken.replace(Instant::now());
                self.is_woken_often = before.is_some_and(|at| at.elapsed() < BLOCK);
                self.quiet = 0;
                shared.idle.wakes();
            }
            Wake::Look => self.is_woken_often = false,
            Wake::Ended => self.wake(),
        }
        Ok(())
    }

    /// Waits until a place may be free. A task of this host that ends frees one at once, and gives its
    /// permit back before; the ends of tasks of other hosts are looked for.
    async fn wait_for_turn(&mut self, stop: &CancellationToken) {
        self.leave();
        self.pulse.beat(FetchState::WaitingForTurn);
        tokio::select! {
            () = self.shared.settled.notified() => {}
            () = tokio::time::sleep(TURN) => {}
            () = stop.cancelled() => {}
        }
    }

    /// Gives up the seat at the waiter.
    fn wake(&mut self) {
        self.seat = None;
        self.shared.idle.wakes();
    }

    /// Waits for an active version. `None`: there will be none any more.
    async fn version(&mut self) -> Option<Arc<Version>> {
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
    async fn unpaused(&mut self) {
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
    async fn may_probe(&mut self) {
        let holding = self.shared.holding.clone();
        if !holding.is_held() {
            return;
        }
        self.shared.capacity.wants_more(false);
        let mut probe = std::pin::pin!(holding.may_probe());
        loop {
            self.beat(FetchState::Held).await;
            self.pulse.explain(holding.told());
            tokio::select! {
                () = &mut probe => return,
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    /// Waits while a queue that the tasks may enqueue to is full. So no attempt does work that nobody can
    /// take.
    async fn room(&mut self) {
        let shared = self.shared.clone();
        let has_targets = !shared.queue.rules.enqueue_to.is_empty() || shared.queue.relays();
        if !has_targets || self.had_room.is_some_and(|at| at.elapsed() < ROOM) {
            return;
        }
        let mut said = false;
        loop {
            match shared.queue.full_target().await {
                Ok(None) => break,
                Ok(Some(target)) => {
                    if !std::mem::replace(&mut said, true) {
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

    /// Gives up the place among the queues and the seat at the waiter.
    fn leave(&mut self) {
        self.shared.capacity.wants_more(false);
        self.wake();
    }

    /// Waits for a permit, and takes all free permits up to a batch. `None`: the loop is to stop.
    async fn permits(&self, stop: &CancellationToken) -> Option<Permits> {
        let capacity = &self.shared.capacity;
        let batch = if self.own.is_some() { self.batch } else { self.batch.min(SHARED_BATCH) };
        let batch = batch.min(self.sizes.fit(MAX_BYTES));
        let batch = if self.shared.holding.is_held() { 1 } else { batch.min(self.after_hold(stop).await?) };
        let mut permits = std::pin::pin!(capacity.acquire(batch));
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return None,
                permits = &mut permits => return Some(permits),
                () = tokio::time::sleep(LOOK) => {
                    // Permits return as tasks are settled. While settlements fail, this wait is a fault.
                    let unsettled =
                        self.shared.unsettled.lock().iter().flatten().map(|lane| lane.error.clone()).next();
                    match unsettled {
                        Some(why) => self.pulse.fault(why),
                        None => self.beat(FetchState::WaitingForPermit).await,
                    }
                }
            }
        }
    }

    /// Waits while as many tasks have started as may after a hold, and gives how many more may. `None`: the
    /// loop is to stop.
    async fn after_hold(&self, stop: &CancellationToken) -> Option<usize> {
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

    /// Beats the pulse while the fetcher waits for something else, if Redis is reachable.
    async fn beat(&self, state: FetchState) {
        match self.waiter.redis_is_there().await {
            Ok(()) => self.pulse.beat(state),
            Err(why) => self.pulse.fault(why),
        }
    }

    /// Creates the stream and the group again if they were deleted. A read can also end for other reasons.
    async fn recreate_group(&self) {
        let queue = self.shared.name.as_ref();
        match self.shared.queue.ensure_group().await {
            Ok(false) => {
                tracing::debug!(queue, "a read was ended; the stream and its consumer group are there");
            }
            Ok(true) if DELETED.admits(queue) => tracing::warn!(
                queue,
                "the stream or its consumer group was deleted; created anew, at the stream's beginning"
            ),
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(queue, error = chain(&error), "could not create the consumer group");
                if let Some(why) = error.unfit(queue) {
                    self.pulse.fault(why);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_as_large_as_entries_were_lately() {
        let entry = |bytes: usize| StreamEntry {
            id: "1-0".into(),
            fields: vec![("a".into(), vec![0; bytes - 1])],
            deliveries: 1,
        };
        let mut sizes = Sizes::default();
        assert!(sizes.fit(MAX_BYTES) >= MAX_BATCH, "nothing is known yet");
        sizes.saw(&[entry(100), entry(1 << 20)]);
        assert_eq!(sizes.fit(MAX_BYTES), 4);
        sizes.saw(&[]);
        sizes.saw(&[entry(16 << 20)]);
        assert_eq!(sizes.fit(MAX_BYTES), 1);
        for _ in 0..100 {
            sizes.saw(&[entry(100)]);
        }
        assert!(sizes.fit(MAX_BYTES) >= MAX_BATCH);
    }
}
