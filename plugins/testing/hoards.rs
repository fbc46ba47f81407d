//! Allocates and fills 1 MiB at a time without end, as a leak would. When the host refuses more memory, Rust
//! aborts, which is a trap.
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
