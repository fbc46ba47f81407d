//! This machine's clock, durations in milliseconds, and times as text.
//!
//! Not here: Redis's clock, which decides when tasks are due (`queue`).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since the Unix epoch; 0 before it.
pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    ms(now)
}

/// A duration as logs and views show it: in whole milliseconds.
pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A time as a filter has it: milliseconds since the Unix epoch, or RFC 3339.
pub(crate) fn parse_ms(text: &str) -> Option<u64> {
    let of_time = |time: jiff::Timestamp| time.as_millisecond().try_into().ok();
    text.parse().ok().or_else(|| of_time(text.parse().ok()?))
}
