//! Runs a handler of tqhost in a fresh instance for each message, as cheaply as wasmtime can.
//!
//! In: the same file as for the host, and messages. Out: results. The pool's memory stays mapped between two
//! instances. The compiled code checks bounds, instead of guard pages, so that no memory has to be protected
//! again. There are no fibers. Each call has a limit of memory and a deadline. Not here: everything else that
//! the host adds.

use std::time::Duration;

use peers::Error;
use wasmtime::component::{Component, Linker, ResourceTable};
use wasmtime::{
    Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig, Store, StoreLimits,
    StoreLimitsBuilder,
};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

wasmtime::component::bindgen!({ path: "../../../wit", world: "tqhost:handler/task-handler" });

use exports::tqhost::handler::handler::Task;
use tqhost::handler::types::Field;

const MIB: usize = 1 << 20;
const MEMORY: usize = 128 * MIB;
const TICK: Duration = Duration::from_millis(10);
/// 30 s in ticks.
const DEADLINE_TICKS: u64 = 3000;
const DEADLINE_MS: u64 = 30_000;
/// More than there are loops.
const SLOTS: u32 = 16;

pub struct Sandbox {
    engine: Engine,
    handler: TaskHandlerPre<State>,
    needs_wasi: bool,
}

struct State {
    limits: StoreLimits,
    wasi: Option<(WasiCtx, ResourceTable)>,
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        let (ctx, table) = self.wasi.as_mut().expect("a guest that imports WASI");
        WasiCtxView { ctx, table }
    }
}

impl Sandbox {
    pub fn load(path: &str) -> Result<Sandbox, Error> {
        let engine = engine()?;
        let component = Component::from_binary(&engine, &component(std::fs::read(path)?)?)?;
        let needs_wasi =
            component.component_type().imports(&engine).any(|(name, _)| name.starts_with("wasi:cli/"));
        let mut linker = Linker::new(&engine);
        wasmtime_wasi::p2::add_to_linker_sync(&mut linker)?;
        // Other imports trap. No task of this comparison calls them.
        linker.define_unknown_imports_as_traps(&component)?;
        let handler = TaskHandlerPre::new(linker.instantiate_pre(&component)?)?;
        let ticker = engine.clone();
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(TICK);
                ticker.increment_epoch();
            }
        });
        Ok(Sandbox { engine, handler, needs_wasi })
    }

    /// Runs one task in a fresh instance, and gives its result.
    pub fn run(&self, id: &str, name: &str, value: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let wasi = self.needs_wasi.then(|| (WasiCtx::builder().build(), ResourceTable::new()));
        let state = State { limits: StoreLimitsBuilder::new().memory_size(MEMORY).build(), wasi };
        let mut store = Store::new(&self.engine, state);
        store.limiter(|state| &mut state.limits);
        store.set_epoch_deadline(DEADLINE_TICKS);
        let enqueued_at_ms = id.split('-').next().and_then(|ms| ms.parse().ok()).unwrap_or_default();
        let task = Task {
            id: id.to_owned(),
            queue: "work".to_owned(),
            fields: vec![Field { name: name.to_owned(), value: value.to_vec() }],
            attempt: 1,
            max_attempts: 1,
            enqueued_at_ms,
            deadline_ms: enqueued_at_ms + DEADLINE_MS,
            traceparent: None,
        };
        let instance = self.handler.instantiate(&mut store)?;
        let result = instance.tqhost_handler_handler().call_handle(&mut store, &task)?;
        Ok(result.map_err(|failure| format!("{failure:?}"))?)
    }
}

fn engine() -> Result<Engine, Error> {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(SLOTS)
        .total_core_instances(SLOTS * 8)
        .total_memories(SLOTS)
        .total_tables(SLOTS * 8)
        .max_memory_size(MEMORY)
        .table_elements(50_000)
        .linear_memory_keep_resident(16 * MIB)
        .table_keep_resident(MIB)
        // Where the kernel supports it, only the pages that the last instance has written are cleared. This
        // is not safe for a host: wasmtime 48 misses pages that were swapped out, and the next guest would
        // see them.
        .pagemap_scan(Enabled::Auto);
    let mut config = Config::new();
    config.epoch_interruption(true).signals_based_traps(false).memory_guard_size(0);
    config.concurrency_support(false);
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    Ok(Engine::new(&config)?)
}

/// Makes a component of a core module with an embedded component type, which some compilers produce.
fn component(bytes: Vec<u8>) -> Result<Vec<u8>, Error> {
    const COMPONENT: [u8; 4] = [0x0d, 0x00, 0x01, 0x00];
    if bytes.get(4..8) == Some(&COMPONENT) {
        return Ok(bytes);
    }
    let mut encoder = wit_component::ComponentEncoder::default()
        .validate(true)
        .module(&bytes)
        .map_err(|error| format!("{error:#}"))?;
    encoder.encode().map_err(|error| format!("{error:#}").into())
}
