//! Allocates and touches 1 MiB at a time until an allocation is refused, and then some more, like a leak.
//! Rust aborts when an allocation is refused, which is a trap.
#![cfg(target_family = "wasm")]

use std::hint::black_box;

use tqhost_handler::{Failure, Task, handler};

fn handle(_: Task) -> Result<(), Failure> {
    let mut hoard = Vec::new();
    loop {
        hoard.push(black_box(vec![1u8; 1 << 20]));
    }
}

handler!(handle);
