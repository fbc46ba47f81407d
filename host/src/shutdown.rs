//! How the host stops: the tokens that end its work in steps, and the loops that end last.
//!
//!     a signal ─▶ claiming ─▶ the grace period, or a second signal ─▶ running ─▶ SETTLE_GRACE ─▶ settling
//!
//! The third token is for a Redis that is away: without it a host would wait for its settlements without end.
//!
//! The signals of hosts and commands are here, too, and [`FirstProcess`], which `main` makes before anything
//! else.
//!
//! Not here: the order in which the parts of the host end (`app`), and the loops of a queue
//! (`worker::lifecycle`).

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long settlements may take after the last attempt has ended: Redis may be away.
const SETTLE_GRACE: Duration = Duration::from_secs(5);
/// How long loops may take to end after all tasks were settled or given up.
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

    /// Waits until `work`, the end of all queues, is done. Attempts that still run are stopped at the end of
    /// `grace` or on a second signal, and settlements are given up [`SETTLE_GRACE`] after that.
    pub(crate) async fn bound(&self, grace: Duration, mut signals: Signals, work: impl Future<Output = ()>) {
        let deadline = tokio::spawn({
            let stop = self.clone();
            async move {
                let why = tokio::select! {
                    () = tokio::time::sleep(grace) => "the grace period is over",
                    _ = signals.next() => "told to stop again",
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
    /// Ends the loops that go on after [`Stop::claiming`].
    pub over: CancellationToken,
    pub tracker: TaskTracker,
}

impl Loops {
    /// Runs a task until it ends, or until `over` is cancelled.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tracker.spawn(self.over.clone().run_until_cancelled_owned(task));
    }

    /// Waits, for at most [`LAST_GRACE`], until the loops have ended. `over` was cancelled before.
    pub(crate) async fn end(self) {
        self.tracker.close();
        // A loop that waits for a Redis that is away ends with the process.
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

/// Whether [`Signals`] have listened. From then on [`FirstProcess::end_with_signals`] ignores SIGTERM and
/// SIGINT. It stays true: the thread there may see a signal after its listener has ended.
static ARE_HEARD: AtomicBool = AtomicBool::new(false);

impl Signals {
    pub(crate) fn listen() -> anyhow::Result<Signals> {
        let signals = Signals::unannounced()?;
        ARE_HEARD.store(true, Ordering::Relaxed);
        Ok(signals)
    }

    fn unannounced() -> anyhow::Result<Signals> {
        let terminate = signal(SignalKind::terminate()).context("cannot listen to SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("cannot listen to SIGINT")?;
        Ok(Signals { terminate, interrupt })
    }

    /// Waits for the next signal. Returns its number.
    pub(crate) async fn next(&mut self) -> i32 {
        let kind = tokio::select! {
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.interrupt.recv() => SignalKind::interrupt(),
        };
        kind.as_raw_value()
    }
}

/// The signals that a host hears: those that end it, and SIGHUP.
pub(crate) struct HostSignals {
    pub ends: Signals,
    pub hangup: Signal,
}

impl HostSignals {
    pub(crate) fn listen() -> anyhow::Result<HostSignals> {
        let hangup = signal(SignalKind::hangup()).context("cannot listen to SIGHUP")?;
        Ok(HostSignals { ends: Signals::unannounced()?, hangup })
    }
}

/// The first process of a container. The kernel drops each signal to it that has no handler, so it has
/// handlers from its first line on. Any other process is ended by such a signal.
pub(crate) struct FirstProcess {
    runtime: Runtime,
    signals: HostSignals,
}

impl FirstProcess {
    /// None: this is another process.
    pub(crate) fn listen() -> anyhow::Result<Option<FirstProcess>> {
        if std::process::id() != 1 {
            return Ok(None);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let signals = {
            let _inside = runtime.enter();
            HostSignals::listen()?
        };
        Ok(Some(FirstProcess { runtime, signals }))
    }

    /// The signals so far and from now on, for a host.
    pub(crate) fn into_signals(self) -> HostSignals {
        self.signals
    }

    /// Lets signals end a command as they end any other process, also while it only computes.
    pub(crate) fn end_with_signals(self) -> io::Result<()> {
        let FirstProcess { runtime, signals: HostSignals { mut ends, mut hangup } } = self;
        let wait = async move {
            loop {
                let signal = tokio::select! {
                    signal = ends.next() => Some(signal).filter(|_| !ARE_HEARD.load(Ordering::Relaxed)),
                    _ = hangup.recv() => Some(SignalKind::hangup().as_raw_value()),
                };
                if let Some(signal) = signal {
                    // The exit code that a shell gives for a process that the signal ended.
                    std::process::exit(128 + signal);
                }
            }
        };
        std::thread::Builder::new().name("tq-signals".into()).spawn(move || runtime.block_on(wait)).map(drop)
    }
}
