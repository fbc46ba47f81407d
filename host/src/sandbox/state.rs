//! The data that the host keeps in the store of one instance.
//!
//! A store is new for every task, unless instances are kept. For a kept instance, [`GuestState::begin`]
//! renews what belongs to one attempt. Costly parts are made when the guest first needs them.

use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use wasmtime::component::ResourceTable;
use wasmtime_wasi::cli::{WasiCliCtx, WasiCliCtxView};
use wasmtime_wasi::clocks::{WasiClocksCtx, WasiClocksCtxView};
use wasmtime_wasi::filesystem::{WasiFilesystemCtx, WasiFilesystemCtxView};
use wasmtime_wasi::sockets::{WasiSocketsCtx, WasiSocketsCtxView};
use wasmtime_wasi_http::WasiHttpCtxView;

use super::attempt_state::AttemptState;
use super::effects::CallError;
use super::granted::Granted;
use super::host::http::{self, Client};
use super::limits::Limits;
use super::log::GuestLog;
use super::seated::SeatedTasks;
use crate::effects::{EffectError, Effects};
use crate::guarded::Guarded;

/// Handles that one guest may hold at once. Some stand for bytes of the host, which count as its memory
/// (`host::http` says how many).
const MAX_RESOURCES: usize = 1024;
/// Calls of wasi:http between two checks of the memory behind the handles. Each call may add 16 KiB.
const WEIGH_EVERY: u32 = 16;

pub(super) struct GuestState {
    pub(super) limits: Limits,
    /// The attempt that calls of the guest belong to.
    pub(super) attempt: AttemptState,
    /// The other tasks of an instance that runs several at once.
    pub(super) together: Option<Box<SeatedTasks>>,
    /// The log that stdout and stderr write to: that of `attempt`. The guest keeps these streams from attempt
    /// to attempt.
    pub(super) printed_to: Arc<Guarded<Arc<Guarded<GuestLog>>>>,
    pub(super) granted: Arc<Granted>,
    /// The bytes of a blob that the host holds for the call that is at work.
    pub(super) borrowed: u64,
    pub(super) table: ResourceTable,
    cli: WasiCliCtx,
    clocks: Option<WasiClocksCtx>,
    /// Has no directories.
    filesystem: WasiFilesystemCtx,
    /// Refuses everything.
    sockets: Option<WasiSocketsCtx>,
    /// The number of calls of wasi:http so far.
    http_calls: u32,
}

impl GuestState {
    /// Makes the state of an instance that has no task yet.
    pub(super) fn new(limits: Limits, granted: Arc<Granted>) -> GuestState {
        let mut table = ResourceTable::new();
        table.set_max_capacity(MAX_RESOURCES);
        // The default is a closed stdin, no arguments, no variables; it allocates nothing.
        let (cli, attempt) = (WasiCliCtx::default(), AttemptState::nobody());
        GuestState {
            limits,
            together: None,
            printed_to: Arc::new(Guarded::new(attempt.log.clone())),
            attempt,
            granted,
            borrowed: 0,
            table,
            cli,
            clocks: None,
            filesystem: WasiFilesystemCtx::default(),
            sockets: None,
            http_calls: 0,
        }
    }

    /// Lets the guest hold more handles, as it runs many tasks at once.
    pub(super) fn widen(&mut self, handles: usize) {
        self.table.set_max_capacity(handles.max(MAX_RESOURCES));
    }

    /// Renews everything that belongs to one attempt.
    pub(super) fn begin(&mut self, attempt: AttemptState) {
        self.limits.begin();
        self.belong_to(attempt);
    }

    fn belong_to(&mut self, attempt: AttemptState) {
        *self.printed_to.lock() = attempt.log.clone();
        self.attempt = attempt;
    }

    /// Puts this log in the place of the instance's. Returns it in the memory of the one before, as a new
    /// allocation for each task would cost time.
    pub(super) fn renewed_log(&self, log: GuestLog) -> Arc<Guarded<GuestLog>> {
        *self.log() = log;
        self.attempt.log.clone()
    }

    /// Whether the attempt that computes has taken most of the memory that is granted.
    pub(super) fn has_taken_most(&self) -> bool {
        self.limits.has_taken_most(self.attempt.effects.bytes())
    }

    /// Makes calls of the guest belong to another attempt, and returns the one before.
    pub(super) fn replace(&mut self, mut attempt: Box<AttemptState>) -> Box<AttemptState> {
        *self.printed_to.lock() = attempt.log.clone();
        std::mem::swap(&mut self.attempt, &mut *attempt);
        attempt
    }

    /// Drops the task of the attempt that has ended, and breaks off its requests. Returns the number of
    /// handles that the guest has left open.
    pub(super) fn end(&mut self) -> usize {
        self.borrowed = 0;
        // The weight differs from the last check only if the guest has made a few more calls.
        self.count();
        self.limits.account.end();
        self.belong_to(AttemptState::nobody());
        self.together = None;
        self.table.iter_mut().count()
    }

    pub(super) fn log(&self) -> MutexGuard<'_, GuestLog> {
        self.attempt.log.lock()
    }

    pub(super) fn cli(&mut self) -> WasiCliCtxView<'_> {
        WasiCliCtxView { ctx: &mut self.cli, table: &mut self.table }
    }

    pub(super) fn clocks(&mut self) -> WasiClocksCtxView<'_> {
        WasiClocksCtxView { ctx: self.clocks.get_or_insert_default(), table: &mut self.table }
    }

    pub(super) fn filesystem(&mut self) -> WasiFilesystemCtxView<'_> {
        WasiFilesystemCtxView { ctx: &mut self.filesystem, table: &mut self.table }
    }

    pub(super) fn sockets(&mut self) -> WasiSocketsCtxView<'_> {
        WasiSocketsCtxView { ctx: self.sockets.get_or_insert_default(), table: &mut self.table }
    }

    pub(super) fn http(&mut self) -> WasiHttpCtxView<'_> {
        self.weigh();
        let AttemptState { log, effects, deadline, waits, over, http, .. } = &mut self.attempt;
        let has_task = self.together.as_ref().is_none_or(|together| together.entered().is_some());
        let client = http.get_or_insert_with(|| {
            let subject = log.lock().subject();
            let trace = effects.request_trace();
            let (grant, over) = (self.granted.http.clone(), over.clone().unwrap_or_default());
            Box::new(Client::new(grant, subject, *deadline, trace, waits.clone(), over, has_task))
        });
        let (hooks, ctx) = client.parts();
        WasiHttpCtxView { hooks, table: &mut self.table, ctx }
    }

    /// Changes the effects of the task that calls belong to, and counts their bytes as memory of the guest.
    pub(super) fn effect<T>(
        &mut self,
        change: impl FnOnce(&mut Effects) -> Result<T, EffectError>,
    ) -> Result<T, CallError> {
        self.attempt.effects.source()?;
        let changed = change(self.attempt.effects.effects()?);
        if !self.count() {
            let why = "its effects need more memory than the plugin was granted";
            return Err(CallError::Trap(wasmtime::format_err!("{why}")));
        }
        Ok(changed?)
    }

    /// Counts bytes that the host holds for one call as memory of the guest, until the next count. The error
    /// is a trap.
    pub(super) fn lend(&mut self, bytes: usize) -> wasmtime::Result<()> {
        let weight = self.weight().saturating_add(bytes as u64);
        if !self.limits.hold(weight) {
            wasmtime::bail!("the values of a call need more memory than the plugin was granted");
        }
        Ok(())
    }

    /// Until when a call may wait for Redis: shortly before the deadline, so that there is time to say why
    /// the call failed.
    pub(super) fn patience(&self) -> Instant {
        let left = self.attempt.deadline.saturating_duration_since(Instant::now());
        self.attempt.deadline - (left / 10).min(Duration::from_secs(1))
    }

    /// Checks that a name or a key may leave the sandbox. One with a secret is refused and not masked, as two
    /// names could become one.
    pub(super) fn check_public(&self, name: &str, what: &str) -> Result<(), String> {
        let is_public = *self.log().mask().text(name) == *name;
        if is_public { Ok(()) } else { Err(format!("the {what} holds a secret of the configuration")) }
    }

    /// Counts the bytes of the host that belong to this guest. Returns false if they exceed its grant or the
    /// budget.
    pub(super) fn count(&mut self) -> bool {
        let weight = self.weight();
        self.limits.hold(weight)
    }

    /// The bytes of the host that belong to this guest.
    fn weight(&mut self) -> u64 {
        self.borrowed
            + self.attempt.effects.bytes()
            + self.together.as_ref().map_or(0, |together| together.bytes())
            + self.table.iter_mut().map(|handle| http::weight(handle)).sum::<u64>()
    }

    /// Counts the memory behind the guest's handles, once in [`WEIGH_EVERY`] calls. A guest that exceeds its
    /// grant loses all of its handles. Its next use of a handle is a trap and counts as out-of-memory.
    fn weigh(&mut self) {
        self.http_calls = self.http_calls.wrapping_add(1);
        if !self.http_calls.is_multiple_of(WEIGH_EVERY) {
            return;
        }
        if !self.count() {
            self.table = ResourceTable::new();
            self.table.set_max_capacity(0);
        }
    }
}
