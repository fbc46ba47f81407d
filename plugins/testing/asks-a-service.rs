//! Asks the service at the url in its field, and returns the body of the answer. A service that is down, or
//! that asks to be called later, is told as such. Any other status than 2xx is a retry. If the task has a
//! field `loops`, it asks nobody and never returns.
#![cfg(target_family = "wasm")]

use tqhost_handler::http::Request;
use tqhost_handler::{Failure, Task, handler};

fn handle(task: Task) -> Result<Vec<u8>, Failure> {
    while task.has("loops") {}
    let response = Request::get(task.text("url")?).send()?;
    match response.status {
        200..=299 => Ok(response.body),
        status if response.is_unavailable() => {
            let failure = Failure::unavailable(format_args!("the service answers {status}"));
            Err(response.retry_after(0).into_iter().fold(failure, Failure::after))
        }
        status => Err(Failure::retry(format_args!("the service answers {status}"))),
    }
}

handler!(handle);
