//! Returns `bytes` bytes, each an `x`.
#![cfg(target_family = "wasm")]

use tqhost_handler::{Failure, Task, handler};

fn handle(task: Task) -> Result<Vec<u8>, Failure> {
    Ok(vec![b'x'; task.number("bytes")?])
}

handler!(handle);
