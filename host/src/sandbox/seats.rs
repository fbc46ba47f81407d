//! The tasks that one instance runs at the same time, as its guest and their attempts see them.
//!
//! ```text
//! InstanceSeats::add ─▶ SeatEvent::Start ─▶ the guest takes it ─▶ InstanceSeats::ended ─▶ Left::Ended
//!                        InstanceSeats::stop ─▶ SeatEvent::Stop ─▶ the guest takes it ─▶ Left::Told
//! ```
//!
//! A task is *live* until its attempt has an end. After that the guest may still be busy with it: then it
//! keeps its seat, and nothing that it does counts. An instance is *open* while it takes more tasks. It
//! closes for good when no task is live, when it has run enough of them, or when something is wrong with it.
//!
//! A guest that does not take the news of a stop within [`HELD`] is busy, or does not ask. Then the task that
//! computes is the reason, or nobody knows it.
//!
//! Not here: the instance (`together`), the interface that the guest calls (`host::tasks`).

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use super::attempt::{Attempt, Ended};
use super::log::GuestLog;
use super::waits::GuestWaits;
use crate::guarded::Guarded;
use crate::task::Task;

/// A task that computes for longer than this, or a guest that takes no news for as long, holds up the tasks
/// of its instance. No more tasks join it.
pub(super) const HELD: Duration = Duration::from_secs(1);
/// An instance that has not forgotten a task for this long after its end takes no more tasks.
const TO_FORGET: Duration = Duration::from_secs(10);

/// The number of the next task of any instance. An instance is kept for further tasks, and what one has left
/// behind in it must never pass for another.
static NUMBERS: AtomicU32 = AtomicU32::new(0);

/// How a task left its instance.
#[derive(Debug)]
pub(super) enum Left {
    Ended(Ended),
    /// The guest has heard that it is to stop.
    Told,
    /// Another task holds the instance, or the guest takes no news.
    HeldUp,
    /// It holds the instance itself, so only the end of the instance stops it.
    Holds,
    /// The instance was stopped, as the host needs its memory.
    Evicted,
}

/// A task on its way to the guest.
pub(super) struct Seated {
    pub(super) attempt: Arc<Attempt>,
    pub(super) log: Arc<Guarded<GuestLog>>,
    pub(super) waits: Arc<GuestWaits>,
    /// Cancelled when its attempt has an end.
    pub(super) over: CancellationToken,
    pub(super) since: Instant,
}

/// News for the guest.
pub(super) enum SeatEvent {
    Start(u32, Box<Seated>),
    Stop(u32),
}

pub(super) struct InstanceSeats {
    most: usize,
    max_tasks: u32,
    now: Guarded<SeatsNow>,
    /// When the instance got its place in the engine.
    began: OnceLock<Instant>,
    /// Cancelled when `began` is set.
    pub(super) has_begun: CancellationToken,
    /// Notified when there is an event for the guest.
    pub(super) news: Notify,
    /// Cancelled when no task is live, and none may come.
    pub(super) over: CancellationToken,
    /// Cancelled when only the end of the instance stops a task.
    pub(super) broken: CancellationToken,
    /// The most memory of the instance so far, in bytes.
    pub(super) peak: AtomicU64,
}

struct SeatsNow {
    is_open: bool,
    /// Tasks that the instance has begun, with those of earlier calls.
    begun: u32,
    events: VecDeque<SeatEvent>,
    live: BTreeMap<u32, oneshot::Sender<Left>>,
    /// Tasks that are not live, and that the guest has not forgotten, and since when.
    left: BTreeMap<u32, Instant>,
    /// Whether the instance must not be kept.
    is_spoiled: bool,
    /// The task that computes, and since when.
    entered: Option<(u32, Instant)>,
}

/// The line of the log about a handler that should not have `concurrent`.
const HOLD_EACH_OTHER_UP: &str = "tasks of one instance hold each other up: one computes for longer than a \
    second, or waits without `await`; let the handler wait with `await`, or remove `concurrent`";

/// The most tasks that are remembered for ending their instance.
const MOST_APART: usize = 1000;

/// The instances of a version that take more tasks.
#[derive(Default)]
pub(super) struct OpenInstances {
    open: Guarded<Vec<Arc<InstanceSeats>>>,
    /// The last tasks that have ended their instance. Their next attempts run apart from others.
    apart: Guarded<VecDeque<String>>,
    /// Whether the log says that tasks hold each other up.
    has_told: AtomicBool,
}

impl OpenInstances {
    /// Notes that a task has ended its instance.
    pub(super) fn keep_apart(&self, task: &Task) {
        let mut apart = self.apart.lock();
        apart.truncate(MOST_APART - 1);
        apart.push_front(name(task));
    }

    pub(super) fn is_apart(&self, task: &Task) -> bool {
        let apart = self.apart.lock();
        !apart.is_empty() && apart.contains(&name(task))
    }

    /// Takes a seat in an instance that has one. The flag says that it is a new instance.
    pub(super) fn seat(
        &self,
        seated: Box<Seated>,
        end: oneshot::Sender<Left>,
        new: impl FnOnce() -> InstanceSeats,
    ) -> (Arc<InstanceSeats>, u32, bool) {
        let mut open = self.open.lock();
        open.retain(|seats| seats.is_open());
        let mut waits = (seated, end);
        for seats in open.iter() {
            match seats.add(waits.0, waits.1) {
                Ok(number) => return (seats.clone(), number, false),
                Err(back) => waits = back,
            }
        }
        if open.iter().any(|seats| seats.holds_others_up(&seats.now.lock()))
            && !self.has_told.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(plugin = %waits.0.attempt.plugin, "{HOLD_EACH_OTHER_UP}");
        }
        let seats = Arc::new(new());
        open.push(seats.clone());
        let Ok(number) = seats.add(waits.0, waits.1) else { unreachable!("a new instance has a seat") };
        (seats, number, true)
    }
}

/// Queues of one plugin may have tasks with the same id.
fn name(task: &Task) -> String {
    format!("{}:{}", task.queue, task.id)
}

impl InstanceSeats {
    pub(super) fn new(most: u32, max_tasks: u32) -> InstanceSeats {
        InstanceSeats {
            most: most as usize,
            max_tasks,
            now: Guarded::new(SeatsNow {
                is_open: true,
                begun: 0,
                events: VecDeque::new(),
                live: BTreeMap::new(),
                left: BTreeMap::new(),
                is_spoiled: false,
                entered: None,
            }),
            began: OnceLock::new(),
            has_begun: CancellationToken::new(),
            news: Notify::new(),
            over: CancellationToken::new(),
            broken: CancellationToken::new(),
            peak: AtomicU64::new(0),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.now.lock().is_open
    }

    /// Adds a task, if there is a seat. Returns its number, or the task.
    pub(super) fn add(
        &self,
        seated: Box<Seated>,
        end: oneshot::Sender<Left>,
    ) -> Result<u32, (Box<Seated>, oneshot::Sender<Left>)> {
        let mut now = self.now.lock();
        let forgets = now.left.values().all(|since| since.elapsed() < TO_FORGET);
        now.is_open &= forgets;
        if !now.is_open || self.holds_others_up(&now) || now.live.len() + now.left.len() >= self.most {
            return Err((seated, end));
        }
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        now.begun = now.begun.saturating_add(1);
        now.is_open = now.begun < self.max_tasks;
        now.live.insert(number, end);
        now.events.push_back(SeatEvent::Start(number, seated));
        drop(now);
        self.news.notify_one();
        Ok(number)
    }

    /// Starts the clocks of the tasks. The instance has run `begun` tasks before.
    pub(super) fn begin(&self, begun: u32) {
        let mut now = self.now.lock();
        now.begun = now.begun.saturating_add(begun);
        now.is_open &= now.begun < self.max_tasks;
        self.began.get_or_init(Instant::now);
        drop(now);
        self.has_begun.cancel();
    }

    /// When the clock of a task began that was added at this time.
    pub(super) fn start_of(&self, added: Instant) -> Instant {
        self.began.get().map_or(added, |began| added.max(*began))
    }

    /// Whether a task computes for too long, or the guest takes no news.
    fn holds_others_up(&self, now: &SeatsNow) -> bool {
        now.entered.is_some_and(|(_, since)| since.elapsed() > HELD) || self.is_deaf(now)
    }

    /// Whether the guest has not taken a task for long.
    fn is_deaf(&self, now: &SeatsNow) -> bool {
        let untaken = now.events.iter().find_map(|event| match event {
            SeatEvent::Start(_, seated) => Some(seated.since),
            SeatEvent::Stop(_) => None,
        });
        let has_begun = self.began.get().is_some();
        has_begun && untaken.is_some_and(|since| self.start_of(since).elapsed() > HELD)
    }

    /// Takes no more tasks, and is not kept.
    pub(super) fn spoil(&self) {
        let mut now = self.now.lock();
        (now.is_open, now.is_spoiled) = (false, true);
    }

    /// The next event for the guest. `Err`: all tasks have ended.
    pub(super) fn next(&self) -> Result<Option<SeatEvent>, ()> {
        let mut now = self.now.lock();
        match now.events.pop_front() {
            Some(SeatEvent::Stop(number)) => {
                if let Some(live) = now.live.remove(&number) {
                    now.left.insert(number, Instant::now());
                    let _ = live.send(Left::Told);
                    self.look(&mut now);
                }
                Ok(Some(SeatEvent::Stop(number)))
            }
            Some(event) => Ok(Some(event)),
            None if self.over.is_cancelled() => Err(()),
            None => Ok(None),
        }
    }

    /// Whether [`InstanceSeats::next`] has anything to tell.
    pub(super) fn has_news(&self) -> bool {
        !self.now.lock().events.is_empty() || self.over.is_cancelled()
    }

    /// Notes which task computes.
    pub(super) fn enter(&self, number: Option<u32>) {
        self.now.lock().entered = number.map(|number| (number, Instant::now()));
    }

    pub(super) fn entered(&self) -> Option<u32> {
        self.now.lock().entered.map(|(number, _)| number)
    }

    /// Whether a task has computed for so long that it holds the instance.
    pub(super) fn is_held(&self) -> bool {
        self.now.lock().entered.is_some_and(|(_, since)| since.elapsed() > HELD)
    }

    /// Ends a task, and frees its seat. The end does not count if the task is not live.
    pub(super) fn ended(&self, number: u32, end: impl FnOnce() -> Ended) {
        let mut now = self.now.lock();
        now.left.remove(&number);
        now.events.retain(|event| !matches!(event, SeatEvent::Stop(of) if *of == number));
        if let Some(live) = now.live.remove(&number) {
            // The attempt may have ended at this moment.
            let _ = live.send(Left::Ended(end()));
        }
        self.look(&mut now);
    }

    /// Asks the guest to stop a live task, or takes it back if the guest does not have it yet.
    pub(super) fn stop(&self, number: u32) {
        let mut now = self.now.lock();
        let place = now.events.iter().position(|event| match event {
            SeatEvent::Start(of, _) | SeatEvent::Stop(of) => *of == number,
        });
        if let Some(place) = place {
            if matches!(now.events[place], SeatEvent::Start(..)) {
                drop(now.events.remove(place));
                if let Some(live) = now.live.remove(&number) {
                    let _ = live.send(Left::HeldUp);
                }
            }
        } else if now.live.contains_key(&number) {
            now.events.push_back(SeatEvent::Stop(number));
            self.news.notify_one();
        }
        self.look(&mut now);
    }

    /// Why the guest has not heard for [`HELD`] that a task is to stop. Ends the instance if nobody knows.
    pub(super) fn held_up(&self, number: u32) -> Left {
        let entered = self.now.lock().entered;
        match entered {
            Some((entered, since)) if entered == number && since.elapsed() >= HELD => return Left::Holds,
            Some(_) => {}
            None => self.broken.cancel(),
        }
        Left::HeldUp
    }

    /// Gives a task up that its attempt waits for no more.
    pub(super) fn leave(&self, number: u32) {
        self.stop(number);
        let mut now = self.now.lock();
        if now.live.remove(&number).is_some() {
            now.left.insert(number, Instant::now());
            self.look(&mut now);
        }
    }

    /// Ends all live tasks, as the instance has ended.
    pub(super) fn end_all(&self, end: impl Fn(u32) -> Left) {
        let mut now = self.now.lock();
        now.is_open = false;
        now.events.clear();
        for (number, live) in std::mem::take(&mut now.live) {
            let _ = live.send(end(number));
        }
        self.over.cancel();
    }

    /// Whether the guest has forgotten every task, and may run as many again.
    pub(super) fn is_clean(&self) -> bool {
        let now = self.now.lock();
        let is_empty = now.live.is_empty() && now.left.is_empty() && now.events.is_empty();
        is_empty && !now.is_spoiled && now.begun < self.max_tasks
    }

    /// The most tasks at once.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Tasks that the instance has begun so far.
    pub(super) fn begun(&self) -> u32 {
        self.now.lock().begun
    }

    pub(super) fn note_peak(&self, bytes: u64) {
        self.peak.fetch_max(bytes, Ordering::Relaxed);
    }

    fn look(&self, now: &mut SeatsNow) {
        if now.live.is_empty() {
            now.is_open = false;
            self.over.cancel();
            self.news.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;
    use crate::task::Outcome;

    fn add(seats: &InstanceSeats) -> Option<(u32, oneshot::Receiver<Left>)> {
        let seated = Seated {
            attempt: Arc::new(testing::attempt()),
            log: Arc::default(),
            waits: Arc::default(),
            over: CancellationToken::new(),
            since: Instant::now(),
        };
        let (end, left) = oneshot::channel();
        seats.add(Box::new(seated), end).ok().map(|number| (number, left))
    }

    fn take(seats: &InstanceSeats) -> Option<(char, u32)> {
        match seats.next() {
            Ok(Some(SeatEvent::Start(number, _))) => Some(('+', number)),
            Ok(Some(SeatEvent::Stop(number))) => Some(('-', number)),
            Ok(None) => None,
            Err(()) => Some(('.', 0)),
        }
    }

    fn well() -> Ended {
        Ended::Each(vec![Outcome::Completed { result: None, effects: None }])
    }

    #[tokio::test]
    async fn tasks_are_started_and_stopped_and_the_instance_closes_after_the_last_one() {
        let seats = InstanceSeats::new(3, 1000);
        let (first, ended) = add(&seats).expect("a seat");
        let (second, left) = add(&seats).expect("a seat");
        let (third, untaken) = add(&seats).expect("a seat");
        assert!(add(&seats).is_none(), "all seats are taken");
        assert_eq!([take(&seats), take(&seats)], [Some(('+', first)), Some(('+', second))]);
        // The guest never hears of a task that left before it began.
        seats.leave(third);
        assert!(matches!(untaken.await, Ok(Left::HeldUp)) && take(&seats).is_none());
        seats.leave(second);
        assert!(left.await.is_err());
        assert_eq!(take(&seats), Some(('-', second)));
        // It keeps its seat until the guest has forgotten it.
        let (fourth, _live) = add(&seats).expect("the seat of the third");
        assert!(add(&seats).is_none());
        seats.ended(second, || panic!("its end does not count"));
        seats.ended(first, well);
        assert!(matches!(ended.await, Ok(Left::Ended(Ended::Each(_)))));
        assert!(seats.is_open() && !seats.over.is_cancelled());
        assert_eq!(take(&seats), Some(('+', fourth)));
        seats.ended(fourth, well);
        assert!(add(&seats).is_none(), "the instance has closed");
        assert_eq!(take(&seats), Some(('.', 0)));
        assert!(seats.is_clean());
    }

    #[tokio::test]
    async fn a_late_task_is_to_blame_only_if_the_guest_hears_that_or_computes_for_it() {
        let seats = InstanceSeats::new(10, 1000);
        let (mut numbers, mut ends): (Vec<u32>, Vec<_>) =
            (0..4).map(|_| add(&seats).expect("a seat")).unzip();
        seats.stop(numbers.remove(0));
        assert!(matches!(ends.remove(0).await, Ok(Left::HeldUp)), "the guest has not taken it");
        for _ in &numbers {
            take(&seats);
        }
        seats.stop(numbers[0]);
        assert!(ends[0].try_recv().is_err(), "it is live until the guest hears of it");
        seats.stop(numbers[0]);
        assert_eq!([take(&seats), take(&seats)], [Some(('-', numbers[0])), None]);
        assert!(matches!(ends.remove(0).await, Ok(Left::Told)));
        seats.enter(Some(numbers[1]));
        assert!(matches!(seats.held_up(numbers[1]), Left::HeldUp), "it has just come to compute");
        seats.now.lock().entered = Some((numbers[1], Instant::now() - 2 * HELD));
        assert!(matches!(seats.held_up(numbers[2]), Left::HeldUp) && !seats.broken.is_cancelled());
        assert!(matches!(seats.held_up(numbers[1]), Left::Holds));
    }

    #[test]
    fn a_guest_that_takes_no_news_for_no_task_is_stopped() {
        let seats = InstanceSeats::new(10, 1000);
        let (number, _live) = add(&seats).expect("a seat");
        take(&seats);
        assert!(matches!(seats.held_up(number), Left::HeldUp) && seats.broken.is_cancelled());
    }

    #[test]
    fn nothing_joins_an_instance_that_is_held_does_not_ask_or_does_not_forget() {
        let long_ago = Instant::now() - 2 * TO_FORGET;
        let seats = InstanceSeats::new(10, 1000);
        let (number, _live) = add(&seats).expect("a seat");
        seats.now.lock().entered = Some((number, long_ago));
        assert!(add(&seats).is_none());
        seats.enter(None);
        seats.begin(0);
        assert!(add(&seats).is_some(), "it has just begun");
        seats.now.lock().left.insert(7, long_ago);
        assert!(add(&seats).is_none() && !seats.is_open());
    }

    #[test]
    fn an_instance_takes_no_more_tasks_than_it_may_run() {
        let seats = InstanceSeats::new(10, 5);
        seats.begin(3);
        let kept: Vec<_> = (0..2).map_while(|_| add(&seats)).collect();
        assert_eq!((kept.len(), add(&seats).is_none(), seats.begun()), (2, true, 5));
        assert!(!seats.is_clean());
    }
}
