//! Waiting for what a test expects. A machine under load is slow: the limits here are for what never comes, not for what comes late.

use std::time::{Duration, Instant};

/// How long anything may take.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Asks again and again until there is an answer. Panics with `what` when none comes within [`LIMIT`].
#[track_caller]
pub fn eventually<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    within(LIMIT, what, ask)
}

/// The same with a limit of its own.
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
