//! Waits for new entries of all queues of this host in which nothing happens, on one connection, and claims nothing.
//!
//! In: a [`Seat`] for each queue that rests. Out: who of them has something to read. What is there is claimed by the queue's own fetcher, within its
//! permits.
//!
//!     Waiter::enter ─▶ waited for from the next round on ─▶ a new entry ─▶ Wake::New: from the next round on, what comes after it
//!                                                       ├─▶ its turn to be looked at ─▶ Wake::Turn
//!                                                       └─▶ an error ─▶ Wake::Gone: it is not waited for any more
//!
//! A round is one XREAD over all streams. It cannot be interrupted, so a queue that enters reads for itself until the next round has begun, and one
//! that leaves is only left out of the next. Any error ends all seats: each queue then reads for itself, and whichever is broken does not come back.
//! On a cluster there is one such loop for each slot.
//!
//! While nothing comes, one queue after the other is woken to look for itself: this shows that reads work, and finds what no entry announces.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::pace::Pace;
use crate::admin::{FetchPulse, FetchState};
use crate::chain::chain;
use crate::queue::wait::{self, Place};
use crate::queue::{Link, QueueError, keys};

/// How long one round lasts at most.
pub const BLOCK: Duration = Duration::from_secs(1);
/// Of more streams than this, a round costs Redis as much as a task does. The one after a wake then begins so much later, when what was woken has
/// claimed: rounds never take more than a part of Redis, and what was woken together is found together.
const MANY: usize = 50;
const AFTER_MANY: Duration = Duration::from_millis(1);
/// Longer ago than this, the last round says nothing of whether Redis is there.
const FRESH: Duration = Duration::from_secs(4);

/// Waits for the queues of one host. Clones share it.
#[derive(Debug, Clone)]
pub struct Waiter(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    seats: Mutex<Seats>,
    /// What the last round said of Redis.
    redis: watch::Sender<Option<Result<Instant, String>>>,
    /// Told when hosts are told to look.
    told: Notify,
}

#[derive(Debug)]
struct Seats {
    taken: BTreeMap<u64, Taken>,
    next: u64,
    /// The time between two turns.
    turn_every: Duration,
}

#[derive(Debug)]
struct Taken {
    place: Place,
    pulse: FetchPulse,
    stage: watch::Sender<Stage>,
    /// Since its last turn.
    since: Instant,
    /// Its fetcher is looking for itself: what it finds says whether it lives.
    away: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Entered,
    WaitedFor,
    Turn,
    New,
    Gone,
}

/// One queue's place among those that are waited for. Dropped, it is not waited for any more.
#[derive(Debug)]
pub struct Seat {
    waiter: Waiter,
    id: u64,
    stage: watch::Receiver<Stage>,
}

/// Why a queue was woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// There may be new entries. It is waited for what comes after them.
    New,
    /// It is its turn to look for itself.
    Turn,
    /// It is not waited for any more.
    Gone,
}

impl Default for Waiter {
    fn default() -> Waiter {
        let seats = Seats { taken: BTreeMap::new(), next: 0, turn_every: BLOCK };
        Waiter(Arc::new(Inner {
            seats: Mutex::new(seats),
            redis: watch::Sender::new(None),
            told: Notify::new(),
        }))
    }
}

impl Waiter {
    /// Waits for what comes after `place` from the next round on. `pulse` beats while it waits.
    pub fn enter(&self, place: Place, pulse: FetchPulse) -> Seat {
        let mut seats = self.seats();
        let id = seats.next;
        seats.next += 1;
        let sender = watch::Sender::new(Stage::Entered);
        let stage = sender.subscribe();
        seats.taken.insert(id, Taken { place, pulse, stage: sender, since: Instant::now(), away: false });
        Seat { waiter: self.clone(), id, stage }
    }

    /// Whether Redis answered in the last round; the reason if it did not. Waits a moment for the first round.
    pub async fn redis_is_there(&self) -> Result<(), String> {
        let mut redis = self.0.redis.subscribe();
        let said = tokio::time::timeout(BLOCK * 2, redis.wait_for(Option::is_some)).await;
        match said.ok().and_then(Result::ok).and_then(|said| said.clone()) {
            Some(Err(why)) => Err(why),
            Some(Ok(at)) if at.elapsed() > FRESH => {
                Err(format!("no answer for {} s", at.elapsed().as_secs()))
            }
            Some(Ok(_)) => Ok(()),
            None => Err("no answer yet".to_owned()),
        }
    }

    /// Waits until hosts are told to look.
    pub async fn told(&self) {
        self.0.told.notified().await;
    }

    /// As many hosts take turns: all together look at one queue in a second.
    pub fn share_turns(&self, hosts: u64) {
        self.seats().turn_every = Duration::from_secs(hosts.max(1));
    }

    /// `link` is for this loop, and for nothing else.
    pub async fn run(self, link: Link, stop: CancellationToken) {
        let mut pace = Pace::new("*", "wait");
        let mut signals = None;
        let mut last_turn = Instant::now();
        loop {
            // A round claims nothing, so it may be left at any moment.
            let round = tokio::select! {
                round = self.round(&link, &mut signals) => round,
                () = stop.cancelled() => return,
            };
            match round {
                Ok(()) => {
                    pace.succeeded();
                    self.0.redis.send_replace(Some(Ok(Instant::now())));
                    self.beat_all();
                    self.give_turn(&mut last_turn);
                }
                Err(error) => {
                    signals = None;
                    self.0.redis.send_replace(Some(Err(chain(&error))));
                    self.end_all();
                    tokio::select! {
                        () = tokio::time::sleep(pace.failed(&error)) => {}
                        () = stop.cancelled() => return,
                    }
                }
            }
        }
    }

    async fn round(&self, link: &Link, signals: &mut Option<Place>) -> Result<(), QueueError> {
        if signals.is_none() {
            *signals = match wait::signals(link).await {
                Err(error) if error.is_connection() => return Err(error),
                // Whoever put something else in its place, or denies it, has hosts find out later.
                signals => signals.ok(),
            };
        }
        let mut places = self.places();
        places.extend(signals.clone());
        if places.is_empty() {
            link.ping().await?;
            tokio::time::sleep(BLOCK).await;
            return Ok(());
        }
        let ready = wait::wait_for_any(link, &places, BLOCK).await?;
        if ready.is_empty() {
            return Ok(());
        }
        for place in ready {
            if place.stream == keys::TOLD {
                *signals = Some(place);
                self.0.told.notify_one();
            } else {
                self.wake(&place);
            }
        }
        if places.len() > MANY {
            tokio::time::sleep(AFTER_MANY).await;
        }
        Ok(())
    }

    /// What a round waits for. An entry that comes before Redis has got the round's command is found by it all the same.
    fn places(&self) -> Vec<Place> {
        let mut seats = self.seats();
        let places = seats.taken.values_mut().map(|taken| {
            if !taken.is_waited_for() {
                taken.stage.send_replace(Stage::WaitedFor);
            }
            taken.place.clone()
        });
        places.collect()
    }

    /// Wakes those that wait for this stream.
    fn wake(&self, found: &Place) {
        let mut seats = self.seats();
        for taken in seats
            .taken
            .values_mut()
            .filter(|taken| taken.is_waited_for() && taken.place.stream == found.stream)
        {
            taken.place = found.clone();
            taken.stage.send_replace(Stage::New);
        }
    }

    /// Ends the seats of all that were waited for.
    fn end_all(&self) {
        self.seats().taken.retain(|_, taken| {
            if taken.is_waited_for() {
                taken.stage.send_replace(Stage::Gone);
            }
            !taken.is_waited_for()
        });
    }

    /// That Redis answered is a sign of life of each queue that is waited for.
    fn beat_all(&self) {
        let seats = self.seats();
        let waited_for = seats.taken.values().filter(|taken| !taken.away && taken.is_waited_for());
        waited_for.for_each(|taken| taken.pulse.beat(FetchState::Reading));
    }

    fn give_turn(&self, last_turn: &mut Instant) {
        let mut seats = self.seats();
        if last_turn.elapsed() < seats.turn_every {
            return;
        }
        *last_turn = Instant::now();
        let waiting = seats.taken.values_mut().filter(|taken| !taken.away && taken.is_waited_for());
        if let Some(first) = waiting.min_by_key(|taken| taken.since) {
            first.since = *last_turn;
            first.stage.send_replace(Stage::Turn);
        }
    }

    fn seats(&self) -> MutexGuard<'_, Seats> {
        self.0.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn is_waited_for(&self) -> bool {
        *self.stage.borrow() != Stage::Entered
    }
}

impl Seat {
    /// Whether the round that runs waits for this queue. Until then it has to read for itself.
    pub fn is_waited_for(&self) -> bool {
        *self.stage.borrow() != Stage::Entered
    }

    /// What was found is claimed up to this entry.
    pub fn claimed(&self, entry: String) {
        if let Some(taken) = self.waiter.seats().taken.get_mut(&self.id) {
            taken.place.after = entry;
        }
    }

    /// Waits until there is something to do. Asked again, it waits on; what came meanwhile is not missed.
    pub async fn wake(&mut self) -> Wake {
        self.is_away(false);
        loop {
            if self.stage.changed().await.is_err() {
                return Wake::Gone;
            }
            let wake = match *self.stage.borrow_and_update() {
                Stage::New => Wake::New,
                Stage::Turn => Wake::Turn,
                Stage::Gone => return Wake::Gone,
                Stage::Entered | Stage::WaitedFor => continue,
            };
            self.is_away(true);
            return wake;
        }
    }

    fn is_away(&self, away: bool) {
        if let Some(taken) = self.waiter.seats().taken.get_mut(&self.id) {
            taken.away = away;
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.waiter.seats().taken.remove(&self.id);
    }
}
