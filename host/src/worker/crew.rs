//! Begins attempts on the guests' threads, without a task of the runtime for each.
//!
//! In: attempts that are to begin. Out: a few workers run them one after the other. An attempt that has to
//! wait continues as its own task of the runtime, so it does not hold up the next attempt.
//!
//!     begin ─▶ queue ─▶ worker: polls it once ─▶ over
//!                                           └─▶ waits: spawned
//!
//! A task of the runtime costs more than a short attempt: memory, entries in two lists, and the wake of a
//! thread.
//!
//! Not here: what an attempt does (`runner`).

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use futures_util::FutureExt as _;
use tokio::runtime::Handle;
use tokio_util::sync::ReusableBoxFuture;

use super::inflight::Hold;
use super::runner;
use super::shared::SharedQueue;
use crate::plugins::Version;
use crate::task::Task;

/// After this many attempts, a worker yields its thread to other tasks of the runtime.
const IN_A_ROW: usize = 16;

/// The attempts of one queue that are to begin, and the number of workers that begin them.
#[derive(Default)]
pub struct Crew(Mutex<StartQueue>);

#[derive(Default)]
struct StartQueue {
    pending: VecDeque<PendingAttempt>,
    workers: usize,
}

/// An attempt that is to begin.
struct PendingAttempt {
    version: Arc<Version>,
    members: Vec<(Task, Hold)>,
}

impl Crew {
    /// Begins an attempt at a task, or at a batch, beside other attempts.
    pub fn begin(&self, shared: &Arc<SharedQueue>, version: &Arc<Version>, members: Vec<(Task, Hold)>) {
        let mut queue = self.queue();
        queue.pending.push_back(PendingAttempt { version: version.clone(), members });
        if queue.workers == 0 {
            queue.workers = 1;
            drop(queue);
            worker(shared, version.handler.guests());
        }
    }

    /// The attempt that a worker begins next, and whether another worker is needed for the rest.
    ///
    /// `None`: nothing is left, and the worker ends.
    fn next(&self, most: usize) -> Option<(PendingAttempt, bool)> {
        let mut queue = self.queue();
        let Some(next) = queue.pending.pop_front() else {
            queue.workers -= 1;
            return None;
        };
        let is_wanted = !queue.pending.is_empty() && queue.workers < most;
        queue.workers += usize::from(is_wanted);
        Some((next, is_wanted))
    }

    fn queue(&self) -> MutexGuard<'_, StartQueue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts one more worker. Workers start each other, because spawning from another runtime is expensive.
fn worker(shared: &Arc<SharedQueue>, guests: &Handle) {
    drop(shared.runners.spawn_on(work(shared.clone()), guests));
}

async fn work(shared: Arc<SharedQueue>) {
    let guests = Handle::current();
    // More workers would only wait for threads.
    let most = guests.metrics().num_workers();
    // One allocation serves all attempts that do not wait.
    let mut slot: Option<ReusableBoxFuture<'static, ()>> = None;
    let mut in_a_row = 0;
    while let Some((PendingAttempt { version, members }, is_another_wanted)) = shared.crew.next(most) {
        if is_another_wanted {
            worker(&shared, &guests);
        }
        // A panic of the host is logged already. It ends the attempt, whose task stays pending and is
        // reclaimed. The worker continues.
        let run = AssertUnwindSafe(runner::run(shared.clone(), version, members)).catch_unwind().map(drop);
        let attempt = match &mut slot {
            Some(slot) => {
                slot.set(run);
                slot
            }
            None => slot.insert(ReusableBoxFuture::new(run)),
        };
        let polled = std::future::poll_fn(|context| Poll::Ready(attempt.poll(context))).await;
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
