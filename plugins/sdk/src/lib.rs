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
//!     let text = task.text("content")?; // missing or not UTF-8: the task is rejected
//!     log::info(format_args!("counting {} bytes", text.len()));
//!     Ok(Json(Count { words: text.split_whitespace().count() }))
//! }
//!
//! handler!(count);
//! # fn main() {}
//! ```
//!
//! A second function may check, on each new version before it takes over, that what it needs is there. An `Err` keeps the old version:
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
//! The crate builds natively too, so that a handler's own function can be unit-tested: there, log lines go to stderr, progress goes
//! nowhere, and no configuration is granted.
//!
//! Not here: retry and backoff (the host's), building (`scripts/build-plugins.sh`).

use std::fmt::Display;

#[doc(hidden)]
pub mod bindings;
pub mod config;
pub mod context;
mod failure;
#[cfg(feature = "http")]
pub mod http;
#[doc(hidden)]
pub mod lifecycle;
pub mod log;
mod output;
mod task;

pub use bindings::tqhost::handler::types::{Failure, Field, Task};
pub use context::progress;
pub use failure::OrFail;
pub use output::{Json, Output};
pub use task::FieldError;

/// Exports a function `fn(Task) -> Result<impl Output, Failure>` as the component's handler. Once per component. With `self_check = …` it also
/// exports a function `fn() -> Result<(), impl Display>` that the host calls once on a new version, before it gets tasks.
#[macro_export]
macro_rules! handler {
    ($handle:path) => {
        const _: () = {
            #[cfg(target_family = "wasm")]
            struct Exported;

            #[cfg(target_family = "wasm")]
            impl $crate::bindings::exports::tqhost::handler::handler::Guest for Exported {
                fn handle(task: $crate::Task) -> ::core::result::Result<::core::option::Option<::std::vec::Vec<u8>>, $crate::Failure> {
                    $crate::run(task, $handle)
                }
            }

            #[cfg(target_family = "wasm")]
    $crate::bindings::export_handler!(Exported with_types_in $crate::bindings);

            // A native build exports nothing, and must not call the function unused.
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

/// What [`handler!`] exports: one attempt, from the host's task to the host's result.
pub fn run<O: Output>(task: Task, handle: impl FnOnce(Task) -> Result<O, Failure>) -> Result<Option<Vec<u8>>, Failure> {
    log::panics();
    handle(task)?.into_bytes()
}

/// What [`handler!`] exports as the self-check.
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

        let missing = |task: Task| -> Result<(), Failure> { task.text("nothing").map(drop).map_err(Failure::from) };
        assert!(matches!(run(task(), missing), Err(Failure::Reject(_))));
    }
}
