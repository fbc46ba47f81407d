//! Who computes: a handler that has computed for a tick goes on in turns with the others of its kind.
//!
//! In: how many may go on at once; the ticks and polls of each call. Out: at most so many threads are with handlers that compute for long. The other
//! threads are for handlers that have just begun, or come from a wait: these need not wait for ticks of others to end. Beside it, how long each call
//! has waited for something else than its turn.
//!
//! ```text
//! begins, or comes from a wait ─▶ computes for a tick ─▶ waits for its turn ─▶ computes for a tick ─▶ waits for its turn …
//! ```
//!
//! Not here: what makes the ticks (`engine`), what ends a handler that computes for too long (`handler`).

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::engine::TICK;

/// A tick that comes earlier than this finds a call that has only just begun to compute. Less than a tick, since no clock is exact.
const SHORT: Duration = Duration::from_millis(TICK.as_millis() as u64 / 2);

/// The turns that there are at once.
#[derive(Clone)]
pub(super) struct Turns(Arc<Semaphore>);

impl Turns {
    pub(super) fn new(at_once: usize) -> Turns {
        Turns(Arc::new(Semaphore::new(at_once)))
    }

    /// For one call.
    pub(super) fn turn(&self) -> Turn {
        Turn {
            turns: self.0.clone(),
            now: Arc::new(Mutex::new(Now { since: Instant::now(), held: None, in_line: false, left: None, waited: Duration::ZERO })),
        }
    }
}

/// One call's.
#[derive(Clone)]
pub(super) struct Turn {
    turns: Arc<Semaphore>,
    now: Arc<Mutex<Now>>,
}

struct Now {
    /// When it began to compute.
    since: Instant,
    /// What it computes by, after its first tick. Held while it is polled, and at no other time.
    held: Option<OwnedSemaphorePermit>,
    /// It waits for its turn.
    in_line: bool,
    /// When it began to wait for something else, which it does until it is polled again.
    left: Option<Instant>,
    /// How long it did that before.
    waited: Duration,
}

impl Turn {
    /// Whether it has computed for a tick since it last waited for anything. The clock ticks for those that wait, too.
    pub(super) fn is_over(&self) -> bool {
        self.now().since.elapsed() >= SHORT
    }

    /// Lets the others of its kind go first, in the order in which they came.
    pub(super) async fn next(self) {
        self.now().in_line = true;
        // Also where nobody waits: a call is ended, and its thread looks at other work, when it is not polled.
        tokio::task::yield_now().await;
        // Nobody closes it.
        let held = self.turns.clone().acquire_owned().await.ok();
        let mut now = self.now();
        now.in_line = false;
        now.held = held;
    }

    /// How long it has waited for what is not its to do: a service, a clock.
    pub(super) fn waited(&self) -> Duration {
        let now = self.now();
        now.waited + now.left.map(|left| left.elapsed()).unwrap_or_default()
    }

    /// A call that gives its turn back whenever it does not compute.
    pub(super) async fn keep<T>(self, call: impl Future<Output = T>) -> T {
        let mut call = pin!(call);
        poll_fn(|context| {
            self.now().comes();
            let polled = call.as_mut().poll(context);
            self.now().goes();
            polled
        })
        .await
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        // Nothing panics while it is locked.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Now {
    /// It is polled.
    fn comes(&mut self) {
        self.since = Instant::now();
        if let Some(left) = self.left.take() {
            self.waited += self.since.saturating_duration_since(left);
        }
    }

    /// It has been polled.
    fn goes(&mut self) {
        self.held = None;
        self.left = (!self.in_line).then(Instant::now);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Notify;

    use super::*;

    /// What a guest does that computes for `ticks` ticks: the tick calls `next` in the middle of a poll.
    async fn computes(turn: Turn, ticks: usize, done: &AtomicUsize) {
        for _ in 0..ticks {
            turn.clone().next().await;
            done.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn those_that_compute_go_on_one_after_the_other() {
        let turns = Turns::new(1);
        let counts: Arc<[AtomicUsize; 3]> = Arc::default();
        let calls: Vec<_> = (0..3)
            .map(|n| {
                let (turn, counts) = (turns.turn(), counts.clone());
                tokio::spawn(turn.clone().keep(async move {
                    for _ in 0..100 {
                        turn.clone().next().await;
                        let count = counts[n].fetch_add(1, Ordering::Relaxed);
                        let least = counts.iter().map(|count| count.load(Ordering::Relaxed)).min().expect("three");
                        assert!(count <= least + 1, "nobody is ahead by more than its turn: {counts:?}");
                    }
                }))
            })
            .collect();
        for call in calls {
            call.await.expect("each of them ends");
        }
        assert_eq!(turns.0.available_permits(), 1);
    }

    #[tokio::test]
    async fn only_what_is_not_its_turn_is_waited_for() {
        let turns = Turns::new(1);
        let (busy, sleeper) = (turns.turn(), turns.turn());
        let held = turns.0.clone().acquire_owned().await.expect("the only one");
        let waits = |turn: Turn, call: bool| {
            tokio::spawn(async move {
                let next = turn.clone();
                let sleep = tokio::time::sleep(Duration::from_secs(3600));
                turn.keep(async { if call { sleep.await } else { next.next().await } }).await;
            })
        };
        let calls = [waits(busy.clone(), false), waits(sleeper.clone(), true)];
        // Both were polled, and then waited for as long as this.
        while sleeper.waited() < Duration::from_millis(20) {
            tokio::task::yield_now().await;
        }
        assert_eq!(busy.waited(), Duration::ZERO);
        calls.iter().for_each(|call| call.abort());
        drop(held);
    }

    #[tokio::test]
    async fn who_waits_for_something_else_holds_no_turn() {
        let turns = Turns::new(1);
        let (came, goes_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let waits = {
            let (turn, came, goes_on) = (turns.turn(), came.clone(), goes_on.clone());
            tokio::spawn(turn.clone().keep(async move {
                turn.next().await;
                came.notify_one();
                goes_on.notified().await;
            }))
        };
        came.notified().await;
        let done = AtomicUsize::new(0);
        let turn = turns.turn();
        turn.clone().keep(computes(turn, 3, &done)).await;
        assert_eq!(done.load(Ordering::Relaxed), 3, "beside one that waits, and has had a turn");
        goes_on.notify_one();
        waits.await.expect("it ends");
    }

    #[tokio::test]
    async fn one_that_is_ended_while_it_waits_for_its_turn_leaves_it_to_others() {
        let turns = Turns::new(1);
        let held = turns.0.clone().acquire_owned().await.expect("the only one");
        let (ended, begun) = (turns.turn(), Arc::new(Notify::new()));
        let call = {
            let begun = begun.clone();
            tokio::spawn(ended.clone().keep(async move {
                begun.notify_one();
                ended.next().await;
            }))
        };
        begun.notified().await;
        call.abort();
        assert!(call.await.expect_err("it has no turn").is_cancelled());
        drop(held);
        let (turn, done) = (turns.turn(), AtomicUsize::new(0));
        turn.clone().keep(computes(turn, 1, &done)).await;
        assert_eq!((done.load(Ordering::Relaxed), turns.0.available_permits()), (1, 1));
    }

    #[tokio::test]
    async fn the_first_tick_is_over_when_it_was_computed_for() {
        let turn = Turns::new(1).turn();
        turn.clone()
            .keep(async {
                assert!(!turn.is_over(), "it has just begun");
                // What a guest does that computes.
                while !turn.is_over() {
                    std::hint::spin_loop();
                }
                tokio::task::yield_now().await;
                assert!(!turn.is_over(), "it comes from a wait");
            })
            .await;
    }
}
