//! Does what the JSON list in field `do` says, one call of `blobs` after the other, and returns the list of
//! their results. An entry is a list of the call's name and its arguments:
//!
//! `["put", name, type, text]`, `["fill", name, bytes]` (puts so many zeros), `["get", name]`,
//! `["size", name]`, `["secret", name]` (puts the configuration's `key`), `["wait", ms]`, `["fence"]`,
//! `["note", key, text]` (a record), `["retry"]`, `["trap"]`; `["first", [call]]` makes the call on the first
//! attempt only.
#![cfg(target_family = "wasm")]

use std::time::Duration;

use serde_json::{Value, json};
use tqhost_handler::{BlobError, Failure, Json, Task, blobs, config, delivery, handler, records};

fn handle(task: Task) -> Result<Json<Value>, Failure> {
    let calls: Vec<Value> = task.json("do")?;
    let results: Result<Vec<Value>, Failure> = calls.iter().map(|call| make(call, task.attempt)).collect();
    Ok(Json(Value::Array(results?)))
}

fn make(call: &Value, attempt: u32) -> Result<Value, Failure> {
    let text = |n: usize| call[n].as_str().unwrap_or_default();
    let number = |n: usize| call[n].as_u64().unwrap_or_default();
    Ok(match text(0) {
        "put" => said(blobs::put(text(1), text(2), text(3))),
        "fill" => said(blobs::put(text(1), "", vec![0; number(2) as usize])),
        "get" => said(blobs::get(text(1)).map(|data| String::from_utf8_lossy(&data).into_owned())),
        "size" => said(blobs::get(text(1)).map(|data| data.len())),
        "secret" => {
            let key = config::get("key")?.unwrap_or_default();
            let named = blobs::put(&format!("a-{key}"), "", "");
            json!([said(blobs::put(text(1), "text/plain", format!("the key is {key}"))), said(named)])
        }
        "wait" => {
            testing_guests::sleep(Duration::from_millis(number(1)));
            Value::Null
        }
        "fence" => json!(delivery::fence()),
        "note" => {
            records::put(text(1), [("url", text(2))])?;
            Value::Null
        }
        "retry" => return Err(Failure::retry("as told")),
        "trap" => panic!("as told"),
        "first" if attempt == 1 => make(&call[1], attempt)?,
        "first" => Value::Null,
        other => return Err(Failure::reject(format_args!("there is no call {other}"))),
    })
}

fn said<T: serde::Serialize>(result: Result<T, BlobError>) -> Value {
    result.map_or_else(|error| json!({ "error": format!("{error:?}") }), |value| json!(value))
}

handler!(handle);
