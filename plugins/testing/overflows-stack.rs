//! Recurses without end, until its stack is full.
#![cfg(target_family = "wasm")]

use std::hint::black_box;

use tqhost_handler::{Failure, Task, handler};

fn handle(task: Task) -> Result<String, Failure> {
    Ok(format!("got {}", deeper(u64::from(task.attempt))))
}

/// Uses the result of the inner call, so that the compiler cannot turn the recursion into a loop.
#[allow(unconditional_recursion, reason = "this guest is for endless recursion")]
fn deeper(n: u64) -> u64 {
    let frame = black_box([n; 16]);
    deeper(n + 1) + black_box(frame[(n % 16) as usize])
}

handler!(handle);
