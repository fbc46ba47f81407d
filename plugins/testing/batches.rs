//! Takes batches. Returns for each task its id and attempt, the number of tasks in the call (`batch`) and its
//! `place` among them.
//!
//! Field `do` says how a task ends: `ok` (the default), `retry`, `reject`, `defer`, or `big`, which returns
//! `bytes` bytes. Other values of `do` make the whole call fail: `trap`, `loop`, `hoard`, or `miscount`,
//! which returns one result too few if the batch has several tasks. Before that, the guest prints every `say`
//! and waits in the host for the longest `ms` of its tasks.
//!
//! A task that is run alone is a batch of 1 and ends in the same way, but `miscount` is `ok`. If it has a
//! field `alone`, it is `ok` whatever `do` says.
#![cfg(target_family = "wasm")]

use std::time::Duration;

use serde_json::json;
use tqhost_handler::{Failure, Task, handler, progress};

fn handle(tasks: Vec<Task>) -> Vec<Result<Vec<u8>, Failure>> {
    let ms = tasks.iter().filter_map(|task| task.number::<u64>("ms").ok()).max().unwrap_or(0);
    for said in tasks.iter().filter_map(|task| task.text("say").ok()) {
        println!("{said}");
    }
    if ms > 0 {
        progress(50, "waits");
        testing_guests::sleep(Duration::from_millis(ms));
    }
    let count = tasks.len();
    let mut results: Vec<_> = tasks.iter().enumerate().map(|(place, task)| one(task, place, count)).collect();
    if count > 1 && tasks.iter().any(|task| what(task, count) == "miscount") {
        results.pop();
    }
    results
}

fn what(task: &Task, count: usize) -> &str {
    if count == 1 && task.has("alone") { "ok" } else { task.text("do").unwrap_or("ok") }
}

fn one(task: &Task, place: usize, count: usize) -> Result<Vec<u8>, Failure> {
    match what(task, count) {
        "ok" | "miscount" => {
            let result = json!({ "id": task.id, "attempt": task.attempt, "batch": count, "place": place });
            Ok(result.to_string().into_bytes())
        }
        "retry" => Err(Failure::retry("as told")),
        "reject" => Err(Failure::reject("as told")),
        "defer" => Err(Failure::defer("as told", Duration::from_millis(50))),
        "big" => Ok(vec![b'x'; task.number("bytes")?]),
        "trap" => core::arch::wasm32::unreachable(),
        "hoard" => loop {
            std::mem::forget(std::hint::black_box(vec![1_u8; 1 << 20]));
        },
        "loop" => loop {
            std::hint::black_box(0);
        },
        other => Err(Failure::reject(format_args!("cannot do `{other}`"))),
    }
}

handler!(batch = handle);
