//! The parts that all handlers of a host share: one engine, one linker, the threads that guests run on, and
//! the bounds of all handlers together.
//!
//! Not here: compiling and loading plugins (`sandbox`), the part of one plugin (`share`).

use std::num::NonZeroUsize;
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::Semaphore;
use wasmtime::component::Linker;

use super::compiler_process::Compiler;
use super::state::GuestState;
use super::{budget, engine, host, share, slices, warm};
use crate::blobs::Blobs;

/// Threads for name lookups. Each plugin has its own limit, so that it does not wait for the lookups of
/// another plugin. There are enough threads for 500 plugins at their limit.
const MAX_LOOKUP_THREADS: usize = 500 * share::MAX_LOOKUPS;

/// Bytes of a blob in a sandbox without a store.
const MAX_BLOB_IN_MEMORY: u64 = 16 << 20;

/// The size of the sandbox, and its compiler.
#[derive(Debug, Clone)]
pub struct SandboxOptions {
    /// Largest number of attempts that run at once in this host, over all plugins.
    pub max_concurrent: u32,
    /// Largest number of instances that wait for a task at the same time, over all plugins.
    pub max_warm: u32,
    /// The largest memory grant of all plugins, in bytes.
    pub max_memory: u64,
    /// Where plugins are compiled.
    pub compiler: Compiler,
    /// Whether a failure has the calls in which it happened, with the lines of the source where the plugin
    /// has debug information. That makes compiled code larger, so it has to be compiled here.
    pub backtraces: bool,
}

impl SandboxOptions {
    /// For a program that runs one task at a time, and keeps no instance.
    pub(crate) fn single(max_memory: u64, compiler: Compiler) -> SandboxOptions {
        SandboxOptions { max_concurrent: 1, max_warm: 0, max_memory, compiler, backtraces: false }
    }

    /// Largest number of instances at once: those that run, and those that wait for a task.
    fn places(&self) -> u32 {
        self.max_concurrent.saturating_add(self.max_warm).max(1)
    }
}

/// One engine, one linker and the threads that guests run on. Cheap to clone.
#[derive(Clone)]
pub struct Sandbox(pub(super) Arc<Shared>);

pub(super) struct Shared {
    pub(super) engine: wasmtime::Engine,
    /// Address space of each memory, in bytes; code is compiled for it.
    pub(super) reservation: u64,
    pub(super) compiler: Compiler,
    pub(super) backtraces: bool,
    pub(super) linker: Linker<GuestState>,
    /// An attempt takes a place here before it uses the engine's pool, so a full pool never fails a task.
    pub(super) pool: Arc<warm::Pool>,
    /// The memory of all instances together.
    pub(super) budget: Arc<budget::Budget>,
    /// The files of all plugins.
    pub(super) blobs: Blobs,
    /// Guests that compute for long take time slices in turn: as many run at once as there are cores.
    pub(super) slices: slices::TimeSlices,
    /// One self-check runs at a time. The engine's pool has one place for it beside those for attempts.
    pub(super) check_permit: Semaphore,
    /// `None` only while this is dropped.
    pub(super) guests: Option<Runtime>,
    pub(super) runs_on: Handle,
    /// Runs the HTTP requests of guests. `None` only while this is dropped.
    pub(super) requests: Option<Runtime>,
    pub(super) sends_on: Handle,
    /// Plugins share the thread of `requests`: each poll of a request is a time slice.
    pub(super) sends_in: slices::TimeSlices,
    _ticker: engine::Ticker,
}

impl Sandbox {
    /// Makes the engine and starts the guest threads. Blobs are kept in memory, until this is dropped.
    pub fn new(opts: SandboxOptions) -> anyhow::Result<Sandbox> {
        let of_queue = opts.max_concurrent;
        Sandbox::within(opts, of_queue, u64::MAX, Blobs::in_memory(MAX_BLOB_IN_MEMORY)?)
    }

    /// Makes a sandbox in which all handlers together have at most `memory` bytes. No queue may run more than
    /// `of_queue` attempts at once.
    pub fn within(opts: SandboxOptions, of_queue: u32, memory: u64, blobs: Blobs) -> anyhow::Result<Sandbox> {
        let (engine, reservation) = engine::build(opts.places(), of_queue, opts.max_memory, opts.backtraces)
            .map_err(|error| anyhow!("cannot start the WebAssembly engine: {error:#}"))?;
        let mut linker = Linker::new(&engine);
        host::add_to_linker(&mut linker)
            .map_err(|error| anyhow!("cannot link the host interfaces: {error:#}"))?;
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let guests = tokio::runtime::Builder::new_multi_thread()
            // Half of the threads serve guests that compute for long, and half serve all others
            // (docs/decisions/0001-execution.md).
            .worker_threads(2 * cores)
            .thread_name("tq-guest")
            .enable_time()
            // A busy guest is one long poll, so look at the timers after 4 polls, not after the usual 61.
            .event_interval(4)
            .build()
            .context("cannot start the guest threads")?;
        // Requests have their own thread: guests' threads may be busy for long, and guests must not load
        // the host's threads.
        let requests = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("tq-http")
            // Look for incoming data after 8 polls, so that one plugin does not delay the others.
            .event_interval(8)
            .enable_io()
            .enable_time()
            .max_blocking_threads(MAX_LOOKUP_THREADS)
            .build()
            .context("cannot start the thread for requests")?;
        let ticker = engine::Ticker::start(&engine).context("cannot start the epoch thread")?;
        let pool = Arc::new(warm::Pool::new(opts.places()));
        let kept = Arc::downgrade(&pool);
        let drop_kept = move || kept.upgrade().into_iter().for_each(|pool| pool.clear());
        let budget = budget::Budget::new(memory, drop_kept);
        let (slices, check_permit) = (slices::TimeSlices::new(cores), Semaphore::new(1));
        let (runs_on, guests) = (guests.handle().clone(), Some(guests));
        let (sends_on, requests) = (requests.handle().clone(), Some(requests));
        let shared = Shared {
            engine,
            reservation,
            compiler: opts.compiler,
            backtraces: opts.backtraces,
            linker,
            pool,
            budget,
            blobs,
            slices,
            check_permit,
            guests,
            runs_on,
            requests,
            sends_on,
            sends_in: slices::TimeSlices::new(1),
            _ticker: ticker,
        };
        Ok(Sandbox(Arc::new(shared)))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The last owner may be a guest or an async function, where a wait for threads would panic.
        for runtime in [self.guests.take(), self.requests.take()].into_iter().flatten() {
            runtime.shutdown_background();
        }
    }
}
