//! Runs handlers: WebAssembly components that get a task and nothing else that they were not granted.
//!
//! In: the bytes of a plugin, its grants, one attempt after another. Out: compiled code, a [`Handler`], one [`Report`]
//! per attempt. A handler that misbehaves is an outcome, never an error.
//!
//! ```text
//! bytes ─▶ Sandbox::compile ─▶ Sandbox::load ─▶ Handler::self_check ─▶ Handler::run(Attempt) ─▶ Report
//! ```
//!
//! `Sandbox::compile` does it in a process of its own, unless it is told otherwise. Not here: which file is the active version (`plugins`), what follows from an outcome (`worker::settle`).

mod apart;
mod budget;
mod call;
mod check;
mod compiler;
mod component;
mod engine;
mod error;
mod failure;
mod handler;
mod host;
mod limits;
mod log;
mod log_rate;
mod machine;
mod mask;
mod share;
mod state;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod turns;
mod warm;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroUsize;
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::Semaphore;
use wasmtime::component::{Component, Linker};

use crate::config;

pub use apart::{Compiler, serve as serve_compiler};
pub use check::{CheckError, TIMEOUT as CHECK_TIMEOUT};
pub use compiler::{Allowance, Cores};
pub use component::Interfaces;
pub use error::LoadError;
pub use handler::{Attempt, Ended, Handler, Report};
pub use host::http::Requests;
pub use share::Share;

use state::State;

/// What handlers may have together of the memory that there is for this process, by default: the larger part is left to the host itself, to compilers
/// and to other programs.
pub fn default_memory() -> u64 {
    machine::memory().map_or(u64::MAX, |bytes| bytes / 2)
}

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
pub struct Sandbox(Arc<Shared>);

struct Shared {
    engine: wasmtime::Engine,
    /// Address space of each memory, in bytes; code is compiled for it.
    reservation: u64,
    compiler: Compiler,
    linker: Linker<State>,
    /// A full pool is not the task's fault: an attempt takes a place before it takes anything from the engine's pool.
    pool: Arc<warm::Pool>,
    /// Memory of all instances.
    budget: Arc<budget::Budget>,
    /// Who computes for long does it in turns: as many at once as there are cores.
    turns: turns::Turns,
    /// One self-check at a time; the engine's pool has a place more than there are for attempts.
    check_permit: Semaphore,
    /// Taken only when this is dropped.
    guests: Option<Runtime>,
    runs_on: Handle,
    /// Taken only when this is dropped; requests of guests run there.
    requests: Option<Runtime>,
    sends_on: Handle,
    /// Plugins share its thread: each poll of a request is a turn.
    sends_in: turns::Turns,
    _ticker: engine::Ticker,
}

impl Sandbox {
    /// Makes the engine and starts the guest threads.
    pub fn new(opts: SandboxOptions) -> anyhow::Result<Sandbox> {
        Sandbox::within(opts, u64::MAX)
    }

    /// The same, where all handlers together have no more than so many bytes of memory.
    pub fn within(opts: SandboxOptions, memory: u64) -> anyhow::Result<Sandbox> {
        let (engine, reservation) = engine::build(&opts)
            .map_err(|error| anyhow!("cannot start the WebAssembly engine: {error:#}"))?;
        let mut linker = Linker::new(&engine);
        host::add_to_linker(&mut linker)
            .map_err(|error| anyhow!("cannot link the host interfaces: {error:#}"))?;
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let guests = tokio::runtime::Builder::new_multi_thread()
            // Half of the threads serve guests that compute for long, the others all other guests
            // (docs/decisions/0001-execution.md).
            .worker_threads(2 * cores)
            .thread_name("tq-guest")
            .enable_time()
            // A busy guest is one long poll: look at the timers after each few, not after the usual 61.
            .event_interval(4)
            .build()
            .context("cannot start the guest threads")?;
        // Not on the guests' threads, which may be busy for long, and not on the host's, which guests must not load.
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

    /// Validates a plugin's bytes and compiles them, on all cores. Takes seconds for large components: call it off the runtime, one at a time.
    pub fn compile(&self, wasm: &[u8]) -> Result<Vec<u8>, LoadError> {
        self.compile_with(&Allowance::full(), wasm)
    }

    /// The same with less, or until it is not wanted any more.
    pub fn compile_with(&self, allowance: &Allowance, wasm: &[u8]) -> Result<Vec<u8>, LoadError> {
        match &self.0.compiler {
            Compiler::Apart(program) => apart::compile(program, self.0.reservation, allowance, wasm),
            Compiler::Here => compiler::compile(&self.0.engine, allowance.cores, wasm),
        }
    }

    /// Makes a handler of what [`Self::compile`] gave, now or earlier, out of a cache that only this user can write.
    /// It is run as machine code: nothing else may ever be passed in.
    pub fn load(&self, compiled: &[u8], grants: &config::Plugin) -> Result<Handler, LoadError> {
        let component = self.deserialize(compiled)?;
        component::interfaces_of(&component).check()?;
        let pre = self
            .0
            .linker
            .instantiate_pre(&component)
            .map_err(|error| LoadError::WrongType(format!("{error:#}")))?;
        Ok(Handler::new(self.clone(), call::Exports::find(pre)?, grants))
    }

    /// What a plugin exports and imports, without compiling it; says nothing about whether it can be loaded.
    pub fn inspect(&self, wasm: &[u8]) -> Result<Interfaces, LoadError> {
        compiler::contained(|| component::interfaces(&component::from_bytes(wasm)?))
    }

    /// Names the engine and its settings: compiled code is good only for the same name.
    pub fn compatibility(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.0.engine.precompile_compatibility_hash().hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }

    #[allow(unsafe_code, reason = "wasmtime has no other way to load compiled code")]
    fn deserialize(&self, compiled: &[u8]) -> Result<Component, LoadError> {
        // SAFETY: by the contract of `load` these bytes come from `compile`. The cache keeps them in a directory that
        // only this user can enter and checks their digest; files from the plugins folder that hold compiled code are
        // refused by `component::from_bytes`.
        unsafe { Component::deserialize(&self.0.engine, compiled) }
            .map_err(|error| LoadError::of_compiled(&error))
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
