//! Logs 10 MiB: ten lines of 512 KiB, then 5 MiB in lines of 128 bytes. Completes.
#![cfg(target_family = "wasm")]

use tqhost_handler::{Failure, Task, handler, log};

fn handle(_: Task) -> Result<(), Failure> {
    let long = "L".repeat(512 * 1024);
    for _ in 0..10 {
        log::info(&long);
    }
    let short = "s".repeat(128);
    for _ in 0..5 * 1024 * 1024 / short.len() {
        log::info(&short);
    }
    Ok(())
}

handler!(handle);
