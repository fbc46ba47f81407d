//! For unit tests, in a native build: the memory that stands in for Redis.
//!
//! Each thread has a memory of its own, and cargo runs each test in a thread of its own. Call [`reset`] at
//! the beginning of a test if the tests run with `--test-threads=1`, where they all share one thread.
//!
//! | module | fill | look |
//! |---|---|---|
//! | [`outbox`](crate::outbox) | | `outbox::sent()` |
//! | [`flow`](crate::flow) | `flow::insert(queue, value)` | |
//! | [`state`](crate::state) | `state::insert(key, value)` | `state::all()`, `state::ttl(key)` |
//! | [`records`](crate::records) | `records::insert(key, fields)` | `records::all()`, `records::ttl(key)` |
//! | [`blobs`](crate::blobs) | `blobs::insert(name, data)` | `blobs::all()` |
//! | [`delivery`](crate::delivery) | [`set_fence`] | |
//! | [`config`](crate::config) | `config::insert(key, value)` | |
//! | `http`, with the feature `http` | `http::insert(answer)` | `http::requests()` |
//! | `Failure::unavailable` | | [`outages`] |
//!
//! A handler's function that a test calls directly writes at once. [`run`](crate::run) calls it like a host:
//! if it fails, its effects are dropped, and its blobs stay. [`run_batch`](crate::run_batch) also checks that
//! the function selects a task of its batch, but keeps the effects of the tasks that fail.
//!
//! ```
//! use tqhost_handler::{EffectError, Failure, Task, run, state, testing};
//!
//! fn count(task: Task) -> Result<(), Failure> {
//!     state::increment("tasks", 1)?;
//!     task.text("content")?;
//!     Ok(())
//! }
//!
//! assert!(run(Task::sample([("other", "1")]), count).is_err());
//! assert_eq!(state::all().len(), 0);
//!
//! testing::refuse(EffectError::Unavailable("Redis is away".into()));
//! let failed = run(Task::sample([("content", "a")]), count);
//! assert!(matches!(failed, Err(Failure::Retry(_))));
//! ```
//!
//! Not here: grants, and the limits of all effects together. A native build grants every queue and key.

use std::time::Duration;

use crate::blobs::BlobError;
use crate::effects::EffectError;
use crate::memory::{self, Memory};

/// Forgets everything that this thread has in memory.
pub fn reset() {
    memory::with(|memory| *memory = Memory::default());
}

/// Makes the next call of `outbox`, `state` or `records` fail with this error.
pub fn refuse(error: EffectError) {
    memory::with(|memory| memory.refusal = Some(error));
}

/// Makes the next call of `blobs` fail with this error.
pub fn refuse_blob(error: BlobError) {
    memory::with(|memory| memory.blob_refusal = Some(error));
}

/// Sets the number that [`delivery::fence`](crate::delivery::fence) returns.
pub fn set_fence(fence: u64) {
    memory::with(|memory| memory.fence = fence);
}

/// The tasks of the last call that ended with [`Failure::unavailable`](crate::Failure::unavailable): the
/// place of each in the call, from 0 on, and how long the service asks to wait.
pub fn outages() -> Vec<(usize, Option<Duration>)> {
    let shown = |(index, after_ms): (&u32, &Option<u64>)| {
        (usize::try_from(*index).unwrap_or(usize::MAX), after_ms.map(Duration::from_millis))
    };
    memory::with(|memory| memory.outages.iter().map(shown).collect())
}
