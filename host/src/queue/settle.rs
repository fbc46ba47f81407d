//! Carries out settlements: the one atomic step that ends an attempt. One call carries many of them.
//!
//! In: ended attempts. Out: for each, whether it was settled. Not here: the decision (`worker::settle`),
//! sending a call again after an outage (`worker::settler`).

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};

use super::codec::{self, RawFields, StreamEntry};
use super::error::QueueError;
use super::handle::{Queue, millis};
use super::reply;
use super::script::{self, ScriptCall};
use crate::task::Task;

/// How an attempt is settled. `worker::settle` decides it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settlement {
    /// COMPLETED, with the result.
    Complete { result: Option<Vec<u8>> },
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

/// Why a task is dead: the values of `tq-reason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    Rejected,
    RetriesExhausted,
    DeferralsExhausted,
    Crashed,
    Malformed,
}

impl Reason {
    pub const ALL: [Reason; 5] = [
        Reason::Rejected,
        Reason::RetriesExhausted,
        Reason::DeferralsExhausted,
        Reason::Crashed,
        Reason::Malformed,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Rejected => "rejected",
            Reason::RetriesExhausted => "retries-exhausted",
            Reason::DeferralsExhausted => "deferrals-exhausted",
            Reason::Crashed => "crashed",
            Reason::Malformed => "malformed",
        }
    }
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
}

impl Ending {
    /// `key` is the task's idempotency key. A completed task keeps no fields here: its end needs none of
    /// them.
    pub fn new(
        mut subject: EndingSubject,
        settlement: Settlement,
        plugin: Arc<str>,
        ran: Option<Duration>,
        is_known: bool,
        key: Option<Vec<u8>>,
    ) -> Ending {
        if let (Settlement::Complete { .. }, EndingSubject::Task(task)) = (&settlement, &mut subject) {
            task.fields = Vec::new();
        }
        Ending { subject, settlement, plugin, ran, is_known, key }
    }

    /// The task may have a status by now: another host may have taken it over, and begun it.
    pub fn may_be_known(&mut self) {
        self.is_known = true;
    }

    fn form(&self) -> AttemptForm {
        let is_first = matches!(&self.subject, EndingSubject::Task(task) if task.attempt == 1);
        match &self.settlement {
            _ if self.is_known || self.key.is_some() || self.ran.is_none() || !is_first => AttemptForm::Other,
            Settlement::Complete { result: None } => AttemptForm::Plain,
            Settlement::Complete { result: Some(_) } => AttemptForm::PlainWithResult,
            _ => AttemptForm::Other,
        }
    }

    pub fn settlement(&self) -> &Settlement {
        &self.settlement
    }

    pub fn subject(&self) -> &EndingSubject {
        &self.subject
    }

    /// The approximate size in bytes of the task and its result, which are kept until this is settled.
    pub fn bytes(&self) -> usize {
        let result = match &self.settlement {
            Settlement::Complete { result } => result.as_ref().map_or(0, Vec::len),
            _ => 0,
        };
        result
            + match &self.subject {
                EndingSubject::Task(task) => {
                    task.fields.iter().map(|field| field.name.len() + field.value.len()).sum()
                }
                EndingSubject::Malformed(entry) => entry.bytes(),
            }
    }
}

/// The form in which the script receives an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum AttemptForm {
    /// Completed by its first attempt, with no status before. These come first, in a short form. Those of one
    /// call have one plugin.
    Plain,
    PlainWithResult,
    Other,
}

/// Names one call of [`Queue::settle`]. The calls of one consumer in one lane follow each other, and their
/// numbers grow.
#[derive(Debug, Clone, Copy)]
pub struct SettleCall {
    pub lane: usize,
    /// A call that is sent again, because its reply was lost, has the same number and gets the first reply.
    pub number: u64,
}

/// The result of a settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// It was carried out.
    Done,
    /// Another consumer owns the task, or it is settled already: nothing was written.
    Overtaken,
}

impl Queue {
    /// Settles attempts in one call. Each succeeds or fails alone. The outer error means that the outcome is
    /// unknown; the same call may then be repeated.
    pub async fn settle(
        &self,
        consumer: &str,
        call: SettleCall,
        batch: &[&Ending],
    ) -> Result<Vec<Result<Settled, QueueError>>, QueueError> {
        const WHAT: &str = "settle";
        let keys = &self.keys;
        let rules = &self.rules;
        // The script takes plain ones first.
        let plugin = batch
            .iter()
            .find(|ending| ending.form() != AttemptForm::Other)
            .map_or("", |ending| &ending.plugin);
        let form = |ending: &&Ending| {
            if ending.plugin.as_ref() == plugin { ending.form() } else { AttemptForm::Other }
        };
        let forms: Vec<AttemptForm> = batch.iter().map(form).collect();
        let mut order: Vec<usize> = (0..batch.len()).collect();
        order.sort_by_key(|n| forms[*n]);
        let sorted = || order.iter().map(|n| (batch[*n], forms[*n]));
        let plain = |of| forms.iter().filter(|form| **form == of).count();
        let mut command = script::SETTLE
            .command(5 + batch.iter().map(|ending| 1 + usize::from(ending.key.is_some())).sum::<usize>());
        command
            .arg(&keys.stream)
            .arg(&keys.delayed)
            .arg(&keys.parked)
            .arg(&keys.dead)
            .arg(keys.settled(consumer, call.lane));
        for (ending, _) in sorted() {
            command.arg(keys.task(&ending.subject.id()));
            if let Some(key) = &ending.key {
                command.arg(keys.marker(Some(key)));
            }
        }
        command
            .arg(&rules.group)
            .arg(consumer)
            .arg(millis(rules.retention))
            .arg(millis(rules.idempotency.window));
        command
            .arg(call.number)
            .arg(plain(AttemptForm::Plain))
            .arg(plain(AttemptForm::PlainWithResult))
            .arg(plugin);
        sorted().for_each(|(ending, form)| self.add_ending(&mut command, consumer, ending, form));
        let reply = self.link.script_command(&script::SETTLE, &command).await?;
        let replies = self.shaped(WHAT, reply::array(reply))?;
        if replies.len() != batch.len() {
            return Err(QueueError::unexpected(WHAT, self.link.address()));
        }
        let settled = |reply| match reply {
            Value::Int(1) => Ok(Settled::Done),
            Value::Int(_) => Ok(Settled::Overtaken),
            why => {
                let why = self.shaped(WHAT, reply::text(why))?;
                Err(QueueError::refused(WHAT, self.link.address(), why))
            }
        };
        let mut replies: Vec<_> = order.into_iter().zip(replies.into_iter().map(settled)).collect();
        replies.sort_by_key(|(n, _)| *n);
        Ok(replies.into_iter().map(|(_, reply)| reply).collect())
    }

    fn add_ending(&self, command: &mut Cmd, consumer: &str, ending: &Ending, form: AttemptForm) {
        let Ending { subject, settlement, plugin, ran, key, .. } = ending;
        let mut begin = |what: &str, entry: &str, attempt: u32, enqueued_at: u64| {
            if form == AttemptForm::Other {
                command.arg(what).arg(entry).arg(attempt).arg(plugin.as_ref()).arg(enqueued_at);
            } else {
                command.arg(entry).arg(enqueued_at);
            }
            match ran {
                Some(ran) => command.arg(ran.as_millis() as u64),
                None => command.arg(""),
            };
        };
        match (settlement, subject) {
            (Settlement::Complete { result }, EndingSubject::Task(task)) => {
                let what = match (key.is_some(), result.is_some()) {
                    (false, false) => "C",
                    (false, true) => "Cr",
                    (true, false) => "Cm",
                    (true, true) => "Cmr",
                };
                begin(what, &task.entry, task.attempt, task.enqueued_at_ms);
                if key.is_some() {
                    command.arg(&task.id);
                }
                command.arg(result.as_ref());
            }
            (Settlement::Park { delay, from, next_attempt, deferrals, error }, EndingSubject::Task(task)) => {
                begin(
                    if key.is_some() { "Pm" } else { "P" },
                    &task.entry,
                    *next_attempt,
                    task.enqueued_at_ms,
                );
                if key.is_some() {
                    command.arg(&task.id);
                }
                let since = if *from == DelayStart::Now { 0 } else { task.enqueued_at_ms };
                command.arg(millis(*delay)).arg(since).arg(error);
                add_fields(command, &codec::encode(task, *next_attempt, *deferrals));
            }
            (settlement, subject) => {
                // An entry that is not a task can only be buried.
                let (reason, error) = match settlement {
                    Settlement::Bury { reason, error } => (*reason, error.as_str()),
                    _ => (Reason::Malformed, "not a task"),
                };
                let (attempt, enqueued_at, mut fields) = match subject {
                    EndingSubject::Task(task) => (task.attempt, task.enqueued_at_ms, codec::own_fields(task)),
                    EndingSubject::Malformed(entry) => {
                        (1, codec::entry_time_ms(&entry.id), entry.fields.clone())
                    }
                };
                let id = subject.id();
                begin(if key.is_some() { "Bm" } else { "B" }, subject.entry(), attempt, enqueued_at);
                command.arg(&*id).arg(error);
                fields.extend([
                    codec::raw("tq-id", &*id),
                    codec::raw("tq-queue", &self.rules.name),
                    codec::raw("tq-reason", reason.as_str()),
                    codec::raw("tq-error", error),
                    codec::raw("tq-attempts", &attempt),
                    codec::raw("tq-enqueued-at", &enqueued_at),
                    codec::raw("tq-consumer", consumer),
                    codec::raw("tq-plugin", plugin),
                ]);
                add_fields(command, &fields);
            }
        }
    }
}

/// Appends the number of names and values, then these.
fn add_fields(command: &mut Cmd, fields: &RawFields) {
    command.arg(2 * fields.len());
    for (name, value) in fields {
        command.arg(name).arg(value);
    }
}

/// Appends names and values as a script's last arguments.
pub(super) fn with_fields(call: ScriptCall, fields: RawFields) -> ScriptCall {
    fields.into_iter().fold(call, |call, (name, value)| call.arg(name).arg(value))
}
