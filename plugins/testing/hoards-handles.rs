//! Asks the host for timers without end, and drops none. The host must keep a handle for each of them.
#![cfg(target_family = "wasm")]

use tqhost_handler::{Failure, Task, handler};

wit_bindgen::generate!({
    path: ["../../wit/deps/io", "../sdk/wit/deps/clocks", "../sdk/wit/deps/http", "wit"],
    world: "tqhost:testing/roller",
    generate_all,
});

fn handle(_: Task) -> Result<(), Failure> {
    let mut held = Vec::new();
    loop {
        held.push(wasi::clocks::monotonic_clock::subscribe_duration(3_600_000_000_000));
    }
}

handler!(handle);
