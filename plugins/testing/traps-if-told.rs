//! Traps where the task has a field `trap`; returns any other.
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
