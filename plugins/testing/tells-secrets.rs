//! Says the granted `api_key` wherever a handler can say something: on stdout and stderr, in a log line, as
//! its progress. After `ms` it says the key once more, as field `end` asks for: in the message of a `retry`,
//! `reject` or `defer`, in a `panic`, or in its result.
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
