//! Begins attempts without a task of the runtime for each, and in an idle queue without a change of threads.
//!
//! In: attempts that are to begin. Out: a few workers on the guests' threads run them one after the other. An
//! attempt that has to wait continues as its own task of the runtime, so it does not hold up the next one.
//!
//!     intake ─▶ gather: a task, or a batch ─▶ begin ─▶ runner::run
//!        └────▶ suspect: a task that runs alone ─────▶ runner::run_attempt
//!
//! [`begin`] is the one way to begin an attempt that runs beside others:
//!
//!     begin ─▶ line ─▶ worker on a guests' thread ─▶ polls it once ─▶ over
//!       └─▶ this thread, where it is short ─────────▶      │
//!                                                          └─▶ waits: spawned as a task of the runtime
//!
//! A task of the runtime costs more than a short attempt: memory, entries in two lists, and the wake of a
//! thread. That wake alone takes longer than a short attempt where the thread's processor is idle.
//!
//! Not here: the line of attempts (`starts`), what an attempt does (`runner`), how much time attempts may
//! take on the host's threads (`host_time`).

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio::runtime::Handle;
use tokio_util::sync::ReusableBoxFuture;
use tokio_util::task::TaskTracker;

use super::runner;
use super::shared::SharedQueue;
use super::starts::PendingAttempt;

/// After this many attempts, a worker yields its thread to other tasks of the runtime.
const IN_A_ROW: usize = 16;
/// The largest memory grant, in bytes, of a handler that begins on the host's threads.
const MOST_MEMORY: u64 = 256 << 20;

/// Begins an attempt beside other attempts. If `may_begin_here` and the host has time for it, the attempt
/// begins on this thread, which is one of the host's. Otherwise, and once it waits or computes for long, it
/// runs on the guests' threads.
pub(crate) fn begin(shared: &Arc<SharedQueue>, attempt: PendingAttempt, may_begin_here: bool) {
    let handler = &attempt.version.handler;
    let (guests, first_poll) = (handler.guests().clone(), &shared.starts.first_poll);
    // Nothing interrupts a guest that fills its memory.
    let is_short = || handler.memory() <= MOST_MEMORY && first_poll.is_short_for(1);
    if may_begin_here
        && is_short()
        && let Some(moment) = shared.capacity.host_time().take()
    {
        let took = poll_here(&shared.runners, &guests, contained(runner::run(shared.clone(), attempt)));
        first_poll.took(took);
        moment.took(took);
    } else if shared.starts.add(attempt) {
        start_worker(shared, &guests);
    }
}

/// Polls an attempt on this thread. Returns how long that took. An attempt that is not over continues as a
/// task of the guests' runtime.
fn poll_here(
    runners: &TaskTracker,
    guests: &Handle,
    attempt: impl Future<Output = ()> + Send + 'static,
) -> Duration {
    // The clocks of the attempt, and what it spawns, belong to the guests' runtime.
    let _entered = guests.enter();
    let mut attempt = Box::pin(attempt);
    let since = Instant::now();
    // Nothing can wake this poll. The task polls the attempt once more.
    let polled = attempt.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    let took = since.elapsed();
    if polled.is_pending() {
        drop(runners.spawn_on(attempt, guests));
    }
    took
}

/// Keeps a panic of the host within the attempt, whose task then stays pending and is reclaimed. The hook for
/// panics has logged it.
fn contained(attempt: impl Future<Output = ()>) -> impl Future<Output = ()> {
    AssertUnwindSafe(attempt).catch_unwind().map(drop)
}

/// Starts one more worker. Workers start each other, because spawning from another runtime is expensive.
fn start_worker(shared: &Arc<SharedQueue>, guests: &Handle) {
    drop(shared.runners.spawn_on(work(shared.clone()), guests));
}

async fn work(shared: Arc<SharedQueue>) {
    let guests = Handle::current();
    // There are two threads for each processor, so that long computations cannot take all of them. More
    // workers than processors would only take time from each other.
    let most = (guests.metrics().num_workers() / 2).max(1);
    // One allocation serves all attempts that do not wait.
    let mut slot: Option<ReusableBoxFuture<'static, ()>> = None;
    let mut in_a_row = 0;
    while let Some((attempt, needs_worker)) = shared.starts.next(most) {
        if needs_worker {
            start_worker(&shared, &guests);
        }
        let run = contained(runner::run(shared.clone(), attempt));
        let attempt = match &mut slot {
            Some(slot) => {
                slot.set(run);
                slot
            }
            None => slot.insert(ReusableBoxFuture::new(run)),
        };
        let since = Instant::now();
        let polled = std::future::poll_fn(|context| Poll::Ready(attempt.poll(context))).await;
        shared.starts.first_poll.took(since.elapsed());
        if polled.is_pending()
            && let Some(waits) = slot.take()
        {
            drop(shared.runners.spawn(waits));
        }
        in_a_row += 1;
        if in_a_row == IN_A_ROW {
            in_a_row = 0;
            tokio::task::yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread::{self, ThreadId};

    use tokio::runtime::{Builder, Runtime};
    use tokio::sync::mpsc;

    use super::*;

    fn guests() -> Runtime {
        Builder::new_multi_thread().worker_threads(1).enable_time().build().expect("a runtime")
    }

    /// Polls an attempt here. Returns the threads that it was on, in order.
    async fn threads_of<F>(attempt: impl FnOnce(mpsc::UnboundedSender<ThreadId>) -> F) -> Vec<ThreadId>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (runners, guests) = (TaskTracker::new(), guests());
        let (note, mut noted) = mpsc::unbounded_channel();
        poll_here(&runners, guests.handle(), contained(attempt(note)));
        runners.close();
        runners.wait().await;
        guests.shutdown_background();
        std::iter::from_fn(|| noted.try_recv().ok()).collect()
    }

    fn note(notes: &mpsc::UnboundedSender<ThreadId>) {
        notes.send(thread::current().id()).expect("the test reads it");
    }

    #[tokio::test]
    async fn a_short_attempt_stays_on_the_thread_that_claimed_its_task() {
        let short = threads_of(|notes| async move { note(&notes) }).await;
        assert_eq!(short, [thread::current().id()]);
    }

    #[tokio::test]
    async fn an_attempt_that_waits_continues_on_the_guests_threads() {
        let waits = threads_of(|notes| async move {
            note(&notes);
            tokio::time::sleep(Duration::from_millis(1)).await;
            note(&notes);
        });
        let [first, second] = waits.await[..] else { panic!("it is noted twice") };
        assert_eq!(first, thread::current().id());
        assert_ne!(second, first);
    }

    #[tokio::test]
    async fn a_panic_of_an_attempt_stays_within_it() {
        assert_eq!(threads_of(|_| async { panic!("in an attempt") }).await, []);
    }
}
