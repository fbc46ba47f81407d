//! Does what the JSON in field `data` says: waits `ms` in the host, returns a retry on the first `retries`
//! attempts, and then ends as `end` says.
//!
//! `data` is an object with the task's name `n`, `ms`, `retries` and `end` (`ok`, `reject` or `defer`). The
//! guest logs `runs` before anything else, and for a task with the field `row` also `has run` after the wait.
#![cfg(target_family = "wasm")]

use serde_json::Value;
use tqhost_handler::{Failure, Json, Task, handler, log};

fn handle(task: Task) -> Result<Json<Value>, Failure> {
    log::info("runs");
    let told = testing_guests::Told::of(&task)?;
    testing_guests::sleep(told.wait());
    if task.has("row") {
        log::info("has run");
    }
    told.end(&task).map(Json)
}

handler!(handle);
