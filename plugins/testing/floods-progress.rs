//! Reports its progress a million times, every thousandth time with a note of 64 KiB. Completes with the
//! number of reports.
#![cfg(target_family = "wasm")]

use tqhost_handler::{Failure, Task, handler, progress};

fn handle(_: Task) -> Result<String, Failure> {
    let long = "p".repeat(64 * 1024);
    for n in 0..1_000_000_u32 {
        progress((n % 256) as u8, if n % 1000 == 0 { &long } else { "again" });
    }
    Ok("1000000".to_owned())
}

handler!(handle);
