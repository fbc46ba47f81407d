//! Carries out settlements: the one atomic step that ends an attempt.
//!
//! Not here: which settlement it is (`worker::settle`), sending it again after an outage (`worker::settler`).

use std::sync::Arc;
use std::time::Duration;

use super::codec::{self, Entry, RawFields};
use super::error::QueueError;
use super::reply;
use super::script::{self, Call};
use super::{Queue, millis};
use crate::task::Task;

/// How an attempt is settled. What decides it is in `worker::settle`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settlement {
    /// COMPLETED, with the result.
    Complete { result: Option<Vec<u8>> },
    /// The task comes back after `delay`; without one, it goes to the end of the stream at once.
    Park { delay: Duration, from: From, next_attempt: u32, deferrals: u32, error: String },
    /// Dead.
    Bury { reason: Reason, error: String },
}

/// From when a delay counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
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
    pub const ALL: [Reason; 5] =
        [Reason::Rejected, Reason::RetriesExhausted, Reason::DeferralsExhausted, Reason::Crashed, Reason::Malformed];

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

/// Whose attempt is settled.
#[derive(Debug, Clone)]
pub enum Subject {
    Task(Box<Task>),
    /// An entry that could not be decoded. It can only be buried.
    Malformed(Entry),
}

impl Subject {
    pub fn id(&self) -> String {
        match self {
            Subject::Task(task) => task.id.clone(),
            Subject::Malformed(entry) => codec::id_of(entry),
        }
    }

    pub fn entry(&self) -> &str {
        match self {
            Subject::Task(task) => &task.entry,
            Subject::Malformed(entry) => &entry.id,
        }
    }
}

/// The end of one attempt, with all that its script has to know.
#[derive(Debug, Clone)]
pub struct Ending {
    pub subject: Subject,
    pub settlement: Settlement,
    /// The plugin and version that ran the attempt, as they are shown: `name@digest`.
    pub plugin: Arc<str>,
}

/// What a settlement came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// It was carried out.
    Done,
    /// Somebody settled or owns the task already: nothing was written.
    Overtaken,
}

impl Queue {
    /// Settles any number of attempts in one go, each for itself: one that Redis refuses does not keep the others.
    /// Safe to repeat when the outcome is unknown: what was carried out is then reported as [`Settled::Overtaken`].
    pub async fn settle(&self, consumer: &str, batch: &[&Ending]) -> Result<Vec<Result<Settled, QueueError>>, QueueError> {
        let calls: Vec<Call> = batch.iter().map(|ending| self.settle_call(consumer, ending)).collect();
        let replies = self.link.scripts("settle tasks", &calls).await?;
        let settled = |reply| if reply::int(&reply).is_ok_and(|n| n == 1) { Settled::Done } else { Settled::Overtaken };
        Ok(replies.into_iter().map(|reply| reply.map(settled)).collect())
    }

    fn settle_call(&self, consumer: &str, ending: &Ending) -> Call {
        let Ending { subject, settlement, plugin } = ending;
        let keys = &self.keys;
        let rules = &self.rules;
        let status = keys.task(&subject.id());
        let window = millis(rules.idempotency.window);
        match (settlement, subject) {
            (Settlement::Complete { result }, Subject::Task(task)) => Call::new(&script::COMPLETE)
                .key(&keys.stream)
                .key(status)
                .key(keys.marker(codec::idempotency_key(task, rules)))
                .arg(&rules.group)
                .arg(&task.entry)
                .arg(millis(rules.retention))
                .arg(task.attempt)
                .arg(plugin.as_ref())
                .arg(consumer)
                .arg(task.enqueued_at_ms)
                .arg(&task.id)
                .arg(window)
                .arg(result.as_ref()),
            (Settlement::Park { delay, from, next_attempt, deferrals, error }, Subject::Task(task)) => {
                let since = if *from == From::Now { 0 } else { task.enqueued_at_ms };
                let call = Call::new(&script::PARK).key(&keys.stream).key(&keys.delayed).key(&keys.parked).key(status);
                let call = call.arg(&rules.group).arg(consumer).arg(&task.entry).arg(millis(*delay));
                let call = call.arg(next_attempt).arg(error).arg(task.enqueued_at_ms).arg(since);
                with_fields(call, codec::encode(task, *next_attempt, *deferrals))
            }
            (Settlement::Bury { reason, error }, _) => self.bury_call(consumer, ending, status, *reason, error),
            // Nothing but a burial makes sense for an entry that is not a task.
            (_, Subject::Malformed(_)) => self.bury_call(consumer, ending, status, Reason::Malformed, "not a task"),
        }
    }

    fn bury_call(&self, consumer: &str, ending: &Ending, status: String, reason: Reason, error: &str) -> Call {
        let rules = &self.rules;
        let Ending { subject, plugin, .. } = ending;
        let (attempt, enqueued_at, mut fields) = match subject {
            Subject::Task(task) => (task.attempt, task.enqueued_at_ms, codec::own_fields(task)),
            Subject::Malformed(entry) => (1, codec::entry_time_ms(&entry.id), entry.fields.clone()),
        };
        fields.extend([
            codec::raw("tq-id", &subject.id()),
            codec::raw("tq-queue", &rules.name),
            codec::raw("tq-reason", reason.as_str()),
            codec::raw("tq-error", error),
            codec::raw("tq-attempts", &attempt),
            codec::raw("tq-enqueued-at", &enqueued_at),
            codec::raw("tq-consumer", consumer),
            codec::raw("tq-plugin", plugin),
        ]);
        let key = match subject {
            Subject::Task(task) => codec::idempotency_key(task, rules),
            Subject::Malformed(_) => None,
        };
        let keys = &self.keys;
        let call = Call::new(&script::BURY).key(&keys.stream).key(&keys.dead).key(status).key(keys.marker(key));
        let call = call.arg(&rules.group).arg(consumer).arg(subject.entry()).arg(millis(rules.retention));
        let call = call.arg(attempt).arg(plugin.as_ref()).arg(error).arg(enqueued_at);
        with_fields(call.arg(subject.id()).arg(millis(rules.idempotency.window)), fields)
    }
}

/// Appends names and values as a script's last arguments.
pub(super) fn with_fields(call: Call, fields: RawFields) -> Call {
    fields.into_iter().fold(call, |call, (name, value)| call.arg(name).arg(value))
}
