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
//! Not here: the queue of attempts (`starts`), what an attempt does (`runner`).

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::Poll;

use futures_util::FutureExt as _;
use tokio::runtime::Handle;
use tokio_util::sync::ReusableBoxFuture;

use super::inflight::Hold;
use super::runner;
use super::shared::SharedQueue;
use super::starts::PendingAttempt;
use crate::plugins::Version;
use crate::task::Task;

/// After this many attempts, a worker yields its thread to other tasks of the runtime.
const IN_A_ROW: usize = 16;

/// Begins an attempt at a task, or at a batch, beside other attempts.
pub(crate) fn begin(shared: &Arc<SharedQueue>, version: &Arc<Version>, members: Vec<(Task, Hold)>) {
    if shared.starts.add(version, members) {
        worker(shared, version.handler.guests());
    }
}

/// Starts one more worker. Workers start each other, because spawning from another runtime is expensive.
fn worker(shared: &Arc<SharedQueue>, guests: &Handle) {
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
    while let Some((PendingAttempt { version, members }, is_another_wanted)) = shared.starts.next(most) {
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
