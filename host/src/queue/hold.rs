//! The hold of a queue: while something outside is down, no host claims tasks of the queue, but for one that
//! tries one task at a time.
//!
//! In: failures for a cause outside, successes, requests for the probe. Out: whether the queue is held, and
//! from when on a task may be tried.
//!
//!     open ── `after` failures in a row ──▶ held for `for` ──▶ one probe at a time ── gets through ──▶ open
//!                                               ▲──────────── it fails ─┘
//!
//! Not here: what a host does meanwhile (`worker::holding`), what is charged (`worker::settle`).

use std::time::Duration;

use redis::Value;
use serde::{Deserialize, Serialize};

use super::error::QueueError;
use super::handle::{Queue, millis};
use super::reply;
use super::script::{self, ScriptCall};
use crate::config::HoldRules;

/// A service may ask for a wait up to this, if that is longer than the queue's own.
const LONGEST_ASKED: Duration = Duration::from_secs(3600);
/// A longer cause is cut to this many characters.
const MAX_CAUSE_CHARS: usize = 200;

/// The hold of a queue that is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct QueueHold {
    /// When it began, and until when nobody tries a task, in milliseconds since the Unix epoch.
    pub since_ms: u64,
    pub until_ms: u64,
    /// The message of the last failure.
    pub cause: String,
}

/// The answer to a request for the probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProbeAnswer {
    /// The queue is not held.
    Open,
    /// Ask again after this time.
    Wait(Duration),
    Granted,
}

/// The key as the script writes it.
#[derive(Deserialize)]
struct HoldState {
    since: Option<f64>,
    last: Option<f64>,
    asked: Option<f64>,
    cause: Option<String>,
}

/// The content of the key, as a look has found it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct HoldFound {
    pub hold: Option<QueueHold>,
    /// The queue is open, and its last attempts failed for a cause outside.
    pub is_counting: bool,
}

/// Reads the value of the key. Anything that the script did not write counts as no hold.
pub(super) fn found(value: &Value, rules: &HoldRules) -> HoldFound {
    let bytes = match value {
        Value::BulkString(bytes) => bytes.as_slice(),
        Value::SimpleString(text) => text.as_bytes(),
        _ => return HoldFound::default(),
    };
    let Ok(state) = serde_json::from_slice::<HoldState>(bytes) else { return HoldFound::default() };
    let whole = |ms: f64| ms as u64;
    let hold = state.since.map(|since| {
        let until = whole(state.last.unwrap_or(since)) + millis(rules.pause);
        QueueHold {
            since_ms: whole(since),
            until_ms: until.max(state.asked.map_or(0, whole)),
            cause: state.cause.unwrap_or_default(),
        }
    });
    HoldFound { is_counting: hold.is_none(), hold }
}

impl Queue {
    /// Counts an attempt that failed for a cause outside. Gives how long the queue is held from now on. None:
    /// it is open.
    pub(crate) async fn count_outage(
        &self,
        consumer: &str,
        entry: &str,
        asked: Option<Duration>,
        cause: &str,
        is_probe: bool,
    ) -> Result<Option<Duration>, QueueError> {
        let Some(call) = self.hold_call("failed", consumer) else { return Ok(None) };
        let cause: String = cause.chars().take(MAX_CAUSE_CHARS).collect();
        let asked = asked.unwrap_or_default().min(LONGEST_ASKED);
        let call = call.arg(u8::from(is_probe)).arg(entry).arg(millis(asked)).arg(cause);
        let (state, wait) = self.call_hold(call).await?;
        Ok((state > 0).then_some(wait))
    }

    /// Notes that an attempt got through. So the row of failures ends; if it was the probe, the hold ends.
    pub(crate) async fn end_outage(&self, consumer: &str, is_probe: bool) -> Result<(), QueueError> {
        let Some(call) = self.hold_call("through", consumer) else { return Ok(()) };
        self.call_hold(call.arg(u8::from(is_probe))).await.map(drop)
    }

    /// Asks for the probe of a held queue, under this lease.
    pub(crate) async fn ask_probe(&self, consumer: &str, lease: Duration) -> Result<ProbeAnswer, QueueError> {
        let Some(call) = self.hold_call("ask", consumer) else { return Ok(ProbeAnswer::Open) };
        let (state, wait) = self.call_hold(call.arg(millis(lease))).await?;
        Ok(match state {
            0 => ProbeAnswer::Open,
            1 => ProbeAnswer::Wait(wait.max(Duration::from_millis(1))),
            _ => ProbeAnswer::Granted,
        })
    }

    /// Renews the lease of this consumer's probe. Zero gives the probe back.
    pub(crate) async fn keep_probe(&self, consumer: &str, lease: Duration) -> Result<(), QueueError> {
        let Some(call) = self.hold_call("keep", consumer) else { return Ok(()) };
        self.call_hold(call.arg(millis(lease))).await.map(drop)
    }

    /// Notes that the probe of this consumer ended without an answer of the service. Gives how long nobody
    /// may try a task from now on.
    pub(crate) async fn end_silent_probe(&self, consumer: &str) -> Result<Duration, QueueError> {
        let Some(call) = self.hold_call("silent", consumer) else { return Ok(Duration::ZERO) };
        self.call_hold(call).await.map(|(_, wait)| wait)
    }

    fn hold_call(&self, what: &str, consumer: &str) -> Option<ScriptCall> {
        let rules = self.rules.hold?;
        let call = ScriptCall::new(&script::HOLD).key(&self.keys.hold).arg(what);
        Some(call.arg(rules.after).arg(millis(rules.pause)).arg(consumer))
    }

    async fn call_hold(&self, call: ScriptCall) -> Result<(u64, Duration), QueueError> {
        let reply = self.link.script(&call).await?;
        let read = |reply| {
            let [state, wait] = reply::tuple(reply)?;
            Ok((reply::count(&state)?, Duration::from_millis(reply::count(&wait)?)))
        };
        self.shaped("hold", read(reply))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_no_script_wrote_is_no_hold() {
        let rules = HoldRules { after: 5, pause: Duration::from_secs(30) };
        let found = |text: &str| found(&Value::BulkString(text.as_bytes().to_vec()), &rules);
        for text in ["", "{", "[]", "7", r#"{"since":"x"}"#] {
            assert_eq!(found(text), HoldFound::default(), "{text}");
        }
        assert_eq!(found(r#"{"entries":["1-0"],"asked":5}"#), HoldFound { hold: None, is_counting: true });
        let held = |until_ms| Some(QueueHold { since_ms: 1000, until_ms, cause: "down".into() });
        assert_eq!(found(r#"{"since":1000,"last":2000,"cause":"down","asked":9}"#).hold, held(32_000));
        assert_eq!(found(r#"{"since":1e3,"last":2e3,"cause":"down","asked":99999}"#).hold, held(99_999));
    }
}
