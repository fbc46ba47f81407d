//! Returns a deferral on every attempt, by the milliseconds in field `afterMs` (1000 if it is missing).
#![cfg(target_family = "wasm")]

use std::time::Duration;

use tqhost_handler::{Failure, Task, handler};

fn handle(task: Task) -> Result<(), Failure> {
    let after_ms = if task.has("afterMs") { task.number("afterMs")? } else { 1000 };
    Err(Failure::defer("the inputs are not ready", Duration::from_millis(after_ms)))
}

handler!(handle);
