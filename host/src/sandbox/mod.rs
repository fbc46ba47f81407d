//! Runs handlers: WebAssembly components that get a task, and only the access that is granted to them.
//!
//! In: the bytes of a plugin, its grants, its attempts. Out: compiled code, a [`Handler`], one [`Report`] per
//! attempt. A handler that misbehaves gives an outcome, never an error.
//!
//! ```text
//! bytes ─▶ Sandbox::compile ─▶ Sandbox::load ─▶ Handler::self_check ─▶ Handler::run(Attempt) ─▶ Report
//! ```
//!
//! `Sandbox::compile` compiles in a separate process, unless the options choose [`Compiler::Here`].
//!
//! Not here: which file is the active version (`plugins`), what follows from an outcome (`worker::settle`).

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

/// The default memory of all handlers together, in bytes: half of the memory that this process may use. The
/// other half is for the host itself, for compilers and for other programs.
pub fn default_memory() -> u64 {
    machine::memory().map_or(u64::MAX, |bytes| bytes / 2)
}

/// Threads for name lookups. Each plugin has its own limit, so that it does not wait for the lookups of
/// another plugin. There are enough threads for 500 plugins at their limit.
const MAX_LOOKUP_THREADS: usize = 500 * share::MAX_LOOKUPS;

/// The size of the sandbox, and its compiler.
#[derive(Debug, Clone)]
pub struct SandboxOptions {
    /// Largest number of attempts that run at once in this host, over all plugins.
    pub max_concurrent: u32,
    /// Largest number of instances that wait for a task at the same time, over all plugins.
    pub max_warm: u32,
    /// The largest memory grant of any plugin, in bytes.
    pub max_memory: u64,
    /// Where plugins are compiled.
    pub compiler: Compiler,
}

impl SandboxOptions {
    /// Largest number of instances at once: those that run, and those that wait for a task.
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
    /// An attempt takes a place here before it uses the engine's pool, so a full pool never fails a task.
    pool: Arc<warm::Pool>,
    /// The memory of all instances together.
    budget: Arc<budget::Budget>,
    /// Guests that compute for long take turns: as many run at once as there are cores.
    turns: turns::Turns,
    /// One self-check runs at a time. The engine's pool has one place for it beside those for attempts.
    check_permit: Semaphore,
    /// `None` only while this is dropped.
    guests: Option<Runtime>,
    runs_on: Handle,
    /// Runs the HTTP requests of guests. `None` only while this is dropped.
    requests: Option<Runtime>,
    sends_on: Handle,
    /// Plugins share the thread of `requests`: each poll of a request is a turn.
    sends_in: turns::Turns,
    _ticker: engine::Ticker,
}

impl Sandbox {
    /// Makes the engine and starts the guest threads.
    pub fn new(opts: SandboxOptions) -> anyhow::Result<Sandbox> {
        Sandbox::within(opts, u64::MAX)
    }

    /// Makes a sandbox where all handlers together have at most `memory` bytes.
    pub fn within(opts: SandboxOptions, memory: u64) -> anyhow::Result<Sandbox> {
        let (engine, reservation) = engine::build(&opts)
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

    /// Validates a plugin's bytes and compiles them, on all cores. This takes seconds for large components:
    /// do not call it on a thread of the runtime, and call it for one plugin at a time.
    pub fn compile(&self, wasm: &[u8]) -> Result<Vec<u8>, LoadError> {
        self.compile_with(&Allowance::full(), wasm)
    }

    /// Validates and compiles a plugin within an allowance, which limits the cores and can cancel the work.
    pub fn compile_with(&self, allowance: &Allowance, wasm: &[u8]) -> Result<Vec<u8>, LoadError> {
        match &self.0.compiler {
            Compiler::Apart(program) => apart::compile(program, self.0.reservation, allowance, wasm),
            Compiler::Here => compiler::compile(&self.0.engine, allowance.cores, wasm),
        }
    }

    /// Makes a handler from compiled code. The code must come from [`Self::compile`], directly or through a
    /// cache that only this user can write. It runs as machine code: never pass any other bytes.
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

    /// Lists a plugin's exports and imports without compiling it. It does not check that the plugin can be
    /// loaded.
    pub fn inspect(&self, wasm: &[u8]) -> Result<Interfaces, LoadError> {
        compiler::contained(|| component::interfaces(&component::from_bytes(wasm)?))
    }

    /// Identifies the engine and its settings. Compiled code is valid only for the same identifier.
    pub fn compatibility(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.0.engine.precompile_compatibility_hash().hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }

    #[allow(unsafe_code, reason = "wasmtime has no other way to load compiled code")]
    fn deserialize(&self, compiled: &[u8]) -> Result<Component, LoadError> {
        // SAFETY: by the contract of `load`, these bytes come from `compile`. The cache keeps them in a
        // directory that only this user can enter, and checks their digest. `component::from_bytes` refuses
        // files of the plugins folder that hold compiled code.
        unsafe { Component::deserialize(&self.0.engine, compiled) }
            .map_err(|error| LoadError::of_compiled(&error))
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
