//! Lets one attempt run alone: no other attempt of any queue runs in the process at the same time.
//!
//! In: attempts that run beside others, and sometimes one that must run alone. Out: guards that an attempt
//! holds while it runs. No running attempt is stopped.
//!
//! Not here: which task has to run alone, and what follows from a crash (`suspect`).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard, OwnedRwLockWriteGuard, RwLock, RwLockReadGuard};
use tokio::time::{sleep, timeout};

/// The length of the first try, in which no new attempt begins, so that running attempts can end.
const PATIENCE: Duration = Duration::from_secs(1);
/// After a try that failed, attempts run as usual for this many times the length of the try.
const REST: u32 = 3;

/// Either many attempts run beside each other, or one runs alone.
#[derive(Debug)]
pub(crate) struct Alone {
    patience: Duration,
    running: Arc<RwLock<()>>,
    /// Locked by the attempt that asks to run alone or does, so that other attempts run between two of these.
    asking: Arc<Mutex<()>>,
}

/// No other attempt runs while this guard lives.
#[derive(Debug)]
pub(crate) struct AloneGuard {
    _running: OwnedRwLockWriteGuard<()>,
    _asking: OwnedMutexGuard<()>,
}

impl Default for Alone {
    fn default() -> Alone {
        Alone { patience: PATIENCE, running: Arc::default(), asking: Arc::default() }
    }
}

impl Alone {
    /// Waits until no attempt runs alone, or keeps new attempts from beginning.
    pub(crate) async fn enter_shared(&self) -> RwLockReadGuard<'_, ()> {
        self.running.read().await
    }

    /// Waits until nothing else runs.
    ///
    /// A try keeps new attempts from beginning. If it fails, attempts run as usual for [`REST`] times as
    /// long, so the host is held up for at most a quarter of the time. Each try is twice as long as the one
    /// before, so one of them outlasts the longest attempt.
    pub(crate) async fn enter_alone(&self) -> AloneGuard {
        let asking = self.asking.clone().lock_owned().await;
        let mut patience = self.patience;
        loop {
            if let Ok(running) = timeout(patience, self.running.clone().write_owned()).await {
                return AloneGuard { _running: running, _asking: asking };
            }
            sleep(patience * REST).await;
            patience = patience.saturating_mul(2);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn one_that_runs_alone_waits_for_the_others_and_they_for_it() {
        let alone = Alone::default();
        let running = alone.enter_shared().await;
        let mut suspect = std::pin::pin!(alone.enter_alone());
        assert!(suspect.as_mut().now_or_never().is_none());
        let mut next = std::pin::pin!(alone.enter_shared());
        assert!(next.as_mut().now_or_never().is_none(), "nothing new begins");
        let mut second = std::pin::pin!(alone.enter_alone());
        drop(running);
        let guard = suspect.await;
        assert!(next.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
        drop(guard);
        assert!(second.as_mut().now_or_never().is_none(), "first it is the turn of the others");
        drop(next.await);
        drop(second.await);
    }

    #[tokio::test]
    async fn a_long_attempt_holds_neither_the_host_up_nor_the_suspect_for_ever() {
        let alone = Alone { patience: Duration::from_millis(1), ..Alone::default() };
        let long = alone.enter_shared().await;
        let others = async {
            for _ in 0..5 {
                drop(alone.enter_shared().await);
                // The next try is under way, or the one after.
                sleep(Duration::from_millis(2)).await;
            }
            drop(long);
        };
        let (guard, ()) = tokio::join!(alone.enter_alone(), others);
        drop(guard);
    }
}
