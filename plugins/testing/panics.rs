//! Panics with the text `boom` and the attempt.
#![cfg(target_family = "wasm")]

use tqhost_handler::{Failure, Task, handler};

fn handle(task: Task) -> Result<(), Failure> {
    panic!("boom on attempt {}", task.attempt)
}

handler!(handle);
