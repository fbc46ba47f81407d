//! The delivery of the task that runs: its fence, and in a batch the task that calls belong to.
//!
//! In: the index of a task in its batch. Out: the number of the delivery.
//!
//! ```
//! use tqhost_handler::{Failure, Task, delivery, state};
//!
//! fn measure(tasks: Vec<Task>) -> Vec<Result<(), Failure>> {
//!     let one = |(index, task): (usize, &Task)| {
//!         delivery::select(index); // What follows belongs to this task, and commits with it.
//!         state::set(&task.id, task.text("content")?.len().to_string())?;
//!         Ok(())
//!     };
//!     tasks.iter().enumerate().map(one).collect()
//! }
//!
//! let results = tqhost_handler::run_batch(vec![Task::sample([("content", "abc")])], measure);
//! assert!(results[0].is_ok());
//! ```

#[cfg(target_family = "wasm")]
use crate::bindings::tqhost::extensions::delivery as host;
#[cfg(not(target_family = "wasm"))]
use crate::memory::delivery as host;

/// A number that grows with every delivery of the task. Send it along with effects outside tqhost, and let
/// the service refuse an effect whose number is lower than one that it has seen for this task. So an attempt
/// that was given up, and still runs, changes nothing. In a native build, it is 1 unless
/// [`testing::set_fence`](crate::testing::set_fence) changes it.
pub fn fence() -> u64 {
    host::fence()
}

/// In a batch: says to which task, counted from 0, the following calls of [`outbox`](crate::outbox),
/// [`flow`](crate::flow), [`state`](crate::state), [`records`](crate::records) and [`fence`] belong. A task
/// that runs alone needs no `select`, and may select 0.
///
/// # Panics
/// If the batch has no such task. The calls above panic in a batch until a task is selected.
pub fn select(index: usize) {
    host::select(u32::try_from(index).unwrap_or(u32::MAX));
}
