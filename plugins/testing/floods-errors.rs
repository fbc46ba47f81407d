//! Fails as field `end` says (`retry`, `reject` or `defer`), with a message of `bytes` bytes that looks like
//! lines of a log, and with the longest delay that can be asked for.
#![cfg(target_family = "wasm")]

use std::time::Duration;

use tqhost_handler::{Failure, FieldError, Task, handler};

const LINE: &str = "\n{\"level\":\"ERROR\",\"message\":\"forged\"}\u{1b}[2J";

fn handle(task: Task) -> Result<(), Failure> {
    let mut message = LINE.repeat(task.number::<usize>("bytes")?.div_ceil(LINE.len()));
    message.truncate(task.number("bytes")?);
    let longest = Duration::from_millis(u64::MAX);
    Err(match task.text("end")? {
        "retry" => Failure::retry(message).after(longest),
        "reject" => Failure::reject(message),
        "defer" => Failure::defer(message, longest),
        _ => FieldError::invalid("end", "does not say how to end").into(),
    })
}

handler!(handle);
