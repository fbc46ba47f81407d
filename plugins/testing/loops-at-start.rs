//! Computes for ever while it is instantiated, before its handler is called.
#![cfg(target_family = "wasm")]

use tqhost_handler::{Failure, Task, handler};

fn handle(_: Task) -> Result<(), Failure> {
    Ok(())
}

handler!(handle);

extern "C" fn start() {
    loop {
        std::hint::black_box(0);
    }
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
    start();
}
