//! Traps if the task has a field `trap`, and returns any other task as `echo` does.
#![cfg(target_family = "wasm")]

use serde_json::Value;
use tqhost_handler::{Failure, Json, Task, handler};

fn handle(task: Task) -> Result<Json<Value>, Failure> {
    if task.text_opt("trap")?.is_some() {
        core::arch::wasm32::unreachable()
    }
    Ok(testing_guests::echo(&task, "1"))
}

handler!(handle);
