//! Runs handlers: WebAssembly components that get a task, and only the access that is granted to them.
//!
//! In: the bytes of a plugin, its grants, its attempts. Out: compiled code, a [`Handler`], one
//! [`AttemptReport`] per attempt. A handler that misbehaves gives an outcome, never an error.
//!
//! ```text
//! bytes ─▶ Sandbox::compile ─▶ Sandbox::load ─▶ Handler::self_check ─▶ run(Attempt) ─▶ AttemptReport
//! ```
//!
//! `Sandbox::compile` compiles in a separate process, unless the options choose [`Compiler::Here`].
//!
//! Not here: which file is the active version (`plugins`), what follows from an outcome (`worker::settle`).

mod attempt;
mod attempt_state;
mod budget;
mod build_section;
mod call;
mod callers;
mod check;
mod compiler;
mod compiler_process;
mod component;
mod effects;
mod engine;
mod error;
mod failure;
mod functions;
mod granted;
mod handler;
mod host;
mod last_lines;
mod last_words;
mod limits;
mod loaded;
mod log;
mod log_rate;
mod machine;
mod mask;
mod number;
mod place;
mod python;
mod reply;
mod seated;
mod seats;
mod share;
mod shared;
mod slices;
mod state;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod together;
mod unescape;
mod untyped;
mod waits;
mod warm;

use std::hash::{DefaultHasher, Hash, Hasher};

use wasmtime::component::Component;

use crate::config;

pub use attempt::Attempt;
pub(crate) use attempt::{AttemptReport, Ended};
pub(crate) use build_section::{build_in, with_build, without_build};
pub(crate) use check::TIMEOUT as CHECK_TIMEOUT;
pub(crate) use compiler::{Allowance, Cores};
pub use compiler_process::Compiler;
pub(crate) use compiler_process::{Compiled, FunctionFiles, serve as serve_compiler};
pub(crate) use component::Interfaces;
pub(crate) use error::LoadError;
pub use handler::Handler;
pub(crate) use handler::NOT_CONCURRENT;
pub(crate) use share::Share;
pub use shared::{Sandbox, SandboxOptions};

/// The default memory of all handlers together, in bytes: half of the memory that this process may use. The
/// other half is for the host itself, for compilers and for other programs.
pub(crate) fn default_memory() -> u64 {
    machine::memory().map_or(u64::MAX, |bytes| bytes / 2)
}

/// Checks the exports and imports of a plugin's file, without compiling it.
pub(crate) fn check_names(wasm: &[u8]) -> Result<(), LoadError> {
    compiler::contained(|| component::check(&component::from_bytes(wasm)?))
}

/// The most memory that this process may use, in bytes.
pub(crate) fn machine_memory() -> Option<u64> {
    machine::memory()
}

impl Sandbox {
    /// Validates a plugin's bytes and compiles them, on all cores. This takes seconds for large components:
    /// do not call it on a thread of the runtime, and call it for one plugin at a time.
    pub fn compile(&self, wasm: &[u8]) -> Result<Vec<u8>, LoadError> {
        self.compile_with(&Allowance::full(), FunctionFiles { known: None, next: &mut || None }, wasm)
            .map(|compiled| compiled.code)
    }

    /// Validates and compiles a plugin within an allowance, which limits the cores and can cancel the work. A
    /// separate process takes the functions of earlier compilations, and leaves those for the next one.
    pub(crate) fn compile_with(
        &self,
        allowance: &Allowance,
        functions: FunctionFiles<'_>,
        wasm: &[u8],
    ) -> Result<Compiled, LoadError> {
        match &self.0.compiler {
            Compiler::Separate(program) => {
                compiler_process::compile(program, self.0.reservation, allowance, functions, wasm)
            }
            Compiler::Here => {
                let code = compiler::compile(&self.0.engine, allowance.cores, wasm)?;
                Ok(Compiled { code, has_functions: false })
            }
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
