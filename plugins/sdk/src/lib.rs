//! Write a tqhost task handler as one Rust function.
//!
//! In: a function from [`Task`] to a result. Out: a component that exports `tqhost:handler/handler`.
//!
//! ```
//! use serde::Serialize;
//! use tqhost_handler::{Failure, Json, Task, handler, log};
//!
//! #[derive(Serialize)]
//! struct Count {
//!     words: usize,
//! }
//!
//! fn count(task: Task) -> Result<Json<Count>, Failure> {
//!     let text = task.text("content")?; // rejects the task if the field is missing or not UTF-8
//!     log::info(format_args!("counting {} bytes", text.len()));
//!     Ok(Json(Count { words: text.split_whitespace().count() }))
//! }
//!
//! handler!(count);
//! # fn main() {}
//! ```
//!
//! A handler can have a self-check: a second function, which checks that everything the handler needs is
//! there. The host calls it on each new version, before this version takes over. If it returns an `Err`, the
//! old version stays:
//!
//! ```
//! # use tqhost_handler::{Failure, Task, config, handler};
//! # fn count(_: Task) -> Result<(), Failure> { Ok(()) }
//! fn check() -> Result<(), String> {
//!     config::get("model").ok().flatten().map(drop).ok_or_else(|| "no `model` is granted".to_owned())
//! }
//!
//! handler!(count, self_check = check);
//! # fn main() {}
//! ```
//!
//! If several tasks cost less together than one by one, the function can take a list of tasks. It returns one
//! result for each task, in the same order. A task that is run alone is passed as a list of one:
//!
//! ```
//! # use tqhost_handler::{Failure, Task, handler};
//! fn measure(tasks: Vec<Task>) -> Vec<Result<String, Failure>> {
//!     tasks.iter().map(|task| Ok(task.text("content")?.len().to_string())).collect()
//! }
//!
//! handler!(batch = measure);
//! # fn main() {}
//! ```
//!
//! A handler can also have effects that commit in the step that completes its task, and leave nothing if the
//! attempt fails: tasks for other queues ([`outbox`], with the results of a [`flow`]), values that outlive
//! the task ([`state`]), and Redis hashes of your own ([`records`]). For effects that act at once, such as
//! requests, [`delivery::fence`] orders the deliveries of a task. Files in an object store ([`blobs`]) act at
//! once as well.
//!
//! The crate also builds natively, so that unit tests can call a handler's function. In a native build, log
//! lines go to stderr, progress is ignored, and effects go to a memory that tests can read (`testing`). Tests
//! grant the configuration and answer the requests.
//!
//! Not here: retry and backoff, which the host does, and the build (`scripts/build-plugins.sh`).

use std::fmt::Display;

#[doc(hidden)]
pub mod batch;
#[doc(hidden)]
pub mod bindings;
pub mod blobs;
pub mod config;
pub mod context;
pub mod delivery;
mod effects;
mod failure;
pub mod flow;
#[cfg(feature = "http")]
pub mod http;
#[doc(hidden)]
pub mod lifecycle;
pub mod log;
#[cfg(not(target_family = "wasm"))]
mod memory;
mod outage;
pub mod outbox;
mod output;
pub mod records;
pub mod state;
mod task;
#[cfg(not(target_family = "wasm"))]
pub mod testing;

pub use bindings::tqhost::handler::types::{Failure, Field, Task};
pub use blobs::BlobError;
pub use context::progress;
pub use effects::EffectError;
pub use failure::OrFail;
pub use output::{Json, Output};
pub use task::FieldError;

/// Exports a function `fn(Task) -> Result<impl Output, Failure>` as the component's handler. A component uses
/// this macro once. Two more functions are optional:
///
/// - `batch = …` is a function `fn(Vec<Task>) -> Vec<Result<impl Output, Failure>>`, which runs several tasks
///   in one call. It returns one result for each task, in the same order. If there is no first function, a
///   task that is run alone is passed to it as a list of one.
/// - `self_check = …` is a function `fn() -> Result<(), impl Display>`. The host calls it once on each new
///   version, before this version gets tasks.
#[macro_export]
macro_rules! handler {
    (batch = $batch:path $(, self_check = $check:path)?) => {
        const _: () = {
            fn alone(
                task: $crate::Task,
            ) -> ::core::result::Result<::core::option::Option<::std::vec::Vec<u8>>, $crate::Failure> {
                $crate::run_alone(task, $batch)
            }

            $crate::handler!(alone, batch = $batch $(, self_check = $check)?);
        };
    };
    ($handle:path, batch = $batch:path $(, self_check = $check:path)?) => {
        $crate::handler!($handle $(, self_check = $check)?);

        const _: () = {
            #[cfg(target_family = "wasm")]
            struct Batching;

            #[cfg(target_family = "wasm")]
            impl $crate::batch::exports::tqhost::extensions::batch_handler::Guest for Batching {
                fn handle_batch(
                    tasks: ::std::vec::Vec<$crate::Task>,
                ) -> ::std::vec::Vec<
                    ::core::result::Result<::core::option::Option<::std::vec::Vec<u8>>, $crate::Failure>,
                > {
                    $crate::run_batch(tasks, $batch)
                }
            }

            #[cfg(target_family = "wasm")]
            $crate::batch::export_batch!(Batching with_types_in $crate::batch);

            #[cfg(not(target_family = "wasm"))]
            let _ = $batch;
        };
    };
    ($handle:path) => {
        const _: () = {
            #[cfg(target_family = "wasm")]
            struct Exported;

            #[cfg(target_family = "wasm")]
            impl $crate::bindings::exports::tqhost::handler::handler::Guest for Exported {
                fn handle(
                    task: $crate::Task,
                ) -> ::core::result::Result<::core::option::Option<::std::vec::Vec<u8>>, $crate::Failure>
                {
                    $crate::run(task, $handle)
                }
            }

            #[cfg(target_family = "wasm")]
            $crate::bindings::export_handler!(Exported with_types_in $crate::bindings);

            // A native build exports nothing. This use keeps the compiler from calling the function unused.
            #[cfg(not(target_family = "wasm"))]
            let _ = $handle;
        };
    };
    ($handle:path, self_check = $check:path) => {
        $crate::handler!($handle);

        const _: () = {
            #[cfg(target_family = "wasm")]
            struct Checked;

            #[cfg(target_family = "wasm")]
            impl $crate::lifecycle::exports::tqhost::handler::lifecycle::Guest for Checked {
                fn self_check() -> ::core::result::Result<(), ::std::string::String> {
                    $crate::check($check)
                }
            }

            #[cfg(target_family = "wasm")]
            $crate::lifecycle::export_lifecycle!(Checked with_types_in $crate::lifecycle);

            #[cfg(not(target_family = "wasm"))]
            let _ = $check;
        };
    };
}

/// Runs one attempt, from the host's task to the host's result. [`handler!`] exports it.
pub fn run<O: Output>(
    task: Task,
    handle: impl FnOnce(Task) -> Result<O, Failure>,
) -> Result<Option<Vec<u8>>, Failure> {
    log::panics();
    outage::begin();
    let run = || handle(task)?.into_bytes();
    #[cfg(target_family = "wasm")]
    let result = run();
    #[cfg(not(target_family = "wasm"))]
    let result = memory::attempt(run);
    outage::tell(0, &result);
    result
}

/// Runs several tasks in one call. [`handler!`] exports it for `batch`.
pub fn run_batch<O: Output>(
    tasks: Vec<Task>,
    handle: impl FnOnce(Vec<Task>) -> Vec<Result<O, Failure>>,
) -> Vec<Result<Option<Vec<u8>>, Failure>> {
    log::panics();
    outage::begin();
    #[cfg(not(target_family = "wasm"))]
    let handle = |tasks: Vec<Task>| memory::batch(tasks.len(), || handle(tasks));
    let results: Vec<_> = handle(tasks).into_iter().map(|result| result.and_then(O::into_bytes)).collect();
    results.iter().enumerate().for_each(|(index, result)| outage::tell(index, result));
    results
}

/// Runs one task with a function that takes only lists. [`handler!`] exports it if `batch` is the only
/// function.
///
/// # Panics
/// If the function does not return exactly one result. The panic is a trap, so the host retries the task and
/// reports the failure.
pub fn run_alone<O: Output>(
    task: Task,
    handle: impl FnOnce(Vec<Task>) -> Vec<Result<O, Failure>>,
) -> Result<Option<Vec<u8>>, Failure> {
    let mut results = run_batch(vec![task], handle);
    assert_eq!(results.len(), 1, "the handler gave {} results for 1 task", results.len());
    results.swap_remove(0)
}

/// Runs the self-check. [`handler!`] exports it for `self_check`.
pub fn check<E: Display>(check: impl FnOnce() -> Result<(), E>) -> Result<(), String> {
    log::panics();
    check().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_is_run_to_its_bytes_or_its_failure() {
        let task = || Task::sample([("n", "20")]);
        let double = |task: Task| -> Result<Json<u32>, Failure> { Ok(Json(task.number::<u32>("n")? * 2)) };
        assert_eq!(run(task(), double).unwrap(), Some(b"40".to_vec()));

        let all = |tasks: Vec<Task>| tasks.into_iter().map(double).collect();
        assert_eq!(run_alone(task(), all).unwrap(), Some(b"40".to_vec()));
        let results = run_batch(vec![task(), Task::sample([("n", "x")])], all);
        assert!(
            matches!(&results[..], [Ok(Some(bytes)), Err(Failure::Reject(_))] if bytes == b"40"),
            "{results:?}"
        );

        let missing =
            |task: Task| -> Result<(), Failure> { task.text("nothing").map(drop).map_err(Failure::from) };
        assert!(matches!(run(task(), missing), Err(Failure::Reject(_))));
    }
}
