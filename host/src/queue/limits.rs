//! The limits that an operator sets for a queue while its hosts run: starts in all hosts together, attempts
//! at once in each host, tasks of one key at once. They only lower what the configuration allows.
//!
//! In: the value in Redis that has all limits of a queue, and expires at their end. Out: the limits that hold
//! now, also in words. A value that cannot be read limits nothing.
//!
//! Not here: setting and clearing them (`control`), which limits a queue can have (`operations::limits`), how
//! hosts read (`wait`) and apply them (`worker::limits`; for the tasks of one key, `scripts/lib.lua`).

use redis::Value;
use serde::{Deserialize, Serialize};

use super::error::QueueResult;
use super::handle::Queue;
use super::pause::QueuePause;
use super::rate;
use crate::config::rules::Rate;
use crate::config::units::parse_rate;

/// Limits that an operator has set. The names are stable: hosts of other versions read them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default)]
pub struct QueueLimits {
    /// How many tasks start at most in all hosts together, like `5/s`.
    #[schema(pattern = "^[0-9]+/(s|m|h)$")]
    pub rate: Option<String>,
    /// The most attempts at once in each host.
    pub concurrency: Option<u32>,
    /// The most tasks of one key at once, in all hosts together. For queues with `serial`.
    pub per_key: Option<u32>,
    /// When they were set, in milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// When they end by themselves; null: never.
    pub until_ms: Option<u64>,
    /// The operator.
    pub by: String,
    /// The operator's reason.
    pub why: String,
}

impl QueueLimits {
    /// The rate of a queue whose configuration has `configured`.
    pub(crate) fn lowered_rate(&self, configured: Option<Rate>) -> Option<Rate> {
        let set = self.rate.as_deref().and_then(|text| parse_rate(text).ok());
        let rates = configured.into_iter().chain(set);
        rates.max_by(|one, other| rate::step(one).total_cmp(&rate::step(other)))
    }

    /// Whether nothing is limited.
    pub(crate) fn are_none(&self) -> bool {
        self.rate.is_none() && self.concurrency.is_none() && self.per_key.is_none()
    }

    /// Says in words what is limited.
    pub(crate) fn words(&self) -> String {
        let rate = self.rate.as_ref().map(|rate| format!("rate {rate}"));
        let most = self.concurrency.map(|most| format!("concurrency {most} in each host"));
        let per_key = self.per_key.map(|most| format!("{most} of one key at once"));
        [rate, most, per_key].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// Says in words what is limited, since when, by whom and why. `now_ms` is by this machine's clock.
    pub(crate) fn told(&self, now_ms: u64) -> String {
        let QueueLimits { since_ms, until_ms, by, why, .. } = self.clone();
        format!("{}, {}", self.words(), QueuePause { since_ms, until_ms, by, why }.told(now_ms))
    }
}

/// Reads the value of the key.
pub(super) fn found(value: &Value) -> Option<QueueLimits> {
    let limits: Option<QueueLimits> = match value {
        Value::BulkString(bytes) => serde_json::from_slice(bytes).ok(),
        Value::SimpleString(text) => serde_json::from_str(text).ok(),
        _ => None,
    };
    // An operator cannot set 0 at once: that would be a pause.
    let limits = limits.map(|limits| QueueLimits {
        concurrency: limits.concurrency.filter(|most| *most > 0),
        per_key: limits.per_key.filter(|most| *most > 0),
        ..limits
    });
    limits.filter(|limits| !limits.are_none())
}

impl Queue {
    /// The limits that hold now.
    pub(crate) async fn limits(&self) -> QueueResult<Option<QueueLimits>> {
        Ok(found(&self.link.command("look for limits", redis::cmd("GET").arg(&self.keys.limits)).await?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_cannot_be_read_limits_nothing_and_unknown_names_are_left_alone() {
        let found = |text: &str| found(&Value::BulkString(text.as_bytes().to_vec()));
        let none = r#"{"concurrency":0,"per_key":0}"#;
        for text in ["", "{", "[]", "7", "1795242534558", r#"{"concurrency":"x"}"#, r#"{"why":"x"}"#, none] {
            assert_eq!(found(text), None, "{text}");
        }
        let limits = found(r#"{"concurrency":3,"rate":"fast","burst":9}"#).expect("limits");
        assert_eq!((limits.concurrency, limits.lowered_rate(None)), (Some(3), None));
        let written = serde_json::json!(limits).to_string();
        assert_eq!(found(&written), Some(limits));
    }

    #[test]
    fn the_slower_rate_holds() {
        let rate = |text: &str| parse_rate(text).expect("a rate");
        let limits = |text: &str| QueueLimits { rate: Some(text.into()), ..QueueLimits::default() };
        assert_eq!(limits("5/s").lowered_rate(None), Some(rate("5/s")));
        assert_eq!(limits("5/s").lowered_rate(Some(rate("10/s"))), Some(rate("5/s")));
        assert_eq!(limits("700/m").lowered_rate(Some(rate("10/s"))), Some(rate("10/s")));
        assert_eq!(QueueLimits::default().lowered_rate(Some(rate("1/h"))), Some(rate("1/h")));
    }

    #[test]
    fn limits_are_told_in_words() {
        let limits = QueueLimits {
            rate: Some("5/s".into()),
            concurrency: Some(4),
            per_key: Some(1),
            since_ms: 60_000,
            until_ms: Some(3_600_000),
            by: "ada@desk".into(),
            why: "429".into(),
        };
        let words = "rate 5/s, concurrency 4 in each host, 1 of one key at once, since 00:01 UTC, \
                     until 01:00 UTC, by ada@desk, because: 429";
        assert_eq!(limits.told(120_000), words);
    }
}
