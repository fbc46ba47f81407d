//! Has a self-check that requests the page of the granted `service` and waits for it without a limit.
#![cfg(target_family = "wasm")]

use serde_json::Value;
use testing_guests::http::Request;
use tqhost_handler::{Failure, Json, Task, config, handler};

fn handle(task: Task) -> Result<Json<Value>, Failure> {
    Ok(testing_guests::echo(&task, "checked"))
}

fn check() -> Result<(), String> {
    let url = config::get("service").ok().flatten().ok_or("no `service` is granted")?;
    let response = Request { url: &url, ..Request::default() }.send()?.wait()?;
    if response.status == 200 { Ok(()) } else { Err(format!("the service answers {}", response.status)) }
}

handler!(handle, self_check = check);
