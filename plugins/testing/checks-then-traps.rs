//! Passes its self-check, and then traps in every task.
#![cfg(target_family = "wasm")]

use tqhost_handler::{Failure, Task, handler};

fn handle(_: Task) -> Result<(), Failure> {
    core::arch::wasm32::unreachable()
}

fn check() -> Result<(), String> {
    Ok(())
}

handler!(handle, self_check = check);
