//! About the attempt that is running.
//!
//! In: the handler's progress. Out: the task's status while it runs, and the time that is left. In a native build progress goes nowhere
//! and there is a minute left.

use std::time::Duration;

/// Shown on the task's status while it runs. A percentage above 100 counts as 100.
pub fn progress(percent: u8, note: &str) {
    #[cfg(target_family = "wasm")]
    crate::bindings::tqhost::handler::context::progress(percent, note);
    #[cfg(not(target_family = "wasm"))]
    let _ = (percent, note);
}

/// The time until the host stops this attempt.
pub fn remaining() -> Duration {
    #[cfg(target_family = "wasm")]
    return Duration::from_millis(crate::bindings::tqhost::handler::context::remaining_ms());
    #[cfg(not(target_family = "wasm"))]
    Duration::from_secs(60)
}
