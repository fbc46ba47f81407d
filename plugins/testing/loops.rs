//! Computes forever without calling anything.
#![cfg(target_family = "wasm")]

use std::hint::black_box;

use tqhost_handler::{Failure, Task, handler};

fn handle(_: Task) -> Result<(), Failure> {
    let mut n = 0u64;
    loop {
        n = black_box(n.wrapping_add(1));
    }
}

handler!(handle);
