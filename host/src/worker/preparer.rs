//! Checks the keys of one queue before any task is taken from it, and creates its group.
//!
//! In: a queue. Out: a cancelled token when the queue can be served. Until then no loop that claims or moves
//! tasks runs. While the user of Redis lacks rights, a key has another type, or the stream has a group that
//! nobody has confirmed, this loop says so in the log and to the health, and looks again. So the queue is
//! served without a restart when the cause is mended.
//!
//! Not here: the check itself (`queue/scripts/group.lua`).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::pace::Pace;
use super::shared::SharedQueue;
use super::storm::{SERVED, UNFIT};
use crate::admin::FetchPulse;

/// The time between two looks at keys that do not fit.
const LOOK: Duration = Duration::from_secs(1);
/// How often the log repeats why the keys do not fit.
const REMIND: Duration = Duration::from_secs(60);

pub(crate) struct Preparer {
    pub shared: Arc<SharedQueue>,
    pub pulse: FetchPulse,
    /// Cancelled when the queue can be served.
    pub prepared: CancellationToken,
}

impl Preparer {
    /// Ends when the queue can be served, or with `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        if stop.run_until_cancelled(self.wait()).await.is_some() {
            self.prepared.cancel();
        }
    }

    async fn wait(&self) {
        let queue = self.shared.name.as_ref();
        let mut pace = Pace::new(queue, "prepare");
        let mut logged: Option<(Instant, String)> = None;
        loop {
            let error = match self.shared.queue.ensure_group().await {
                Ok(_) => break,
                Err(error) => error,
            };
            let Some(why) = error.unfit(queue) else {
                tokio::time::sleep(pace.failed(&error)).await;
                continue;
            };
            if logged.as_ref().is_none_or(|(at, known)| *known != why || at.elapsed() >= REMIND) {
                if UNFIT.admits(queue) {
                    tracing::error!(queue, why, "no task is taken from the queue");
                }
                logged = Some((Instant::now(), why.clone()));
            }
            self.pulse.fault(why);
            tokio::time::sleep(LOOK).await;
        }
        pace.succeeded();
        if logged.is_some() && SERVED.admits(queue) {
            tracing::info!(queue, "the queue can be served now");
        }
    }
}
