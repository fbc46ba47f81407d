//! Carries out settlements: the one atomic step that ends an attempt. One call carries many of them.
//!
//! In: ended attempts. Out: for each, whether it was settled. Not here: the decision (`worker::settle`),
//! sending a call again after an outage (`worker::settler`).

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::attempts::AttemptRecord;
use super::codec::{self, RawFields, StreamEntry};
use super::effects::with_effect;
use super::error::{QueueError, QueueResult};
use super::handle::{Queue, millis};
use super::kept::{self, MOST_KEPT};
use super::reason::Reason;
use super::reply;
use super::script::{self, Part, ScriptCall, words};
use super::size::{NEVER_TOO_LARGE, SizeLimits, is_large};
use super::status::{Status, TaskName};
use crate::config::QueueRules;
use crate::effects::{Effects, FIXED_BYTES, StateChange};
use crate::field::Field;
use crate::task::{FailureKind, Task};
use crate::telemetry::{TRACEPARENT, TraceContext};

/// The most values of the state that an attempt in the short form sets. One MSET sets the values of a whole
/// call, and Lua passes at most 7,000 arguments to it.
const MAX_VALUES_SET: usize = 8;

/// How an attempt is settled. `worker::settle` decides it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settlement {
    /// COMPLETED, with the result and the effects.
    Complete { result: Option<Vec<u8>>, effects: Option<Box<Effects>> },
    /// The task goes back to the end of the stream, after `delay`.
    Park { delay: Duration, from: DelayStart, next_attempt: u32, deferrals: u32, error: String },
    /// The task is dead.
    Bury { reason: Reason, error: String },
}

/// The start of a delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DelayStart {
    Now,
    Enqueueing,
}

/// The task or entry whose attempt is settled.
#[derive(Debug, Clone)]
pub enum EndingSubject {
    Task(Box<Task>),
    /// An entry that could not be decoded. It is always buried.
    Malformed(StreamEntry),
}

impl EndingSubject {
    pub fn id(&self) -> Cow<'_, str> {
        match self {
            EndingSubject::Task(task) => Cow::Borrowed(&task.id),
            EndingSubject::Malformed(entry) => Cow::Owned(codec::id_of(entry)),
        }
    }

    pub fn entry(&self) -> &str {
        match self {
            EndingSubject::Task(task) => &task.entry,
            EndingSubject::Malformed(entry) => &entry.id,
        }
    }

    /// The approximate size of its fields in bytes.
    fn bytes(&self) -> usize {
        let (fields, bytes) = match self {
            EndingSubject::Task(task) => (task.fields.len(), task.fields.iter().map(Field::bytes).sum()),
            EndingSubject::Malformed(entry) => (entry.fields.len(), entry.bytes()),
        };
        FIXED_BYTES * fields + bytes
    }
}

/// The end of one attempt, with all that `settle.lua` needs to settle it.
#[derive(Debug, Clone)]
pub struct Ending {
    subject: EndingSubject,
    settlement: Settlement,
    /// The plugin and version that ran the attempt: `name@digest`.
    plugin: Arc<str>,
    /// How long the attempt ran. None: it did not run.
    ran: Option<Duration>,
    /// Whether the attempt needs the long form because the task may have a status or another owner, or its
    /// queue has rules for its end. A task whose id is that of its entry has no status before it is begun or
    /// parked, and no other owner before half of its lease is over.
    is_known: bool,
    /// The task's idempotency key.
    key: Option<Vec<u8>>,
    /// Kept as a failed attempt if the task comes back or dies.
    record: Option<Box<AttemptRecord>>,
    /// The size of the task's fields if they are left out here, and the script reads them from the entry.
    fields_in_entry: usize,
    /// The bytes of the task's fields, if its queue keeps the fields of completed tasks. The status gets the
    /// fields if they have at most [`MOST_KEPT`] bytes, and otherwise only this number.
    kept_bytes: Option<usize>,
}

impl Ending {
    pub fn new(
        subject: EndingSubject,
        settlement: Settlement,
        plugin: Arc<str>,
        ran: Option<Duration>,
        is_known: bool,
        key: Option<Vec<u8>>,
    ) -> Ending {
        let (record, fields_in_entry, kept_bytes) = (None, 0, None);
        Ending { subject, settlement, plugin, ran, is_known, key, record, fields_in_entry, kept_bytes }
    }

    /// Leaves out the fields of a completed task if nothing needs them here, in a queue with these rules.
    /// They are needed if the task keeps them, or if it may have to fail because Redis refuses its effects or
    /// its result.
    pub(crate) fn without_spare_fields(mut self, rules: &QueueRules) -> Ending {
        let all = self.subject.bytes();
        let EndingSubject::Task(task) = &mut self.subject else { return self };
        let bytes = task.fields.iter().map(Field::bytes).sum();
        self.kept_bytes = rules.keeps_fields().then_some(bytes);
        if self.kept_bytes.is_some_and(|bytes| bytes <= MOST_KEPT) {
            return self;
        }
        if let Settlement::Complete { result, effects: None } = &self.settlement
            && !is_large(result.as_deref())
        {
            task.fields = Vec::new();
            // The task of `on_end` gets them.
            self.fields_in_entry = if rules.on_end.completed.is_some() { all } else { 0 };
        }
        self
    }

    /// Adds the record that is kept of the attempt if it does not complete the task.
    pub(crate) fn with_record(self, record: Option<Box<AttemptRecord>>) -> Ending {
        Ending { record, ..self }
    }

    /// Notes that the task may have a status by now: another host may have taken it over, and begun it.
    pub fn may_be_known(&mut self) {
        self.is_known = true;
    }

    /// Changes how the attempt is settled, because Redis refuses what it would write (`kind`).
    pub fn settle_as(&mut self, settlement: Settlement, kind: FailureKind) {
        self.settlement = settlement;
        if let Some(record) = &mut self.record {
            record.outcome = kind.into_str();
        }
    }

    /// The record to keep of an attempt that failed. None: it did not, or has no record, such as one that is
    /// deferred.
    fn record(&self) -> Option<&AttemptRecord> {
        let is_recorded = matches!(self.subject, EndingSubject::Task(_))
            && match self.settlement {
                Settlement::Park { from, .. } => from == DelayStart::Now,
                Settlement::Bury { .. } => true,
                Settlement::Complete { .. } => false,
            };
        self.record.as_deref().filter(|_| is_recorded)
    }

    /// Whether it is the first attempt of a task that has no status, no other owner, and no key, and that
    /// keeps no fields.
    fn is_plain(&self) -> bool {
        let is_first = matches!(&self.subject, EndingSubject::Task(task) if task.attempt == 1);
        is_first && !self.is_known && self.key.is_none() && self.ran.is_some() && self.kept_bytes.is_none()
    }

    /// Whether `settle.lua` gets it in a short form, and settles it before the attempts in the long form. In
    /// a call with plain attempts of another plugin, it is in the long form, too.
    pub fn is_short(&self) -> bool {
        self.form().is_short()
    }

    /// Whether it is so large that Redis may refuse it for its size. Then it has a call of its own.
    pub(crate) fn is_large(&self) -> bool {
        self.bytes() > NEVER_TOO_LARGE
    }

    /// Whether the attempt has completed its task, and can still be settled as a failed one.
    pub(crate) fn may_fail(&self) -> bool {
        let Settlement::Complete { result, effects } = &self.settlement else { return false };
        effects.is_some() || is_large(result.as_deref())
    }

    fn form(&self) -> AttemptForm {
        let Settlement::Complete { result, effects } = &self.settlement else { return AttemptForm::Long };
        let only_sets_values =
            |effects: &Effects| effects.only_sets_values() && effects.len() <= MAX_VALUES_SET;
        if !self.is_plain() || !effects.as_deref().is_none_or(only_sets_values) {
            return AttemptForm::Long;
        }
        match (effects, result) {
            (None, None) => AttemptForm::Bare,
            (None, Some(_)) => AttemptForm::BareWithResult,
            (Some(_), None) => AttemptForm::Setter,
            (Some(_), Some(_)) => AttemptForm::SetterWithResult,
        }
    }

    fn enqueued_at_ms(&self) -> u64 {
        match &self.subject {
            EndingSubject::Task(task) => task.enqueued_at_ms,
            EndingSubject::Malformed(entry) => codec::entry_time_ms(&entry.id),
        }
    }

    fn ran_ms(&self) -> Option<u64> {
        self.ran.map(|ran| ran.as_millis() as u64)
    }

    fn result(&self) -> Option<&Vec<u8>> {
        match &self.settlement {
            Settlement::Complete { result, .. } => result.as_ref(),
            _ => None,
        }
    }

    pub(crate) fn effects(&self) -> Option<&Effects> {
        match &self.settlement {
            Settlement::Complete { effects, .. } => effects.as_deref(),
            _ => None,
        }
    }

    pub fn settlement(&self) -> &Settlement {
        &self.settlement
    }

    pub fn subject(&self) -> &EndingSubject {
        &self.subject
    }

    /// The first digits of the digest of the version that ran the attempt. None: it did not run.
    pub(crate) fn version(&self) -> Option<&str> {
        self.ran.and_then(|_| self.plugin.rsplit_once('@')).map(|(_, digest)| digest)
    }

    /// The approximate size in bytes of what is kept here until this is settled, and of what the script
    /// reads.
    pub fn bytes(&self) -> usize {
        self.subject.bytes()
            + self.fields_in_entry
            + self.result().map_or(0, Vec::len)
            + self.effects().map_or(0, Effects::bytes)
            + self.record.as_ref().map_or(0, |record| record.last_lines.len())
    }
}

/// The form in which `settle.lua` receives an attempt. The attempts of a call are in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum AttemptForm {
    /// A short form: a plain attempt that has completed its task, without effects and without a result.
    Bare,
    BareWithResult,
    /// A short form: the effects of a plain attempt are only values of the state.
    Setter,
    SetterWithResult,
    /// Any attempt, with all that may be needed.
    Long,
}

impl AttemptForm {
    /// The short forms, each with the argument that has the number of attempts in this form.
    const SHORT: [(AttemptForm, &str); 4] = [
        (AttemptForm::Bare, "without"),
        (AttemptForm::BareWithResult, "with"),
        (AttemptForm::Setter, "set_without"),
        (AttemptForm::SetterWithResult, "set_with"),
    ];

    fn is_short(self) -> bool {
        self != AttemptForm::Long
    }
}

/// Names one call of [`Queue::settle`]. The calls of one consumer in one lane follow each other, and their
/// numbers grow.
#[derive(Debug, Clone, Copy)]
pub struct SettleCall {
    pub lane: usize,
    /// A call that is sent again, because its reply was lost, has the same number and the same attempts. It
    /// gets the first reply.
    pub number: u64,
}

/// The result of a settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// It was carried out.
    Done,
    /// Another consumer owns the task, or it is settled already: nothing was written.
    Overtaken,
    /// The entry is gone, and nothing else has changed: its id belongs to a task under another entry.
    Duplicate,
    /// It was carried out, but the task's track or its flow could not be told. Its status says why.
    Unfinished,
}

/// The attempts of one call, in their order, each with its form.
type Arranged<'e> = Vec<(AttemptForm, &'e Ending)>;

/// Puts the attempts of a call in order. Also returns the plugin of those in a short form: they have one
/// plugin in common, and an attempt on another plugin gets the long form.
fn arranged<'e>(batch: &[&'e Ending]) -> (&'e str, Arranged<'e>) {
    let mut attempts: Arranged<'e> = batch.iter().map(|ending| (ending.form(), *ending)).collect();
    let first = attempts.iter().find(|(form, _)| form.is_short());
    let plugin: &'e str = first.map_or("", |(_, ending)| &ending.plugin);
    for (form, ending) in &mut attempts {
        if ending.plugin.as_ref() != plugin {
            *form = AttemptForm::Long;
        }
    }
    attempts.sort_by_key(|(form, _)| *form);
    (plugin, attempts)
}

/// Adds attempts in a short form, under these names.
fn with_short(
    call: ScriptCall,
    [entries, enqueued_at, ran, results]: [&'static str; 4],
    attempts: &[(AttemptForm, &Ending)],
) -> ScriptCall {
    let endings = || attempts.iter().map(|(_, ending)| *ending);
    call.arg(entries, endings().map(|ending| ending.subject.entry()).collect::<Vec<_>>())
        .arg(enqueued_at, endings().map(Ending::enqueued_at_ms).collect::<Vec<_>>())
        .arg(ran, endings().filter_map(Ending::ran_ms).collect::<Vec<_>>())
        .arg(results, endings().filter_map(Ending::result).collect::<Vec<_>>())
}

/// The result of each attempt of a call.
type Replies = Vec<QueueResult<Settled>>;

const WHAT: &str = "settle";

impl Queue {
    /// Settles attempts in one call. Each succeeds or fails alone. The outer error means that the outcome is
    /// unknown. The same call may then be repeated, also after [`Ending::may_be_known`].
    pub async fn settle(&self, consumer: &str, call: SettleCall, batch: &[&Ending]) -> QueueResult<Replies> {
        let replies = self.replies(self.settle_call(consumer, call, batch), batch).await?;
        replies.ok_or_else(|| QueueError::unexpected(WHAT, self.link.address()))
    }

    /// Asks for the results of a call whose reply was lost, by a call without attempts that uses up its
    /// number. None: Redis has not carried out the call, and never will, since its number is used. Then its
    /// attempts may be settled by a call with a higher number.
    pub async fn settled_before(
        &self,
        consumer: &str,
        call: SettleCall,
        batch: &[&Ending],
    ) -> QueueResult<Option<Replies>> {
        self.replies(self.settle_call(consumer, call, &[]), batch).await
    }

    /// Sends a call, and finds the result of each attempt in its reply.
    async fn replies(&self, call: ScriptCall, batch: &[&Ending]) -> QueueResult<Option<Replies>> {
        let command = call.command(self.link.form());
        // It may be large, and the command holds a copy.
        drop(call);
        let reply = self.link.script_command(&script::SETTLE, &command).await?;
        if reply == Value::Nil {
            return Ok(None);
        }
        let named = reply::each(reply, |item| {
            let [entry, result] = reply::tuple(item)?;
            Ok((reply::text(entry)?, result))
        });
        let mut named: HashMap<String, Value> = self.shaped(WHAT, named)?.into_iter().collect();
        // The reply leaves out attempts that were carried out.
        let result = |ending: &&Ending| match named.remove(ending.subject.entry()) {
            None => Ok(Settled::Done),
            Some(Value::Int(2)) => Ok(Settled::Duplicate),
            Some(Value::Int(3)) => Ok(Settled::Unfinished),
            // 0: another consumer settled or owns the task.
            Some(Value::Int(_)) => Ok(Settled::Overtaken),
            Some(why) => {
                let why = self.shaped(WHAT, reply::text(why))?;
                Err(QueueError::refused(WHAT, self.link.address(), why))
            }
        };
        Ok(Some(batch.iter().map(result).collect()))
    }

    /// Why Redis would refuse to settle this attempt, whatever else is in the call: a value is larger than
    /// its limits. None: Redis takes it, as far as Redis tells its limits.
    pub(crate) async fn oversize(&self, consumer: &str, ending: &Ending) -> Option<String> {
        if !ending.is_large() {
            return None;
        }
        let call = self.settle_call(consumer, SettleCall { lane: 0, number: 0 }, &[ending]);
        let largest = words(&call.command(self.link.form())).map(<[u8]>::len).max().unwrap_or_default();
        SizeLimits::of(&self.link).await.refusal(largest)
    }

    fn settle_call(&self, consumer: &str, number: SettleCall, batch: &[&Ending]) -> ScriptCall {
        let (plugin, attempts) = arranged(batch);
        let (short, long) = attempts.split_at(attempts.partition_point(|(form, _)| form.is_short()));
        let (bare, setters) = short.split_at(short.partition_point(|(form, _)| *form < AttemptForm::Setter));
        let values: Vec<_> = setters.iter().flat_map(|(_, ending)| self.values(ending)).collect();
        let SettleCall { lane, number } = number;
        let mut call = self
            .call(&script::SETTLE)
            .key("replies", self.keys.settled(consumer, lane))
            .arg("consumer", consumer)
            .arg("number", number);
        for (_, ending) in short {
            call = call.key("statuses", self.keys.task(&ending.subject.id()));
        }
        for (key, _) in &values {
            call = call.key("value_keys", key);
        }
        for (form, name) in AttemptForm::SHORT {
            call = call.arg(name, short.iter().filter(|(known, _)| *known == form).count());
        }
        call = call.arg("values", values.len()).arg("plugin", plugin);
        call = with_short(call, ["entries", "enqueued_at", "ran", "results"], bare);
        call = with_short(call, ["set_entries", "set_enqueued_at", "set_ran", "set_results"], setters);
        let counts = setters.iter().map(|(_, ending)| self.values(ending).count());
        call = call.arg("set_counts", counts.collect::<Vec<_>>());
        call = call.arg("set_values", values.iter().map(|(_, value)| *value).collect::<Vec<_>>());
        for (_, ending) in long {
            call = call.part("attempts", &self.attempt(consumer, ending));
        }
        call
    }

    /// The keys and values of the state that an attempt sets.
    fn values<'e>(&self, ending: &'e Ending) -> impl Iterator<Item = (String, &'e Vec<u8>)> {
        let state = ending.effects().into_iter().flat_map(Effects::state);
        state.filter_map(|(key, change)| match change {
            StateChange::Set { value, .. } => Some((self.keys.state(&self.rules.plugin, key), value)),
            _ => None,
        })
    }

    /// An attempt in the long form.
    fn attempt(&self, consumer: &str, ending: &Ending) -> Part {
        let (end, fields) = self.end_of(consumer, ending);
        let (subject, id) = (&ending.subject, ending.subject.id());
        let fact = |holds: bool| if holds { "1" } else { "" };
        // Then the attempt counts only if this consumer owns the task.
        let needs_owner = end.how != Status::Completed || self.rules.turns.are_limited();
        let number = |number: Option<u64>| number.map_or_else(String::new, |number| number.to_string());
        let attempt = Part::of("attempt")
            .key("status", self.keys.task(&id))
            .key("marker", self.keys.marker(ending.key.as_deref()))
            .arg("how", end.how.into_str())
            .arg("needs_owner", fact(needs_owner))
            .arg("is_new", fact(!needs_owner && ending.is_plain()))
            .arg("entry", subject.entry())
            .arg("attempt", end.attempt)
            .arg("plugin", ending.plugin.as_ref())
            .arg("enqueued_at", ending.enqueued_at_ms())
            .arg("ran", number(ending.ran_ms()))
            .arg("id", &*id)
            .arg("message", end.error)
            .arg("from", number(end.from))
            .arg("delay", millis(end.delay))
            .list(&fields);
        let effects = self.effect_calls(ending.effects());
        let attempt = attempt.arg("effects", effects.len());
        let attempt = effects.iter().fold(attempt, |attempt, effect| with_effect(attempt, "effects", effect));
        let (Some(record), EndingSubject::Task(task)) = (ending.record(), subject) else {
            return attempt.arg("has_record", "");
        };
        let failure = Part::of("failure")
            .key("key", self.keys.attempts(&id))
            .arg("most", self.rules.failed_attempts)
            .arg("attempt", task.attempt)
            .arg("outcome", record.outcome)
            .arg("log", &record.last_lines);
        attempt.arg("has_record", 1).part("record", &failure)
    }

    /// How an attempt in the long form ends, with the fields that `settle.lua` needs.
    fn end_of<'e>(&self, consumer: &str, ending: &'e Ending) -> (ScriptEnd<'e>, RawFields) {
        match (&ending.settlement, &ending.subject) {
            (Settlement::Complete { result, effects }, EndingSubject::Task(task)) => {
                let end = ScriptEnd::new(Status::Completed, task.attempt, "");
                (end, self.completed_fields(ending, task, result.as_ref(), effects.as_deref()))
            }
            (Settlement::Park { delay, from, next_attempt, deferrals, error }, EndingSubject::Task(task)) => {
                let from_enqueueing = *from == DelayStart::Enqueueing;
                let from = from_enqueueing.then(|| ending.enqueued_at_ms());
                let end = ScriptEnd {
                    from,
                    delay: *delay,
                    ..ScriptEnd::new(Status::Pending, *next_attempt, error)
                };
                let mut fields = codec::encode(task, *next_attempt, *deferrals);
                fields.extend(from_enqueueing.then(|| codec::due_at(task, *delay)));
                (end, fields)
            }
            (settlement, subject) => {
                // An entry that could not be decoded is always buried.
                let (reason, error) = match settlement {
                    Settlement::Bury { reason, error } => (*reason, error.as_str()),
                    _ => (Reason::Malformed, "not a task"),
                };
                let (attempt, mut fields) = match subject {
                    EndingSubject::Task(task) => (task.attempt, codec::own_fields(task)),
                    EndingSubject::Malformed(entry) => (1, entry.fields.clone()),
                };
                fields.extend([
                    codec::raw("tq-id", &*subject.id()),
                    codec::raw("tq-queue", &self.rules.name),
                    codec::raw("tq-reason", reason.into_str()),
                    codec::raw("tq-error", error),
                    codec::raw("tq-attempts", &attempt),
                    codec::raw("tq-enqueued-at", &ending.enqueued_at_ms()),
                    codec::raw("tq-consumer", consumer),
                    codec::raw("tq-plugin", &ending.plugin),
                ]);
                if let EndingSubject::Task(task) = subject {
                    fields.push(codec::fence(task));
                }
                (ScriptEnd::new(Status::Failed, attempt, error), fields)
            }
        }
    }

    /// The fields of the status of a completed task, beside those of every status.
    fn completed_fields(
        &self,
        ending: &Ending,
        task: &Task,
        result: Option<&Vec<u8>>,
        effects: Option<&Effects>,
    ) -> RawFields {
        let result = result.map(|result| (b"result".to_vec(), result.clone()));
        let flows = effects.and_then(|effects| TaskName::list(effects.flows()));
        let flows = flows.map(|flows| codec::raw("flows", &flows));
        let sent = effects.and_then(|effects| TaskName::sent(effects.tasks()));
        let sent = sent.map(|sent| codec::raw("sent", &sent));
        let kept = ending.kept_bytes.map(|bytes| match bytes {
            0..=MOST_KEPT => codec::raw("fields", &kept::write(&task.fields)),
            bytes => codec::raw("fields_bytes", &bytes),
        });
        // A claim leaves `tq-joins` in an entry only if a host wrote it, as far as the task's status can
        // tell.
        let joins = task.joins.as_ref().filter(|flow| **flow == self.keys.flow(&task.id).about);
        let joins = joins.map(|flow| codec::raw("joins", flow));
        let is_told = self.rules.on_end.completed.is_some();
        let is_linked = |span: &TraceContext| span.sampled && codec::is_child(task);
        let span = codec::last_span(task).filter(|span| is_told || is_linked(span));
        let span = span.map(|span| codec::raw(TRACEPARENT, &span));
        [result, flows, sent, kept, joins, span].into_iter().flatten().collect()
    }
}

/// How an attempt in the long form ends, as `settle.lua` takes it.
struct ScriptEnd<'e> {
    how: Status,
    attempt: u32,
    error: &'e str,
    /// When the delay begins (ms). None: now.
    from: Option<u64>,
    delay: Duration,
}

impl<'e> ScriptEnd<'e> {
    fn new(how: Status, attempt: u32, error: &'e str) -> ScriptEnd<'e> {
        ScriptEnd { how, attempt, error, from: None, delay: Duration::ZERO }
    }
}
