//! Calls one host function forever, the one in field `call`: `clock`, `remaining`, `progress`, `config`,
//! `log`, `poll` or `random`. Each call returns at once.
#![cfg(target_family = "wasm")]

use std::hint::black_box;

use tqhost_handler::{Failure, FieldError, Task, config, context, handler, log};

wit_bindgen::generate!({
    path: ["../../wit/deps/io", "../sdk/wit/deps/clocks", "../sdk/wit/deps/http", "wit"],
    world: "tqhost:testing/roller",
    generate_all,
});

use wasi::clocks::monotonic_clock::subscribe_duration;
use wasi::random::random::get_random_bytes;

fn handle(task: Task) -> Result<(), Failure> {
    let call: fn() = match task.text("call")? {
        "clock" => || drop(subscribe_duration(0)),
        "remaining" => || {
            black_box(context::remaining());
        },
        "progress" => || context::progress(1, "again"),
        "config" => || drop(black_box(config::get("model"))),
        "log" => || log::debug(""),
        // A new timer, which is ready at once.
        "poll" => || subscribe_duration(0).block(),
        // The most bytes that the host gives in one call.
        "random" => || drop(black_box(get_random_bytes(1 << 20))),
        _ => return Err(FieldError::invalid("call", "names no call").into()),
    };
    loop {
        call();
    }
}

handler!(handle);
