//! Writes the granted `api_key` to every place that a handler can write to.
//!
//! The guest writes the key to stdout, to stderr, to a log line and to its progress. Then, `ms` later, it
//! puts the key where field `end` says: into the message of a `retry`, `reject` or `defer`, into a `panic`,
//! or, with any other value, into its result.
#![cfg(target_family = "wasm")]

use std::time::Duration;

use tqhost_handler::{Failure, Task, config, handler, log, progress};

fn handle(task: Task) -> Result<String, Failure> {
    let key = config::get("api_key")?.ok_or_else(|| Failure::reject("no api_key is granted"))?;
    println!("printed: {key}");
    eprintln!("complained: {key}");
    log::info(format_args!("logged: {key}"));
    progress(50, &format!("noted: {key}"));
    testing_guests::sleep(Duration::from_millis(task.number("ms").unwrap_or(0)));
    match task.text("end")? {
        "retry" => Err(Failure::retry(format_args!("retried: {key}"))),
        "reject" => Err(Failure::reject(format_args!("rejected: {key}"))),
        "defer" => Err(Failure::defer(format_args!("deferred: {key}"), Duration::from_millis(50))),
        "panic" => panic!("panicked: {key}"),
        _ => Ok(format!("returned: {key}")),
    }
}

handler!(handle);
