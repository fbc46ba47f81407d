//! Log lines, and panics as log lines.
//!
//! In: a level and a message. Out: a line in the host's log with the task's id, through `wasi:logging`, or stderr in a native build.
//! It works with every toolchain; `println!` is lost when a handler is built without WASI.
//!
//! Not here: the budget. The host cuts what a handler logs beyond it.

use std::fmt::Display;
use std::sync::Once;

pub use crate::bindings::wasi::logging::logging::Level;

pub fn debug(message: impl Display) {
    write(Level::Debug, "", message);
}

pub fn info(message: impl Display) {
    write(Level::Info, "", message);
}

pub fn warn(message: impl Display) {
    write(Level::Warn, "", message);
}

pub fn error(message: impl Display) {
    write(Level::Error, "", message);
}

/// One line with a context of the handler's own choice: the part of it that speaks.
pub fn write(level: Level, context: &str, message: impl Display) {
    #[cfg(target_family = "wasm")]
    crate::bindings::wasi::logging::logging::log(level, context, &message.to_string());
    #[cfg(not(target_family = "wasm"))]
    eprintln!("{level:?} {context} {message}");
}

/// Makes a panic's text a log line, once per instance. Without this it goes nowhere in a component without WASI.
pub(crate) fn panics() {
    static HOOK: Once = Once::new();
    if cfg!(target_family = "wasm") {
        HOOK.call_once(|| std::panic::set_hook(Box::new(|info| write(Level::Critical, "panic", info))));
    }
}
