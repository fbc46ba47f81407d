//! How the host stops: the tokens that end its work in steps, and the loops that end last.
//!
//!     a signal ─▶ claiming ─▶ the grace period, or a second signal ─▶ running ─▶ SETTLE_GRACE ─▶ settling
//!
//! The third token is for a Redis that is away: without it a host would wait for its settlements without end.
//!
//! Not here: the order in which the parts of the host end (`app`), and the loops of a queue
//! (`worker::lifecycle`).

use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long settlements may take after the last attempt has ended: Redis may be away.
const SETTLE_GRACE: Duration = Duration::from_secs(5);
/// How long the rest may take, when all tasks are settled or given up.
const LAST_GRACE: Duration = Duration::from_secs(2);

/// The tokens that end the loops.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop {
    /// No new task is claimed.
    pub claiming: CancellationToken,
    /// Attempts that still run are stopped and their tasks given back.
    pub running: CancellationToken,
    /// Settlements that are not done are given up; other hosts take the tasks over.
    pub settling: CancellationToken,
}

impl Stop {
    /// Tokens that are cancelled with these, and can be cancelled earlier on their own.
    pub(crate) fn child(&self) -> Stop {
        Stop {
            claiming: self.claiming.child_token(),
            running: self.running.child_token(),
            settling: self.settling.child_token(),
        }
    }

    /// Waits until `work` has ended, which `claiming` began. Attempts that still run are stopped at the end
    /// of `grace` or on a second signal, and settlements are given up some time after that.
    pub(crate) async fn bound(&self, grace: Duration, mut signals: Signals, work: impl Future<Output = ()>) {
        let deadline = tokio::spawn({
            let stop = self.clone();
            async move {
                let why = tokio::select! {
                    () = tokio::time::sleep(grace) => "the grace period is over",
                    () = signals.next() => "told to stop again",
                };
                tracing::warn!("{why}: stopping attempts that still run");
                stop.running.cancel();
                tokio::time::sleep(SETTLE_GRACE).await;
                stop.settling.cancel();
            }
        });
        work.await;
        deadline.abort();
    }
}

/// Loops that serve until all tasks are settled or given up.
#[derive(Debug, Default)]
pub(crate) struct Loops {
    /// Tells those to end that do not end with [`Stop::claiming`].
    pub over: CancellationToken,
    pub tracker: TaskTracker,
}

impl Loops {
    /// Waits until they have ended, once they were told to.
    pub(crate) async fn end(self) {
        self.tracker.close();
        // Whoever waits for a Redis that is away ends with the process.
        if tokio::time::timeout(LAST_GRACE, self.tracker.wait()).await.is_err() {
            tracing::debug!("some loops did not end in time");
        }
    }
}

/// SIGTERM and SIGINT, from [`Signals::listen`] on. Before that, they end the process.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(crate) fn listen() -> anyhow::Result<Signals> {
        let terminate = signal(SignalKind::terminate()).context("cannot listen to SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("cannot listen to SIGINT")?;
        Ok(Signals { terminate, interrupt })
    }

    /// Waits for one that was not waited for yet.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
