//! A loaded version of a plugin, and its instances.
//!
//! In: compiled code and its grants. Out: an instance that was kept, or a new one, once there is a place and
//! memory for it. Not here: running an attempt (`handler`, `together`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tokio_util::sync::CancellationToken;
use wasmtime::{Store, UpdateDeadline};

use super::attempt_state::Interrupts;
use super::call::{Export, Exports};
use super::failure::OutputBounds;
use super::granted::Granted;
use super::limits::Limits;
use super::log::GuestLog;
use super::log_rate::Quota;
use super::mask::Mask;
use super::number::VersionNumber;
use super::seats::OpenInstances;
use super::shared::{Sandbox, Shared};
use super::slices::SlicedCall;
use super::state::GuestState;
use super::waits::LateWait;
use super::warm::Instance;
use crate::config;
use crate::task::Task;

/// Extra bytes that a result may need before it is measured: failure texts, headers of lists and options.
const RESULT_SLACK: u64 = 1 << 20;
/// Handles that a guest may leave open at the end of a task and still get another task. Language runtimes
/// keep some streams open.
const MAX_LEFT_HANDLES: usize = 32;

pub(super) struct LoadedHandler {
    pub(super) sandbox: Sandbox,
    pub(super) exports: Exports,
    pub(super) granted: Arc<Granted>,
    /// The most bytes of a blob that a guest may pass in one call. 0 if it does not import blobs.
    pub(super) blob_fuel: u64,
    pub(super) mask: Arc<Mask>,
    /// The most bytes of an instance.
    pub(super) memory: u64,
    /// The bytes that a new instance probably needs.
    pub(super) expected: AtomicU64,
    pub(super) max_output: u64,
    /// Bytes of log lines in a second.
    pub(super) max_log_rate: u64,
    pub(super) number: VersionNumber,
    /// How instances are kept. None if each instance runs one task.
    pub(super) warm: Option<config::Warm>,
    /// The instances that run several tasks at once and take more.
    pub(super) open: OpenInstances,
}

impl LoadedHandler {
    /// The log of one attempt.
    pub(super) fn log(&self, tasks: Arc<Vec<Task>>, plugin: Arc<str>) -> GuestLog {
        let owner = &self.granted.owner;
        let quota = Quota { lines: owner.share().lines.clone(), rate: self.max_log_rate };
        GuestLog::new(tasks, plugin, owner.label().cloned(), self.mask.clone(), quota)
    }

    /// The bytes that the host copies at most in a call for `tasks` tasks.
    fn fuel(&self, tasks: u32) -> u64 {
        // Results that do not overlap are no larger than the memory that they come from.
        let most = self.max_output.saturating_mul(tasks.into()).min(self.memory.max(self.max_output));
        most.max(self.blob_fuel).saturating_add(RESULT_SLACK)
    }

    /// The bounds of what a call for `tasks` tasks may return.
    pub(super) fn output(&self, tasks: u32) -> OutputBounds {
        OutputBounds { max_output: self.max_output, copied: self.fuel(tasks) }
    }

    /// Sets how much a call for `tasks` tasks may copy, and the first tick at which it is interrupted.
    pub(super) fn refuel(&self, store: &mut Store<GuestState>, tasks: u32) {
        store.set_hostcall_fuel(usize::try_from(self.fuel(tasks)).unwrap_or(usize::MAX));
        store.set_epoch_deadline(1);
    }

    /// Ends the attempt in the instance, and keeps the instance for a later task if it is fit for one.
    pub(super) fn keep(&self, mut instance: Instance) {
        let Some(warm) = &self.warm else { return };
        let state = instance.store.data_mut();
        let left_handles = state.end();
        let is_fit = state.limits.refused().is_none() && left_handles <= MAX_LEFT_HANDLES;
        let shared = &self.sandbox.0;
        if is_fit && instance.tasks < warm.max_tasks && !shared.budget.is_wanted() {
            shared.pool.keep(self.number, warm.idle, instance);
        }
    }

    /// The function that runs several tasks at once, and the bounds of its instances. None if the plugin does
    /// not ask for that, or the handler cannot.
    pub(super) fn together(&self) -> Option<(Export<(), ()>, config::Warm)> {
        let warm = self.warm.filter(|warm| warm.concurrent > 1)?;
        Some((self.exports.run?, warm))
    }

    /// Notes the peak memory of an instance, in bytes. The estimate for new instances rises at once to a
    /// higher peak, and falls slowly after lower ones.
    pub(super) fn note_peak(&self, peak: u64) {
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

/// Takes a kept instance, or makes a new one. Returns None if `stop` is cancelled.
pub(super) async fn instance(
    loaded: &LoadedHandler,
    stop: &CancellationToken,
    call: &SlicedCall,
) -> Option<Instance> {
    let shared: &Shared = &loaded.sandbox.0;
    if loaded.warm.is_some()
        && let Some(mut kept) = shared.pool.take(loaded.number)
        && kept.store.data_mut().limits.account.begin(call.clone())
    {
        return Some(kept);
    }
    let made = async {
        let place = shared.pool.place().await?;
        let account = shared.budget.start(loaded.expected.load(Ordering::Relaxed)).await;
        let mut limits = Limits::new(loaded.memory, account);
        limits.account.begin(call.clone()).then(|| Instance::new(store(shared, loaded, limits), place))
    };
    tokio::select! {
        biased;
        made = made => made,
        () = stop.cancelled() => None,
    }
}

pub(super) fn store(shared: &Shared, loaded: &LoadedHandler, limits: Limits) -> Store<GuestState> {
    let mut store = Store::new(&shared.engine, GuestState::new(limits, loaded.granted.clone()));
    store.limiter(|state| &mut state.limits);
    store.epoch_deadline_callback(|mut store| Ok(tick(store.data_mut())));
    store.set_epoch_deadline(1);
    store.set_hostcall_fuel(usize::try_from(RESULT_SLACK).unwrap_or(usize::MAX));
    store
}

/// Decides at a tick of the clock how a handler that computes goes on. Reads the clock itself, since timers
/// fire only when a thread is free.
fn tick(state: &mut GuestState) -> UpdateDeadline {
    let Some(Interrupts { stop, sliced }) = &state.attempt.interrupts else {
        return UpdateDeadline::Continue(1);
    };
    let is_late = match &state.together {
        Some(together) => together.is_late(&state.attempt),
        None => Instant::now() >= state.attempt.deadline,
    };
    if stop.is_cancelled() || sliced.is_evicted() || is_late {
        return UpdateDeadline::Interrupt;
    }
    if !sliced.has_computed() {
        return UpdateDeadline::Continue(1);
    }
    if state.together.as_mut().is_some_and(|together| together.tick_is_stray()) {
        return UpdateDeadline::Interrupt;
    }
    UpdateDeadline::YieldCustom(1, Box::pin(sliced.clone().next_slice()))
}

/// Whether the guest was ended because its time was over: it computed, or it waited.
pub(super) fn is_interrupt(error: &wasmtime::Error) -> bool {
    matches!(error.downcast_ref::<wasmtime::Trap>(), Some(wasmtime::Trap::Interrupt))
        || error.is::<LateWait>()
}
