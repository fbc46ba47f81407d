//! The errors of a plugin's file. Each message names what to change.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The largest plugin file that is read, in bytes.
pub(crate) const MAX_FILE: u64 = crate::file::MAX_BYTES;

/// Why a plugin's file cannot be used.
#[derive(Debug, Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum LoadError {
    /// The file is empty, text, an ELF program or precompiled code.
    #[error("this is not a WebAssembly file: {0}")]
    NotWasm(String),
    #[error("not a valid WebAssembly component: {0}")]
    Malformed(String),
    /// Its functions are async, which needs WASI 0.3.
    #[error(
        "its functions are async in the component model (WASI 0.3), and tqhost runs those of WASI 0.2: build \
         it with `handle: func` of wit/handler.wit. `handles` of `tqhost new` takes an `async` function all \
         the same, in Python and JavaScript"
    )]
    Async,
    #[error("this is a core module without a component type, not a component{}", if *wasip1 {
        " (it was built for wasip1, which tqhost adapts if the module has the type of its exports: generate \
         its bindings from wit/handler.wit, with wit-bindgen for example, or export the function \
         `tqhost:handler/handler@0.1.0#handle`, or build it for wasm32-wasip2)"
    } else {
        " (build it for wasm32-wasip2, or generate its bindings with wit-bindgen from wit/handler.wit)"
    })]
    CoreModuleWithoutComponentType { wasip1: bool },
    /// The module's names do not tell its type, since some name no known interface.
    #[error(
        "this core module has no component type, and tqhost does not know the type of {}: embed the type of \
         its world, as wit-bindgen does",
        names.join(", ")
    )]
    UnknownInterfaces { names: Vec<String> },
    /// The encoder names the import or export that does not fit the type.
    #[error(
        "this core module does not fit its component type, or that of its names: {0} (it may import the \
         interfaces of its world and wasi_snapshot_preview1, and must export the functions of its world)"
    )]
    NoComponent(String),
    #[error("it exports no tqhost:handler/handler; {}", list("it exports", exports))]
    WrongWorld { exports: Vec<String> },
    #[error("it exports {found}, but this tqhost runs {offered}")]
    WrongVersion { found: String, offered: String },
    #[error("it imports what handlers cannot have: {}{}", shown(imports), way_out(imports))]
    NotOffered { imports: Vec<RefusedImport> },
    #[error("the types do not match wit/handler.wit: {0}")]
    WrongType(String),
    #[error("the file is larger than {} MiB", MAX_FILE >> 20)]
    TooLarge,
    /// The file would delay other plugins, or take memory that they need.
    #[error("compiling it takes {0}")]
    TooCostly(String),
    #[error("compiling it was cancelled")]
    Cancelled,
    /// Compiled code that this engine does not take, or a component with more parts than the pool has room
    /// for.
    #[error("the compiled component cannot be loaded: {0}")]
    Unusable(String),
    /// The operating system refused a resource for compiling or loading, such as memory.
    #[error("it cannot be compiled or loaded for now: {0}")]
    Hindered(String),
}

impl LoadError {
    /// Whether another try with the same file may succeed, because nothing is wrong with the file.
    pub fn may_pass(&self) -> bool {
        matches!(self, LoadError::Hindered(_) | LoadError::Cancelled)
    }

    /// Classifies the engine's error about compiled code.
    pub(super) fn of_compiled(error: &wasmtime::Error) -> LoadError {
        let why = format!("{error:#}");
        let is_from_system = |cause: &(dyn std::error::Error + 'static)| {
            cause.is::<rustix::io::Errno>() || cause.is::<std::io::Error>()
        };
        if error.chain().any(is_from_system) { LoadError::Hindered(why) } else { LoadError::Unusable(why) }
    }
}

/// An import that no handler may have.
#[derive(Debug, Serialize, Deserialize)]
pub struct RefusedImport {
    pub name: String,
    pub why: String,
    /// Some of the functions that call it, as far as the file has their names.
    pub callers: Vec<String>,
}

fn shown(imports: &[RefusedImport]) -> String {
    let one = |RefusedImport { name, why, callers }: &RefusedImport| match &callers[..] {
        [] => format!("{name} ({why})"),
        callers => format!("{name} ({why}), for {}", callers.join(", ")),
    };
    imports.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn way_out(imports: &[RefusedImport]) -> &'static str {
    let is_newer = |import: &RefusedImport| import.name.contains("@0.3.");
    if imports.iter().any(is_newer) { "; build it for WASI 0.2, in Rust for wasm32-wasip2" } else { "" }
}

fn list(words: &str, names: &[String]) -> String {
    if names.is_empty() { format!("{words} nothing") } else { format!("{words} {}", names.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_the_system_may_pass_and_a_fault_of_the_code_does_not() {
        let refused = wasmtime::Error::from(rustix::io::Errno::NOMEM)
            .context("mmap failed to allocate 0x1000 bytes")
            .context("loading");
        let error = LoadError::of_compiled(&refused);
        assert!(error.may_pass(), "{error}");
        insta::assert_snapshot!(error, @"
        it cannot be compiled or loaded for now: loading: mmap failed to allocate 0x1000 bytes: Cannot \
        allocate memory (os error 12)
        ");
        let files = wasmtime::Error::from(std::io::Error::other("too many open files")).context("loading");
        assert!(LoadError::of_compiled(&files).may_pass());
        let parts =
            wasmtime::Error::msg("it has 65 core instances, which exceeds the configured maximum of 64");
        assert!(matches!(LoadError::of_compiled(&parts), LoadError::Unusable(_)));
        assert!(!LoadError::Malformed(String::new()).may_pass());
    }
}
