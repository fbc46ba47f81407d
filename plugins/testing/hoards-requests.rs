//! Makes request after request with as much of a body as the host holds, and sends none of them.
#![cfg(target_family = "wasm")]

use testing_guests::http::Request;
use tqhost_handler::{Failure, Task, handler};

fn handle(_: Task) -> Result<(), Failure> {
    let mut held = Vec::new();
    loop {
        held.push(Request { url: "http://127.0.0.1/", ..Request::default() }.hold().map_err(Failure::reject)?);
    }
}

handler!(handle);
