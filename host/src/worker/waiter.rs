//! Waits on one connection for new entries of all idle queues of this host, and claims nothing.
//!
//! In: a [`Seat`] for each queue that rests. Out: a [`Wake`] for each queue that may have entries to read.
//! The queue's own fetcher claims them, within its permits.
//!
//!     Waiter::enter ─▶ part of the next round ─┬─▶ a new entry ─▶ Wake::New, the seat moves behind it
//!                                              ├─▶ the longest wait ─▶ Wake::Look
//!                                              └─▶ an error ─▶ Wake::Ended, the seat has ended
//!
//! A round is one XREAD over all streams, and it cannot be interrupted. A queue that enters therefore reads
//! for itself until the next round begins, and a queue that leaves is left out of the next round. Any error
//! ends all seats: each queue then reads for itself, and a broken queue does not enter again. If only some
//! nodes of a cluster do not answer, the seats of their queues end.
//!
//! While no entries arrive, the queues are woken in turn and read for themselves. This shows that reads work,
//! and finds tasks to take over, which no new entry announces.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::pace::Pace;
use crate::admin::{FetchPulse, FetchState};
use crate::chain::chain;
use crate::guarded::Guarded;
use crate::queue::wait::{self, StreamPosition, Waited};
use crate::queue::{Link, QueueResult, keys};

/// The longest time that one round takes.
pub(crate) const BLOCK: Duration = Duration::from_secs(1);
/// A round over more streams than this costs Redis as much as a task does.
const MANY: usize = 50;
/// The delay before the round that follows a wake, if there are more than [`MANY`] streams. The woken queues
/// claim in this time. So rounds take only a part of Redis's time, and one round finds many entries.
const AFTER_MANY: Duration = Duration::from_millis(1);
/// The time between two tries to find the position in the stream of signals.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// A round that ended longer ago than this does not show that Redis is reachable.
const FRESH: Duration = Duration::from_secs(4);

/// Waits for the queues of one host. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Waiter(Arc<WaiterState>);

#[derive(Debug)]
struct WaiterState {
    seats: Guarded<Seats>,
    /// The time of the last round that Redis answered, or the error of the last round.
    redis: watch::Sender<Option<Result<Instant, String>>>,
    /// Notified when hosts are asked to look at once (`queue::wait::request_look`).
    look_requested: Notify,
}

#[derive(Debug)]
struct Seats {
    resting: BTreeMap<u64, RestingQueue>,
    next: u64,
    /// The time between two looks.
    look_every: Duration,
}

#[derive(Debug)]
struct RestingQueue {
    position: StreamPosition,
    pulse: FetchPulse,
    stage: watch::Sender<Stage>,
    /// When the queue was last woken to look.
    last_look: Instant,
    /// Its fetcher is awake and beats the pulse itself.
    is_awake: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Entered,
    WaitedFor,
    Woken(Wake),
}

/// One queue's place among the queues that the waiter waits for. Dropping it ends the wait.
#[derive(Debug)]
pub(crate) struct Seat {
    waiter: Waiter,
    id: u64,
    stage: watch::Receiver<Stage>,
}

/// Why a queue was woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wake {
    /// There may be new entries. The waiter now waits for the entries after them.
    New,
    /// The queue is to read for itself, as its last look is the longest ago.
    Look,
    /// The seat has ended: the waiter does not wait for this queue any more.
    Ended,
}

impl Default for Waiter {
    fn default() -> Waiter {
        let seats = Seats { resting: BTreeMap::new(), next: 0, look_every: BLOCK };
        Waiter(Arc::new(WaiterState {
            seats: Guarded::new(seats),
            redis: watch::Sender::new(None),
            look_requested: Notify::new(),
        }))
    }
}

impl Waiter {
    /// Waits for entries after `position`, beginning with the next round. `pulse` beats while it waits.
    pub(crate) fn enter(&self, position: StreamPosition, pulse: FetchPulse) -> Seat {
        let mut seats = self.0.seats.lock();
        let id = seats.next;
        seats.next += 1;
        let sender = watch::Sender::new(Stage::Entered);
        let stage = sender.subscribe();
        let (last_look, is_awake) = (Instant::now(), false);
        seats.resting.insert(id, RestingQueue { position, pulse, stage: sender, last_look, is_awake });
        Seat { waiter: self.clone(), id, stage }
    }

    /// Whether Redis answered in the last round; if not, the error. Waits up to two rounds for the first one.
    pub(crate) async fn redis_is_there(&self) -> Result<(), String> {
        let mut redis = self.0.redis.subscribe();
        let last = tokio::time::timeout(BLOCK * 2, redis.wait_for(Option::is_some)).await;
        match last.ok().and_then(Result::ok).and_then(|last| last.clone()) {
            Some(Err(why)) => Err(why),
            Some(Ok(at)) if at.elapsed() > FRESH => {
                Err(format!("no answer for {} s", at.elapsed().as_secs()))
            }
            Some(Ok(_)) => Ok(()),
            None => Err("no answer yet".to_owned()),
        }
    }

    /// Waits until hosts are asked to look at once.
    pub(crate) async fn look_requested(&self) {
        self.0.look_requested.notified().await;
    }

    /// Sets the number of hosts that share the looks. All hosts together look once per second.
    pub(crate) fn share_looks(&self, hosts: u64) {
        self.0.seats.lock().look_every = Duration::from_secs(hosts.max(1));
    }

    /// Runs rounds until `stop` is cancelled. Only this loop may use `link`.
    pub(crate) async fn run(self, link: Link, stop: CancellationToken) {
        let mut pace = Pace::new("*", "wait");
        let mut signals = SignalStream::default();
        let mut last_look = Instant::now();
        let rounds = async {
            loop {
                match self.round(&link, &mut signals).await {
                    Ok(()) => {
                        pace.succeeded();
                        self.0.redis.send_replace(Some(Ok(Instant::now())));
                        self.beat_all();
                        self.wake_to_look(&mut last_look);
                    }
                    Err(error) => {
                        signals = SignalStream::default();
                        self.0.redis.send_replace(Some(Err(chain(&error))));
                        self.end(|_| true);
                        tokio::time::sleep(pace.failed(&error)).await;
                    }
                }
            }
        };
        // A round claims nothing, so it can be cancelled at any moment.
        stop.run_until_cancelled(rounds).await;
    }

    async fn round(&self, link: &Link, signals: &mut SignalStream) -> QueueResult {
        signals.find(link).await?;
        let mut positions = self.positions();
        positions.extend(signals.position.clone());
        if positions.is_empty() {
            link.ping().await?;
            tokio::time::sleep(BLOCK).await;
            return Ok(());
        }
        let Waited { ready, unreachable } = wait::wait_for_any(link, &positions, BLOCK).await?;
        if unreachable.iter().any(|stream| stream == keys::LOOK_REQUESTED) {
            signals.position = None;
        }
        self.end(|resting| unreachable.contains(&resting.position.stream));
        if ready.is_empty() {
            return Ok(());
        }
        for position in ready {
            if position.stream == keys::LOOK_REQUESTED {
                signals.position = Some(position);
                self.0.look_requested.notify_one();
            } else {
                self.wake(&position);
            }
        }
        if positions.len() > MANY {
            tokio::time::sleep(AFTER_MANY).await;
        }
        Ok(())
    }

    /// The positions that a round waits for. The round also finds entries that were added before its command.
    fn positions(&self) -> Vec<StreamPosition> {
        let mut seats = self.0.seats.lock();
        let positions = seats.resting.values_mut().map(|resting| {
            if !resting.is_waited_for() {
                resting.stage.send_replace(Stage::WaitedFor);
            }
            resting.position.clone()
        });
        positions.collect()
    }

    /// Wakes the queues that wait for this stream.
    fn wake(&self, found: &StreamPosition) {
        let mut seats = self.0.seats.lock();
        for resting in seats.resting.values_mut() {
            if resting.is_waited_for() && resting.position.stream == found.stream {
                resting.position = found.clone();
                resting.stage.send_replace(Stage::Woken(Wake::New));
            }
        }
    }

    /// Ends the seats of these queues, as far as they were part of a round.
    fn end(&self, is_meant: impl Fn(&RestingQueue) -> bool) {
        self.0.seats.lock().resting.retain(|_, resting| {
            let ends = resting.is_waited_for() && is_meant(resting);
            if ends {
                resting.stage.send_replace(Stage::Woken(Wake::Ended));
            }
            !ends
        });
    }

    /// Beats the pulse of every resting queue, because Redis answered.
    fn beat_all(&self) {
        let seats = self.0.seats.lock();
        let waiting = seats.resting.values().filter(|resting| !resting.is_awake && resting.is_waited_for());
        waiting.for_each(|resting| resting.pulse.beat(FetchState::Reading));
    }

    /// Wakes the queue whose last look is the longest ago, if it is time for a look.
    fn wake_to_look(&self, last_look: &mut Instant) {
        let mut seats = self.0.seats.lock();
        if last_look.elapsed() < seats.look_every {
            return;
        }
        *last_look = Instant::now();
        let waiting =
            seats.resting.values_mut().filter(|resting| !resting.is_awake && resting.is_waited_for());
        if let Some(first) = waiting.min_by_key(|resting| resting.last_look) {
            first.last_look = *last_look;
            first.stage.send_replace(Stage::Woken(Wake::Look));
        }
    }
}

/// The stream by which hosts are asked to look.
#[derive(Default)]
struct SignalStream {
    position: Option<StreamPosition>,
    asked: Option<Instant>,
}

impl SignalStream {
    /// Finds the position from which to wait for signals. Without one, hosts only look at intervals: if the
    /// key has another type, if access is denied, or if its node of a cluster is away, which must not hold up
    /// queues of other nodes.
    async fn find(&mut self, link: &Link) -> QueueResult {
        if self.position.is_some() || self.asked.is_some_and(|asked| asked.elapsed() < ASK_AGAIN) {
            return Ok(());
        }
        self.position = match wait::signals(link).await {
            Err(error) if error.is_connection() && !link.is_cluster() => return Err(error),
            found => found.ok(),
        };
        self.asked = Some(Instant::now());
        Ok(())
    }
}

impl RestingQueue {
    fn is_waited_for(&self) -> bool {
        *self.stage.borrow() != Stage::Entered
    }
}

impl Seat {
    /// Whether this queue is part of a round.
    pub(crate) fn is_waited_for(&self) -> bool {
        *self.stage.borrow() != Stage::Entered
    }

    /// Notes that the fetcher has claimed everything up to this entry.
    pub(crate) fn claimed(&self, entry: String) {
        if let Some(resting) = self.waiter.0.seats.lock().resting.get_mut(&self.id) {
            resting.position.after = entry;
        }
    }

    /// Waits until there is something to do. A wake between two calls is not missed.
    pub(crate) async fn wake(&mut self) -> Wake {
        self.set_awake(false);
        loop {
            if self.stage.changed().await.is_err() {
                return Wake::Ended;
            }
            let stage = *self.stage.borrow_and_update();
            if let Stage::Woken(wake) = stage {
                self.set_awake(true);
                return wake;
            }
        }
    }

    fn set_awake(&self, is_awake: bool) {
        if let Some(resting) = self.waiter.0.seats.lock().resting.get_mut(&self.id) {
            resting.is_awake = is_awake;
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.waiter.0.seats.lock().resting.remove(&self.id);
    }
}
