//! Writes 10 MiB to stdout in lines of 1 KiB. It calls `wasi:cli` itself, because `println!` has no effect
//! with one of the toolchains. Completes even if stdout refuses a line.
#![cfg(target_family = "wasm")]

use tqhost_handler::{Failure, Task, handler};

wit_bindgen::generate!({
    path: ["../../wit/deps/io", "../sdk/wit/deps/clocks", "../sdk/wit/deps/http", "wit"],
    world: "tqhost:testing/printer",
    generate_all,
});

fn handle(_: Task) -> Result<(), Failure> {
    let stdout = wasi::cli::stdout::get_stdout();
    // A blocking write takes at most 4096 bytes.
    let lines = format!("{}\n", "o".repeat(1023)).repeat(4);
    for _ in 0..10 * 1024 * 1024 / lines.len() {
        if stdout.blocking_write_and_flush(lines.as_bytes()).is_err() {
            break;
        }
    }
    Ok(())
}

handler!(handle);
