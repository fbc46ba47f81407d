//! Carries out the calls of the conformance suite: a line of JSON for each call in, and for each answer out.
//!
//!     REDIS_URL=redis://… cargo run --example conformance
//!
//! Not here: the cases (`../conformance`), and the judge (`tests/world/clients.rs`).

use std::collections::HashMap;
use std::io::stdin;
use std::time::Duration;

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use tqhost_client::{Error, Options, Queue, Status, cancel, verify_webhook};

fn bytes(coded: &Value) -> Vec<u8> {
    BASE64_STANDARD.decode(coded.as_str().expect("base64")).expect("base64")
}

fn shown(status: Status) -> Value {
    let mut shown = json!({
        "id": status.id, "status": status.status, "attempt": status.attempt,
        "enqueued_at": status.enqueued_at, "due_at": status.due_at, "started_at": status.started_at,
        "finished_at": status.finished_at,
        "progress": status.progress, "note": status.note, "error": status.error,
        "duplicate_of": status.duplicate_of,
        "result": status.result.map(|bytes| BASE64_STANDARD.encode(bytes)),
    });
    shown.as_object_mut().expect("an object").retain(|_, value| !value.is_null());
    shown
}

fn carry_out(call: &Value, redis: &mut redis::Connection) -> Result<Value, Error> {
    let text = |name: &str| call[name].as_str();
    let number = |name: &str| call[name].as_u64().unwrap_or_default();
    let needed = |name: &str| text(name).expect("a text");
    if needed("call") == "verify" {
        let headers = call["headers"].as_object().expect("headers").iter();
        let headers: HashMap<String, &str> =
            headers.map(|(name, value)| (name.to_lowercase(), value.as_str().expect("a text"))).collect();
        let header = |name: &str| headers.get(name).copied();
        let (now, tolerance) = (number("now"), number("tolerance"));
        return verify_webhook(needed("secret"), header, &bytes(&call["body"]), now, tolerance)
            .map(|id| json!({ "id": id }));
    }
    if needed("call") == "cancel" {
        return cancel(needed("api"), needed("queue"), needed("id"), text("token"))
            .map(|before| json!({ "before": before }));
    }
    let queue = Queue::new(needed("stream"), call["max_backlog"].as_u64());
    match needed("call") {
        "enqueue" => {
            let pairs = call["fields"].as_array().expect("fields").iter();
            let fields: Vec<(&str, Vec<u8>)> =
                pairs.map(|pair| (pair[0].as_str().expect("a name"), bytes(&pair[1]))).collect();
            let fields: Vec<_> = fields.iter().map(|(name, value)| (*name, value.as_slice())).collect();
            let delay = Duration::from_millis(number("delay_ms"));
            let options =
                Options { id: text("id"), key: text("key"), delay, traceparent: text("traceparent") };
            queue.enqueue(redis, &fields, &options).map(|id| json!({ "id": id }))
        }
        "wait" => queue.wait(redis, needed("id"), Duration::from_millis(number("timeout_ms"))).map(shown),
        _ => queue.status(redis, needed("id")).map(shown),
    }
}

fn failed(error: Error) -> Value {
    let message = error.to_string();
    match error {
        Error::NotATask(_) => json!({ "error": "not-a-task", "message": message }),
        Error::QueueFull(_) => json!({ "error": "queue-full", "message": message }),
        Error::BadWebhook(_) => json!({ "error": "bad-webhook", "message": message }),
        Error::BadSecret => json!({ "error": "bad-secret" }),
        Error::NotEnded(status) => json!({ "error": "not-ended", "status": status.status }),
        Error::ApiRefused { http_status, code, .. } => {
            json!({ "error": "api-refused", "code": code, "http_status": http_status })
        }
        error => panic!("{error}"),
    }
}

fn main() {
    let url = std::env::var("REDIS_URL").expect("REDIS_URL");
    let client = redis::Client::open(url).expect("a URL");
    let mut redis = client.get_connection().expect("connect to Redis");
    for line in stdin().lines() {
        let call: Value = serde_json::from_str(&line.expect("a line")).expect("JSON");
        println!("{}", carry_out(&call, &mut redis).unwrap_or_else(failed));
    }
}
