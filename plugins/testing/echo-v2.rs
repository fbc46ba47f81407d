//! Does what `echo` does, with version `2`.
#![cfg(target_family = "wasm")]

use serde_json::Value;
use tqhost_handler::{Failure, Json, Task, handler};

fn handle(task: Task) -> Result<Json<Value>, Failure> {
    Ok(testing_guests::echo(&task, "2"))
}

handler!(handle);
