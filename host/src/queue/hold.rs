//! The hold of a queue: while something outside is down, no host claims tasks of the queue, except that one
//! host at a time has the probe, and tries one task.
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

use super::error::QueueResult;
use super::handle::{Queue, millis};
use super::reply::{self, UnexpectedShape};
use super::script::{self, ScriptCall};
use crate::clock::show_moment;
use crate::config::HoldRules;
use crate::config::units::show_duration;
use crate::task::Task;

/// The longest wait for which a service may ask.
const LONGEST_ASKED: Duration = Duration::from_secs(3600);
/// A cause is cut to this many characters.
const MAX_CAUSE_CHARS: usize = 200;

/// The hold of a queue that is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct QueueHold {
    /// When it began (ms since the Unix epoch).
    pub since_ms: u64,
    /// Until when nobody tries a task (ms since the Unix epoch).
    pub until_ms: u64,
    /// The message of the last failure.
    pub cause: String,
}

impl QueueHold {
    /// Says in words since when, and why. `now_ms` is by this machine's clock.
    pub(crate) fn told(&self, now_ms: u64) -> String {
        let since = show_moment(self.since_ms, now_ms);
        let left = Duration::from_secs(self.until_ms.saturating_sub(now_ms).div_ceil(1000));
        let next = if left.is_zero() { "now".to_owned() } else { format!("in {}", show_duration(left)) };
        format!("since {since}, next try {next}, last cause: {}", self.cause)
    }
}

/// An attempt that failed for a cause outside.
pub(crate) struct OutageFailure<'t> {
    pub task: &'t Task,
    /// When the task first failed like this (ms since the Unix epoch). 0: it did not before, or other tasks
    /// failed in the same call.
    pub since_ms: u64,
    /// How long the service asks to wait.
    pub asked: Option<Duration>,
    pub cause: &'t str,
    pub is_probe: bool,
}

/// A failure for a cause outside, as it was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutageCounted {
    /// How long nobody may try a task from now on. None: the queue is open.
    pub held: Option<Duration>,
    /// This task alone fails, while others get through.
    pub is_alone: bool,
    /// Other tasks got through after the first failure of this one.
    pub others_got_through: bool,
    /// The time of the call, by Redis's clock (ms since the Unix epoch).
    pub now_ms: u64,
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

/// The state of the hold in Redis, as hold.lua writes it.
#[derive(Deserialize)]
struct HoldState {
    since: Option<f64>,
    last: Option<f64>,
    asked: Option<f64>,
    cause: Option<String>,
    /// The task that failed first since one got through.
    task: Option<String>,
    entries: Option<serde::de::IgnoredAny>,
}

/// The content of the state in Redis.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct HoldFound {
    pub hold: Option<QueueHold>,
    /// The queue is open, and its last attempts failed for a cause outside.
    pub is_counting: bool,
}

/// Reads the state in Redis. A value of another form counts as no hold.
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
    let is_counting = hold.is_none() && (state.task.is_some() || state.entries.is_some());
    HoldFound { is_counting, hold }
}

impl Queue {
    /// Counts an attempt that failed for a cause outside.
    pub(crate) async fn count_outage(
        &self,
        consumer: &str,
        failure: &OutageFailure<'_>,
    ) -> QueueResult<OutageCounted> {
        let OutageFailure { task, since_ms, asked, cause, is_probe } = failure;
        let Some(call) = self.hold_call("failed", consumer, *is_probe, Duration::ZERO) else {
            return Ok(OutageCounted { held: None, is_alone: false, others_got_through: false, now_ms: 0 });
        };
        let cause: String = cause.chars().take(MAX_CAUSE_CHARS).collect();
        let asked = asked.unwrap_or_default().min(LONGEST_ASKED);
        let call = call.arg("entry", &task.entry).arg("asked", millis(asked)).arg("cause", cause);
        let call = call.arg("id", &task.id).arg("failing_since", since_ms);
        let [state, wait, kind, now_ms] = self.call_hold(call).await?;
        let held = (state > 0).then_some(Duration::from_millis(wait));
        Ok(OutageCounted { held, is_alone: kind == 1, others_got_through: kind > 0, now_ms })
    }

    /// Notes that an attempt got through: the row of failures ends, and with a probe the hold ends.
    pub(crate) async fn end_outage(&self, consumer: &str, is_probe: bool) -> QueueResult {
        let Some(call) = self.hold_call("through", consumer, is_probe, Duration::ZERO) else { return Ok(()) };
        self.call_hold(call).await.map(drop)
    }

    /// Asks for the probe of a held queue, under this lease.
    pub(crate) async fn ask_probe(&self, consumer: &str, lease: Duration) -> QueueResult<ProbeAnswer> {
        let Some(call) = self.hold_call("ask", consumer, false, lease) else { return Ok(ProbeAnswer::Open) };
        let [state, wait, ..] = self.call_hold(call).await?;
        Ok(match state {
            0 => ProbeAnswer::Open,
            1 => ProbeAnswer::Wait(Duration::from_millis(wait.max(1))),
            _ => ProbeAnswer::Granted,
        })
    }

    /// Renews the lease of this consumer's probe. Zero gives the probe back.
    pub(crate) async fn keep_probe(&self, consumer: &str, lease: Duration) -> QueueResult {
        let Some(call) = self.hold_call("keep", consumer, true, lease) else { return Ok(()) };
        self.call_hold(call).await.map(drop)
    }

    /// Notes that the probe of this consumer ended without an answer of the service. Returns how long nobody
    /// may try a task from now on.
    pub(crate) async fn end_silent_probe(&self, consumer: &str) -> QueueResult<Duration> {
        let Some(call) = self.hold_call("silent", consumer, true, Duration::ZERO) else {
            return Ok(Duration::ZERO);
        };
        self.call_hold(call).await.map(|[_, wait, ..]| Duration::from_millis(wait))
    }

    /// A call of hold.lua without a failure. None: the queue has no rules for holds.
    fn hold_call(&self, what: &str, consumer: &str, is_probe: bool, lease: Duration) -> Option<ScriptCall> {
        let rules = self.rules.hold?;
        let call = ScriptCall::new(&script::HOLD).key("state", &self.keys.hold).arg("what", what);
        let call = call.arg("after", rules.after).arg("pause", millis(rules.pause)).arg("consumer", consumer);
        Some(call.arg("is_probe", u8::from(is_probe)).arg("lease", millis(lease)))
    }

    /// Returns the numbers of the script's reply: the state, the wait, the kind of the failure, the time.
    async fn call_hold(&self, call: ScriptCall) -> QueueResult<[u64; 4]> {
        let reply = self.link.script(&call).await?;
        let numbers = reply::each(reply, |number| reply::count(&number));
        self.shaped("hold", numbers.and_then(|numbers| numbers.try_into().map_err(|_| UnexpectedShape)))
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
