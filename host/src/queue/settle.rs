//! Carries out settlements: the one atomic step that ends an attempt. One call carries many of them.
//!
//! In: ended attempts. Out: for each, whether it was settled. Not here: the decision (`worker::settle`),
//! sending a call again after an outage (`worker::settler`).

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};

use super::attempts::AttemptRecord;
use super::codec::{self, RawFields, StreamEntry};
use super::effects::with_effect;
use super::error::{QueueError, QueueResult};
use super::handle::{Queue, millis};
use super::kept::{self, MOST_KEPT};
use super::reason::Reason;
use super::reply;
use super::script::{self, Part, ScriptCall};
use super::server::is_large;
use super::status::{Status, TaskName};
use crate::config::QueueRules;
use crate::effects::{Effects, FIXED_BYTES, StateChange};
use crate::field::Field;
use crate::task::{FailureKind, Task};
use crate::telemetry::{TRACEPARENT, TraceContext};

/// The most values that one attempt may set to be settled in the short form. One MSET takes those of a whole
/// call, and Lua passes at most 7,000 arguments to it.
const MAX_SET_TOGETHER: usize = 8;

/// How an attempt is settled. `worker::settle` decides it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settlement {
    /// COMPLETED, with the result and the effects.
    Complete { result: Option<Vec<u8>>, effects: Option<Box<Effects>> },
    /// The task comes back after `delay`; without one, it goes to the end of the stream at once.
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
    /// An entry that could not be decoded. It can only be buried.
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

    /// The size of its fields. Each counts as much as one of effects.
    fn bytes(&self) -> usize {
        let (fields, bytes) = match self {
            EndingSubject::Task(task) => (task.fields.len(), task.fields.iter().map(Field::bytes).sum()),
            EndingSubject::Malformed(entry) => (entry.fields.len(), entry.bytes()),
        };
        FIXED_BYTES * fields + bytes
    }
}

/// The end of one attempt, with all that its script needs.
#[derive(Debug, Clone)]
pub struct Ending {
    subject: EndingSubject,
    settlement: Settlement,
    /// The plugin and version that ran the attempt: `name@digest`.
    plugin: Arc<str>,
    /// How long it ran; none when it did not.
    ran: Option<Duration>,
    /// Whether the task may have a status already. A task whose id is that of its entry has none before it is
    /// begun or parked.
    is_known: bool,
    key: Option<Vec<u8>>,
    /// Kept if the task comes back or dies, as the record of a failed attempt.
    record: Option<Box<AttemptRecord>>,
    /// The bytes of the task's fields, if they are not kept here, but its script tells them to another queue.
    told_bytes: usize,
    /// Whether its task keeps the fields when it completes, and how large they are.
    keeps: Option<usize>,
}

impl Ending {
    /// `key` is the task's idempotency key.
    pub fn new(
        subject: EndingSubject,
        settlement: Settlement,
        plugin: Arc<str>,
        ran: Option<Duration>,
        is_known: bool,
        key: Option<Vec<u8>>,
    ) -> Ending {
        Ending { subject, settlement, plugin, ran, is_known, key, record: None, told_bytes: 0, keeps: None }
    }

    /// Leaves out what its end does not need in a queue with these rules. A completed task needs its fields
    /// here only if it keeps them, or if Redis may refuse its effects or its result.
    pub(crate) fn under(mut self, rules: &QueueRules) -> Ending {
        let all = self.subject.bytes();
        let EndingSubject::Task(task) = &mut self.subject else { return self };
        let bytes = task.fields.iter().map(Field::bytes).sum();
        self.keeps = rules.keeps_fields().then_some(bytes);
        if self.keeps.is_some_and(|bytes| bytes <= MOST_KEPT) {
            return self;
        }
        if let Settlement::Complete { result, effects: None } = &self.settlement
            && !is_large(result.as_deref())
        {
            task.fields = Vec::new();
            // Its script tells them to another queue.
            self.told_bytes = if self.keeps.is_some() || rules.on_end.completed.is_some() { all } else { 0 };
        }
        self
    }

    /// Adds the record that is kept of the attempt if it does not complete the task.
    pub(crate) fn with_record(self, record: Option<Box<AttemptRecord>>) -> Ending {
        Ending { record, ..self }
    }

    /// The task may have a status by now: another host may have taken it over, and begun it.
    pub fn may_be_known(&mut self) {
        self.is_known = true;
    }

    /// Settles the attempt in another way, because Redis refuses what it would write (`kind`).
    pub fn settle_as(&mut self, settlement: Settlement, kind: FailureKind) {
        self.settlement = settlement;
        if let Some(record) = &mut self.record {
            record.outcome = kind.into_str();
        }
    }

    /// The record that goes with its settlement.
    fn record(&self) -> Option<&AttemptRecord> {
        let is_failure = matches!(self.subject, EndingSubject::Task(_))
            && match self.settlement {
                Settlement::Park { from, .. } => from == DelayStart::Now,
                Settlement::Bury { .. } => true,
                Settlement::Complete { .. } => false,
            };
        self.record.as_deref().filter(|_| is_failure)
    }

    /// Whether it is the first attempt of a task that has no status, no other owner, and no key, and that
    /// keeps no fields.
    fn is_plain(&self) -> bool {
        let is_first = matches!(&self.subject, EndingSubject::Task(task) if task.attempt == 1);
        is_first && !self.is_known && self.key.is_none() && self.ran.is_some() && self.keeps.is_none()
    }

    /// Whether its effects are only values of the state, few enough to be set with those of others.
    fn sets_values(&self) -> bool {
        self.effects().is_some_and(|effects| effects.only_sets_values() && effects.len() <= MAX_SET_TOGETHER)
    }

    /// Whether its script gets it in a short form, and settles it before those in the long form.
    pub fn is_short(&self) -> bool {
        self.form().is_plain()
    }

    fn form(&self) -> AttemptForm {
        match &self.settlement {
            Settlement::Complete { effects: Some(_), result } if self.is_plain() && self.sets_values() => {
                if result.is_none() {
                    AttemptForm::Setter
                } else {
                    AttemptForm::SetterWithResult
                }
            }
            Settlement::Complete { effects: Some(_), .. } => AttemptForm::Other,
            Settlement::Complete { result: None, .. } if self.is_plain() => AttemptForm::Plain,
            Settlement::Complete { result: Some(_), .. } if self.is_plain() => AttemptForm::PlainWithResult,
            _ => AttemptForm::Other,
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

    /// The first digits of the digest of the version that ran it. None: it did not run.
    pub(crate) fn version(&self) -> Option<&str> {
        self.ran.and_then(|_| self.plugin.rsplit_once('@')).map(|(_, digest)| digest)
    }

    /// The approximate size in bytes of the task and its result, which are kept until this is settled, or
    /// which the script reads.
    pub fn bytes(&self) -> usize {
        self.subject.bytes()
            + self.told_bytes
            + self.result().map_or(0, Vec::len)
            + self.effects().map_or(0, Effects::bytes)
            + self.record.as_ref().map_or(0, |record| record.last_lines.len())
    }
}

/// The form in which the script receives an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum AttemptForm {
    /// Completed by its first attempt, with no status before. These come first, in a short form. Those of one
    /// call have one plugin.
    Plain,
    PlainWithResult,
    /// Plain, and it sets values of the state.
    Setter,
    SetterWithResult,
    Other,
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

/// Attempts in the form and the order in which one call names them.
struct Arranged<'e> {
    /// The plugin of the plain ones.
    plugin: &'e str,
    /// The form of each, in the order of the batch.
    forms: Vec<AttemptForm>,
    /// Their places in the batch, in the order of the call.
    order: Vec<usize>,
}

impl<'e> Arranged<'e> {
    fn new(batch: &[&'e Ending]) -> Arranged<'e> {
        // The script takes plain ones first.
        let plugin = batch.iter().find(|ending| ending.form().is_plain());
        let plugin: &str = plugin.map_or("", |ending| &ending.plugin);
        let form = |ending: &&Ending| match ending.form() {
            form if !form.is_plain() || ending.plugin.as_ref() == plugin => form,
            _ => AttemptForm::Other,
        };
        let forms: Vec<AttemptForm> = batch.iter().map(form).collect();
        let mut order: Vec<usize> = (0..batch.len()).collect();
        order.sort_by_key(|n| forms[*n]);
        Arranged { plugin, forms, order }
    }
}

/// The result of each attempt of a call.
type Replies = Vec<QueueResult<Settled>>;

const WHAT: &str = "settle";

impl Queue {
    /// Settles attempts in one call. Each succeeds or fails alone. The outer error means that the outcome is
    /// unknown. The same call may then be repeated, also when more is known of its attempts by then.
    pub async fn settle(&self, consumer: &str, call: SettleCall, batch: &[&Ending]) -> QueueResult<Replies> {
        let replies = self.replies(self.settle_call(consumer, call, batch), batch).await?;
        replies.ok_or_else(|| QueueError::unexpected(WHAT, self.link.address()))
    }

    /// Asks for the results of a call whose reply was lost. None: Redis has not carried it out, and never
    /// will. Then its attempts may be sent with a higher number.
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
        let named = |item| {
            let [entry, result] = reply::tuple(item)?;
            Ok((reply::text(entry)?, result))
        };
        let named = reply::array(reply).and_then(|items| items.into_iter().map(named).collect());
        let mut named: HashMap<String, Value> = self.shaped(WHAT, named)?;
        let result = |ending: &&Ending| match named.remove(ending.subject.entry()) {
            None => Ok(Settled::Done),
            Some(Value::Int(2)) => Ok(Settled::Duplicate),
            Some(Value::Int(3)) => Ok(Settled::Unfinished),
            Some(Value::Int(_)) => Ok(Settled::Overtaken),
            Some(why) => {
                let why = self.shaped(WHAT, reply::text(why))?;
                Err(QueueError::refused(WHAT, self.link.address(), why))
            }
        };
        Ok(Some(batch.iter().map(result).collect()))
    }

    /// The call of the script that settles one attempt.
    pub(super) fn settle_one(&self, consumer: &str, ending: &Ending) -> Cmd {
        let call = SettleCall { lane: 0, number: 0 };
        self.settle_call(consumer, call, &[ending]).command(self.link.form())
    }

    /// The call of the script.
    fn settle_call(&self, consumer: &str, call: SettleCall, batch: &[&Ending]) -> ScriptCall {
        let Arranged { plugin, forms, order } = Arranged::new(batch);
        let keys = &self.keys;
        let (plain, others) = order.split_at(order.partition_point(|n| forms[*n].is_plain()));
        let (bare, setters) = plain.split_at(plain.partition_point(|n| !forms[*n].sets_values()));
        let values: Vec<(String, &Vec<u8>)> = setters.iter().flat_map(|n| self.values(batch[*n])).collect();
        let mut to = self
            .call(&script::SETTLE)
            .key("replies", keys.settled(consumer, call.lane))
            .arg("consumer", consumer)
            .arg("number", call.number);
        to = plain.iter().fold(to, |to, n| to.key("statuses", keys.task(&batch[*n].subject.id())));
        to = values.iter().fold(to, |to, (key, _)| to.key("value_keys", key));
        for (form, count) in AttemptForm::PLAIN {
            to = to.arg(count, forms.iter().filter(|of| **of == form).count());
        }
        to = to.arg("values", values.len()).arg("plugin", plugin);
        let setter_names = ["set_entries", "set_enqueued_at", "set_ran", "set_results"];
        for (block, names) in [(bare, ["entries", "enqueued_at", "ran", "results"]), (setters, setter_names)]
        {
            let block = || block.iter().map(|n| batch[*n]);
            let [entries, enqueued_at, ran, results] = names;
            to = to
                .arg(entries, block().map(|ending| ending.subject.entry()).collect::<Vec<_>>())
                .arg(enqueued_at, block().map(Ending::enqueued_at_ms).collect::<Vec<_>>())
                .arg(ran, block().filter_map(Ending::ran_ms).collect::<Vec<_>>())
                .arg(results, block().filter_map(Ending::result).collect::<Vec<_>>());
        }
        to = to.arg("set_counts", setters.iter().map(|n| self.values(batch[*n]).count()).collect::<Vec<_>>());
        to = to.arg("set_values", values.iter().map(|(_, value)| *value).collect::<Vec<_>>());
        others.iter().fold(to, |to, n| to.part("attempts", &self.attempt(consumer, batch[*n])))
    }

    /// The keys and values of the state that a plain attempt sets.
    fn values<'e>(&self, ending: &'e Ending) -> impl Iterator<Item = (String, &'e Vec<u8>)> {
        let state = ending.effects().into_iter().flat_map(Effects::state);
        state.filter_map(|(key, change)| match change {
            StateChange::Set { value, .. } => Some((self.keys.state(&self.rules.plugin, key), value)),
            _ => None,
        })
    }

    /// An attempt that is not plain.
    fn attempt(&self, consumer: &str, ending: &Ending) -> Part {
        let (end, fields) = self.end_of(consumer, ending);
        let (subject, id) = (&ending.subject, ending.subject.id());
        let fact = |holds: bool| if holds { "1" } else { "" };
        let is_owners = end.how != Status::Completed || self.rules.turns.are_limited();
        let number = |number: Option<u64>| number.map_or_else(String::new, |number| number.to_string());
        let attempt = Part::of("attempt")
            .key("status", self.keys.task(&id))
            .key("marker", self.keys.marker(ending.key.as_deref()))
            .arg("how", end.how.into_str())
            .arg("is_owners", fact(is_owners))
            .arg("is_new", fact(!is_owners && ending.is_plain()))
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

    /// How an attempt that is not plain ends, with the fields that its script needs.
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
                // An entry that is not a task can only be buried.
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

    /// The fields of the status of a completed task, beside those that each task has.
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
        let kept = ending.keeps.map(|bytes| match bytes {
            0..=MOST_KEPT => codec::raw("fields", &kept::write(&task.fields)),
            bytes => codec::raw("fields_bytes", &bytes),
        });
        // A producer may have written any text into the field.
        let joins = task.joins.as_ref().filter(|flow| **flow == self.keys.flow(&task.id).about);
        let joins = joins.map(|flow| codec::raw("joins", flow));
        let is_told = self.rules.on_end.completed.is_some();
        let is_linked = |span: &TraceContext| span.sampled && codec::is_child(task);
        let span = codec::last_span(task).filter(|span| is_told || is_linked(span));
        let span = span.map(|span| codec::raw(TRACEPARENT, &span));
        [result, flows, sent, kept, joins, span].into_iter().flatten().collect()
    }
}

/// How an attempt ends in its script.
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

impl AttemptForm {
    /// The plain ones, in the order of a call, each with the name of their number.
    const PLAIN: [(AttemptForm, &str); 4] = [
        (AttemptForm::Plain, "without"),
        (AttemptForm::PlainWithResult, "with"),
        (AttemptForm::Setter, "set_without"),
        (AttemptForm::SetterWithResult, "set_with"),
    ];

    fn is_plain(self) -> bool {
        self != AttemptForm::Other
    }

    fn sets_values(self) -> bool {
        matches!(self, AttemptForm::Setter | AttemptForm::SetterWithResult)
    }
}
