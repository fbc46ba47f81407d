//! Allocates and fills 2047 MiB at once, which is nearly the most that Rust can ask for on wasm32.
#![cfg(target_family = "wasm")]

use std::hint::black_box;

use tqhost_handler::{Failure, Task, handler};

fn handle(_: Task) -> Result<String, Failure> {
    let hoard = vec![1u8; black_box(2047 << 20)];
    Ok(format!("got {} bytes", black_box(hoard).len()))
}

handler!(handle);
