//! Claims new entries of one queue while a plugin version works and permits are free.
//!
//! In: a working version, permits, and the queue's pause, hold and rate limit. Out: claimed entries, handed
//! to `intake`, and a pulse, on which the host's readiness depends. Whatever Redis does, the loop ends only
//! when it is stopped.
//!
//!     version? ─▶ permits? ─▶ entries delivered unseen? ─▶ XREADGROUP ─▶ intake
//!                                                              └─▶ empty for a while: rests until woken
//!
//! A busy queue has its own connection for blocking reads. A resting queue has none: its first read does not
//! block, and uses a connection that all queues of the host share.
//!
//! Not here: what has to hold before a claim (`conditions`), tasks of dead hosts (`reclaimer`), and how tasks
//! begin (`intake`).

mod conditions;

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
/// The bytes that a read may return, estimated from recent entries. Redis cannot bound a read in bytes.
const MAX_BYTES: usize = 4 << 20;
/// A queue rests after this many blocking reads in a row that returned no entry.
const EMPTY_READS: u32 = 5;
/// How long a resting queue keeps its connection. The network may close one that is idle for longer.
const KEEP_LINK: Duration = Duration::from_secs(30);
/// How often the fetcher checks that Redis is reachable while it waits for something else.
const LOOK: Duration = Duration::from_secs(2);
/// How often a queue with limited turns looks whether tasks of other hosts have ended.
const TURN: Duration = Duration::from_secs(1);

pub(crate) struct Fetcher {
    shared: Arc<SharedQueue>,
    pulse: FetchPulse,
    redis: Redis,
    waiter: Waiter,
    /// The connection that all queues share, for reads that do not block.
    shared_link: Link,
    /// This queue's own connection, for blocking reads only.
    own_link: Option<Link>,
    /// The queue's seat at the waiter, while it is idle, and the position behind its last entry.
    seat: Option<(Seat, StreamPosition)>,
    /// Blocking reads in a row that returned no entry.
    empty_reads: u32,
    /// When the waiter woke the queue last.
    woken_at: Option<Instant>,
    /// The last two wakes were less than [`BLOCK`] apart.
    is_woken_often: bool,
    /// The most entries of the next claim. It is halved after an error and doubled after a success.
    batch: usize,
    sizes: Sizes,
    /// When the queues that the tasks may enqueue to last had room.
    had_room: Option<Instant>,
    /// The rate limit's places of a read that failed. It may have delivered tasks unseen.
    unseen_places: (Option<Rate>, usize),
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

/// When the next claim should come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NextClaim {
    AtOnce,
    /// After a rest, since the queue is empty.
    AfterRest,
    /// After the end of a task: as many tasks run as may, in all hosts together.
    AfterEnd,
}

/// The claim that has just succeeded.
struct LastClaim {
    /// The entries that it asked for, and those that it got.
    asked: usize,
    found: usize,
    /// The waiter waits for the queue, and has woken it for this claim.
    was_resting: bool,
    /// It was a read on the queue's own connection.
    on_own_link: bool,
    stopped_by: ClaimStop,
}

impl Fetcher {
    pub(crate) fn new(
        shared: Arc<SharedQueue>,
        pulse: FetchPulse,
        redis: Redis,
        waiter: Waiter,
        shared_link: Link,
    ) -> Fetcher {
        Fetcher {
            shared,
            pulse,
            redis,
            waiter,
            shared_link,
            own_link: None,
            seat: None,
            woken_at: None,
            is_woken_often: false,
            batch: MAX_BATCH,
            sizes: Sizes::default(),
            empty_reads: 0,
            had_room: None,
            unseen_places: (None, 0),
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
            match self.claim_and_wait(&version, permits, &stop).await {
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
        // A worker that takes over the queue has the same place among the queues, and may not use it yet.
        self.leave();
    }

    async fn claim_and_wait(
        &mut self,
        version: &Arc<Version>,
        permits: Permits,
        stop: &CancellationToken,
    ) -> QueueResult {
        match self.claim(version, permits).await? {
            NextClaim::AtOnce => self.wake(),
            NextClaim::AfterRest => self.rest(stop).await?,
            NextClaim::AfterEnd => self.wait_for_turn(stop).await,
        }
        Ok(())
    }

    async fn claim(&mut self, version: &Arc<Version>, mut permits: Permits) -> QueueResult<NextClaim> {
        let shared = self.shared.clone();
        let count = permits.count();
        // A queue that was woken reads without waiting, and goes on resting if it has no further entries.
        let was_resting = self.seat.as_ref().is_some_and(|(seat, _)| seat.is_waited_for());
        let on_own_link = self.own_link.is_some() && !was_resting;
        let Some(right) = shared.holding.ask(count).await else {
            permits.unused();
            shared.capacity.wants_more(false);
            return Ok(NextClaim::AtOnce);
        };
        if shared.unseen.load(Ordering::Acquire) {
            let Some(unused) = self.recover(version, &right, permits).await? else {
                return Ok(NextClaim::AtOnce);
            };
            permits = unused;
        }
        let link = self.own_link.as_ref().unwrap_or(&self.shared_link);
        let rate = shared.limits.rate();
        let places = match shared.queue.take_places(rate, count).await? {
            Places::Taken(places) => places,
            Places::Wait(wait) => {
                permits.unused();
                shared.capacity.wants_more(false);
                self.pulse.beat(FetchState::Reading);
                right.end(0).await;
                tokio::time::sleep(wait.min(LOOK)).await;
                return Ok(NextClaim::AtOnce);
            }
        };
        let block = (on_own_link && shared.may_block_in_read()).then_some(BLOCK);
        let since = Instant::now();
        let mut stopped_by = ClaimStop::Empty;
        // After an error, `recover` gives back the places that no unseen task has.
        self.unseen_places = (rate, places);
        let entries = if shared.queue.rules.turns.are_limited() {
            let claimed = shared.queue.claim(link, &shared.consumer, places).await?;
            stopped_by = claimed.stopped_by;
            arrivals::note_held(&shared, &claimed.held).await;
            claimed.entries
        } else {
            self.read(link, places, block).await?
        };
        self.unseen_places = (None, 0);
        self.pulse.beat(if right.is_probe() { FetchState::Held } else { FetchState::Reading });
        let found = entries.len();
        self.sizes.saw(&entries);
        if let (Some((seat, _)), Some(last)) = (&self.seat, entries.last()) {
            seat.claimed(last.id.clone());
        }
        shared.holding.claimed(&right, &entries, found);
        // In the slow start after a hold, a queue asks for no permits that it could not use.
        let may_take = !right.is_probe() && shared.holding.room_after_hold() >= MAX_BATCH;
        shared.capacity.wants_more(may_take && (found == count || stopped_by == ClaimStop::Enough));
        intake::admit(&shared, version, entries, Delivery::First { since }, permits).await;
        right.end(found).await;
        shared.queue.give_places_back(rate, places.saturating_sub(found)).await?;
        Ok(self.after_claim(&LastClaim { asked: count, found, was_resting, on_own_link, stopped_by }))
    }

    /// Claims tasks again that were delivered in a reply that was lost. Returns the permits if there was no
    /// such task.
    async fn recover(
        &mut self,
        version: &Arc<Version>,
        right: &MayClaim,
        permits: Permits,
    ) -> QueueResult<Option<Permits>> {
        let shared = &self.shared;
        let link = self.own_link.as_ref().unwrap_or(&self.shared_link);
        // The reclaimer claims for the same consumer. Its entries look unseen until it has admitted them.
        let claiming = shared.claiming.lock().await;
        let known = shared.inflight.entries();
        let found = shared.queue.recover(link, &shared.consumer, &known, permits.count()).await?;
        shared.unseen.store(found.more, Ordering::Release);
        shared.end_lost(&found.lost).await;
        let (rate, places) = &mut self.unseen_places;
        *places = places.saturating_sub(found.entries.len());
        if !found.more {
            shared.queue.give_places_back(*rate, *places).await?;
            *places = 0;
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

    /// Decides when the next claim comes.
    fn after_claim(&mut self, last: &LastClaim) -> NextClaim {
        match last.stopped_by {
            ClaimStop::Limit => return NextClaim::AfterEnd,
            ClaimStop::ForeignPending => {
                self.shared.takeover_wanted.notify_one();
                return NextClaim::AfterEnd;
            }
            ClaimStop::Enough => {
                self.open_own_link();
                return NextClaim::AtOnce;
            }
            ClaimStop::Empty => {}
        }
        if last.was_resting {
            // Blocking reads suit a queue that is woken often, or that still has its connection. They get the
            // next entries sooner, and end at once when the stream is deleted.
            let goes_on_resting = last.found == 0 || last.found < last.asked && self.own_link.is_none();
            return match goes_on_resting && !self.is_woken_often {
                true => NextClaim::AfterRest,
                false => NextClaim::AtOnce,
            };
        }
        self.open_own_link();
        self.empty_reads = if last.found == 0 && last.on_own_link { self.empty_reads + 1 } else { 0 };
        // For a queue that may not block in a read, the waiter waits at once.
        let most = if self.shared.may_block_in_read() { EMPTY_READS } else { 1 };
        if self.empty_reads >= most { NextClaim::AfterRest } else { NextClaim::AtOnce }
    }

    /// Makes the next reads use the queue's own connection.
    fn open_own_link(&mut self) {
        self.own_link.get_or_insert_with(|| self.redis.link_blocking_for(BLOCK));
    }

    /// Reads up to `places` entries. While no sizes are known, it first reads a single entry, whose size
    /// tells how many more to read.
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

    /// Takes a seat at the waiter. Once a round of the waiter includes the queue, waits until it is woken.
    /// The fetcher holds no permit meanwhile.
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
            if let Some(own) = self.own_link.as_ref().filter(|_| !shared.may_block_in_read()) {
                // Another host may have claimed the entry that is found. The next wait is for entries after
                // it.
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
            () = tokio::time::sleep(KEEP_LINK), if self.own_link.is_some() => {
                self.own_link = None;
                Wake::Look
            }
        };
        match woken {
            Wake::New => {
                let before = self.woken_at.replace(Instant::now());
                self.is_woken_often = before.is_some_and(|at| at.elapsed() < BLOCK);
                self.empty_reads = 0;
                shared.idle.wakes();
            }
            Wake::Look => self.is_woken_often = false,
            Wake::Ended => self.wake(),
        }
        Ok(())
    }

    /// Waits until a turn may be free: until a task of this host has ended, or until it is time to look
    /// whether tasks of other hosts have.
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

    /// Gives up the place among the queues and the seat at the waiter.
    fn leave(&mut self) {
        self.shared.capacity.wants_more(false);
        self.wake();
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
