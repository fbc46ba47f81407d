//! Returns a retry on every attempt, after the milliseconds in field `afterMs`.
#![cfg(target_family = "wasm")]

use std::time::Duration;

use tqhost_handler::{Failure, Task, handler};

fn handle(task: Task) -> Result<(), Failure> {
    let after = Duration::from_millis(task.number("afterMs")?);
    Err(Failure::retry(format_args!("attempt {} failed", task.attempt)).after(after))
}

handler!(handle);
