//! Calls of the interfaces for effects, as a task lists them.
//!
//! Field `do` is a JSON list of calls, and the result is the list of their results. An entry is a list of the
//! call's name and its arguments:
//!
//! `["enqueue", {"queue": …, "fields": {…}, "delay": ms, "key": …}]`, `["fan-out", [task, …], task]`,
//! `["results"]`, `["get", key]`, `["set", key, value, ms]`, `["delete", key]`, `["add", key, n]`,
//! `["count", key, n]` (as `add`, but the attempt fails where that does), `["put", key, {…}]`,
//! `["record", key]`, `["drop", key]`, `["expire", key, ms]`, `["fence"]`, `["sleep", ms]`,
//! `["need", key]` (rejects the task if the key has no value), `["retry"]`, `["reject"]`,
//! `["trap"]`; `["first", n, [call]]` makes the call on the first n attempts only.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tqhost_handler::outbox::NewTask;
use tqhost_handler::{EffectError, Failure, Field, Json, Task, delivery, flow, outbox, records, state};

/// Makes the calls that the task lists.
pub fn all(task: &Task) -> Result<Json<Value>, Failure> {
    let calls: Vec<Value> = task.json("do")?;
    let mut results = Vec::new();
    for call in &calls {
        results.push(make(call, task.attempt)?);
    }
    Ok(Json(Value::Array(results)))
}

fn make(call: &Value, attempt: u32) -> Result<Value, Failure> {
    let text = |n: usize| call[n].as_str().unwrap_or_default().to_owned();
    let number = |n: usize| call[n].as_u64().unwrap_or_default();
    let millis = |n: usize| Duration::from_millis(number(n));
    Ok(match call[0].as_str().unwrap_or_default() {
        "enqueue" => said(outbox::enqueue(new_task(&call[1]))),
        "fan-out" => {
            let children = call[1].as_array().into_iter().flatten().map(new_task);
            said(outbox::fan_out(children, new_task(&call[2])))
        }
        "results" => flow::results()
            .into_iter()
            .map(|result| json!([result.queue, result.value.map(|value| shown(&value))]))
            .collect(),
        "get" => said(state::get(&text(1)).map(|value| value.map(|value| shown(&value)))),
        "set" => said(state::set_for(&text(1), text(2), millis(3))),
        "delete" => said(state::delete(&text(1))),
        "add" => said(state::increment(&text(1), call[2].as_i64().unwrap_or_default())),
        "count" => json!(state::increment(&text(1), call[2].as_i64().unwrap_or_default())?),
        "put" => said(records::put(&text(1), fields(&call[2]))),
        "record" => said(records::get(&text(1)).map(|fields| {
            fields.map(|fields| -> Map<String, Value> {
                fields.into_iter().map(|(name, value)| (name, json!(shown(&value)))).collect()
            })
        })),
        "drop" => said(records::delete(&text(1))),
        "expire" => said(records::expire(&text(1), millis(2))),
        "fence" => json!(delivery::fence()),
        "sleep" => {
            crate::sleep(millis(1));
            Value::Null
        }
        "need" => match state::get(&text(1)) {
            Ok(Some(_)) => Value::Null,
            found => return Err(Failure::reject(format_args!("{} is needed: {found:?}", text(1)))),
        },
        "retry" => return Err(Failure::retry("as told")),
        "reject" => return Err(Failure::reject("as told")),
        "trap" => panic!("as told"),
        "first" if u64::from(attempt) <= number(1) => make(&call[2], attempt)?,
        "first" => Value::Null,
        other => return Err(Failure::reject(format_args!("there is no call {other}"))),
    })
}

fn said<T: serde::Serialize>(result: Result<T, EffectError>) -> Value {
    result.map_or_else(|error| json!({ "error": format!("{error:?}") }), |value| json!(value))
}

fn new_task(told: &Value) -> NewTask {
    let task = NewTask::new(told["queue"].as_str().unwrap_or_default());
    let fields = fields(&told["fields"]).map(|(name, value)| Field { name, value });
    NewTask {
        delay_ms: told["delay"].as_u64().unwrap_or_default(),
        idempotency_key: told["key"].as_str().map(str::to_owned),
        ..task.fields(fields)
    }
}

fn fields(told: &Value) -> impl Iterator<Item = (String, Vec<u8>)> {
    let told = told.as_object().into_iter().flatten();
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    told.map(move |(name, value)| (name.clone(), text(value).into_bytes()))
}

fn shown(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}
