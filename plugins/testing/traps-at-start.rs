//! Traps while it is instantiated, before its handler is called.
#![cfg(target_family = "wasm")]

use tqhost_handler::{Failure, Task, handler};

fn handle(_: Task) -> Result<(), Failure> {
    Ok(())
}

handler!(handle);

#[cfg(target_os = "wasi")]
extern "C" fn start() {
    core::arch::wasm32::unreachable()
}

/// Where the C library's own `_initialize` finds what to call.
#[cfg(target_os = "wasi")]
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// A component that is made of this module calls it when it is instantiated.
#[cfg(not(target_os = "wasi"))]
#[unsafe(no_mangle)]
extern "C" fn _initialize() {
    core::arch::wasm32::unreachable()
}
