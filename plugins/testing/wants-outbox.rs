//! Imports `tqhost:handler/outbox` and enqueues a task to the queue in field `to` (`nowhere` if it is
//! missing). Returns the new task's id.
#![cfg(target_family = "wasm")]

use tqhost_handler::{Failure, Task, handler};

wit_bindgen::generate!({ path: "../../wit/handler.wit", world: "tqhost:handler/task-handler" });

use tqhost::handler::outbox::{NewTask, enqueue};

fn handle(task: Task) -> Result<String, Failure> {
    let queue = task.text_opt("to")?.unwrap_or("nowhere").to_string();
    enqueue(&NewTask { queue, fields: Vec::new(), delay_ms: 0, idempotency_key: None })
        .map_err(|why| Failure::reject(format_args!("the outbox refused: {why:?}")))
}

handler!(handle);
