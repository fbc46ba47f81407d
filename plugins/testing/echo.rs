//! Returns the task as JSON, with a version: the value of `TQHOST_ECHO_VERSION` when the guest was built, or
//! `1`. So a test that replaces plugins can build any number of versions.
#![cfg(target_family = "wasm")]

use serde_json::Value;
use tqhost_handler::{Failure, Json, Task, handler};

const VERSION: &str = match option_env!("TQHOST_ECHO_VERSION") {
    Some(version) => version,
    None => "1",
};

fn handle(task: Task) -> Result<Json<Value>, Failure> {
    Ok(testing_guests::echo(&task, VERSION))
}

handler!(handle);
