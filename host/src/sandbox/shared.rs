//! What all handlers of a host share: one engine, one linker, the threads that guests run on, and the bounds
//! of all together.
//!
//! Not here: compiling and loading plugins (`sandbox`), the part of one plugin (`share`).

use std::num::NonZeroUsize;
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::Semaphore;
use wasmtime::component::Linker;

use super::apart::Compiler;
use super::state::State;
use super::{budget, engine, host, share, turns, warm};

/// Threads for lookups of names. No more plugins may look names up at once than this has room for; each has a
/// bound of its own, so that none of them waits for those of others.
const MAX_LOOKUP_THREADS: usize = 500 * share::MAX_LOOKUPS;

/// How large the sandbox is.
#[derive(Debug, Clone)]
pub struct SandboxOptions {
    /// Attempts that may run at once in this host, over all plugins.
    pub max_concurrent: u32,
    /// Instances that may wait for a task meanwhile, over all plugins.
    pub max_warm: u32,
    /// The largest memory grant of any plugin, in bytes.
    pub max_memory: u64,
    /// Who compiles plugins.
    pub compiler: Compiler,
}

impl SandboxOptions {
    /// Instances that there may be at once: those that run, and those that wait for a task.
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
    pub(super) linker: Linker<State>,
    /// A full pool is not the task's fault: an attempt takes a place before it takes anything from the engine's
    /// pool.
    pub(super) pool: Arc<warm::Pool>,
    /// Memory of all instances.
    pub(super) budget: Arc<budget::Budget>,
    /// Who computes for long does it in turns: as many at once as there are cores.
    pub(super) turns: turns::Turns,
    /// One self-check at a time; the engine's pool has a place more than there are for attempts.
    pub(super) check_permit: Semaphore,
    /// Taken only when this is dropped.
    pub(super) guests: Option<Runtime>,
    pub(super) runs_on: Handle,
    /// Taken only when this is dropped; requests of guests run there.
    pub(super) requests: Option<Runtime>,
    pub(super) sends_on: Handle,
    /// Plugins share its thread: each poll of a request is a turn.
    pub(super) sends_in: turns::Turns,
    _ticker: engine::Ticker,
}

impl Sandbox {
    /// Makes the engine and starts the guest threads.
    pub fn new(opts: SandboxOptions) -> anyhow::Result<Sandbox> {
        Sandbox::within(opts, u64::MAX)
    }

    /// The same, where all handlers together have no more than so many bytes of memory.
    pub fn within(opts: SandboxOptions, memory: u64) -> anyhow::Result<Sandbox> {
        let (engine, reservation) = engine::build(opts.places(), opts.max_memory)
            .map_err(|error| anyhow!("cannot start the WebAssembly engine: {error:#}"))?;
        let mut linker = Linker::new(&engine);
        host::add_to_linker(&mut linker)
            .map_err(|error| anyhow!("cannot link the host interfaces: {error:#}"))?;
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let guests = tokio::runtime::Builder::new_multi_thread()
            // Half of them for those that compute for long, the others for everybody else: ARCHITECTURE.md has
            // the figures.
            .worker_threads(2 * cores)
            .thread_name("tq-guest")
            .enable_time()
            // A busy guest is one long poll: look at the timers after each few, not after the usual 61.
            .event_interval(4)
            .build()
            .context("cannot start the guest threads")?;
        // Not on the guests' threads, which may be busy for long, and not on the host's, which guests must not
        // load.
        let requests = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("tq-http")
            // What comes in for one plugin is seen after a few polls for the others.
            .event_interval(8)
            .enable_io()
            .enable_time()
            .max_blocking_threads(MAX_LOOKUP_THREADS)
            .build()
            .context("cannot start the thread for requests")?;
        let ticker = engine::Ticker::start(&engine).context("cannot start the epoch thread")?;
        let pool = Arc::new(warm::Pool::new(opts.places()));
        let budget = budget::Budget::new(memory, &pool);
        let (turns, check_permit) = (turns::Turns::new(cores), Semaphore::new(1));
        let (runs_on, guests) = (guests.handle().clone(), Some(guests));
        let (sends_on, requests) = (requests.handle().clone(), Some(requests));
        let shared = Shared {
            engine,
            reservation,
            compiler: opts.compiler,
            linker,
            pool,
            budget,
            turns,
            check_permit,
            guests,
            runs_on,
            requests,
            sends_on,
            sends_in: turns::Turns::new(1),
            _ticker: ticker,
        };
        Ok(Sandbox(Arc::new(shared)))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The last owner may be a guest or an async function, where waiting for threads would panic.
        for runtime in [self.guests.take(), self.requests.take()].into_iter().flatten() {
            runtime.shutdown_background();
        }
    }
}
