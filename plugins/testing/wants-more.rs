//! Imports `wasi:keyvalue`, which tqhost does not offer. The host must refuse to load it, so it never runs.
#![cfg(target_family = "wasm")]

use tqhost_handler::{Failure, Task, handler};

wit_bindgen::generate!({
    path: ["../../wit/deps/io", "../sdk/wit/deps/clocks", "../sdk/wit/deps/http", "wit"],
    world: "tqhost:testing/more",
    generate_all,
});

fn handle(_: Task) -> Result<String, Failure> {
    Ok(format!("{} keys", wasi::keyvalue::store::count()))
}

handler!(handle);
