//! One attempt: an instance, one call, and the report of how it went.
//!
//! In: an [`Attempt`] with one task or several. Out: its [`AttemptReport`], unless the attempt was stopped.
//! The guest runs on the sandbox's own threads, or begins on one of the host's (`worker::crew`). Dropping the
//! future of [`Handler::run`] ends the guest.
//!
//! ```text
//! place ─▶ store ─▶ instantiate ─▶ call ─▶ Ended
//!                                   ▲        │ if its plugin keeps instances, and it may run another task
//!                                   └─ kept ◀┘
//! ```
//!
//! Not here: the call and its replies (`call`), which instances are kept and how long (`warm`), the meaning
//! of errors (`failure`), what the guest may call (`host`).

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

use super::attempt::{Attempt, AttemptReport, Ended};
use super::attempt_state::{AttemptState, Interrupts};
use super::call::{self, Exports};
use super::failure::{self, Phase, Whereabouts};
use super::granted::Granted;
use super::loaded::{self, LoadedHandler};
use super::mask::Mask;
use super::number::VersionNumber;
use super::place;
use super::reply::{self, Reply};
use super::seated::LONGEST;
use super::seats::OpenInstances;
use super::share::{Owner, Share};
use super::shared::Sandbox;
use super::slices::SlicedCall;
use super::waits::GuestWaits;
use super::warm::Instance;
use super::{component, host, together};
use crate::config;
use crate::task::{FailureKind, Outcome};

/// An attempt that was disturbed more often runs in an instance of its own.
const MOST_DISTURBED: u32 = 1;

/// Why `concurrent` has no effect on a handler, and what helps.
pub(crate) const NOT_CONCURRENT: &str = "the plugin does not export tqhost:extensions/concurrent-handler, so \
    each instance runs one task at a time; projects of `tqhost new` in Python and JavaScript export it; for \
    other languages, such as Rust and Go, write `warm` in its place";

/// A loaded version of a plugin, ready to run attempts. Cheap to clone.
#[derive(Clone)]
pub struct Handler(pub(super) Arc<LoadedHandler>);

impl Handler {
    pub(super) fn new(sandbox: Sandbox, exports: Exports, grants: &config::Plugin) -> Handler {
        let (number, owner) = (VersionNumber::fresh(), Arc::<Owner>::default());
        let (runtime, polls) = (sandbox.0.sends_on.clone(), sandbox.0.sends_in.polls(number));
        let granted = Granted {
            config: grants.config.clone(),
            records: grants.records.clone(),
            blobs: sandbox.0.blobs.clone(),
            http: Arc::new(host::http::Grant::new(grants, runtime, polls, owner.clone())),
            owner,
        };
        // Up to this size, the guest gets an error for a blob that is too large; beyond, the call is a trap.
        let keeps_blobs = component::interfaces_of(exports.pre.component()).keeps_blobs();
        let largest = granted.blobs.max_blob().saturating_mul(2).min(grants.memory);
        let blob_fuel = if keeps_blobs { largest } else { 0 };
        Handler(Arc::new(LoadedHandler {
            memory: grants.memory.min(sandbox.0.budget.total()),
            sandbox,
            exports,
            granted: Arc::new(granted),
            blob_fuel,
            mask: Arc::new(Mask::new(&grants.config)),
            expected: AtomicU64::new(0),
            max_output: grants.max_output,
            max_log_rate: grants.max_log_rate,
            number,
            warm: grants.warm,
            open: OpenInstances::default(),
        }))
    }

    /// Whether an attempt may have several tasks.
    pub fn takes_batches(&self) -> bool {
        self.0.exports.handle_batch.is_some() && self.0.together().is_none()
    }

    /// Whether the plugin is to run several tasks at once in an instance, but the handler cannot.
    pub fn lacks_concurrency(&self) -> bool {
        self.0.warm.is_some_and(|warm| warm.concurrent > 1) && self.0.exports.run.is_none()
    }

    /// The most bytes of memory that an attempt may have.
    pub fn memory(&self) -> u64 {
        self.0.memory
    }

    /// Whether the handler imports HTTP requests, but its grants allow no host. This may be intended.
    pub fn lacks_hosts(&self) -> bool {
        self.0.granted.http.is_empty()
            && component::interfaces_of(self.0.exports.pre.component()).makes_requests()
    }

    /// Makes this handler a version of `plugin`, so that it uses the plugin's share of the host.
    pub fn belongs_to(&self, plugin: Arc<Share>, label: Arc<str>) {
        self.0.granted.owner.belongs_to(plugin, label);
    }

    /// Makes a handler of this code with other grants. It has its own instances.
    pub fn with_grants(&self, grants: &config::Plugin) -> Handler {
        Handler::new(self.0.sandbox.clone(), self.0.exports.clone(), grants)
    }

    /// The runtime that guests run on. A task that is spawned there calls [`Self::run`] without a hop to
    /// another thread.
    pub fn guests(&self) -> &Handle {
        &self.0.sandbox.0.runs_on
    }

    /// Runs one attempt to its end, on the guests' threads or where the caller has entered their runtime.
    ///
    /// Returns None if `stop` was cancelled, or if the attempt was evicted because all handlers together need
    /// too much memory.
    pub async fn run(&self, attempt: Attempt) -> Option<AttemptReport> {
        if Handle::try_current().is_ok_and(|here| here.id() == self.guests().id()) {
            return self.run_here(attempt).await;
        }
        let handler = self.clone();
        let guest = self.guests().spawn(async move { handler.run_here(attempt).await });
        // Panics are contained, so an error here means that the sandbox ends.
        AbortOnDropHandle::new(guest).await.ok().flatten()
    }

    async fn run_here(&self, attempt: Attempt) -> Option<AttemptReport> {
        // With backtraces, each attempt has an instance of its own: a backtrace belongs to one call.
        if let Some((function, warm)) = self.0.together()
            && !self.0.sandbox.0.backtraces
            && attempt.disturbed <= MOST_DISTURBED
            && attempt.tasks.iter().all(|task| task.crashes == 0 && !self.0.open.is_culprit(task))
        {
            return together::run(&self.0, function, attempt, warm).await;
        }
        let loaded = &*self.0;
        // A panic can leave only the instance half done, and the instance is dropped with it.
        AssertUnwindSafe(run(loaded, attempt)).catch_unwind().await.unwrap_or_else(|_| {
            // This is a bug of the host, but it fails only this task. The panic itself has been logged.
            let message = "the host failed while it ran the handler".to_owned();
            let ended = Ended::Failed { kind: FailureKind::Trap, message };
            let (backtrace, last_lines) = (Vec::new(), String::new());
            Some(AttemptReport { ended, backtrace, last_lines, peak_memory: 0, duration: Duration::ZERO })
        })
    }
}

async fn run(loaded: &LoadedHandler, attempt: Attempt) -> Option<AttemptReport> {
    let sliced = loaded.sandbox.0.slices.call(loaded.number);
    let mut instance = loaded::instance(loaded, &attempt.stop, &sliced).await?;
    let started = Instant::now();
    let timeout = attempt.timeout.min(LONGEST);
    let deadline = started + timeout;
    let log = loaded.log(attempt.tasks.clone(), attempt.plugin.clone());
    let count = u32::try_from(attempt.tasks.len()).unwrap_or(u32::MAX);
    instance.tasks = instance.tasks.saturating_add(count);
    loaded.refuel(&mut instance.store, count);
    let interrupts = Interrupts { stop: attempt.stop.clone(), sliced: sliced.clone() };
    let waits = Arc::<GuestWaits>::default();
    let log = instance.store.data().renewed_log(log);
    let state = AttemptState::of(&attempt, log, waits.clone(), deadline, interrupts);
    instance.store.data_mut().begin(state);

    let called = {
        let call = sliced.clone().run(call::call(&loaded.exports, &mut instance, &attempt, deadline));
        let mut call = pin!(call);
        tokio::select! {
            biased;
            called = &mut call => Some(called),
            () = attempt.stop.cancelled() => return None,
            () = sliced.evicted() => None,
            () = tokio::time::sleep_until(deadline.into()) => {
                // A guest that waits ends at once, with a trap that tells where it was.
                waits.late.notify_waiters();
                call.now_or_never()
            }
        }
    };
    let duration = started.elapsed();
    let (ended, backtrace) = ended(loaded, &attempt, &mut instance, called, &sliced)?;
    let peak_memory = instance.store.data().limits.peak();
    let last_lines = instance.store.data().log().take_last_lines();
    let report = AttemptReport { ended, backtrace, last_lines, peak_memory, duration };
    let failed = match &report.ended {
        Ended::Each(outcomes) => outcomes.iter().any(|outcome| matches!(outcome, Outcome::Failed { .. })),
        Ended::Failed { .. } | Ended::Disturbed { .. } => true,
    };
    if !failed {
        loaded.keep(instance);
    }
    Some(report)
}

/// How the attempt ended, with the calls that led to a failure. None: it was stopped.
fn ended(
    loaded: &LoadedHandler,
    attempt: &Attempt,
    instance: &mut Instance,
    called: Option<Result<Vec<Reply>, (wasmtime::Error, Phase)>>,
    sliced: &SlicedCall,
) -> Option<(Ended, Vec<String>)> {
    // The phase in which a timeout struck.
    let phase = if instance.running.is_some() { Phase::Call } else { Phase::Instantiate };
    let timeout = attempt.timeout.min(LONGEST);
    let (effects, outages) = instance.store.data_mut().attempt.effects.take();
    let state = instance.store.data();
    let mut log = state.log();
    log.finish();
    loaded.note_peak(state.limits.peak());
    if sliced.is_evicted() && (state.limits.refused().is_some() || !matches!(called, Some(Ok(_)))) {
        let (plugin, memory) = (&attempt.plugin, state.limits.peak());
        tracing::warn!(%plugin, memory, "stopped: all handlers together need more memory than they have");
        return None;
    }
    let (error, phase) = match called {
        Some(Ok(replies)) => {
            let ended = reply::ended(replies, effects, &outages, loaded.max_output, &loaded.mask);
            return Some((ended, Vec::new()));
        }
        // The epoch callback interrupted a guest that computed, because `stop` was cancelled.
        Some(Err(_)) if attempt.stop.is_cancelled() => return None,
        Some(Err(failed)) => failed,
        None => {
            let whereabouts = state.attempt.waits.whereabouts();
            return Some((timed_out(phase, timeout, sliced, &whereabouts, &loaded.mask), Vec::new()));
        }
    };
    let backtrace = match loaded.sandbox.0.backtraces {
        true => failure::backtrace(&error, &loaded.mask),
        false => Vec::new(),
    };
    if loaded::is_interrupt(&error) {
        let whereabouts = place::whereabouts(&error, &instance.store, &state.attempt.waits, log.place());
        return Some((timed_out(phase, timeout, sliced, &whereabouts, &loaded.mask), backtrace));
    }
    let (task, tasks) = (attempt.tasks.first().map(|task| task.id.as_str()), attempt.tasks.len());
    // The backtrace is formatted only if this log level is on.
    let shown = || loaded.mask.text(&format!("{error:?}")).into_owned();
    let plugin = &attempt.plugin;
    tracing::debug!(target: "guest", task, tasks, %plugin, error = shown(), "failed");
    let output = loaded.output(u32::try_from(tasks).unwrap_or(u32::MAX));
    let (kind, message) = failure::classify(&error, phase, &state.limits, output, &log);
    Some((Ended::Failed { kind, message }, backtrace))
}

fn timed_out(
    phase: Phase,
    timeout: Duration,
    sliced: &SlicedCall,
    whereabouts: &Whereabouts,
    mask: &Mask,
) -> Ended {
    let (kind, message) = phase.timed_out("the handler", timeout, sliced.waited(), whereabouts, mask);
    Ended::Failed { kind, message }
}
