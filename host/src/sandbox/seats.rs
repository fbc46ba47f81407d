//! The tasks that one instance runs at the same time, as its guest and their attempts see them.
//!
//! ```text
//! InstanceSeats::add ─▶ SeatEvent::Start ─▶ the guest takes it ─▶ InstanceSeats::ended ─▶ Left
//!                     InstanceSeats::leave ─▶ SeatEvent::Stop ─▶ the guest forgets it
//! ```
//!
//! A task is *live* until its attempt has an end. After that the guest may still be busy with it: then it
//! keeps its seat, and nothing that it does counts. An instance is *open* while it takes more tasks. It
//! closes for good when no task is live, or when it has run enough of them.
//!
//! Not here: the instance (`together`), the interface that the guest calls (`host::tasks`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use super::attempt::{Attempt, Ended};
use super::log::GuestLog;
use super::waits::GuestWaits;

/// A task that holds up the others of its instance for longer than this is the reason if one of them is late,
/// and no more tasks join it.
pub(super) const HELD: Duration = Duration::from_secs(1);

/// How a task left its instance.
#[derive(Debug)]
pub(super) enum Left {
    Ended(Ended),
    /// The instance was stopped, as the host needs its memory.
    Evicted,
}

/// A task on its way to the guest.
pub(super) struct Seated {
    pub(super) attempt: Arc<Attempt>,
    pub(super) log: Arc<Mutex<GuestLog>>,
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
    now: Mutex<SeatsNow>,
    /// When the instance got its place in the engine.
    began: OnceLock<Instant>,
    /// Cancelled when `began` is set.
    pub(super) has_begun: CancellationToken,
    /// Notified when there is an event for the guest.
    pub(super) news: Notify,
    /// Cancelled when no task is live, and none may come.
    pub(super) over: CancellationToken,
    /// Cancelled when a task that is late holds the instance.
    pub(super) broken: CancellationToken,
    /// The most memory of the instance so far, in bytes.
    pub(super) peak: AtomicU64,
}

struct SeatsNow {
    is_open: bool,
    /// Tasks that the instance has begun, with those of earlier calls.
    begun: u32,
    /// The number of the next task.
    next: u32,
    events: VecDeque<SeatEvent>,
    live: BTreeMap<u32, oneshot::Sender<Left>>,
    /// Tasks that are not live, and that the guest has not forgotten.
    left: BTreeSet<u32>,
    /// The task that computes, and since when.
    entered: Option<(u32, Instant)>,
}

/// The instances of a version that take more tasks.
#[derive(Default)]
pub(super) struct OpenInstances(Mutex<Vec<Arc<InstanceSeats>>>);

impl OpenInstances {
    /// Takes a seat in an instance that has one. The flag says that it is a new instance.
    pub(super) fn seat(
        &self,
        seated: Box<Seated>,
        end: oneshot::Sender<Left>,
        new: impl FnOnce() -> InstanceSeats,
    ) -> (Arc<InstanceSeats>, u32, bool) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|seats| seats.is_open());
        let mut waits = (seated, end);
        for seats in open.iter() {
            match seats.add(waits.0, waits.1) {
                Ok(number) => return (seats.clone(), number, false),
                Err(back) => waits = back,
            }
        }
        let seats = Arc::new(new());
        open.push(seats.clone());
        let Ok(number) = seats.add(waits.0, waits.1) else { unreachable!("a new instance has a seat") };
        (seats, number, true)
    }
}

/// Why a task is late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Late {
    /// The guest is busy with it, so only the end of the instance stops it.
    Holds,
    /// Another task holds the instance, or the guest has not taken it.
    HeldUp,
    /// It waits for something.
    Waits,
}

impl InstanceSeats {
    pub(super) fn new(most: u32, max_tasks: u32) -> InstanceSeats {
        InstanceSeats {
            most: most as usize,
            max_tasks,
            now: Mutex::new(SeatsNow {
                is_open: true,
                begun: 0,
                next: 0,
                events: VecDeque::new(),
                live: BTreeMap::new(),
                left: BTreeSet::new(),
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

    fn now(&self) -> MutexGuard<'_, SeatsNow> {
        // Nothing panics while it is locked.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_open(&self) -> bool {
        self.now().is_open
    }

    /// Adds a task, if there is a seat. Returns its number, or the task.
    pub(super) fn add(
        &self,
        seated: Box<Seated>,
        end: oneshot::Sender<Left>,
    ) -> Result<u32, (Box<Seated>, oneshot::Sender<Left>)> {
        let mut now = self.now();
        let is_held = now.entered.is_some_and(|(_, since)| since.elapsed() > HELD);
        if !now.is_open || is_held || now.live.len() + now.left.len() >= self.most {
            return Err((seated, end));
        }
        let number = now.next;
        now.next += 1;
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
        let mut now = self.now();
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

    /// Takes no more tasks.
    pub(super) fn close(&self) {
        self.now().is_open = false;
    }

    /// The next event for the guest. `Err`: all tasks have ended.
    pub(super) fn next(&self) -> Result<Option<SeatEvent>, ()> {
        let mut now = self.now();
        match now.events.pop_front() {
            Some(event) => Ok(Some(event)),
            None if self.over.is_cancelled() => Err(()),
            None => Ok(None),
        }
    }

    /// Whether [`InstanceSeats::next`] has anything to tell.
    pub(super) fn has_news(&self) -> bool {
        !self.now().events.is_empty() || self.over.is_cancelled()
    }

    /// Notes which task computes.
    pub(super) fn enter(&self, number: Option<u32>) {
        self.now().entered = number.map(|number| (number, Instant::now()));
    }

    pub(super) fn entered(&self) -> Option<u32> {
        self.now().entered.map(|(number, _)| number)
    }

    /// Ends a task, and frees its seat. The end does not count if the task is not live.
    pub(super) fn ended(&self, number: u32, end: impl FnOnce() -> Ended) {
        let mut now = self.now();
        now.left.remove(&number);
        if let Some(live) = now.live.remove(&number) {
            // The attempt may have ended at this moment.
            let _ = live.send(Left::Ended(end()));
        }
        self.look(&mut now);
    }

    /// Gives a task up that its attempt waits for no more.
    pub(super) fn leave(&self, number: u32) {
        let mut now = self.now();
        if now.live.remove(&number).is_none() {
            return;
        }
        let untaken =
            now.events.iter().position(|event| matches!(event, SeatEvent::Start(n, _) if *n == number));
        match untaken {
            Some(place) => drop(now.events.remove(place)),
            None => {
                now.left.insert(number);
                now.events.push_back(SeatEvent::Stop(number));
                self.news.notify_one();
            }
        }
        self.look(&mut now);
    }

    /// Why a task is late, at its deadline.
    pub(super) fn late(&self, number: u32) -> Late {
        let now = self.now();
        let is_untaken =
            now.events.iter().any(|event| matches!(event, SeatEvent::Start(n, _) if *n == number));
        match now.entered {
            Some((entered, _)) if entered == number => Late::Holds,
            Some((_, since)) if since.elapsed() > HELD => Late::HeldUp,
            _ if is_untaken => Late::HeldUp,
            _ => Late::Waits,
        }
    }

    /// Ends all live tasks, as the instance has ended.
    pub(super) fn end_all(&self, end: impl Fn(u32) -> Left) {
        let mut now = self.now();
        now.is_open = false;
        now.events.clear();
        for (number, live) in std::mem::take(&mut now.live) {
            let _ = live.send(end(number));
        }
        self.over.cancel();
    }

    /// Whether the guest has forgotten every task, and may run as many again.
    pub(super) fn is_clean(&self) -> bool {
        let now = self.now();
        now.live.is_empty() && now.left.is_empty() && now.events.is_empty() && now.begun < self.max_tasks
    }

    /// The most tasks at once.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Tasks that the instance has begun so far.
    pub(super) fn begun(&self) -> u32 {
        self.now().begun
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
        assert!(untaken.await.is_err() && take(&seats).is_none());
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

    #[test]
    fn a_late_task_is_to_blame_only_if_no_other_holds_the_instance() {
        let seats = InstanceSeats::new(10, 1000);
        let numbers: Vec<u32> = (0..3).map(|_| add(&seats).expect("a seat").0).collect();
        assert_eq!(seats.late(numbers[0]), Late::HeldUp, "the guest has not taken it");
        for _ in &numbers {
            take(&seats);
        }
        assert_eq!(seats.late(numbers[0]), Late::Waits);
        seats.enter(Some(numbers[1]));
        assert_eq!([seats.late(numbers[0]), seats.late(numbers[1])], [Late::Waits, Late::Holds]);
        seats.now().entered = Some((numbers[1], Instant::now() - 2 * HELD));
        assert_eq!([seats.late(numbers[0]), seats.late(numbers[1])], [Late::HeldUp, Late::Holds]);
        assert!(add(&seats).is_none(), "nothing joins an instance that is held");
        seats.enter(None);
        assert!(add(&seats).is_some());
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
