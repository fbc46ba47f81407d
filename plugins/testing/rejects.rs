//! Rejects every task.
#![cfg(target_family = "wasm")]

use tqhost_handler::{Failure, Task, handler};

fn handle(task: Task) -> Result<(), Failure> {
    Err(Failure::reject(format_args!("task {} is rejected, as all are", task.id)))
}

handler!(handle);
