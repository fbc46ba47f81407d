//! The tasks that one instance runs at the same time, as its guest and their attempts see them.
//!
//! ```text
//! InstanceSeats::add ─▶ SeatEvent::Start ─▶ the guest takes it ─▶ InstanceSeats::ended ─▶ Left::Ended
//!                        InstanceSeats::stop ─▶ SeatEvent::Stop ─▶ the guest takes it ─▶ Left::Stopped
//! ```
//!
//! A task is *live* until its attempt has an end. After that the guest may still work on it: the task then
//! keeps its seat, and nothing that it does counts. An instance is *open* while it takes more tasks. It
//! closes for good when no task is live, when it has run enough of them, or when something is wrong with it.
//!
//! A guest that does not take the news of a stop within [`HELD`] is busy, or does not ask for news. If a task
//! computes, that task is the reason. Otherwise the reason is unknown.
//!
//! Not here: the instance (`together`), the interface that the guest calls (`host::tasks`).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, SetOnce, oneshot};
use tokio_util::sync::CancellationToken;

use super::attempt::{Attempt, Ended};
use super::log::GuestLog;
use super::waits::GuestWaits;
use crate::config::Warm;
use crate::guarded::Guarded;
use crate::task::Task;

/// A task that computes for longer than this, or a guest that takes no news for as long, holds up the tasks
/// of its instance. No more tasks join it.
pub(super) const HELD: Duration = Duration::from_secs(1);
/// An instance that has not forgotten a task for this long after its end takes no more tasks.
const TO_FORGET: Duration = Duration::from_secs(10);

/// The number of the next task of any instance. No number is used twice: a kept instance may still work on a
/// task of an earlier call, and that task must never be taken for a new one.
static NUMBERS: AtomicU32 = AtomicU32::new(0);

/// How a task left its instance.
#[derive(Debug)]
pub(super) enum Left {
    Ended(Ended),
    /// The guest has taken the news that it is to stop the task.
    Stopped,
    /// Another task holds the instance up, or the guest takes no news.
    HeldUp,
    /// The task itself holds the instance up, so only the end of the instance stops it.
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
    /// When the task was added to its instance.
    pub(super) since: Instant,
}

/// A task that looks for a seat.
pub(super) struct Arrival {
    pub(super) seated: Box<Seated>,
    /// Gets the end of the task.
    pub(super) end: oneshot::Sender<Left>,
}

/// News for the guest. A task has its number.
pub(super) enum SeatEvent {
    Start(u32, Box<Seated>),
    Stop(u32),
    /// All tasks have ended, and no more will come.
    Close,
}

pub(super) struct InstanceSeats {
    /// The most tasks at once.
    pub(super) most: usize,
    /// The most tasks in all.
    max_tasks: u32,
    now: Guarded<SeatsNow>,
    /// When the instance got its place in the engine.
    pub(super) began: SetOnce<Instant>,
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
    /// Starts and stops that the guest has not taken yet.
    events: VecDeque<SeatEvent>,
    live: BTreeMap<u32, oneshot::Sender<Left>>,
    /// Tasks that are not live any more, but that the guest has not ended. Each with the time since when.
    lingering: BTreeMap<u32, Instant>,
    /// Whether the instance must not be kept.
    is_spoiled: bool,
    /// The task that computes, and since when.
    entered: Option<(u32, Instant)>,
}

/// The line of the log about a handler that should not have `concurrent`.
const HOLD_EACH_OTHER_UP: &str = "tasks of one instance hold each other up: one computes for longer than a \
    second, or waits without `await`; let the handler wait with `await`, or remove `concurrent`";

/// The most tasks that are remembered for ending their instance.
const MOST_CULPRITS: usize = 1000;

/// The instances of a version that take more tasks.
#[derive(Default)]
pub(super) struct OpenInstances {
    open: Guarded<Vec<Arc<InstanceSeats>>>,
    /// The names of the last tasks that have ended their instance. Their next attempts run alone.
    culprits: Guarded<VecDeque<String>>,
    /// Whether the log says that tasks hold each other up.
    has_told: AtomicBool,
}

/// A seat that a task has got.
pub(super) struct TakenSeat {
    pub(super) seats: Arc<InstanceSeats>,
    pub(super) number: u32,
    /// Whether the instance is new, so that the caller has to run it.
    pub(super) is_new: bool,
}

impl OpenInstances {
    /// Notes that a task has ended its instance.
    pub(super) fn note_culprit(&self, task: &Task) {
        let mut culprits = self.culprits.lock();
        culprits.truncate(MOST_CULPRITS - 1);
        culprits.push_front(culprit_name(task));
    }

    pub(super) fn is_culprit(&self, task: &Task) -> bool {
        let culprits = self.culprits.lock();
        !culprits.is_empty() && culprits.contains(&culprit_name(task))
    }

    /// Takes a seat in an open instance, or in a new one if all seats are taken.
    pub(super) fn seat(&self, mut arrival: Arrival, warm: Warm) -> TakenSeat {
        let mut open = self.open.lock();
        open.retain(|seats| seats.is_open());
        for seats in open.iter() {
            match seats.add(arrival) {
                Ok(number) => return TakenSeat { seats: seats.clone(), number, is_new: false },
                Err(back) => arrival = back,
            }
        }
        if open.iter().any(|seats| seats.holds_others_up(&seats.now.lock()))
            && !self.has_told.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(plugin = %arrival.seated.attempt.plugin, "{HOLD_EACH_OTHER_UP}");
        }
        let seats = Arc::new(InstanceSeats::new(warm.concurrent, warm.max_tasks));
        open.push(seats.clone());
        let Ok(number) = seats.add(arrival) else { unreachable!("a new instance has a seat") };
        TakenSeat { seats, number, is_new: true }
    }
}

/// Has the queue as well, since queues of one plugin may have tasks with the same id.
fn culprit_name(task: &Task) -> String {
    format!("{}:{}", task.queue, task.id)
}

impl SeatsNow {
    /// Whether a task has computed for so long that it holds the others up.
    fn is_held(&self) -> bool {
        self.entered.is_some_and(|(_, since)| since.elapsed() > HELD)
    }
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
                lingering: BTreeMap::new(),
                is_spoiled: false,
                entered: None,
            }),
            began: SetOnce::new(),
            news: Notify::new(),
            over: CancellationToken::new(),
            broken: CancellationToken::new(),
            peak: AtomicU64::new(0),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.now.lock().is_open
    }

    /// Adds a task and returns its number. If there is no seat, returns the task.
    fn add(&self, arrival: Arrival) -> Result<u32, Arrival> {
        let mut now = self.now.lock();
        let forgets = now.lingering.values().all(|since| since.elapsed() < TO_FORGET);
        now.is_open &= forgets;
        let taken = now.live.len() + now.lingering.len();
        if !now.is_open || self.holds_others_up(&now) || taken >= self.most {
            return Err(arrival);
        }
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        now.begun = now.begun.saturating_add(1);
        now.is_open = now.begun < self.max_tasks;
        now.live.insert(number, arrival.end);
        now.events.push_back(SeatEvent::Start(number, arrival.seated));
        drop(now);
        self.news.notify_one();
        Ok(number)
    }

    /// Starts the clocks of the tasks. A kept instance has run `earlier` tasks before.
    pub(super) fn begin(&self, earlier: u32) {
        let mut now = self.now.lock();
        now.begun = now.begun.saturating_add(earlier);
        now.is_open &= now.begun < self.max_tasks;
        // Each instance begins once.
        let _ = self.began.set(Instant::now());
    }

    /// When the clock of a task began that was added at `added`.
    pub(super) fn start_of(&self, added: Instant) -> Instant {
        self.began.get().map_or(added, |began| added.max(*began))
    }

    /// Whether a task computes for too long, or the guest takes no news.
    fn holds_others_up(&self, now: &SeatsNow) -> bool {
        let untaken = now.events.iter().find_map(|event| match event {
            SeatEvent::Start(_, seated) => Some(seated.since),
            SeatEvent::Stop(_) | SeatEvent::Close => None,
        });
        let is_deaf = untaken.is_some_and(|since| self.start_of(since).elapsed() > HELD);
        now.is_held() || self.began.get().is_some() && is_deaf
    }

    /// Closes the instance for more tasks, and lets nobody keep it.
    pub(super) fn spoil(&self) {
        let mut now = self.now.lock();
        (now.is_open, now.is_spoiled) = (false, true);
    }

    /// The next event for the guest, if there is one.
    pub(super) fn next(&self) -> Option<SeatEvent> {
        let mut now = self.now.lock();
        let event = now.events.pop_front();
        if let Some(SeatEvent::Stop(number)) = event
            && let Some(live) = now.live.remove(&number)
        {
            now.lingering.insert(number, Instant::now());
            let _ = live.send(Left::Stopped);
            self.close_if_empty(&mut now);
        }
        event.or_else(|| self.over.is_cancelled().then_some(SeatEvent::Close))
    }

    /// Whether [`InstanceSeats::next`] returns an event.
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

    /// Whether a task has computed for so long that it holds the others up.
    pub(super) fn is_held(&self) -> bool {
        self.now.lock().is_held()
    }

    /// Ends a task, and frees its seat. The end does not count if the task is not live.
    pub(super) fn ended(&self, number: u32, end: impl FnOnce() -> Ended) {
        let mut now = self.now.lock();
        now.lingering.remove(&number);
        now.events.retain(|event| !matches!(event, SeatEvent::Stop(of) if *of == number));
        if let Some(live) = now.live.remove(&number) {
            // This fails if the attempt ends at this moment.
            let _ = live.send(Left::Ended(end()));
        }
        self.close_if_empty(&mut now);
    }

    /// Asks the guest to stop a live task, or takes the task back if the guest does not have it yet.
    pub(super) fn stop(&self, number: u32) {
        let mut now = self.now.lock();
        let place = now.events.iter().position(|event| match event {
            SeatEvent::Start(of, _) | SeatEvent::Stop(of) => *of == number,
            SeatEvent::Close => false,
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
        self.close_if_empty(&mut now);
    }

    /// Why the guest has not taken for [`HELD`] the news that it is to stop a task: [`Left::Holds`] or
    /// [`Left::HeldUp`]. Ends the instance if no task computes, since the reason is unknown then.
    pub(super) fn reason_of_silence(&self, number: u32) -> Left {
        let entered = self.now.lock().entered;
        match entered {
            Some((computes, since)) if computes == number && since.elapsed() >= HELD => return Left::Holds,
            Some(_) => {}
            None => self.broken.cancel(),
        }
        Left::HeldUp
    }

    /// Gives up a task for whose end no attempt waits any more.
    pub(super) fn leave(&self, number: u32) {
        self.stop(number);
        let mut now = self.now.lock();
        if now.live.remove(&number).is_some() {
            now.lingering.insert(number, Instant::now());
            self.close_if_empty(&mut now);
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

    /// Whether the guest has ended every task, and nothing is wrong with the instance.
    pub(super) fn is_clean(&self) -> bool {
        let now = self.now.lock();
        let is_empty = now.live.is_empty() && now.lingering.is_empty() && now.events.is_empty();
        is_empty && !now.is_spoiled
    }

    /// Tasks that the instance has begun so far.
    pub(super) fn begun(&self) -> u32 {
        self.now.lock().begun
    }

    pub(super) fn note_peak(&self, bytes: u64) {
        self.peak.fetch_max(bytes, Ordering::Relaxed);
    }

    fn close_if_empty(&self, now: &mut SeatsNow) {
        debug_assert!(!now.live.keys().any(|number| now.lingering.contains_key(number)));
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
        let arrival = Arrival { seated: Box::new(seated), end };
        seats.add(arrival).ok().map(|number| (number, left))
    }

    /// The next event for the guest: `+` starts a task, `-` stops one, `.` closes the instance.
    fn take(seats: &InstanceSeats) -> Option<(char, u32)> {
        seats.next().map(|event| match event {
            SeatEvent::Start(number, _) => ('+', number),
            SeatEvent::Stop(number) => ('-', number),
            SeatEvent::Close => ('.', 0),
        })
    }

    fn completed() -> Ended {
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
        seats.ended(first, completed);
        assert!(matches!(ended.await, Ok(Left::Ended(Ended::Each(_)))));
        assert!(seats.is_open() && !seats.over.is_cancelled());
        assert_eq!(take(&seats), Some(('+', fourth)));
        seats.ended(fourth, completed);
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
        assert!(matches!(ends.remove(0).await, Ok(Left::Stopped)));
        seats.enter(Some(numbers[1]));
        assert!(matches!(seats.reason_of_silence(numbers[1]), Left::HeldUp), "it has just come to compute");
        seats.now.lock().entered = Some((numbers[1], Instant::now() - 2 * HELD));
        assert!(matches!(seats.reason_of_silence(numbers[2]), Left::HeldUp));
        assert!(matches!(seats.reason_of_silence(numbers[1]), Left::Holds));
        assert!(!seats.broken.is_cancelled());
        // If no task computes, the reason is unknown.
        seats.enter(None);
        assert!(matches!(seats.reason_of_silence(numbers[2]), Left::HeldUp) && seats.broken.is_cancelled());
    }

    #[test]
    fn instances_that_are_held_or_do_not_ask_or_do_not_forget_take_no_tasks() {
        let long_ago = Instant::now() - 2 * TO_FORGET;
        let seats = InstanceSeats::new(10, 1000);
        let (number, _live) = add(&seats).expect("a seat");
        seats.now.lock().entered = Some((number, long_ago));
        assert!(add(&seats).is_none());
        seats.enter(None);
        seats.begin(0);
        assert!(add(&seats).is_some(), "it has just begun");
        seats.now.lock().lingering.insert(7, long_ago);
        assert!(add(&seats).is_none() && !seats.is_open());
    }

    #[test]
    fn an_instance_takes_no_more_tasks_than_it_may_run() {
        let seats = InstanceSeats::new(10, 5);
        seats.begin(3);
        let kept: Vec<_> = (0..2).map_while(|_| add(&seats)).collect();
        assert_eq!((kept.len(), add(&seats).is_none(), seats.begun()), (2, true, 5));
    }
}
