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

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use wasmtime::{Store, UpdateDeadline};

use super::attempt::{Attempt, AttemptReport, Ended};
use super::blob_access::BlobAccess;
use super::call::{self, Exports};
use super::component;
use super::effects::AttemptEffects;
use super::failure::{self, Phase};
use super::host;
use super::limits::Limits;
use super::log::GuestLog;
use super::mask::Mask;
use super::number::Number;
use super::quota::Quota;
use super::share::{Owner, Share};
use super::shared::{Sandbox, Shared};
use super::state::{GuestState, Interrupts};
use super::turns::Turn;
use super::warm::Instance;
use crate::config::{self, RecordGrants, Secret};
use crate::task::{FailureKind, Outcome, Task};

/// Extra bytes that a result may need before it is measured: failure texts, headers of lists and options.
const RESULT_SLACK: u64 = 1 << 20;
/// Handles that a guest may leave open at the end of a task and still get another task. Language runtimes
/// keep some streams open.
const MAX_LEFT_HANDLES: usize = 32;

/// A loaded version of a plugin, ready to run attempts. Cheap to clone.
#[derive(Clone)]
pub struct Handler(pub(super) Arc<LoadedHandler>);

pub(super) struct LoadedHandler {
    pub(super) sandbox: Sandbox,
    pub(super) exports: Exports,
    pub(super) config: Arc<BTreeMap<String, Secret>>,
    records: Arc<RecordGrants>,
    blobs: Arc<BlobAccess>,
    /// The most bytes of a blob that a guest may pass in one call. 0 if it does not import blobs.
    blob_fuel: u64,
    pub(super) mask: Arc<Mask>,
    pub(super) http: Arc<host::http::Grant>,
    pub(super) owner: Arc<Owner>,
    pub(super) memory: u64,
    /// Bytes that a new instance probably needs.
    expected: AtomicU64,
    pub(super) max_output: u64,
    max_log_rate: u64,
    pub(super) number: Number,
    /// How instances are kept. None if each instance runs one task.
    warm: Option<config::Warm>,
}

impl LoadedHandler {
    /// The log of one attempt.
    pub(super) fn log(&self, tasks: Arc<Vec<Task>>, plugin: Arc<str>) -> GuestLog {
        let quota = Quota { share: self.owner.share().clone(), rate: self.max_log_rate };
        GuestLog::new(tasks, plugin, self.owner.label().cloned(), self.mask.clone(), quota)
    }

    /// Notes the peak memory of an instance. The estimate rises at once to a higher peak, and falls slowly
    /// after lower ones.
    fn needs(&self, peak: u64) {
        let expected = self.expected.load(Ordering::Relaxed);
        let now = peak.max(expected - expected.saturating_sub(peak) / 16);
        if now != expected {
            self.expected.store(now, Ordering::Relaxed);
        }
    }
}

impl Drop for LoadedHandler {
    fn drop(&mut self) {
        self.sandbox.0.pool.drop_version(self.number);
    }
}

impl Handler {
    pub(super) fn new(sandbox: Sandbox, exports: Exports, grants: &config::Plugin) -> Handler {
        let (config, mask) = (Arc::new(grants.config.clone()), Arc::new(Mask::new(&grants.config)));
        let (number, owner) = (sandbox.0.pool.number(), Arc::<Owner>::default());
        let http = host::http::Grant::new(
            grants,
            sandbox.0.sends_on.clone(),
            sandbox.0.sends_in.polls(number),
            owner.clone(),
        );
        let store = sandbox.0.blobs.clone();
        // A blob that is too large gets its own error, up to this size; beyond, the call is a trap.
        let keeps_blobs = component::interfaces_of(exports.pre.component()).keeps_blobs();
        let blob_fuel = if keeps_blobs { store.max_blob().saturating_mul(2).min(grants.memory) } else { 0 };
        let blobs = Arc::new(BlobAccess { store, owner: owner.clone() });
        Handler(Arc::new(LoadedHandler {
            memory: grants.memory.min(sandbox.0.budget.total()),
            sandbox,
            exports,
            config,
            records: grants.records.clone().into(),
            blobs,
            blob_fuel,
            mask,
            http: Arc::new(http),
            owner,
            expected: AtomicU64::new(0),
            max_output: grants.max_output,
            max_log_rate: grants.max_log_rate,
            number,
            warm: grants.warm,
        }))
    }

    /// Whether an attempt may have several tasks.
    pub fn takes_batches(&self) -> bool {
        self.0.exports.handle_batch.is_some()
    }

    /// The most bytes of memory that an attempt may have.
    pub fn memory(&self) -> u64 {
        self.0.memory
    }

    /// Whether the handler imports HTTP requests, but its grants allow no host. This may be intended.
    pub fn lacks_hosts(&self) -> bool {
        self.0.http.is_empty() && component::interfaces_of(self.0.exports.pre.component()).makes_requests()
    }

    /// Makes this handler a version of `plugin`, so that it uses the plugin's share of the host.
    pub fn belongs_to(&self, plugin: Arc<Share>, label: Arc<str>) {
        self.0.owner.belongs_to(plugin, label);
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
    /// Gives None if `stop` was cancelled, or if the attempt was evicted because all handlers together need
    /// too much memory.
    pub async fn run(&self, attempt: Attempt) -> Option<AttemptReport> {
        if Handle::try_current().is_ok_and(|here| here.id() == self.guests().id()) {
            return self.run_here(attempt).await;
        }
        let handler = self.clone();
        let mut guest = AbortOnDrop(self.guests().spawn(async move { handler.run_here(attempt).await }));
        // Panics are contained, so an error here means that the sandbox ends.
        (&mut guest.0).await.ok().flatten()
    }

    async fn run_here(&self, attempt: Attempt) -> Option<AttemptReport> {
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

pub(super) struct AbortOnDrop<T>(pub(super) JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn run(loaded: &LoadedHandler, attempt: Attempt) -> Option<AttemptReport> {
    let turn = loaded.sandbox.0.turns.turn(loaded.number);
    let mut instance = instance(loaded, &attempt.stop, &turn).await?;
    let started = Instant::now();
    // The clock cannot hold every timeout, so the largest is a year.
    let timeout = attempt.timeout.min(Duration::from_secs(365 * 24 * 3600));
    let deadline = started + timeout;
    let log = loaded.log(attempt.tasks.clone(), attempt.plugin.clone());
    let tasks = u32::try_from(attempt.tasks.len()).unwrap_or(u32::MAX);
    instance.tasks = instance.tasks.saturating_add(tasks);
    // Each call gets new fuel. Results that do not overlap are no larger than the memory that they come from.
    let most = loaded.max_output.saturating_mul(tasks.into()).min(loaded.memory.max(loaded.max_output));
    let fuel = most.max(loaded.blob_fuel).saturating_add(RESULT_SLACK);
    instance.store.set_hostcall_fuel(usize::try_from(fuel).unwrap_or(usize::MAX));
    let interrupts = Interrupts { stop: attempt.stop.clone(), turn: turn.clone() };
    let source = Some(attempt.effects.clone());
    let effects = AttemptEffects::new(attempt.tasks.clone(), source, attempt.trace.clone());
    instance.store.data_mut().begin(log, attempt.progress.clone(), effects, deadline, interrupts);
    instance.store.data_mut().plugin = Some(attempt.plugin.clone());
    instance.store.set_epoch_deadline(1);

    let called = {
        let call = turn.clone().keep(call::call(&loaded.exports, &mut instance, &attempt, deadline));
        tokio::select! {
            biased;
            called = call => Some(called),
            () = attempt.stop.cancelled() => return None,
            () = turn.evicted() => None,
            () = tokio::time::sleep_until(deadline.into()) => None,
        }
    };
    let duration = started.elapsed();
    // The phase in which a timeout struck.
    let phase = if instance.running.is_some() { Phase::Call } else { Phase::Instantiate };
    let report = {
        let (effects, outages) = instance.store.data_mut().effects.take();
        let state = instance.store.data();
        let mut log = state.log();
        log.finish();
        loaded.needs(state.limits.peak());
        if turn.is_evicted() && (state.limits.refused().is_some() || !matches!(called, Some(Ok(_)))) {
            tracing::warn!(
                plugin = %attempt.plugin,
                memory = state.limits.peak(),
                "stopped: all handlers together need more memory than they have"
            );
            return None;
        }
        let backtrace = match &called {
            Some(Err((error, _))) if loaded.sandbox.0.backtraces => failure::backtrace(error, &loaded.mask),
            _ => Vec::new(),
        };
        let ended = match called {
            Some(Ok(replies)) => call::ended(replies, effects, &outages, loaded.max_output, &loaded.mask),
            // The epoch callback interrupted a guest that computed, because `stop` was cancelled.
            Some(Err(_)) if attempt.stop.is_cancelled() => return None,
            Some(Err((error, _))) if is_interrupt(&error) => timed_out(phase, timeout, &turn),
            Some(Err((error, phase))) => {
                let (task, tasks) = (attempt.tasks.first().map(|task| task.id.as_str()), attempt.tasks.len());
                // The backtrace is formatted only if this log level is on.
                let shown = || loaded.mask.text(&format!("{error:?}")).into_owned();
                let plugin = &attempt.plugin;
                tracing::debug!(target: "guest", task, tasks, %plugin, error = shown(), "failed");
                let (kind, message) = failure::classify(&error, phase, &state.limits, &log);
                Ended::Failed { kind, message }
            }
            None => timed_out(phase, timeout, &turn),
        };
        let last_lines = log.take_last_lines();
        AttemptReport { ended, backtrace, last_lines, peak_memory: state.limits.peak(), duration }
    };
    if let Some(warm) = &loaded.warm
        && is_fit(&mut instance, &report.ended, warm)
    {
        let shared: &Shared = &loaded.sandbox.0;
        if !shared.budget.is_wanted() {
            shared.pool.keep(loaded.number, warm.idle, instance);
        }
    }
    Some(report)
}

/// Takes a kept instance, or makes a new one. Gives None if `stop` is cancelled.
async fn instance(loaded: &LoadedHandler, stop: &CancellationToken, call: &Turn) -> Option<Instance> {
    let shared: &Shared = &loaded.sandbox.0;
    if loaded.warm.is_some()
        && let Some(mut kept) = shared.pool.take(loaded.number)
        && kept.store.data_mut().limits.claim(call.clone())
    {
        return Some(kept);
    }
    let made = async {
        let place = shared.pool.place().await?;
        let mut limits =
            Limits::new(loaded.memory, shared.budget.start(loaded.expected.load(Ordering::Relaxed)).await);
        limits.claim(call.clone()).then(|| Instance::new(store(shared, loaded, limits), place))
    };
    tokio::select! {
        biased;
        made = made => made,
        () = stop.cancelled() => None,
    }
}

pub(super) fn store(shared: &Shared, loaded: &LoadedHandler, limits: Limits) -> Store<GuestState> {
    let mut store = Store::new(
        &shared.engine,
        GuestState::new(
            limits,
            loaded.config.clone(),
            loaded.records.clone(),
            loaded.blobs.clone(),
            loaded.http.clone(),
        ),
    );
    store.limiter(|state| &mut state.limits);
    store.epoch_deadline_callback(|store| Ok(tick(store.data())));
    store.set_epoch_deadline(1);
    store.set_hostcall_fuel(usize::try_from(RESULT_SLACK).unwrap_or(usize::MAX));
    store
}

/// Decides at a tick of the clock how a handler that computes goes on. Timers fire only when a thread is
/// free, so this reads the clock itself.
fn tick(state: &GuestState) -> UpdateDeadline {
    let Some(Interrupts { stop, turn }) = &state.interrupts else { return UpdateDeadline::Continue(1) };
    if stop.is_cancelled() || turn.is_evicted() || Instant::now() >= state.deadline {
        return UpdateDeadline::Interrupt;
    }
    if !turn.is_over() {
        return UpdateDeadline::Continue(1);
    }
    UpdateDeadline::YieldCustom(1, Box::pin(turn.clone().next()))
}

/// Ends the attempt in the instance, and says whether the instance may run another task.
fn is_fit(instance: &mut Instance, ended: &Ended, warm: &config::Warm) -> bool {
    let state = instance.store.data_mut();
    let left = state.end();
    let failed = match ended {
        Ended::Each(outcomes) => outcomes.iter().any(|outcome| matches!(outcome, Outcome::Failed { .. })),
        Ended::Failed { .. } => true,
    };
    let failed = failed || state.limits.refused().is_some();
    !failed && left <= MAX_LEFT_HANDLES && instance.tasks < warm.max_tasks
}

pub(super) fn is_interrupt(error: &wasmtime::Error) -> bool {
    matches!(error.downcast_ref::<wasmtime::Trap>(), Some(wasmtime::Trap::Interrupt))
}

fn timed_out(phase: Phase, timeout: Duration, turn: &Turn) -> Ended {
    let (kind, message) = phase.timed_out("the handler", timeout, turn.waited());
    Ended::Failed { kind, message }
}
