//! Does what the JSON list in field `do` says, one call of an interface for effects after the other, and
//! returns the list of their results. The module `calls` says which calls there are.
#![cfg(target_family = "wasm")]

use serde_json::Value;
use tqhost_handler::{Failure, Json, Task, handler};

fn handle(task: Task) -> Result<Json<Value>, Failure> {
    testing_guests::calls::all(&task)
}

handler!(handle);
