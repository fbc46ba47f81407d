//! Passes one argument of `bytes` bytes to the host function that field `call` names: `log`, `progress`,
//! `config`, `random` (asks for `bytes` bytes), `authority`, `path`, `method`, `header` (one of that size) or
//! `headers` (`bytes` of them, each of a few bytes). Completes if the host takes it.
#![cfg(target_family = "wasm")]

use testing_guests::http::Request;
use tqhost_handler::{Failure, FieldError, Task, config, context, handler, log};

wit_bindgen::generate!({
    path: ["../../wit/deps/io", "../sdk/wit/deps/clocks", "../sdk/wit/deps/http", "wit"],
    world: "tqhost:testing/roller",
    generate_all,
});

use wasi::random::random::get_random_bytes;

fn handle(task: Task) -> Result<&'static str, Failure> {
    let bytes: usize = task.number("bytes")?;
    let text = || "x".repeat(bytes);
    let made = |request: Request<'_>| request.hold().map(drop).map_err(Failure::reject);
    let local = || Request { url: "http://127.0.0.1/", ..Request::default() };
    match task.text("call")? {
        "log" => log::info(text()),
        "progress" => context::progress(1, &text()),
        "config" => drop(config::get(&text())?),
        "random" => drop(get_random_bytes(bytes as u64)),
        "authority" => made(Request { url: &format!("http://{}/", text()), ..local() })?,
        "path" => made(Request { url: &format!("http://127.0.0.1/{}", text()), ..local() })?,
        "method" => made(Request { method: Some(&text()), ..local() })?,
        "header" => made(Request { headers: &format!("x-big: {}", text()), ..local() })?,
        "headers" => made(Request { headers: &"x-small: x\n".repeat(bytes), ..local() })?,
        _ => return Err(FieldError::invalid("call", "names no call").into()),
    }
    Ok("taken")
}

handler!(handle);
