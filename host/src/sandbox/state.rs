//! The data that the host keeps in the store of one instance.
//!
//! A store is new for every task, unless instances are kept. For a kept instance, [`GuestState::begin`]
//! renews what belongs to one attempt. Costly parts are made when the guest first needs them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use wasmtime::component::ResourceTable;
use wasmtime_wasi::cli::{WasiCliCtx, WasiCliCtxView};
use wasmtime_wasi::clocks::{WasiClocksCtx, WasiClocksCtxView};
use wasmtime_wasi::filesystem::{WasiFilesystemCtx, WasiFilesystemCtxView};
use wasmtime_wasi::sockets::{WasiSocketsCtx, WasiSocketsCtxView};
use wasmtime_wasi_http::WasiHttpCtxView;

use super::blob_access::BlobAccess;
use super::effects::AttemptEffects;
use super::host::http::{self, Client, Grant};
use super::limits::Limits;
use super::log::GuestLog;
use super::turns::Turn;
use crate::config::{RecordGrants, Secret};
use crate::effects::{EffectError, Effects};
use crate::task::Progress;

/// Handles that one guest may hold at once. Some stand for bytes of the host, which count as its memory
/// (`host::http` says how many).
const MAX_RESOURCES: usize = 1024;
/// Calls of wasi:http between two checks of the memory behind the handles. Each call may add 16 KiB.
const WEIGH_EVERY: u32 = 16;

pub(super) struct GuestState {
    pub(super) limits: Limits,
    /// The log of the attempt that runs. Streams that the guest kept from an earlier attempt write here, too.
    pub(super) log: Arc<Mutex<GuestLog>>,
    /// The values that wasi:config/store gives.
    pub(super) config: Arc<BTreeMap<String, Secret>>,
    /// The progress of each task of the attempt.
    pub(super) progress: Vec<Progress>,
    pub(super) effects: AttemptEffects,
    /// The keys of Redis hashes that the plugin may use.
    pub(super) records: Arc<RecordGrants>,
    pub(super) blobs: Arc<BlobAccess>,
    /// The bytes of a blob that the host holds for the call that is at work.
    pub(super) borrowed: u64,
    /// The plugin whose tasks run. None in a self-check.
    pub(super) plugin: Option<Arc<str>>,
    pub(super) deadline: Instant,
    /// Ends or delays the call of the attempt that runs. None before the first attempt.
    pub(super) interrupts: Option<Interrupts>,
    pub(super) table: ResourceTable,
    cli: WasiCliCtx,
    clocks: Option<WasiClocksCtx>,
    /// Has no directories.
    filesystem: WasiFilesystemCtx,
    /// Refuses everything.
    sockets: Option<WasiSocketsCtx>,
    grant: Arc<Grant>,
    http: Option<Box<Client>>,
    /// The number of calls of wasi:http so far.
    http_calls: u32,
}

/// The reasons, beside the deadline, for which a tick stops or delays a handler that computes.
pub(super) struct Interrupts {
    pub(super) stop: CancellationToken,
    pub(super) turn: Turn,
}

impl GuestState {
    /// Makes the state of an instance that has no task yet.
    pub(super) fn new(
        limits: Limits,
        config: Arc<BTreeMap<String, Secret>>,
        records: Arc<RecordGrants>,
        blobs: Arc<BlobAccess>,
        grant: Arc<Grant>,
    ) -> GuestState {
        let mut table = ResourceTable::new();
        table.set_max_capacity(MAX_RESOURCES);
        // The default is a closed stdin, no arguments, no variables; it allocates nothing.
        let cli = WasiCliCtx::default();
        GuestState {
            limits,
            log: Arc::default(),
            config,
            progress: Vec::new(),
            effects: AttemptEffects::default(),
            records,
            blobs,
            borrowed: 0,
            plugin: None,
            deadline: Instant::now(),
            interrupts: None,
            table,
            cli,
            clocks: None,
            filesystem: WasiFilesystemCtx::default(),
            sockets: None,
            grant,
            http: None,
            http_calls: 0,
        }
    }

    /// Renews everything that belongs to one attempt.
    pub(super) fn begin(
        &mut self,
        log: GuestLog,
        progress: Vec<Progress>,
        effects: AttemptEffects,
        deadline: Instant,
        interrupts: Interrupts,
    ) {
        self.limits.begin();
        *self.log() = log;
        (self.progress, self.deadline, self.http) = (progress, deadline, None);
        (self.effects, self.plugin) = (effects, None);
        self.interrupts = Some(interrupts);
    }

    /// Drops the task of the attempt that has ended, and breaks off its requests. Gives the number of handles
    /// that the guest left open.
    pub(super) fn end(&mut self) -> usize {
        *self.log() = GuestLog::default();
        self.borrowed = 0;
        // The weight differs from the last check only if the guest has made a few more calls.
        self.count();
        self.limits.rest();
        (self.progress, self.http, self.interrupts) = (Vec::new(), None, None);
        self.effects = AttemptEffects::default();
        self.table.iter_mut().count()
    }

    pub(super) fn log(&self) -> MutexGuard<'_, GuestLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
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
        let (grant, log, deadline, effects) = (&self.grant, &self.log, self.deadline, &self.effects);
        let client = self.http.get_or_insert_with(|| {
            let subject = log.lock().unwrap_or_else(PoisonError::into_inner).subject();
            Box::new(Client::new(grant.clone(), subject, deadline, effects.request_trace()))
        });
        let (hooks, ctx) = client.parts();
        WasiHttpCtxView { hooks, table: &mut self.table, ctx }
    }

    /// Changes the effects of the task that calls belong to, and counts their bytes as memory of the guest.
    ///
    /// The outer error is a trap.
    pub(super) fn effect<T, E: From<EffectError>>(
        &mut self,
        change: impl FnOnce(&mut Effects) -> Result<T, EffectError>,
    ) -> wasmtime::Result<Result<T, E>> {
        if let Err(error) = self.effects.source() {
            return Ok(Err(error.into()));
        }
        let changed = change(self.effects.effects()?);
        if !self.count() {
            wasmtime::bail!("its effects need more memory than the plugin was granted");
        }
        Ok(changed.map_err(E::from))
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

    /// Until when a call may wait for Redis: there is time left to say why it failed, before the timeout.
    pub(super) fn patience(&self) -> Instant {
        let left = self.deadline.saturating_duration_since(Instant::now());
        self.deadline - (left / 10).min(Duration::from_secs(1))
    }

    /// Checks that a name or a key may leave the sandbox. One with a secret is refused and not masked, as two
    /// names could become one.
    pub(super) fn check_public(&self, name: &str, what: &str) -> Result<(), String> {
        let is_public = *self.log().mask().text(name) == *name;
        if is_public { Ok(()) } else { Err(format!("the {what} holds a secret of the configuration")) }
    }

    /// Values as they may leave the sandbox.
    pub(super) fn without_secrets(&self, value: Vec<u8>) -> Vec<u8> {
        let log = self.log();
        match log.mask().bytes(&value) {
            Cow::Owned(masked) => masked,
            Cow::Borrowed(_) => value,
        }
    }

    /// Counts the bytes of the host that belong to this guest. Gives false if they exceed its grant or the
    /// budget.
    pub(super) fn count(&mut self) -> bool {
        let weight = self.weight();
        self.limits.hold(weight)
    }

    /// The bytes of the host that belong to this guest.
    fn weight(&mut self) -> u64 {
        self.borrowed
            + self.effects.bytes()
            + self.table.iter_mut().map(|handle| http::weight(handle)).sum::<u64>()
    }

    /// Counts the memory behind the guest's handles, once in every few calls. A guest that exceeds its grant
    /// loses all of its handles. Its next use of a handle is a trap and counts as out-of-memory.
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
