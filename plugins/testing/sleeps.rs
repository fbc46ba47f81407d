//! Waits in the host for `ms` milliseconds. Completes.
#![cfg(target_family = "wasm")]

use std::time::Duration;

use tqhost_handler::{Failure, Task, handler};

fn handle(task: Task) -> Result<&'static str, Failure> {
    testing_guests::sleep(Duration::from_millis(task.number("ms")?));
    Ok("slept")
}

handler!(handle);
