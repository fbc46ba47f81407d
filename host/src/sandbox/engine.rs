//! The wasmtime engine and the clock that interrupts guests.
//!
//! In: the largest number of instances at once, that of attempts of one queue, and the largest memory grant.
//! Out: an [`Engine`] whose instances come from a pool, and a [`Ticker`] that moves its epoch.
//!
//! Not here: what one attempt may use (`limits`), what a guest may call (`host`).

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use wasmtime::{
    Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig, WasmBacktraceDetails,
};

use super::functions::Functions;

/// How often a guest that computes yields its thread and has its deadline checked.
pub(super) const TICK: Duration = Duration::from_millis(10);

/// The limits of one component. Core instances cost the pool only a counter. Memories and tables reserve
/// address space, so their limits are tighter. A component that needs more is refused when it is loaded.
const CORE_INSTANCES: u32 = 64;
const MEMORIES: u32 = 4;
const TABLES: u32 = 16;
const TABLE_ELEMENTS: usize = 128 * 1024;

/// The pool resets the first bytes of a memory by copying the initial content over them, and gives the bytes
/// behind them back to the kernel. That takes a system call, which interrupts the other cores as well. A
/// memory of this size that never grows needs no such call, and is reset several times faster; the SDK links
/// guests in this way. Larger memories gain nothing. Each slot of the pool that was ever used keeps this many
/// bytes.
const MEMORY_KEEP_RESIDENT: usize = 256 * 1024;
const TABLE_KEEP_RESIDENT: usize = 128 * 1024;
/// If a queue runs more attempts than this at once, slots keep no memory: thousands of handlers mostly wait,
/// and touch a few pages meanwhile. Their slots would keep many times as much.
const MOST_THAT_KEEP: u32 = 1000;

/// The largest number of unused slots that wait for their last module, with its content. A module that finds
/// such a slot of its own saves several system calls. This bounds no memory: the other slots keep their
/// [`MEMORY_KEEP_RESIDENT`] bytes, too.
const MOST_WARM_SLOTS: u32 = 256;

/// The calls of a backtrace, the innermost ones.
const MAX_FRAMES: NonZeroUsize = NonZeroUsize::new(64).unwrap();

/// The address space of a memory with which 32-bit guests need no bounds checks, in bytes.
const FULL_RESERVATION: u64 = 4 << 30;

/// Makes the engine with the best allocator that this machine allows. Also returns the address space of a
/// memory, in bytes.
pub(super) fn build(
    places: u32,
    of_queue: u32,
    max_memory: u64,
    backtraces: bool,
) -> wasmtime::Result<(Engine, u64)> {
    let with = |mut config: Config| {
        if backtraces {
            config.wasm_backtrace_details(WasmBacktraceDetails::Enable);
            config.wasm_backtrace_max_frames(Some(MAX_FRAMES));
        }
        config
    };
    let full = with(pooled(places, of_queue, FULL_RESERVATION));
    let error = match Engine::new(&full) {
        Ok(engine) => return Ok((engine, FULL_RESERVATION)),
        Err(error) => error,
    };
    // Limits on address space (ulimit -v, small containers) refuse the full pool.
    let small = max_memory.next_multiple_of(64 * 1024).clamp(64 * 1024, FULL_RESERVATION);
    tracing::warn!(
        error = format!("{error:#}"),
        max_memory = small,
        "no address space for the instance pool; trying smaller slots"
    );
    match Engine::new(&with(pooled(places, of_queue, small))) {
        Ok(engine) => Ok((engine, small)),
        Err(error) => {
            tracing::warn!(
                error = format!("{error:#}"),
                "no instance pool: every attempt maps its own memory, which is several times slower"
            );
            Ok((Engine::new(&with(base(FULL_RESERVATION)))?, FULL_RESERVATION))
        }
    }
}

/// Makes an engine that only compiles. Its code fits an engine that [`build`] made with this reservation.
pub(super) fn that_compiles(reservation: u64, functions: Option<Arc<Functions>>) -> wasmtime::Result<Engine> {
    let mut config = base(reservation);
    if let Some(functions) = functions {
        config.enable_incremental_compilation(functions)?;
    }
    Engine::new(&config)
}

fn pooled(places: u32, of_queue: u32, reservation: u64) -> Config {
    // One place more than for attempts: a self-check needs it.
    let instances = places.saturating_add(1);
    let memories = instances.saturating_mul(MEMORIES);
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(instances)
        .total_core_instances(instances.saturating_mul(CORE_INSTANCES))
        .total_memories(memories)
        .max_unused_warm_slots(memories.min(MOST_WARM_SLOTS))
        .total_tables(instances.saturating_mul(TABLES))
        .total_stacks(instances)
        // With these bounds per component the pool cannot run out: each instance takes one of the places
        // before it is made (`warm`).
        .max_core_instances_per_component(CORE_INSTANCES)
        .max_memories_per_component(MEMORIES)
        .max_tables_per_component(TABLES)
        .max_memories_per_module(MEMORIES)
        .max_tables_per_module(TABLES)
        .table_elements(TABLE_ELEMENTS)
        .max_memory_size(usize::try_from(reservation).unwrap_or(usize::MAX))
        // Do not ask the kernel which pages a guest has written (PAGEMAP_SCAN): it misses pages that are
        // swapped out. With wasmtime 48 the next guest would see them.
        .pagemap_scan(Enabled::No)
        .linear_memory_keep_resident(if of_queue > MOST_THAT_KEEP { 0 } else { MEMORY_KEEP_RESIDENT })
        .table_keep_resident(TABLE_KEEP_RESIDENT);
    let mut config = base(reservation);
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    config
}

fn base(reservation: u64) -> Config {
    let mut config = Config::new();
    config.memory_reservation(reservation);
    config.epoch_interruption(true);
    // A trap has the memories of its guest, in which the place is found (`place`).
    config.coredump_on_trap(true);
    // WASI 0.3 is not offered, and its bookkeeping would slow every call.
    config.concurrency_support(false);
    // Features that no compiler uses for handlers are off. Without garbage collection, a store needs no heap
    // slot.
    config.gc_support(false).wasm_gc(false).wasm_function_references(false).wasm_exceptions(false);
    config
        .wasm_threads(false)
        .wasm_memory64(false)
        .wasm_tail_call(false)
        .wasm_relaxed_simd(false)
        .wasm_custom_page_sizes(false);
    config
}

/// Moves the engine's epoch every [`TICK`] until it is dropped.
pub(super) struct Ticker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    /// Starts the clock on its own thread, so that no runtime can delay it.
    pub(super) fn start(engine: &Engine) -> std::io::Result<Ticker> {
        let stop = Arc::new(AtomicBool::new(false));
        let (engine, stopped) = (engine.weak(), stop.clone());
        let thread = std::thread::Builder::new().name("tq-epoch".into()).spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                std::thread::park_timeout(TICK);
                let Some(engine) = engine.upgrade() else { return };
                engine.increment_epoch();
            }
        })?;
        Ok(Ticker { stop, thread: Some(thread) })
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It can have panicked only if the engine did; there is nothing left to save here.
            thread.join().ok();
        }
    }
}
