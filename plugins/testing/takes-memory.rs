//! Takes `mib` MiB, holds them for 200 ms, and completes.
#![cfg(target_family = "wasm")]

use std::hint::black_box;
use std::time::Duration;

use tqhost_handler::{Failure, Task, handler};

fn handle(task: Task) -> Result<(), Failure> {
    let mib: usize = task.number("mib")?;
    let taken: Vec<Vec<u8>> = (0..mib).map(|_| black_box(vec![1u8; 1 << 20])).collect();
    testing_guests::sleep(Duration::from_millis(200));
    black_box(taken);
    Ok(())
}

handler!(handle);
