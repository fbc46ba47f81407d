//! Returns a retry on every attempt.
#![cfg(target_family = "wasm")]

use tqhost_handler::{Failure, Task, handler};

fn handle(task: Task) -> Result<(), Failure> {
    Err(Failure::retry(format_args!("attempt {} failed, as always", task.attempt)))
}

handler!(handle);
