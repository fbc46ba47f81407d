//! Makes requests without end and sends none. Each request has as much body, headers and url as the host
//! holds for it.
#![cfg(target_family = "wasm")]

use testing_guests::http::Request;
use tqhost_handler::{Failure, Task, handler};

fn handle(_: Task) -> Result<(), Failure> {
    let mut held = Vec::new();
    let url = format!("http://127.0.0.1/{}", "x".repeat(16_000));
    let headers = format!("x-long: {}", "x".repeat(16_000));
    loop {
        held.push(
            Request { url: &url, headers: &headers, ..Request::default() }.hold().map_err(Failure::reject)?,
        );
    }
}

handler!(handle);
