//! Schedules guests that compute for long: after one tick, a guest gets time slices in turn with the others.
//!
//! In: the number of time slices at once; the ticks and polls of each call. Out: at most that many threads
//! serve guests that compute for long. The other threads serve guests that have just begun, or come from a
//! wait, so that these do not wait for the ticks of others. Also out: for how long each call has waited for
//! services that it called, or for slices that other versions had.
//!
//! ```text
//! begins, or comes from a wait ─▶ computes for a tick ─▶ waits for a slice ─▶ computes for a tick ─▶ …
//! ```
//!
//! The slices are shared between versions, not between calls: the versions in the line get them one by one,
//! however many of their calls wait.
//!
//! Not here: the source of the ticks (`engine`), the end of a handler that computes for too long (`handler`).

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};

use super::engine::TICK;
use super::number::VersionNumber;
use crate::guarded::Guarded;

/// A tick comes for all calls at once, so it may meet one that has only just begun: that has computed for
/// less than this. It is half a tick, because a whole one would be too strict for clocks that are not exact.
const SHORT: Duration = Duration::from_millis(TICK.as_millis() as u64 / 2);

/// The slices, a fixed number at once.
#[derive(Clone)]
pub(super) struct TimeSlices(Arc<Guarded<Line>>);

struct Line {
    /// The number of free slices.
    free: usize,
    /// The number of calls that compute in slices, for each version that has any.
    computing: BTreeMap<VersionNumber, usize>,
    /// Versions with calls that wait for a slice. The first one gets the next slice.
    waiting: VecDeque<(VersionNumber, VecDeque<oneshot::Sender<TimeSlice>>)>,
}

impl TimeSlices {
    pub(super) fn new(at_once: usize) -> TimeSlices {
        TimeSlices(Arc::new(Guarded::new(Line {
            free: at_once,
            computing: BTreeMap::new(),
            waiting: VecDeque::new(),
        })))
    }

    /// Makes the scheduling state of one call of a version.
    pub(super) fn call(&self, version: VersionNumber) -> SlicedCall {
        let state = CallState {
            computing_since: Instant::now(),
            held: None,
            in_slices: None,
            in_line: None,
            away_since: None,
            waited_before: Duration::ZERO,
        };
        SlicedCall(Arc::new(Call {
            slices: self.clone(),
            version,
            state: Guarded::new(state),
            is_evicted: AtomicBool::new(false),
            evicted: Notify::new(),
        }))
    }

    /// Waits until the version has the next slice, and the call is the first in the version's line. It is
    /// never None while the slices exist, because only a call that has ended loses its place.
    async fn acquire(&self, version: VersionNumber) -> Option<TimeSlice> {
        match self.ask(version) {
            Ok(slice) => Some(slice),
            Err(place) => place.await.ok(),
        }
    }

    /// Returns a slice, or a place in the version's line if no slice is free.
    fn ask(&self, version: VersionNumber) -> Result<TimeSlice, oneshot::Receiver<TimeSlice>> {
        let mut line = self.0.lock();
        if line.free > 0 {
            line.free -= 1;
            drop(line);
            return Ok(TimeSlice(Some(self.clone())));
        }
        let (give, place) = oneshot::channel();
        match line.waiting.iter_mut().find(|(other, _)| *other == version) {
            Some((_, calls)) => calls.push_back(give),
            None => line.waiting.push_back((version, VecDeque::from([give]))),
        }
        Err(place)
    }

    /// Schedules the short polls of a version, such as those of its requests.
    pub(super) fn polls(&self, version: VersionNumber) -> Polls {
        Polls { slices: self.clone(), version }
    }
}

impl Line {
    /// Returns the call that gets a freed slice. If no call waits, counts the slice as free and returns None.
    fn next(&mut self) -> Option<oneshot::Sender<TimeSlice>> {
        while let Some((version, mut calls)) = self.waiting.pop_front() {
            let next = calls.pop_front();
            if !calls.is_empty() {
                self.waiting.push_back((version, calls));
            }
            if next.is_some() {
                return next;
            }
        }
        self.free += 1;
        None
    }
}

/// A slice that a call holds. Dropping it hands it on to the next call; the value is None once that is done.
struct TimeSlice(Option<TimeSlices>);

impl Drop for TimeSlice {
    fn drop(&mut self) {
        let Some(slices) = self.0.take() else { return };
        loop {
            let Some(next) = slices.0.lock().next() else { return };
            match next.send(TimeSlice(Some(slices.clone()))) {
                Ok(()) => return,
                // The call has ended while it waited. Its slice is emptied, as the drop of a full one would
                // do all of this again, one level deeper.
                Err(mut unsent) => drop(unsent.0.take()),
            }
        }
    }
}

/// The short polls of one version. Each of them takes a slice.
#[derive(Clone)]
pub(super) struct Polls {
    slices: TimeSlices,
    version: VersionNumber,
}

impl Polls {
    /// Does the work, and waits for a slice of the version before each poll.
    pub(super) async fn run<T>(self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let mut place: Option<oneshot::Receiver<TimeSlice>> = None;
        let mut held: Option<TimeSlice> = None;
        poll_fn(|context| {
            if held.is_none() && place.is_none() {
                match self.slices.ask(self.version) {
                    Err(receiver) => place = Some(receiver),
                    Ok(slice) => {
                        // Keeps the slice, but yields once, so that other work of this thread that is ready
                        // finds no free slice and gets in line. The slice goes to it after the next poll.
                        held = Some(slice);
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
            }
            if let Some(next) = &mut place {
                held = ready!(Pin::new(next).poll(context)).ok();
                place = None;
            }
            let polled = work.as_mut().poll(context);
            held = None;
            polled
        })
        .await
    }
}

/// Counts a call that computes in slices, until it is dropped.
struct ComputingCall(TimeSlices, VersionNumber);

impl ComputingCall {
    fn new(slices: &TimeSlices, version: VersionNumber) -> ComputingCall {
        *slices.0.lock().computing.entry(version).or_default() += 1;
        ComputingCall(slices.clone(), version)
    }
}

impl Drop for ComputingCall {
    fn drop(&mut self) {
        let ComputingCall(slices, version) = self;
        let mut line = slices.0.lock();
        if let Some(calls) = line.computing.get_mut(version) {
            *calls -= 1;
            if *calls == 0 {
                line.computing.remove(version);
            }
        }
    }
}

/// The scheduling state of one call.
#[derive(Clone)]
pub(super) struct SlicedCall(Arc<Call>);

struct Call {
    slices: TimeSlices,
    version: VersionNumber,
    state: Guarded<CallState>,
    is_evicted: AtomicBool,
    evicted: Notify,
}

struct CallState {
    /// When the current poll of the call began.
    computing_since: Instant,
    /// The slice of a call that has computed for a tick. It is held only while the call is polled.
    held: Option<TimeSlice>,
    /// Set from the call's first tick until it waits for anything but a slice.
    in_slices: Option<ComputingCall>,
    /// Set while the call waits for its slice.
    in_line: Option<InLine>,
    /// When the call began to wait for anything but a slice. None while it is polled.
    away_since: Option<Instant>,
    /// For how long the call has waited for anything but its own work, without the current wait.
    waited_before: Duration,
}

/// A wait for a slice. The part of it that other versions cause is no fault of the call: a good version that
/// computes beside a plugin with an endless loop must not be blamed for its timeouts, and be rolled back.
struct InLine {
    since: Instant,
    /// The part of the slices that other versions have, from 0 to 1.
    of_others: f64,
}

impl SlicedCall {
    /// Whether the call has computed for longer than [`SHORT`] since it last waited. The clock ticks for
    /// calls that wait, too.
    pub(super) fn has_computed(&self) -> bool {
        self.0.state.lock().computing_since.elapsed() >= SHORT
    }

    /// Waits for the next slice, behind the calls that came earlier. Called at a tick, in a poll of the call.
    pub(super) async fn next_slice(self) {
        let Call { slices, version, state, .. } = &*self.0;
        {
            let mut state = state.lock();
            state.in_slices.get_or_insert_with(|| ComputingCall::new(slices, *version));
            let versions = slices.0.lock().computing.len().max(1);
            let of_others = (versions - 1) as f64 / versions as f64;
            state.in_line = Some(InLine { since: Instant::now(), of_others });
        }
        // Yield even if no call waits: only between polls can a call be ended, and its thread do other work.
        tokio::task::yield_now().await;
        let held = slices.acquire(*version).await;
        let mut state = state.lock();
        state.waited_before = state.waited();
        state.in_line = None;
        state.held = held;
    }

    /// For how long the call has waited for anything but its own work: a service, a clock, other handlers.
    pub(super) fn waited(&self) -> Duration {
        self.0.state.lock().waited()
    }

    /// Ends the call because its memory is needed: at its next tick, or where it waits.
    pub(super) fn evict(&self) {
        self.0.is_evicted.store(true, Ordering::Relaxed);
        self.0.evicted.notify_one();
    }

    pub(super) fn is_evicted(&self) -> bool {
        self.0.is_evicted.load(Ordering::Relaxed)
    }

    /// Waits until the call is evicted. Only one caller may wait.
    pub(super) async fn evicted(&self) {
        self.0.evicted.notified().await;
    }

    /// Runs the call. It gives its slice back whenever it does not compute.
    pub(super) async fn run<T>(self, call: impl Future<Output = T>) -> T {
        let mut call = pin!(call);
        poll_fn(|context| {
            self.0.state.lock().poll_begins();
            let polled = call.as_mut().poll(context);
            self.0.state.lock().poll_ends();
            polled
        })
        .await
    }
}

impl CallState {
    fn waited(&self) -> Duration {
        let away = self.away_since.map_or(Duration::ZERO, |since| since.elapsed());
        let in_line = self.in_line.as_ref();
        self.waited_before
            + away
            + in_line.map_or(Duration::ZERO, |wait| wait.since.elapsed().mul_f64(wait.of_others))
    }

    fn poll_begins(&mut self) {
        self.computing_since = Instant::now();
        if let Some(away_since) = self.away_since.take() {
            self.waited_before += self.computing_since.saturating_duration_since(away_since);
        }
    }

    fn poll_ends(&mut self) {
        self.held = None;
        if self.in_line.is_none() {
            self.in_slices = None;
            self.away_since = Some(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    fn versions<const N: usize>() -> [VersionNumber; N] {
        [(); N].map(|()| VersionNumber::fresh())
    }

    impl TimeSlices {
        fn free(&self) -> usize {
            self.0.lock().free
        }

        /// Calls that compute in slices.
        fn count(&self, version: VersionNumber) -> usize {
            self.0.lock().computing.get(&version).copied().unwrap_or_default()
        }
    }

    /// Acts as a guest that computes for `ticks` ticks: each tick waits for a slice in the middle of a poll.
    async fn computes(sliced: SlicedCall, ticks: usize, done: &AtomicUsize) {
        for _ in 0..ticks {
            sliced.clone().next_slice().await;
            done.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn computing_handlers_go_on_one_after_the_other() {
        let (slices, [version]) = (TimeSlices::new(1), versions());
        let counts: Arc<[AtomicUsize; 3]> = Arc::default();
        let calls: Vec<_> = (0..3)
            .map(|n| {
                let (sliced, counts) = (slices.call(version), counts.clone());
                tokio::spawn(sliced.clone().run(async move {
                    for _ in 0..100 {
                        sliced.clone().next_slice().await;
                        let count = counts[n].fetch_add(1, Ordering::Relaxed);
                        let least =
                            counts.iter().map(|count| count.load(Ordering::Relaxed)).min().expect("three");
                        assert!(count <= least + 1, "nobody is ahead by more than its slice: {counts:?}");
                    }
                }))
            })
            .collect();
        for call in calls {
            call.await.expect("each of them ends");
        }
        assert_eq!(slices.free(), 1);
    }

    #[tokio::test]
    async fn a_thread_is_shared_between_versions_and_not_between_polls() {
        /// Yields, and is ready again at once, as if more data had arrived. (`yield_now` wakes only after the
        /// others sleep.)
        async fn yield_ready() {
            let mut is_over = false;
            poll_fn(|context| {
                context.waker().wake_by_ref();
                if std::mem::replace(&mut is_over, true) { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
        const MANY: usize = 50;
        const POLLS: usize = 100;
        let (slices, [many, one]) = (TimeSlices::new(1), versions());
        let polls = Arc::new(AtomicUsize::new(0));
        let busy: Vec<_> = (0..MANY)
            .map(|_| {
                let polls = polls.clone();
                tokio::spawn(slices.polls(many).run(async move {
                    loop {
                        polls.fetch_add(1, Ordering::Relaxed);
                        yield_ready().await;
                    }
                }))
            })
            .collect();
        let few = tokio::spawn(slices.polls(one).run(async {
            for _ in 0..POLLS {
                yield_ready().await;
            }
        }));
        few.await.expect("it ends");
        let polls = polls.load(Ordering::Relaxed);
        // The version with one call has to get in line again each time, behind a few of the others.
        assert!((POLLS..5 * POLLS).contains(&polls), "{polls} polls of the others beside {POLLS}");
        for work in &busy {
            work.abort();
        }
        for work in busy {
            assert!(work.await.expect_err("it was ended").is_cancelled());
        }
        assert_eq!(slices.free(), 1, "whoever is ended gives its slice back");
    }

    #[tokio::test]
    async fn slices_are_shared_between_versions_and_not_between_calls() {
        let (slices, [many, one, nobodys]) = (TimeSlices::new(1), versions());
        let held = slices.acquire(nobodys).await.expect("the only one");
        let order: Arc<Guarded<Vec<VersionNumber>>> = Arc::default();
        let calls: Vec<_> = [many, many, many, many, one, one]
            .map(|version| {
                let (sliced, order) = (slices.call(version), order.clone());
                tokio::spawn(sliced.clone().run(async move {
                    sliced.next_slice().await;
                    order.lock().push(version);
                }))
            })
            .into();
        while slices.0.lock().waiting.iter().map(|(_, calls)| calls.len()).sum::<usize>() < calls.len() {
            tokio::task::yield_now().await;
        }
        drop(held);
        for call in calls {
            call.await.expect("each of them ends");
        }
        let order = order.lock();
        assert!(
            order[..4].windows(2).all(|slices| slices[0] != slices[1]),
            "one slice of either, while both wait: {order:?}"
        );
        assert_eq!(order[4..], [many, many]);
        assert_eq!(slices.free(), 1);
    }

    #[tokio::test]
    async fn a_wait_is_for_the_work_of_others() {
        let slices = TimeSlices::new(1);
        let [own, of_others, nobodys] = versions();
        let [sleeps, alone, beside] = [(); 3].map(|()| slices.call(own));
        // One call waits for a clock, the others wait for their slices.
        let sleeping = {
            let sliced = sleeps.clone();
            tokio::spawn(sliced.run(tokio::time::sleep(Duration::from_secs(3600))))
        };
        let in_line = |sliced: &SlicedCall| {
            let (sliced, next) = (sliced.clone(), sliced.clone());
            tokio::spawn(sliced.run(async move { next.next_slice().await }))
        };
        let wait = Duration::from_millis(30);
        // A call waits together with a call of its own version.
        let held = slices.acquire(nobodys).await.expect("the only one");
        let own_one = in_line(&slices.call(own));
        let first = in_line(&alone);
        tokio::time::sleep(wait).await;
        drop(held);
        first.await.expect("it has had its slice");
        own_one.await.expect("it has had its slice");
        assert_eq!(
            alone.0.state.lock().waited_before,
            Duration::ZERO,
            "only a call of its own version was in line"
        );
        assert!(sleeps.waited() >= wait / 2);
        // A call waits together with a call of another version.
        let held = slices.acquire(nobodys).await.expect("the only one");
        let other = in_line(&slices.call(of_others));
        tokio::task::yield_now().await;
        assert_eq!((slices.count(own), slices.count(of_others)), (0, 1));
        let second = in_line(&beside);
        tokio::time::sleep(wait).await;
        assert_eq!((slices.count(own), slices.count(of_others)), (1, 1));
        assert!(beside.waited() >= wait / 4, "before it has had its slice");
        drop(held);
        second.await.expect("it has had its slice");
        other.await.expect("it has had its slice");
        let waited = beside.0.state.lock().waited_before;
        assert!(waited >= wait / 4, "half of those in the line were others': {waited:?}");
        // A call that is ended in the line leaves the line.
        let held = slices.acquire(nobodys).await.expect("the only one");
        let ended = in_line(&beside);
        while slices.count(own) == 0 {
            tokio::task::yield_now().await;
        }
        ended.abort();
        assert!(ended.await.expect_err("it has no slice").is_cancelled());
        drop((held, beside));
        assert!(slices.0.lock().computing.is_empty());
        sleeping.abort();
    }

    #[tokio::test]
    async fn a_handler_that_waits_for_something_else_holds_no_slice() {
        let (slices, [version, other]) = (TimeSlices::new(1), versions());
        let (came, goes_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let waits = {
            let (sliced, came, goes_on) = (slices.call(version), came.clone(), goes_on.clone());
            tokio::spawn(sliced.clone().run(async move {
                sliced.next_slice().await;
                came.notify_one();
                goes_on.notified().await;
            }))
        };
        came.notified().await;
        let done = AtomicUsize::new(0);
        let sliced = slices.call(other);
        sliced.clone().run(computes(sliced, 3, &done)).await;
        assert_eq!(done.load(Ordering::Relaxed), 3, "beside one that waits, and has had a slice");
        goes_on.notify_one();
        waits.await.expect("it ends");
    }

    #[tokio::test]
    async fn a_call_that_ends_while_it_waits_for_its_slice_leaves_it_to_others() {
        let (slices, [version, nobodys]) = (TimeSlices::new(1), versions());
        let held = slices.acquire(nobodys).await.expect("the only one");
        let (ended, begun) = (slices.call(version), Arc::new(Notify::new()));
        let call = {
            let begun = begun.clone();
            tokio::spawn(ended.clone().run(async move {
                begun.notify_one();
                ended.next_slice().await;
            }))
        };
        begun.notified().await;
        call.abort();
        assert!(call.await.expect_err("it has no slice").is_cancelled());
        drop(held);
        let (sliced, done) = (slices.call(version), AtomicUsize::new(0));
        sliced.clone().run(computes(sliced, 1, &done)).await;
        assert_eq!((done.load(Ordering::Relaxed), slices.free()), (1, 1));
    }

    #[tokio::test]
    async fn a_call_has_computed_when_it_has_used_most_of_a_tick() {
        let [version] = versions();
        let sliced = TimeSlices::new(1).call(version);
        sliced
            .clone()
            .run(async {
                assert!(!sliced.has_computed(), "it has just begun");
                // Compute, as a guest does.
                while !sliced.has_computed() {
                    std::hint::spin_loop();
                }
                tokio::task::yield_now().await;
                assert!(!sliced.has_computed(), "it comes from a wait");
            })
            .await;
    }
}
