//! What the host keeps for one attempt: the data of its store.
//!
//! Made anew for every attempt, so what is costly to make is made when the guest first asks for it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use wasmtime::component::ResourceTable;
use wasmtime_wasi::cli::{WasiCliCtx, WasiCliCtxView};
use wasmtime_wasi::clocks::{WasiClocksCtx, WasiClocksCtxView};
use wasmtime_wasi_http::WasiHttpCtxView;

use super::host::http::{Client, Grant};
use super::limits::Limits;
use super::log::GuestLog;
use crate::config::Secret;
use crate::task::Progress;

/// Handles that one guest may hold at once. Some stand for bytes of the host (`host::http` says how many).
const MAX_RESOURCES: usize = 1024;

pub(super) struct State {
    pub(super) limits: Limits,
    pub(super) log: Arc<Mutex<GuestLog>>,
    /// What wasi:config/store shows.
    pub(super) config: Arc<BTreeMap<String, Secret>>,
    pub(super) progress: Progress,
    pub(super) deadline: Instant,
    pub(super) table: ResourceTable,
    cli: WasiCliCtx,
    clocks: Option<WasiClocksCtx>,
    grant: Arc<Grant>,
    http: Option<Box<Client>>,
}

impl State {
    pub(super) fn new(
        memory: u64,
        log: Arc<Mutex<GuestLog>>,
        config: Arc<BTreeMap<String, Secret>>,
        grant: Arc<Grant>,
        progress: Progress,
        deadline: Instant,
    ) -> State {
        let mut table = ResourceTable::new();
        table.set_max_capacity(MAX_RESOURCES);
        // The default is a closed stdin, no arguments, no variables; it allocates nothing.
        let cli = WasiCliCtx::default();
        State { limits: Limits::new(memory), log, config, progress, deadline, table, cli, clocks: None, grant, http: None }
    }

    pub(super) fn log(&self) -> MutexGuard<'_, GuestLog> {
        self.log.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn cli(&mut self) -> WasiCliCtxView<'_> {
        WasiCliCtxView { ctx: &mut self.cli, table: &mut self.table }
    }

    pub(super) fn clocks(&mut self) -> WasiClocksCtxView<'_> {
        WasiClocksCtxView { ctx: self.clocks.get_or_insert_default(), table: &mut self.table }
    }

    pub(super) fn http(&mut self) -> WasiHttpCtxView<'_> {
        let client = self.http.get_or_insert_with(|| Box::new(Client::new(self.grant.clone(), self.log.clone(), self.deadline)));
        let (hooks, ctx) = client.parts();
        WasiHttpCtxView { hooks, table: &mut self.table, ctx }
    }
}
