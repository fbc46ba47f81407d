//! Computes forever while it is instantiated, before its handler is called.
#![cfg(target_family = "wasm")]

use tqhost_handler::{Failure, Task, handler};

fn handle(_: Task) -> Result<(), Failure> {
    Ok(())
}

handler!(handle);

/// A component that is made of this module calls this function when it is instantiated. An entry in
/// `.init_array` would not be enough: without `_initialize`, the linker runs such entries at the first call.
#[unsafe(no_mangle)]
extern "C" fn _initialize() {
    loop {
        std::hint::black_box(0);
    }
}
