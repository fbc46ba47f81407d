//! Computes for ever while it is instantiated, before its handler is called.
#![cfg(target_family = "wasm")]

use tqhost_handler::{Failure, Task, handler};

fn handle(_: Task) -> Result<(), Failure> {
    Ok(())
}

handler!(handle);

/// A component that is made of this module calls it when it is instantiated. What is in `.init_array` would not do: where there is no `_initialize`,
/// the linker lets that run with the first call.
#[unsafe(no_mangle)]
extern "C" fn _initialize() {
    loop {
        std::hint::black_box(0);
    }
}
