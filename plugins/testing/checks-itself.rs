//! Has a self-check that passes, fails, tells at length why it fails, traps, never ends or asks for too much
//! memory, as the granted `self-check` says.
#![cfg(target_family = "wasm")]

use serde_json::Value;
use tqhost_handler::{Failure, Json, Task, config, handler};

fn handle(task: Task) -> Result<Json<Value>, Failure> {
    Ok(testing_guests::echo(&task, "checked"))
}

fn check() -> Result<(), String> {
    match config::get("self-check").ok().flatten().as_deref() {
        Some("ok") => Ok(()),
        Some("long") => Err("why ".repeat(1 << 19)),
        Some("trap") => core::arch::wasm32::unreachable(),
        Some("loop") => loop {
            std::hint::black_box(0);
        },
        Some("hoard") => loop {
            std::mem::forget(std::hint::black_box(vec![1_u8; 1 << 20]));
        },
        Some(other) => Err(format!("the self-check is told to be `{other}`")),
        None => Err("the self-check is not told what to do".into()),
    }
}

handler!(handle, self_check = check);
