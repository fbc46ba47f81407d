//! Returns a retry on the first two attempts, and completes on the third with `{"attempt": 3}`.
#![cfg(target_family = "wasm")]

use serde_json::{Value, json};
use tqhost_handler::{Failure, Json, Task, handler};

fn handle(task: Task) -> Result<Json<Value>, Failure> {
    if task.attempt < 3 {
        return Err(Failure::retry(format_args!("attempt {} fails, the third does not", task.attempt)));
    }
    Ok(Json(json!({ "attempt": task.attempt })))
}

handler!(handle);
