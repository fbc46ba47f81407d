//! Traps while it is instantiated, before its handler is called.
#![cfg(target_family = "wasm")]

use tqhost_handler::{Failure, Task, handler};

fn handle(_: Task) -> Result<(), Failure> {
    Ok(())
}

handler!(handle);

/// A component made of this module calls this function when it is instantiated. A function in `.init_array`
/// would run too late: without an `_initialize`, the linker runs it with the first call.
#[unsafe(no_mangle)]
extern "C" fn _initialize() {
    core::arch::wasm32::unreachable()
}
