//! Whose turn it is to read and compile a file: one plugin after the other, in the order in which they came. One that takes long makes room for the
//! next, so that a file which takes minutes holds up others for [`Gate`]'s patience only.
//!
//! Not here: how long compiling may take at all (`sandbox::apart`), what the processor has for it (`sandbox::compiler`).

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long others wait for one file.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// Files that may take longer, all at once. Each of them may have as much memory as compiling may take.
const SLOW: usize = 2;

#[derive(Clone)]
pub(super) struct Gate {
    /// Those that have not been at it for long: one.
    next: Arc<Semaphore>,
    /// All that are at it.
    all: Arc<Semaphore>,
    patience: Duration,
}

impl Gate {
    pub(super) fn new(patience: Duration) -> Gate {
        Gate { next: Arc::new(Semaphore::new(1)), all: Arc::new(Semaphore::new(1 + SLOW)), patience }
    }

    /// Waits for its turn, then for the work.
    pub(super) async fn pass<T>(&self, work: impl Future<Output = T>) -> T {
        let next = taken(&self.next).await;
        let _all = taken(&self.all).await;
        let mut work = pin!(work);
        if let Ok(done) = tokio::time::timeout(self.patience, &mut work).await {
            return done;
        }
        drop(next);
        work.await
    }
}

/// None if it was closed, which nobody does.
async fn taken(places: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    places.clone().acquire_owned().await.ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::task::yield_now;

    use super::*;

    /// Who is at work, and what there was.
    #[derive(Default)]
    struct Log {
        now: usize,
        most: usize,
        began: Vec<usize>,
    }

    /// Sends ten through a gate, where each is at work until `end` says so.
    async fn ten(patience: Duration, end: fn(&Log) -> bool) -> Log {
        let (gate, log) = (Gate::new(patience), Arc::new(Mutex::new(Log::default())));
        let all: Vec<_> = (0..10)
            .map(|n| {
                let (gate, log) = (gate.clone(), log.clone());
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
                    gate.pass(work).await;
                })
            })
            .collect();
        for one in all {
            one.await.unwrap();
        }
        assert_eq!((gate.next.available_permits(), gate.all.available_permits()), (1, 1 + SLOW));
        Arc::into_inner(log).expect("all have ended").into_inner().unwrap()
    }

    #[tokio::test]
    async fn one_after_the_other_in_their_order() {
        let log = ten(Duration::from_secs(3600), |_| true).await;
        assert_eq!((log.began, log.most), ((0..10).collect(), 1));
    }

    #[tokio::test]
    async fn those_that_take_long_make_room_for_some() {
        // Nobody ends before there are as many as there can be, but for the last ones.
        let log = ten(Duration::from_millis(5), |log| log.now == 1 + SLOW || log.began.len() == 10).await;
        assert_eq!((log.began, log.most), ((0..10).collect(), 1 + SLOW));
    }

    #[tokio::test]
    async fn whoever_gives_up_leaves_the_turn_to_others() {
        let gate = Gate::new(Duration::from_secs(3600));
        let [first, second] =
            [gate.clone(), gate.clone()].map(|gate| tokio::spawn(async move { gate.pass(std::future::pending::<()>()).await }));
        while gate.next.available_permits() > 0 {
            yield_now().await;
        }
        second.abort();
        first.abort();
        gate.pass(async {}).await;
        assert_eq!((gate.next.available_permits(), gate.all.available_permits()), (1, 1 + SLOW));
    }
}
