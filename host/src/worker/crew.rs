//! Begins attempts on the guests' threads, without a task of the runtime for each.
//!
//! In: attempts as they are to begin. Out: each is run by one of a few workers, one after the other; one that
//! has to wait for something goes on as a task of its own, so that nobody waits for it.
//!
//!     begin ─▶ line ─▶ worker: polls it once ─▶ over
//!                                           └─▶ waits: spawned
//!
//! A task of the runtime costs more than a short attempt: memory of its own, places in two lists, a thread
//! that is woken. Not here: what an attempt does (`runner`).

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use futures_util::FutureExt as _;
use tokio::runtime::Handle;
use tokio_util::sync::ReusableBoxFuture;

use super::inflight::Hold;
use super::runner;
use super::shared::Shared;
use crate::plugins::Version;
use crate::task::Task;

/// After so many attempts a worker lets other tasks of the runtime have the thread: those of other queues,
/// and what was spawned here.
const IN_A_ROW: usize = 16;

/// What is to begin in one queue, and who begins it.
#[derive(Default)]
pub struct Crew(Mutex<Line>);

#[derive(Default)]
struct Line {
    starts: VecDeque<Start>,
    workers: usize,
}

/// An attempt that is to begin.
struct Start {
    version: Arc<Version>,
    members: Vec<(Task, Hold)>,
}

impl Crew {
    /// Begins an attempt at a task, or at several that were gathered for a version that takes batches, beside
    /// the others.
    pub fn begin(&self, shared: &Arc<Shared>, version: &Arc<Version>, members: Vec<(Task, Hold)>) {
        let mut line = self.line();
        line.starts.push_back(Start { version: version.clone(), members });
        if line.workers == 0 {
            line.workers = 1;
            drop(line);
            worker(shared, version.handler.guests());
        }
    }

    /// What a worker begins next, and whether another one has to be there for what is left. None: it is no
    /// worker any more.
    fn next(&self, most: usize) -> Option<(Start, bool)> {
        let mut line = self.line();
        let Some(next) = line.starts.pop_front() else {
            line.workers -= 1;
            return None;
        };
        let is_wanted = !line.starts.is_empty() && line.workers < most;
        line.workers += usize::from(is_wanted);
        Some((next, is_wanted))
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One more worker. Each brings the next one along, which is dear for whoever is not on the guests' threads.
fn worker(shared: &Arc<Shared>, guests: &Handle) {
    drop(shared.runners.spawn_on(work(shared.clone()), guests));
}

async fn work(shared: Arc<Shared>) {
    let guests = Handle::current();
    // More of them would only wait for threads.
    let most = guests.metrics().num_workers();
    // One piece of memory for all attempts that need not wait.
    let mut place: Option<ReusableBoxFuture<'static, ()>> = None;
    let mut in_a_row = 0;
    while let Some((Start { version, members }, is_another_wanted)) = shared.crew.next(most) {
        if is_another_wanted {
            worker(&shared, &guests);
        }
        // A panic of the host has been logged. It ends the attempt, which stays pending and is reclaimed, and
        // not the worker.
        let run = AssertUnwindSafe(runner::run(shared.clone(), version, members)).catch_unwind().map(drop);
        let attempt = match &mut place {
            Some(place) => {
                place.set(run);
                place
            }
            None => place.insert(ReusableBoxFuture::new(run)),
        };
        let polled = std::future::poll_fn(|context| Poll::Ready(attempt.poll(context))).await;
        if polled.is_pending()
            && let Some(waits) = place.take()
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
