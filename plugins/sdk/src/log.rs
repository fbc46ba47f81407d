//! Log lines, and panics as log lines.
//!
//! In: a level and a message. Out: a line in the host's log with the task's id, through `wasi:logging`; in a
//! native build, a line on stderr. These functions work with every toolchain. In a handler that is built
//! without WASI, the output of `println!` is lost.
//!
//! Not here: the log budget. The host drops the lines that exceed it.

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

/// Logs a line at any level. `context` names the part of the handler that logs it.
pub fn write(level: Level, context: &str, message: impl Display) {
    #[cfg(target_family = "wasm")]
    crate::bindings::wasi::logging::logging::log(level, context, &message.to_string());
    #[cfg(not(target_family = "wasm"))]
    eprintln!("{level:?} {context} {message}");
}

/// Makes the text of a panic a log line. In a component without WASI, the text would otherwise be lost. Only
/// the first call in an instance has an effect.
pub(crate) fn panics() {
    static HOOK: Once = Once::new();
    if cfg!(target_family = "wasm") {
        HOOK.call_once(|| std::panic::set_hook(Box::new(|info| write(Level::Critical, "panic", info))));
    }
}
