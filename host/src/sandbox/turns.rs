//! Who computes: a handler that has computed for a tick goes on in turns with the others of its kind.
//!
//! In: how many may go on at once; the ticks and polls of each call. Out: at most so many threads are with handlers that compute for long. The other
//! threads are for handlers that have just begun, or come from a wait: these need not wait for ticks of others to end. Beside it, how long each call
//! has waited for what it is not to blame for: whatever it called, and the turns of other versions' calls.
//!
//! ```text
//! begins, or comes from a wait ─▶ computes for a tick ─▶ waits for its turn ─▶ computes for a tick ─▶ waits for its turn …
//! ```
//!
//! Not here: what makes the ticks (`engine`), what ends a handler that computes for too long (`handler`).

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::engine::TICK;

/// A tick that comes earlier than this finds a call that has only just begun to compute. Less than a tick, since no clock is exact.
const SHORT: Duration = Duration::from_millis(TICK.as_millis() as u64 / 2);

/// The turns that there are at once.
#[derive(Clone)]
pub(super) struct Turns {
    places: Arc<Semaphore>,
    /// Calls that compute in turns, of all versions.
    all: Calls,
}

/// How many calls of a version compute in turns.
#[derive(Clone, Default)]
pub(super) struct Calls(Arc<AtomicUsize>);

impl Turns {
    pub(super) fn new(at_once: usize) -> Turns {
        Turns { places: Arc::new(Semaphore::new(at_once)), all: Calls::default() }
    }

    /// For one call of a version.
    pub(super) fn turn(&self, of_version: &Calls) -> Turn {
        let now = Now { since: Instant::now(), held: None, in_turns: None, in_line: None, left: None, waited: Duration::ZERO };
        Turn { turns: self.clone(), of_version: of_version.clone(), now: Arc::new(Mutex::new(now)) }
    }
}

impl Calls {
    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// A call that computes in turns is counted, for its version and for all.
struct Counted([Calls; 2]);

impl Counted {
    fn new(calls: [Calls; 2]) -> Counted {
        for Calls(count) in &calls {
            count.fetch_add(1, Ordering::Relaxed);
        }
        Counted(calls)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        for Calls(count) in &self.0 {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// One call's.
#[derive(Clone)]
pub(super) struct Turn {
    turns: Turns,
    of_version: Calls,
    now: Arc<Mutex<Now>>,
}

struct Now {
    /// When it began to compute.
    since: Instant,
    /// What it computes by, after its first tick. Held while it is polled, and at no other time.
    held: Option<OwnedSemaphorePermit>,
    /// From its first tick until it waits for anything else.
    in_turns: Option<Counted>,
    /// It waits for its turn: since when, and what part of the line was others' calls.
    in_line: Option<(Instant, f64)>,
    /// When it began to wait for something else, which it does until it is polled again.
    left: Option<Instant>,
    /// How long it has waited so far for what it is not to blame for.
    waited: Duration,
}

impl Turn {
    /// Whether it has computed for a tick since it last waited for anything. The clock ticks for those that wait, too.
    pub(super) fn is_over(&self) -> bool {
        self.now().since.elapsed() >= SHORT
    }

    /// Lets the others of its kind go first, in the order in which they came.
    pub(super) async fn next(self) {
        {
            let mut now = self.now();
            now.in_turns.get_or_insert_with(|| Counted::new([self.of_version.clone(), self.turns.all.clone()]));
            let all = self.turns.all.count().max(1);
            let others = all.saturating_sub(self.of_version.count());
            now.in_line = Some((Instant::now(), others as f64 / all as f64));
        }
        // Also where nobody waits: a call is ended, and its thread looks at other work, when it is not polled.
        tokio::task::yield_now().await;
        // Nobody closes it.
        let held = self.turns.places.clone().acquire_owned().await.ok();
        let mut now = self.now();
        now.waited = now.waited();
        now.in_line = None;
        now.held = held;
    }

    /// How long it has waited for what it is not to blame for: a service, a clock, the handlers of others.
    pub(super) fn waited(&self) -> Duration {
        self.now().waited()
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
    fn waited(&self) -> Duration {
        let away = self.left.map(|left| left.elapsed()).unwrap_or_default();
        let in_line = self.in_line.map(|(since, others)| since.elapsed().mul_f64(others)).unwrap_or_default();
        self.waited + away + in_line
    }

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
        if self.in_line.is_none() {
            self.in_turns = None;
            self.left = Some(Instant::now());
        }
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
                let (turn, counts) = (turns.turn(&Calls::default()), counts.clone());
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
        assert_eq!(turns.places.available_permits(), 1);
    }

    #[tokio::test]
    async fn what_is_waited_for_is_what_others_do() {
        let turns = Turns::new(1);
        let [own, of_others] = [(); 2].map(|()| Calls::default());
        let [sleeps, alone, beside] = [(); 3].map(|()| turns.turn(&own));
        // What a call does that waits for a clock, and one that waits for its turn.
        let sleeping = {
            let turn = sleeps.clone();
            tokio::spawn(turn.keep(tokio::time::sleep(Duration::from_secs(3600))))
        };
        let in_line = |turn: &Turn| {
            let (turn, next) = (turn.clone(), turn.clone());
            tokio::spawn(turn.keep(async move { next.next().await }))
        };
        let wait = Duration::from_millis(30);
        // Beside calls of its own version.
        let held = turns.places.clone().acquire_owned().await.expect("the only one");
        let own_one = in_line(&turns.turn(&own));
        let first = in_line(&alone);
        tokio::time::sleep(wait).await;
        drop(held);
        first.await.expect("it has had its turn");
        own_one.await.expect("it has had its turn");
        assert_eq!(alone.now().waited, Duration::ZERO, "for its own kind only");
        assert!(sleeps.waited() >= wait / 2);
        // Beside as many of another one.
        let held = turns.places.clone().acquire_owned().await.expect("the only one");
        let other = in_line(&turns.turn(&of_others));
        tokio::task::yield_now().await;
        assert_eq!((own.count(), of_others.count(), turns.all.count()), (0, 1, 1));
        let second = in_line(&beside);
        tokio::time::sleep(wait).await;
        assert_eq!((own.count(), of_others.count(), turns.all.count()), (1, 1, 2));
        assert!(beside.waited() >= wait / 4, "before it has had its turn");
        drop(held);
        second.await.expect("it has had its turn");
        other.await.expect("it has had its turn");
        let waited = beside.now().waited;
        assert!(waited >= wait / 4, "half of those in the line were others': {waited:?}");
        // Nobody is left there, also where a call is ended in the line.
        let held = turns.places.clone().acquire_owned().await.expect("the only one");
        let ended = in_line(&beside);
        while own.count() == 0 {
            tokio::task::yield_now().await;
        }
        ended.abort();
        assert!(ended.await.expect_err("it has no turn").is_cancelled());
        drop((held, beside));
        assert_eq!((own.count(), turns.all.count()), (0, 0));
        sleeping.abort();
    }

    #[tokio::test]
    async fn who_waits_for_something_else_holds_no_turn() {
        let turns = Turns::new(1);
        let (came, goes_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let waits = {
            let (turn, came, goes_on) = (turns.turn(&Calls::default()), came.clone(), goes_on.clone());
            tokio::spawn(turn.clone().keep(async move {
                turn.next().await;
                came.notify_one();
                goes_on.notified().await;
            }))
        };
        came.notified().await;
        let done = AtomicUsize::new(0);
        let turn = turns.turn(&Calls::default());
        turn.clone().keep(computes(turn, 3, &done)).await;
        assert_eq!(done.load(Ordering::Relaxed), 3, "beside one that waits, and has had a turn");
        goes_on.notify_one();
        waits.await.expect("it ends");
    }

    #[tokio::test]
    async fn one_that_is_ended_while_it_waits_for_its_turn_leaves_it_to_others() {
        let turns = Turns::new(1);
        let held = turns.places.clone().acquire_owned().await.expect("the only one");
        let (ended, begun) = (turns.turn(&Calls::default()), Arc::new(Notify::new()));
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
        let (turn, done) = (turns.turn(&Calls::default()), AtomicUsize::new(0));
        turn.clone().keep(computes(turn, 1, &done)).await;
        assert_eq!((done.load(Ordering::Relaxed), turns.places.available_permits()), (1, 1));
    }

    #[tokio::test]
    async fn the_first_tick_is_over_when_it_was_computed_for() {
        let turn = Turns::new(1).turn(&Calls::default());
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
