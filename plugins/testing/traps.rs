//! Executes `unreachable`: a trap without a message.
#![cfg(target_family = "wasm")]

use tqhost_handler::{Failure, Task, handler};

fn handle(_: Task) -> Result<(), Failure> {
    core::arch::wasm32::unreachable()
}

handler!(handle);
