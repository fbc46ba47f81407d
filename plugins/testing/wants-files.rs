//! Asks `wasi:filesystem` for its directories, and returns how many there are. The filesystem is empty.
#![cfg(target_family = "wasm")]

use tqhost_handler::{Failure, Task, handler};

wit_bindgen::generate!({
    path: ["../../wit/deps/io", "../sdk/wit/deps/clocks", "../sdk/wit/deps/http", "wit"],
    world: "tqhost:testing/files",
    generate_all,
});

fn handle(_: Task) -> Result<String, Failure> {
    Ok(format!("{} directories", wasi::filesystem::preopens::get_directories().len()))
}

handler!(handle);
