//! One queue in Redis: its rules, its keys and its connection. Other files of this folder add the operations.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde_json::json;

use super::error::{QueueError, QueueResult};
use super::keys::QueueKeys;
use super::link::Link;
use super::node::Recovery;
use super::reply::Shaped;
use super::script::{Script, ScriptCall, Told};
use crate::config::rules::Idempotency;
use crate::config::{self, OnEnd, TargetQueue};

/// After an outage every living host renews its leases within this time: it connects again within 4 seconds,
/// and its heartbeats are 2 seconds apart.
const HEARD_AGAIN: Duration = Duration::from_secs(6);

/// One queue in Redis. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Queue {
    pub rules: Arc<config::QueueRules>,
    pub(crate) keys: Arc<QueueKeys>,
    pub(crate) link: Link,
    /// The streams that are told of the ends of this queue's tasks, and its tracks.
    pub(super) told: Arc<Told>,
}

impl Queue {
    /// Does not connect yet. All queues may share the connections of `link`.
    pub fn new(rules: config::QueueRules, link: Link) -> Queue {
        let keys = Arc::new(QueueKeys::new(&rules.stream, rules.dead_letter.as_deref()));
        let told = Arc::new(told(&rules, &keys));
        let link = link.at_key(&keys.stream);
        Queue { rules: Arc::new(rules), keys, link, told }
    }

    /// Redis's clock, in milliseconds since the Unix epoch.
    pub(crate) async fn now_ms(&self) -> QueueResult<u64> {
        self.link.now_ms().await
    }

    /// A call of a script. It begins with the keys and arguments of this queue that the script names first.
    pub(crate) fn call(&self, script: &'static LazyLock<Script>) -> ScriptCall {
        let rules = &self.rules;
        let keys = script.layout.first_names("KEYS").map_while(|name| Some((name, self.keys.named(name)?)));
        let call = ScriptCall::new(script).telling(&self.told);
        let mut call = keys.fold(call, |call, (name, key)| call.key(name, key));
        for name in script.layout.first_names("ARGV") {
            call = match name {
                "group" => call.arg(name, &rules.group),
                "retention" => call.arg(name, millis(rules.retention)),
                "window" => call.arg(name, window(&rules.idempotency)),
                _ => break,
            };
        }
        call
    }

    /// Whether Redis answers, or takes writes, only since a moment ago, after a time in which leases may have
    /// ended. Living hosts may not have renewed their leases yet, so a task that looks abandoned may not be.
    pub fn is_just_back(&self) -> bool {
        self.is_back_for_less_than(HEARD_AGAIN)
    }

    /// Whether leases may have ended because no host could renew them, and hosts have been able to renew them
    /// again for less than `time`.
    pub(super) fn is_back_for_less_than(&self, time: Duration) -> bool {
        let is_long = |back: &Recovery| back.silence >= self.rules.lease / 2;
        self.link.recovery().is_some_and(|back| is_long(&back) && back.since.elapsed() < time)
    }

    /// The error of a call `what` that was refused for this reason.
    pub(crate) fn refused(&self, what: &'static str, why: &str) -> QueueError {
        QueueError::refused(what, self.link.address(), why.to_owned())
    }

    /// Turns a reply of an unexpected shape into an error of the call `what`.
    pub(crate) fn shaped<T>(&self, what: &'static str, shaped: Shaped<T>) -> QueueResult<T> {
        self.link.shaped(what, shaped)
    }
}

/// How long idempotency keys are kept, as lib.lua takes it.
pub(super) fn window(rules: &Idempotency) -> String {
    let window = millis(rules.window);
    if rules.releases_on_failure { format!("{window}/0") } else { window.to_string() }
}

/// The words that stand last in each call that may end tasks (`take_told` of lib.lua).
fn told(rules: &config::QueueRules, keys: &QueueKeys) -> Told {
    let on_end = &rules.on_end;
    let is_told = *on_end != OnEnd::default() || rules.events > 0;
    let (mut told, mut kept) = (Told::default(), String::new());
    if on_end.is_relayed() {
        kept.push('>');
    }
    if rules.turns.are_limited() {
        kept.push('+');
    }
    if is_told {
        // The queue's own stream stands for a stream that is not there.
        let stream = |target: &Option<TargetQueue>| match target {
            Some(_) if on_end.is_relayed() => keys.out.clone(),
            Some(target) => target.stream.clone(),
            None => keys.stream.clone(),
        };
        let events = if rules.events > 0 { &keys.events } else { &keys.stream }.clone();
        let streams = [stream(&on_end.completed), stream(&on_end.dead), stream(&on_end.cancelled), events];
        told.keys.extend(streams.map(String::into_bytes));
        told.args.push(told_fields(on_end.fields.as_deref()));
        kept += &rules.events.to_string();
    }
    if rules.turns.are_limited() {
        let of_turns = [&keys.owners, &keys.tracks, &keys.delayed, &keys.parked, &keys.limits];
        told.keys.extend(of_turns.map(|key| key.clone().into()));
        let limit = rules.turns.tracks.as_ref().map_or_else(String::new, |tracks| tracks.limit.to_string());
        told.args.extend([limit.into(), keys.task("").into()]);
    }
    told.args.extend([kept.into(), rules.name.clone().into(), flow_partners(&rules.flow_partners)]);
    told
}

/// The fields that are told, as lib.lua takes them: the names of a JSON object. None: all fields.
fn told_fields(names: Option<&[String]>) -> Vec<u8> {
    let Some(names) = names else { return Vec::new() };
    let named = names.iter().map(|name| (name.clone(), serde_json::Value::Bool(true)));
    serde_json::Value::Object(named.collect()).to_string().into()
}

/// The queues that a flow may have in common with this one, as lib.lua takes them. Empty without any.
fn flow_partners(queues: &[TargetQueue]) -> Vec<u8> {
    let partner = |queue: &TargetQueue| {
        let keys = QueueKeys::new(&queue.stream, queue.dead_letter.as_deref());
        json!({ "stream": keys.stream, "base": keys.base, "dead": keys.dead, "group": queue.group })
    };
    let all: Vec<_> = queues.iter().map(partner).collect();
    if all.is_empty() { Vec::new() } else { serde_json::Value::from(all).to_string().into() }
}

/// Whole milliseconds, rounded up, so that a short delay does not become zero.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
