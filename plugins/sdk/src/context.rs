//! The attempt that is running: its progress and the time that it has left.
//!
//! In: the handler's progress, for the task's status. Out: the time until the host stops the attempt. In a
//! native build, progress is ignored, and the time left is always one minute.

use std::time::Duration;

/// Shows the progress and a note on the task's status while it runs. A percentage above 100 counts as 100.
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
