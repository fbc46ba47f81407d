//! Does what `as-told` does, in batches: waits the longest `ms` of its tasks, and ends each task as its
//! `data` says.
//!
//! A result also has `together`, the number of tasks in the batch. The guest logs `runs` once for each batch.
#![cfg(target_family = "wasm")]

use serde_json::{Value, json};
use testing_guests::Told;
use tqhost_handler::{Failure, Json, Task, handler, log};

fn handle(tasks: Vec<Task>) -> Vec<Result<Json<Value>, Failure>> {
    log::info("runs");
    let told: Vec<_> = tasks.iter().map(Told::of).collect();
    testing_guests::sleep(told.iter().flatten().map(Told::wait).max().unwrap_or_default());
    let end = |(task, told): (&Task, Result<Told, Failure>)| {
        let mut result = told?.end(task)?;
        result["together"] = json!(tasks.len());
        Ok(Json(result))
    };
    tasks.iter().zip(told).map(end).collect()
}

handler!(batch = handle);
