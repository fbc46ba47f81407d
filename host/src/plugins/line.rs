//! The order of the work on files. Files are read one after the other, in the order in which they were found,
//! and compiled one after the other. A file that takes long to compile lets the next one begin, so that it
//! holds up others for [`PATIENCE`] only.
//!
//! Not here: the time limit of compiling (`sandbox::compiler_process`), its share of the processor
//! (`sandbox::compiler`).

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use futures_util::future::{MaybeDone, maybe_done};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::coop::unconstrained;

/// How long others wait for one file.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// How many files that take longer may be compiled at once, beside the next one. Each may use half of the
/// cores, and as much memory as compiling may take.
const SLOW: usize = 1;

#[derive(Clone)]
pub(super) struct Line {
    /// One permit to read, since a file may be large.
    read: Arc<Semaphore>,
    /// One permit to compile for up to [`PATIENCE`].
    next: Arc<Semaphore>,
    /// A permit for each file that is compiled.
    all: Arc<Semaphore>,
    patience: Duration,
}

/// A place in the line of loads that want to read.
pub(super) struct Place(Pin<Box<MaybeDone<Permit>>>);

type Permit = Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send>>;

impl Line {
    pub(super) fn new(patience: Duration) -> Line {
        let [read, next, all] = [1, 1, 1 + SLOW].map(|places| Arc::new(Semaphore::new(places)));
        Line { read, next, all, patience }
    }

    /// Joins the line now, and not at the first poll of a spawned task, which may come after others.
    pub(super) fn line_up(&self) -> Place {
        // Otherwise a caller that has used up its budget of polls would not join.
        let permit: Permit = Box::pin(unconstrained(taken(self.read.clone())));
        let mut place = Box::pin(maybe_done(permit));
        // Nothing can wake this poll. `read` polls the place again.
        let _ = place.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        Place(place)
    }

    /// Waits for its turn to read, then for the work.
    pub(super) async fn read<T>(&self, Place(mut place): Place, work: impl Future<Output = T>) -> T {
        place.as_mut().await;
        let _permit = place.as_mut().take_output();
        work.await
    }

    /// Waits for its turn to compile, then for the work.
    pub(super) async fn compile<T>(&self, work: impl Future<Output = T>) -> T {
        let next = taken(self.next.clone()).await;
        let _all = taken(self.all.clone()).await;
        let mut work = pin!(work);
        if let Ok(done) = tokio::time::timeout(self.patience, &mut work).await {
            return done;
        }
        drop(next);
        work.await
    }
}

/// Waits for a permit. `None`: the semaphore was closed, which nobody does.
async fn taken(places: Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    places.acquire_owned().await.ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::task::yield_now;

    use super::*;

    /// The files that are at work, and the events so far.
    #[derive(Default)]
    struct Log {
        now: usize,
        most: usize,
        began: Vec<usize>,
    }

    /// Sends ten through a line, where each is at work until `end` says so.
    async fn ten(patience: Duration, end: fn(&Log) -> bool) -> Log {
        let (line, log) = (Line::new(patience), Arc::new(Mutex::new(Log::default())));
        let all: Vec<_> = (0..10)
            .map(|n| {
                let (line, log) = (line.clone(), log.clone());
                tokio::spawn(async move {
                    let work = async {
                        {
                            let mut log = log.lock().unwrap();
                            log.began.push(n);
                            log.now += 1;
                            log.most = log.most.max(log.now);
                        }
                        while !end(&log.lock().unwrap()) {
                            tokio::time::sleep(Duration::from_millis(1)).await;
                        }
                        log.lock().unwrap().now -= 1;
                    };
                    line.compile(work).await;
                })
            })
            .collect();
        for one in all {
            one.await.unwrap();
        }
        assert_eq!((line.next.available_permits(), line.all.available_permits()), (1, 1 + SLOW));
        Arc::into_inner(log).expect("all have ended").into_inner().unwrap()
    }

    #[tokio::test]
    async fn one_after_the_other_in_their_order() {
        let log = ten(Duration::from_secs(3600), |_| true).await;
        assert_eq!((log.began, log.most), ((0..10).collect(), 1));
    }

    #[tokio::test]
    async fn long_compilations_make_room_for_others() {
        // Nobody ends before there are as many as there can be, but for the last ones.
        let log = ten(Duration::from_millis(5), |log| log.now == 1 + SLOW || log.began.len() == 10).await;
        assert_eq!((log.began, log.most), ((0..10).collect(), 1 + SLOW));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn files_are_read_in_the_order_of_their_places() {
        let (line, order) = (Line::new(PATIENCE), Arc::new(Mutex::new(Vec::new())));
        // More than a task may do at a time, and spawned by a task, which runs the last of them first.
        let spawning = {
            let (line, order) = (line.clone(), order.clone());
            tokio::spawn(async move {
                let all = (0..300).map(|n| {
                    let (line, order, place) = (line.clone(), order.clone(), line.line_up());
                    tokio::spawn(async move {
                        line.read(place, async { order.lock().unwrap().push(n) }).await;
                    })
                });
                all.collect::<Vec<_>>()
            })
        };
        for one in spawning.await.unwrap() {
            one.await.unwrap();
        }
        assert!(order.lock().unwrap().iter().copied().eq(0..300), "{order:?}");
        // One that is never used leaves its turn to others.
        drop((line.line_up(), line.line_up()));
        line.read(line.line_up(), async {}).await;
    }

    #[tokio::test]
    async fn giving_up_leaves_the_turn_to_others() {
        let line = Line::new(Duration::from_secs(3600));
        let [first, second] = [line.clone(), line.clone()]
            .map(|line| tokio::spawn(async move { line.compile(std::future::pending::<()>()).await }));
        while line.next.available_permits() > 0 {
            yield_now().await;
        }
        second.abort();
        first.abort();
        line.compile(async {}).await;
        assert_eq!((line.next.available_permits(), line.all.available_permits()), (1, 1 + SLOW));
    }
}
