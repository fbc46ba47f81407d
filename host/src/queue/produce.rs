//! Enqueues new tasks, in the format that any other Redis client would write.
//!
//! In: fields, a delay, an idempotency key. Out: for each task, whether it was accepted, is a duplicate, or
//! found the queue full. A call may be repeated: the script recognises the ids of accepted tasks.

use std::time::Duration;

use uuid::Uuid;

use super::codec::{self, LONGEST_DELAY};
use super::error::{QueueError, QueueResult};
use super::handle::{Queue, millis};
use super::reply;
use super::script::{self, ScriptCall};
use super::value::idempotency_key;
use super::wait;
use crate::config::TargetQueue;
use crate::config::units::show_duration;
use crate::effects::OutboxTask;
use crate::field::{MAX_FIELDS, MAX_TASK_BYTES, RESERVED};
use crate::task::Field;
use crate::telemetry::{self, TRACEPARENT};

/// A task that is to be enqueued.
#[derive(Debug, Clone)]
pub struct NewTask {
    /// Chosen before the first call, so that the call may be repeated if its reply is lost.
    id: String,
    fields: Vec<Field>,
    delay: Duration,
    key: Option<String>,
}

/// The result of enqueueing one task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Enqueued {
    /// The task is in the queue, by this call or by an earlier one whose reply was lost.
    Accepted,
    /// Another task, with this id, has the idempotency key. It has not ended, or has ended within the window.
    /// Nothing was written.
    Duplicate(String),
    /// The queue has as many tasks as `max_backlog` allows. Nothing was written.
    Full,
}

/// Why a task is not valid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum NotATask {
    #[error("a task needs at least one field")]
    NoFields,
    #[error("a task has at most {max} fields, this one has {0}", max = MAX_FIELDS)]
    TooManyFields(usize),
    #[error("a task has at most {MAX_TASK_BYTES} bytes (16MiB), this one has {0}: keep large data in blobs")]
    TooLarge(usize),
    #[error("an idempotency key has at least one byte, this one is empty")]
    EmptyKey,
    #[error("field `{0}`: names that start with `{1}` are reserved for tqhost")]
    Reserved(String, &'static str),
    #[error("a delay is {max} at most", max = show_duration(LONGEST_DELAY))]
    TooLate,
}

impl NewTask {
    /// A task with a new id, which may run after `delay`.
    pub fn new(fields: Vec<Field>, delay: Duration) -> Result<NewTask, NotATask> {
        check_fields(&fields, &RESERVED)?;
        if delay > LONGEST_DELAY {
            return Err(NotATask::TooLate);
        }
        Ok(NewTask { id: Uuid::now_v7().to_string(), fields, delay, key: None })
    }

    /// Gives the task an idempotency key. It takes precedence over the fields that the queue names.
    pub fn with_key(mut self, key: String) -> Result<NewTask, NotATask> {
        if key.is_empty() {
            return Err(NotATask::EmptyKey);
        }
        self.key = Some(key);
        Ok(self)
    }

    /// Gives the task a trace context, unless it has one of its own.
    pub(crate) fn with_traceparent(mut self, context: Option<String>) -> NewTask {
        telemetry::add_to(&mut self.fields, || context);
        self
    }

    /// The task's own trace context.
    pub(crate) fn traceparent(&self) -> Option<&str> {
        let own = self.fields.iter().find(|field| field.name == TRACEPARENT)?;
        std::str::from_utf8(&own.value).ok()
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// Makes it an effect of another task, which adds it to the queue `to`.
    pub(super) fn into_outbox(self, to: &TargetQueue) -> OutboxTask {
        let NewTask { id, fields, delay, key } = self;
        OutboxTask { id, queue: to.name.clone(), fields, delay, key, is_relayed: to.is_relayed }
    }
}

/// Checks the fields of a task. No name may begin with one of `reserved`.
pub(crate) fn check_fields(fields: &[Field], reserved: &[&'static str]) -> Result<(), NotATask> {
    if fields.is_empty() {
        return Err(NotATask::NoFields);
    }
    if fields.len() > MAX_FIELDS {
        return Err(NotATask::TooManyFields(fields.len()));
    }
    let bytes = fields.iter().map(Field::bytes).sum();
    if bytes > MAX_TASK_BYTES {
        return Err(NotATask::TooLarge(bytes));
    }
    for field in fields {
        if let Some(prefix) = reserved.iter().find(|prefix| field.name.starts_with(**prefix)) {
            return Err(NotATask::Reserved(field.name.clone(), prefix));
        }
    }
    Ok(())
}

impl Queue {
    /// Enqueues tasks in one go; each succeeds or fails alone. May be repeated after an error: a task that
    /// was accepted is not accepted again.
    pub async fn enqueue(&self, tasks: &[NewTask]) -> QueueResult<Vec<QueueResult<Enqueued>>> {
        let calls: Vec<ScriptCall> = tasks.iter().map(|task| self.enqueue_call(task, None)).collect();
        let replies = self.link.scripts("enqueue", &calls).await?;
        let mut out = Vec::with_capacity(tasks.len());
        for (reply, task) in replies.into_iter().zip(tasks) {
            out.push(match reply.and_then(|reply| self.enqueued(reply)) {
                Ok(Some(Enqueued::Duplicate(first))) => self.enqueue_beside(task, first).await,
                Ok(Some(enqueued)) => Ok(enqueued),
                Ok(None) => Err(QueueError::unexpected("enqueue", self.link.address())),
                Err(error) => Err(error),
            });
        }
        let is_accepted = |reply: &QueueResult<Enqueued>| matches!(reply, Ok(Enqueued::Accepted));
        let accepted = tasks.iter().zip(&out).filter(|(_, reply)| is_accepted(reply));
        let named = accepted.filter_map(|(task, _)| self.new_named(&task.id, &task.fields, task.delay));
        let named: Vec<_> = named.collect();
        self.note(&self.keys, &named).await?;
        if tasks.iter().any(|task| !task.delay.is_zero()) {
            wait::request_look(&self.link).await;
        }
        Ok(out)
    }

    /// Enqueues a task whose key the task `first` has, if `first` can never run because its entry was
    /// deleted.
    async fn enqueue_beside(&self, task: &NewTask, first: String) -> QueueResult<Enqueued> {
        let call = self.enqueue_call(task, Some(&first));
        if let Some(enqueued) = self.enqueued(self.link.script(&call).await?)? {
            return Ok(enqueued);
        }
        // The key is free now. Another task may take it before this call.
        let reply = self.link.script(&self.enqueue_call(task, None)).await?;
        Ok(self.enqueued(reply)?.unwrap_or(Enqueued::Duplicate(first)))
    }

    /// Reads a reply of enqueue.lua. None: the task that had the key was lost, and the key is free now.
    fn enqueued(&self, reply: redis::Value) -> QueueResult<Option<Enqueued>> {
        match reply {
            redis::Value::Int(-2) => Ok(None),
            redis::Value::Int(-1) => Ok(Some(Enqueued::Full)),
            redis::Value::Int(_) => Ok(Some(Enqueued::Accepted)),
            first => self.shaped("enqueue", reply::text(first)).map(Enqueued::Duplicate).map(Some),
        }
    }

    /// The call that enqueues a task. `holder`: the task that has its key, as far as is known.
    fn enqueue_call(&self, task: &NewTask, holder: Option<&str>) -> ScriptCall {
        let keys = &self.keys;
        let call = self.call(&script::ENQUEUE);
        let key = idempotency_key(task.key.as_deref(), &task.fields, &self.rules.idempotency.key);
        let call = call
            .key("status", keys.task(&task.id))
            .key("marker", keys.marker(key.as_deref()))
            .key("holder", holder.map_or_else(|| keys.stream.clone(), |holder| keys.task(holder)));
        let call = call.arg("delay", millis(task.delay)).arg("id", &task.id);
        let call = call.arg("most", self.rules.max_backlog);
        call.fields(&entry_fields(&task.id, task.key.as_deref(), &task.fields))
    }
}

/// The fields of a new task's entry.
pub(super) fn entry_fields(id: &str, own_key: Option<&str>, fields: &[Field]) -> codec::RawFields {
    let fields = fields.iter().map(|field| (field.name.clone().into_bytes(), field.value.clone()));
    fields.chain([codec::raw("tq-id", id)]).chain(own_key.map(|key| codec::raw("tq-key", key))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(name: &str) -> Field {
        Field { name: name.into(), value: Vec::new() }
    }

    #[test]
    fn fields_that_cannot_be_a_task_are_refused() {
        let new = |fields| NewTask::new(fields, Duration::ZERO).map(drop);
        assert_eq!(new(vec![]), Err(NotATask::NoFields));
        assert_eq!(new(vec![field("a"), field("tq-id")]), Err(NotATask::Reserved("tq-id".into(), "tq-")));
        assert_eq!(new(vec![field("end.id")]), Err(NotATask::Reserved("end.id".into(), "end.")));
        assert_eq!(new(vec![field("a"); 1001]), Err(NotATask::TooManyFields(1001)));
        assert_eq!(new(vec![field("a"); 1000]), Ok(()));
        assert_eq!(new(vec![field("")]), Ok(()));
        let large = |bytes| new(vec![Field { name: "a".into(), value: vec![0; bytes - 1] }]);
        assert_eq!(large(MAX_TASK_BYTES), Ok(()));
        assert_eq!(large(MAX_TASK_BYTES + 1), Err(NotATask::TooLarge(MAX_TASK_BYTES + 1)));
        let later = |delay| NewTask::new(vec![field("a")], delay).map(drop);
        assert_eq!(later(LONGEST_DELAY), Ok(()));
        assert_eq!(later(LONGEST_DELAY + Duration::from_millis(1)), Err(NotATask::TooLate));
        assert_eq!(NotATask::TooLate.to_string(), "a delay is 365d at most");
    }
}
