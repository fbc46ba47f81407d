//! Why a plugin's file cannot be used, in words that name what to change.

use thiserror::Error;

/// Files larger than this are not read.
pub(crate) const MAX_FILE: u64 = 64 << 20;

/// What is wrong with a plugin's file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// Empty, text, an ELF program, precompiled code.
    #[error("this is not a WebAssembly file: {0}")]
    NotWasm(String),
    #[error("not a valid WebAssembly component: {0}")]
    Malformed(String),
    #[error("this is a core module without a component type, not a component{}", if *wasip1 {
        " (it was built for wasm32-wasip1: build it for wasm32-wasip2)"
    } else {
        " (build it for wasm32-wasip2, or generate its bindings with wit-bindgen from wit/handler.wit)"
    })]
    CoreModuleWithoutComponentType { wasip1: bool },
    #[error("it exports no tqhost:handler/handler; {}", list("it exports", exports))]
    WrongWorld { exports: Vec<String> },
    #[error("it exports {found}, but this tqhost runs {offered}")]
    WrongVersion { found: String, offered: String },
    /// Each import with the reason.
    #[error("it imports what handlers cannot have: {}", imports.join("; "))]
    NotOffered { imports: Vec<String> },
    #[error("the types do not match wit/handler.wit: {0}")]
    WrongType(String),
    #[error("the file is larger than {} MiB", MAX_FILE >> 20)]
    TooLarge,
    /// Compiled code that this engine does not take, or a component with more parts than the pool has room for.
    #[error("the compiled component cannot be loaded: {0}")]
    Unusable(String),
}

fn list(words: &str, names: &[String]) -> String {
    if names.is_empty() { format!("{words} nothing") } else { format!("{words} {}", names.join(", ")) }
}
