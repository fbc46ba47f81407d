//! Sends `count` requests to `url` before it waits for any of them, and holds all responses unread. Returns
//! how many requests ended with each status and with each error.
#![cfg(target_family = "wasm")]

use std::collections::BTreeMap;

use serde_json::{Value, json};
use testing_guests::http::Request;
use tqhost_handler::{Failure, Json, Task, handler};

fn handle(task: Task) -> Result<Json<Value>, Failure> {
    let url = task.text("url")?;
    let sent: Vec<_> =
        (0..task.number::<u32>("count")?).map(|_| Request { url, ..Request::default() }.send()).collect();
    let (mut held, mut statuses, mut errors) =
        (Vec::new(), BTreeMap::<u16, u32>::new(), BTreeMap::<String, u32>::new());
    for sent in sent {
        match sent.and_then(|sent| sent.wait()) {
            Ok(response) => {
                *statuses.entry(response.status).or_default() += 1;
                held.push(response);
            }
            Err(error) => *errors.entry(error).or_default() += 1,
        }
    }
    Ok(Json(json!({ "statuses": statuses, "errors": errors })))
}

handler!(handle);
