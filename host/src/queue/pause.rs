//! The pause of a queue as it stands in Redis: a key exists during the pause, and its text says who paused
//! the queue and why. For hosts only the existence of the key counts. If the pause has an end, the key
//! expires then.
//!
//! Not here: beginning and ending it (`control`).

use redis::Value;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::clock::show_moment;

/// The pause of a queue.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueuePause {
    /// When it began, in milliseconds since the Unix epoch. 0: not known.
    #[serde(default)]
    pub since_ms: u64,
    /// When it ends by itself; null: never.
    #[serde(default)]
    pub until_ms: Option<u64>,
    /// The operator. Empty: not known.
    #[serde(default)]
    pub by: String,
    /// The operator's reason.
    #[serde(default)]
    pub why: String,
}

impl QueuePause {
    /// Says in words since when the queue is paused, by whom and why. `now_ms` is by this machine's clock.
    pub(crate) fn told(&self, now_ms: u64) -> String {
        let QueuePause { since_ms, until_ms, by, why } = self;
        let mut parts = Vec::new();
        parts.extend((*since_ms > 0).then(|| format!("since {}", show_moment(*since_ms, now_ms))));
        parts.extend(until_ms.map(|until| format!("until {}", show_moment(until, now_ms))));
        parts.extend((!by.is_empty()).then(|| format!("by {by}")));
        parts.extend((!why.is_empty()).then(|| format!("because: {why}")));
        parts.join(", ")
    }

    /// Reads the value of the key. Older versions wrote only the time.
    pub(super) fn read(value: &Value) -> Option<QueuePause> {
        let text = match value {
            Value::Nil => return None,
            Value::BulkString(bytes) => String::from_utf8_lossy(bytes),
            Value::SimpleString(text) => text.into(),
            _ => return Some(QueuePause::default()),
        };
        let since = || QueuePause { since_ms: text.parse().unwrap_or_default(), ..QueuePause::default() };
        Some(serde_json::from_str(&text).unwrap_or_else(|_| since()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_of_any_version_is_a_pause() {
        let read = |text: &str| QueuePause::read(&Value::BulkString(text.as_bytes().to_vec()));
        assert_eq!(QueuePause::read(&Value::Nil), None);
        assert_eq!(read("1700000000000").map(|pause| pause.since_ms), Some(1_700_000_000_000));
        assert_eq!(read("\u{fffd}"), Some(QueuePause::default()));
        let whole = QueuePause { since_ms: 1, until_ms: Some(2), by: "ada".into(), why: "move".into() };
        assert_eq!(read(&serde_json::to_string(&whole).expect("JSON")), Some(whole));
        assert_eq!(read("{\"later\": 1}"), Some(QueuePause::default()));
    }
}
