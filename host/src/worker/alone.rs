//! Lets one attempt run alone in its host: no other one runs in the process meanwhile, of whichever queue.
//!
//! In: attempts that run beside others, and now and then one that must not. Out: guards, which say when they
//! may run. Nobody is stopped for it.
//!
//! Not here: which task has to run alone, and what follows from it (`suspect`).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard, OwnedRwLockWriteGuard, RwLock, RwLockReadGuard};
use tokio::time::{sleep, timeout};

/// For so long nothing new begins at first, while what runs comes to its end.
const PATIENCE: Duration = Duration::from_secs(1);
/// If that was not long enough, everything goes on for so many times as long before the next try.
const REST: u32 = 3;

/// Who runs: many beside each other, or one alone.
#[derive(Debug)]
pub struct Alone {
    patience: Duration,
    running: Arc<RwLock<()>>,
    /// Held by the one that asks to run alone, so that the others have a turn between two of these.
    first: Arc<Mutex<()>>,
}

/// Nothing else runs, for as long as this lives.
#[derive(Debug)]
pub struct Turn {
    _running: OwnedRwLockWriteGuard<()>,
    _first: OwnedMutexGuard<()>,
}

impl Default for Alone {
    fn default() -> Alone {
        Alone { patience: PATIENCE, running: Arc::default(), first: Arc::default() }
    }
}

impl Alone {
    /// Waits for whoever runs alone, or is about to.
    pub async fn beside(&self) -> RwLockReadGuard<'_, ()> {
        self.running.read().await
    }

    /// Waits until nothing else runs.
    ///
    /// Nothing new begins for a while, and then everything goes on for longer than that, so that a host whose
    /// other attempts take hours is held up for a quarter of the time at most. Each try is twice as long as
    /// the one before: one of them is longer than the longest attempt.
    pub async fn alone(&self) -> Turn {
        let first = self.first.clone().lock_owned().await;
        let mut patience = self.patience;
        loop {
            if let Ok(running) = timeout(patience, self.running.clone().write_owned()).await {
                return Turn { _running: running, _first: first };
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
        let running = alone.beside().await;
        let mut suspect = std::pin::pin!(alone.alone());
        assert!(suspect.as_mut().now_or_never().is_none());
        let mut next = std::pin::pin!(alone.beside());
        assert!(next.as_mut().now_or_never().is_none(), "nothing new begins");
        let mut second = std::pin::pin!(alone.alone());
        drop(running);
        let turn = suspect.await;
        assert!(next.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
        drop(turn);
        assert!(second.as_mut().now_or_never().is_none(), "first it is the turn of the others");
        drop(next.await);
        drop(second.await);
    }

    #[tokio::test]
    async fn a_long_attempt_holds_neither_the_host_up_nor_the_suspect_for_ever() {
        let alone = Alone { patience: Duration::from_millis(1), ..Alone::default() };
        let long = alone.beside().await;
        let others = async {
            for _ in 0..5 {
                drop(alone.beside().await);
                // The next try is under way, or the one after.
                sleep(Duration::from_millis(2)).await;
            }
            drop(long);
        };
        let (turn, ()) = tokio::join!(alone.alone(), others);
        drop(turn);
    }
}
