//! Tasks that the host enqueues when this task completes, in the same step, or not at all.
//!
//! In: a [`NewTask`]. Out: the id that the task will have. The queue's `enqueue_to` in the host's
//! configuration grants the queues that a handler may name.
//!
//! ```
//! use std::time::Duration;
//! use tqhost_handler::outbox::{self, NewTask};
//! use tqhost_handler::{Failure, Task};
//!
//! fn resume(task: Task) -> Result<(), Failure> {
//!     let letter = NewTask::new("letters").field("resume", task.text("resume")?);
//!     outbox::enqueue(letter.delay(Duration::from_secs(60)).idempotency_key(&task.id))?;
//!     Ok(())
//! }
//!
//! // In a native build, a test sees the tasks that were enqueued.
//! resume(Task::sample([("resume", "7")])).unwrap();
//! let sent = outbox::sent();
//! assert_eq!(sent[0].task.queue, "letters");
//! assert_eq!(sent[0].task.text("resume"), Ok("7"));
//! ```
//!
//! A flow runs several tasks, its children, and one task after all of them:
//!
//! ```
//! # use tqhost_handler::outbox::{self, NewTask};
//! let pages = (1..=3).map(|page: u32| NewTask::new("pages").field("page", page.to_string()));
//! let book = outbox::fan_out(pages, NewTask::new("books")).unwrap();
//! assert_eq!(outbox::sent()[3].id, book);
//! assert_eq!(outbox::sent()[3].after.len(), 3);
//! ```
//!
//! Not here: the results of the children, which [`flow`](crate::flow) gives to the task that runs after them.

use std::time::Duration;

pub use crate::bindings::tqhost::handler::outbox::NewTask;
#[cfg(not(target_family = "wasm"))]
pub use crate::memory::Sent;

use crate::Field;
#[cfg(target_family = "wasm")]
use crate::bindings::tqhost::handler::outbox as host;
use crate::effects::{EffectError, millis};
#[cfg(not(target_family = "wasm"))]
use crate::memory::outbox as host;
use crate::task::{self, FieldError};

impl NewTask {
    /// A task without fields for the queue of this name in the host's configuration.
    pub fn new(queue: impl Into<String>) -> NewTask {
        NewTask { queue: queue.into(), fields: Vec::new(), delay_ms: 0, idempotency_key: None }
    }

    /// Adds a field.
    pub fn field(mut self, name: impl Into<String>, value: impl Into<Vec<u8>>) -> NewTask {
        self.fields.push(Field { name: name.into(), value: value.into() });
        self
    }

    /// Adds fields, for example those of the task that runs: `new.fields(task.fields)`.
    pub fn fields(mut self, fields: impl IntoIterator<Item = Field>) -> NewTask {
        self.fields.extend(fields);
        self
    }

    /// The time from the commit until the task may run.
    pub fn delay(self, delay: Duration) -> NewTask {
        NewTask { delay_ms: millis(delay), ..self }
    }

    /// A second task with the same key, within the time that its queue remembers keys, is not enqueued.
    pub fn idempotency_key(self, key: impl Into<String>) -> NewTask {
        NewTask { idempotency_key: Some(key.into()), ..self }
    }

    /// A field's text, for tests.
    pub fn text(&self, name: &str) -> Result<&str, FieldError> {
        task::text(&self.fields, name)
    }
}

/// Enqueues the task when this one completes. Returns the id that it will have.
pub fn enqueue(task: NewTask) -> Result<String, EffectError> {
    host::enqueue(&task).map_err(EffectError::of)
}

/// Enqueues `children` when this task completes, and `then` once when every child has completed. Returns the
/// id of `then`. If a child becomes a dead letter, `then` does so, too, with the child's error.
pub fn fan_out(children: impl IntoIterator<Item = NewTask>, then: NewTask) -> Result<String, EffectError> {
    let children: Vec<NewTask> = children.into_iter().collect();
    host::fan_out(&children, &then).map_err(EffectError::of)
}

/// In a native build: the tasks that this thread has enqueued, in order. The children of a flow stand before
/// the task that follows them.
#[cfg(not(target_family = "wasm"))]
pub fn sent() -> Vec<Sent> {
    crate::memory::with(|memory| memory.sent.clone())
}
