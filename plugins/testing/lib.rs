//! Code that several test guests share: a sleep that works with every toolchain, the echo, the instructions
//! in a task's `data`, calls for effects (`calls`), and requests (`http`).
//!
//! Not here: any misbehaviour. Each guest is a file beside this one. In a native build it is empty.

#[cfg(target_family = "wasm")]
pub mod calls;
#[cfg(target_family = "wasm")]
pub mod http;

use std::time::Duration;

use serde_json::{Map, Value, json};
use tqhost_handler::{Failure, FieldError, Json, Task};

mod bindings {
    wit_bindgen::generate!({
        path: ["../../wit/deps/io", "../sdk/wit/deps/clocks", "../sdk/wit/deps/http", "wit"],
        world: "tqhost:testing/sleeper",
        generate_all,
    });
}

/// Sleeps by a call to the host. `std::thread::sleep` does the same with WASI, but panics without it.
pub fn sleep(duration: Duration) {
    let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    bindings::wasi::clocks::monotonic_clock::subscribe_duration(nanos).block();
}

/// The task as the handler saw it, and the version of the handler that saw it.
pub fn echo(task: &Task, version: &str) -> Json<Value> {
    let fields: Map<String, Value> =
        task.fields.iter().map(|field| (field.name.clone(), value(&field.value))).collect();
    let names: Vec<&str> = task.fields.iter().map(|field| field.name.as_str()).collect();
    Json(json!({
        "version": version,
        "id": task.id,
        "queue": task.queue,
        "attempt": task.attempt,
        "max-attempts": task.max_attempts,
        "enqueued-at-ms": task.enqueued_at_ms,
        "deadline-ms": task.deadline_ms,
        "traceparent": task.traceparent,
        "names": names,
        "fields": fields,
    }))
}

/// The instructions to the handler in a task's field `data`.
pub struct Told(Value);

impl Told {
    /// Rejects a task whose `data` is missing or is not JSON.
    pub fn of(task: &Task) -> Result<Told, Failure> {
        Ok(Told(task.json("data")?))
    }

    /// The time to wait before the task ends.
    pub fn wait(&self) -> Duration {
        Duration::from_millis(self.number("ms"))
    }

    /// The task's end. A result has the task's name and attempt.
    pub fn end(&self, task: &Task) -> Result<Value, Failure> {
        let name = &self.0["n"];
        if u64::from(task.attempt) <= self.number("retries") {
            return Err(Failure::retry(format_args!("attempt {} of {name}", task.attempt)));
        }
        match self.0["end"].as_str() {
            Some("ok") => Ok(json!({ "n": name, "attempt": task.attempt })),
            Some("reject") => Err(Failure::reject(name.as_str().unwrap_or("no name"))),
            Some("defer") => Err(Failure::defer("as told", Duration::from_millis(100))),
            _ => Err(FieldError::invalid("data", "does not say how to end").into()),
        }
    }

    fn number(&self, name: &str) -> u64 {
        self.0[name].as_u64().unwrap_or(0)
    }
}

/// UTF-8 as a string, any other bytes as `{"hex": "…"}`.
fn value(bytes: &[u8]) -> Value {
    match str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => json!({ "hex": bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_echo_keeps_order_and_bytes() {
        let Json(echo) = echo(&Task::sample([("b", b"1".as_slice()), ("a", b"\xff\x00")]), "7");
        assert_eq!(echo["names"], json!(["b", "a"]));
        assert_eq!(echo["fields"], json!({ "b": "1", "a": { "hex": "ff00" } }));
        assert_eq!(
            (&echo["version"], &echo["attempt"], &echo["max-attempts"]),
            (&json!("7"), &json!(1), &json!(3))
        );
    }
}
