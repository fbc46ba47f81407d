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

/// A moment in words: the time of day in UTC, with the date where it is not near.
pub(crate) fn show_moment(ms: u64, now_ms: u64) -> String {
    let is_far = now_ms.abs_diff(ms) > 20 * 3_600_000;
    let format = if is_far { "%Y-%m-%d %H:%M UTC" } else { "%H:%M UTC" };
    let moment = i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    moment.map(|moment| moment.strftime(format).to_string()).unwrap_or_default()
}

/// A time as a filter has it: milliseconds since the Unix epoch, or RFC 3339.
pub(crate) fn parse_ms(text: &str) -> Option<u64> {
    let of_time = |time: jiff::Timestamp| time.as_millisecond().try_into().ok();
    text.parse().ok().or_else(|| of_time(text.parse().ok()?))
}
