//! Does what the JSON in field `data` says: waits `ms` in the host, fails on the first `retries` attempts, and ends as `end` says.
//!
//! `data` is an object with the task's name `n`, `ms`, `retries`, and `end`: `ok`, `reject` or `defer`. Logs `runs` before anything else.
#![cfg(target_family = "wasm")]

use std::time::Duration;

use serde_json::{Value, json};
use tqhost_handler::{Failure, FieldError, Json, Task, handler, log};

fn handle(task: Task) -> Result<Json<Value>, Failure> {
    log::info("runs");
    let told: Value = task.json("data")?;
    let number = |name: &str| told[name].as_u64().unwrap_or(0);
    testing_guests::sleep(Duration::from_millis(number("ms")));
    if u64::from(task.attempt) <= number("retries") {
        return Err(Failure::retry(format_args!("attempt {} of {}", task.attempt, told["n"])));
    }
    match told["end"].as_str() {
        Some("ok") => Ok(Json(json!({ "n": told["n"], "attempt": task.attempt }))),
        Some("reject") => Err(Failure::reject(told["n"].as_str().unwrap_or("no name"))),
        Some("defer") => Err(Failure::defer("as told", Duration::from_millis(100))),
        _ => Err(FieldError::invalid("data", "does not say how to end").into()),
    }
}

handler!(handle);
