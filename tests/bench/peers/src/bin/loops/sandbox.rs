//! Runs a handler of tqhost in a fresh instance for each message, as cheaply as wasmtime can, or in one
//! instance for many messages.
//!
//! In: the same file as for the host, and messages. Out: results. Each call has a limit of memory and a
//! deadline. There are no fibers. The settings of the engine depend on the size of the guest (`small` and
//! `large`). Not here: everything else that the host adds; what a guest imports (`imports`).

use std::time::Duration;

use peers::Error;
use wasmtime::component::{Component, Linker};
use wasmtime::{
    Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig, Store, StoreLimits,
    StoreLimitsBuilder,
};

use super::imports::{self, Wasi};

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
/// A larger guest brings the runtime of its language.
const SMALL_GUEST: usize = 2 * MIB;
/// The number of messages after which an instance is dropped. It is the default of the host.
const MOST_TASKS: u32 = 1000;

pub struct Sandbox {
    engine: Engine,
    handler: TaskHandlerPre<State>,
    needs_wasi: bool,
}

pub struct State {
    limits: StoreLimits,
    pub wasi: Option<Wasi>,
}

/// An instance that may get another message.
struct Kept {
    store: Store<State>,
    handler: TaskHandler,
    tasks: u32,
}

/// Runs one message after the other.
pub struct Runner<'s> {
    sandbox: &'s Sandbox,
    keeps: bool,
    kept: Option<Kept>,
}

impl Sandbox {
    pub fn load(path: &str) -> Result<Sandbox, Error> {
        let guest = component(std::fs::read(path)?)?;
        let engine = Engine::new(&if guest.len() < SMALL_GUEST { small() } else { large() })?;
        let component = Component::from_binary(&engine, &guest)?;
        let needs_wasi =
            component.component_type().imports(&engine).any(|(name, _)| name.starts_with("wasi:cli/"));
        let mut linker = Linker::new(&engine);
        imports::link(&mut linker, &component)?;
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

    /// A runner that makes an instance for each message, or keeps one for [`MOST_TASKS`] messages.
    pub fn runner(&self, keeps: bool) -> Runner<'_> {
        Runner { sandbox: self, keeps, kept: None }
    }

    fn instance(&self) -> Result<Kept, Error> {
        let limits = StoreLimitsBuilder::new().memory_size(MEMORY).build();
        let mut store = Store::new(&self.engine, State { limits, wasi: self.needs_wasi.then(Wasi::default) });
        store.limiter(|state| &mut state.limits);
        store.set_epoch_deadline(DEADLINE_TICKS);
        let handler = self.handler.instantiate(&mut store)?;
        Ok(Kept { store, handler, tasks: 0 })
    }
}

impl Runner<'_> {
    /// Runs one message, and gives its result.
    pub fn run(&mut self, id: &str, name: &str, value: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut instance = match self.kept.take() {
            Some(kept) => kept,
            None => self.sandbox.instance()?,
        };
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
        instance.store.set_epoch_deadline(DEADLINE_TICKS);
        instance.tasks += 1;
        let handler = instance.handler.tqhost_handler_handler();
        let result = handler.call_handle(&mut instance.store, &task)?;
        self.kept = Some(instance).filter(|instance| self.keeps && instance.tasks < MOST_TASKS);
        Ok(result.map_err(|failure| format!("{failure:?}"))?)
    }
}

/// The settings for guests that use little memory. The pool's memory stays mapped between two instances. The
/// compiled code checks bounds, instead of guard pages, so that no memory has to be protected again.
fn small() -> Config {
    let mut pool = pool();
    pool.max_memory_size(MEMORY)
        .linear_memory_keep_resident(16 * MIB)
        .table_keep_resident(MIB)
        // Where the kernel supports it, only the pages that the last instance has written are cleared. This
        // is not safe for a host: wasmtime 48 misses pages that were swapped out, and the next guest would
        // see them.
        .pagemap_scan(Enabled::Auto);
    let mut config = config(pool);
    config.signals_based_traps(false).memory_guard_size(0);
    config
}

/// The settings for guests with the runtime of a language, which compute more and use more memory. They are
/// those of the host, and the fastest that are safe (docs/decisions/0002-memory-reset.md).
fn large() -> Config {
    let mut pool = pool();
    pool.max_memory_size(4 << 30)
        .linear_memory_keep_resident(256 * 1024)
        .table_keep_resident(128 * 1024)
        .pagemap_scan(Enabled::No);
    let mut config = config(pool);
    config.memory_reservation(4 << 30);
    config
}

fn pool() -> PoolingAllocationConfig {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(SLOTS)
        .total_core_instances(SLOTS * 64)
        .total_memories(SLOTS * 4)
        .total_tables(SLOTS * 16)
        .table_elements(128 * 1024);
    pool
}

fn config(pool: PoolingAllocationConfig) -> Config {
    let mut config = Config::new();
    config.epoch_interruption(true).concurrency_support(false);
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    config
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
