//! Returns the task as JSON, with a version: the environment's `TQHOST_ECHO_VERSION` at build time, or `1`.
//! So a test of replacing plugins can build as many versions as it needs.
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
