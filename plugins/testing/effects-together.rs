//! Does what `effects` does, in batches: it selects each task, from the last one to the first, and makes its
//! calls. It returns `results`, and `together`, the number of tasks in the call.
//!
//! If the first task of a batch has a field `unselected`, the guest makes the calls of that task before it
//! has selected one.
#![cfg(target_family = "wasm")]

use serde_json::{Value, json};
use testing_guests::calls;
use tqhost_handler::{Failure, Json, Task, delivery, handler};

fn handle(tasks: Vec<Task>) -> Vec<Result<Json<Value>, Failure>> {
    if let Some(first) = tasks.first().filter(|task| task.has("unselected")) {
        drop(calls::all(first));
    }
    let one = |(index, task): (usize, &Task)| {
        delivery::select(index);
        let Json(results) = calls::all(task)?;
        Ok(Json(json!({ "together": tasks.len(), "results": results })))
    };
    let mut results: Vec<_> = tasks.iter().enumerate().rev().map(one).collect();
    results.reverse();
    results
}

handler!(batch = handle);
