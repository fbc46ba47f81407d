//! Imports `wasi:sockets` and opens the network. The host must refuse to load it, so it never runs.
#![cfg(target_family = "wasm")]

use tqhost_handler::{Failure, Task, handler};

wit_bindgen::generate!({
    path: ["../sdk/wit/deps/io", "../sdk/wit/deps/clocks", "../sdk/wit/deps/http", "wit"],
    world: "tqhost:testing/sockets",
    generate_all,
});

fn handle(_: Task) -> Result<&'static str, Failure> {
    drop(wasi::sockets::instance_network::instance_network());
    Ok("got the network")
}

handler!(handle);
