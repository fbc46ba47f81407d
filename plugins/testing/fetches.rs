//! Requests the url in its field and returns the outcome; `plugins/testing/README.md` has the fields. An
//! error is a result too, so that tests can check which error it is.
#![cfg(target_family = "wasm")]

use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Map, Value, json};
use testing_guests::http::{Request, Response};
use tqhost_handler::{Failure, Json, Task, handler};

/// The most bytes of a body that are returned.
const SHOWN: usize = 4096;

/// The number of responses that are held unread, over all tasks of this instance.
static FORGOTTEN: AtomicU32 = AtomicU32::new(0);

fn handle(task: Task) -> Result<Json<Value>, Failure> {
    let number = |name| if task.has(name) { task.number::<u64>(name).map(Some) } else { Ok(None) };
    let mut url = task.text("url")?.to_owned();
    let mut redirects = number("redirects")?.unwrap_or(0);
    let mut found = Map::new();
    loop {
        let request = Request {
            method: task.text_opt("method")?,
            url: &url,
            body_size: usize::try_from(number("bodySize")?.unwrap_or(0)).unwrap_or(usize::MAX),
            headers: task.text_opt("headers")?.unwrap_or_default(),
            first_byte_ms: number("firstByteMs")?,
        };
        match request.send().and_then(|sent| sent.wait()) {
            Err(error) => {
                found.insert("error".to_owned(), error.into());
            }
            Ok(Response { status: 300..400, location: Some(location), .. }) if redirects > 0 => {
                redirects -= 1;
                url = location;
                continue;
            }
            Ok(response) if task.has("forget") => {
                found.insert("status".to_owned(), response.status.into());
                found.insert("forgotten".to_owned(), (FORGOTTEN.fetch_add(1, Ordering::Relaxed) + 1).into());
                std::mem::forget(response);
            }
            Ok(response) => read(&response, &mut found),
        }
        found.insert("url".to_owned(), json!(url));
        return Ok(Json(found.into()));
    }
}

fn read(response: &Response, found: &mut Map<String, Value>) {
    let (mut size, mut shown) = (0, Vec::new());
    loop {
        match response.read() {
            Ok(Some(bytes)) => {
                size += bytes.len();
                shown.extend_from_slice(&bytes[..bytes.len().min(SHOWN - shown.len())]);
            }
            Ok(None) => break,
            Err(error) => {
                found.insert("error".to_owned(), error.into());
                break;
            }
        }
    }
    found.insert("status".to_owned(), response.status.into());
    found.insert("type".to_owned(), json!(response.content_type));
    found.insert("size".to_owned(), size.into());
    found.insert("body".to_owned(), String::from_utf8_lossy(&shown).into());
}

handler!(handle);
