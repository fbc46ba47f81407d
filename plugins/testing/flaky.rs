//! Returns a retry until the attempt in field `failUntil`, which completes with `{"attempt": n}`.
#![cfg(target_family = "wasm")]

use serde_json::{Value, json};
use tqhost_handler::{Failure, Json, Task, handler};

fn handle(task: Task) -> Result<Json<Value>, Failure> {
    let until: u32 = task.number("failUntil")?;
    if task.attempt < until {
        return Err(Failure::retry(format_args!("attempt {} fails until attempt {until}", task.attempt)));
    }
    Ok(Json(json!({ "attempt": task.attempt })))
}

handler!(handle);
