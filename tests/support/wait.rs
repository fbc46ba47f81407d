//! Waits for an event that a test expects.
//!
//! In: a question that is asked every 10 ms. Out: its answer, or a panic. A machine under load is slow, so
//! the limits are for events that never come, not for late ones.

use std::time::{Duration, Instant};

/// The longest wait for anything.
pub const LIMIT: Duration = Duration::from_secs(180);

/// Asks until there is an answer. Panics with `what` when none comes within [`LIMIT`].
#[track_caller]
pub fn eventually<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    within(LIMIT, what, ask)
}

/// Asks until there is an answer. Panics with `what` when none comes within `limit`.
#[track_caller]
pub fn within<T>(limit: Duration, what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "waited {limit:?} for this, in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
