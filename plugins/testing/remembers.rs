//! Keeps everything that a handler can keep between tasks: it counts its tasks, keeps `keep` more bytes for
//! each, and holds one handle of stdout for all.
//!
//! The guest prints `printed by <id>` to this handle, logs `logged by <id>`, waits `ms`, and ends as `end`
//! says: `trap`, `retry`, `reject` or `defer`; otherwise it completes. It returns `tasks`, the number of its
//! tasks with this one, and `kept`, the bytes that it keeps.
#![cfg(target_family = "wasm")]

use std::cell::RefCell;
use std::time::Duration;

use serde_json::{Value, json};
use tqhost_handler::{Failure, Json, Task, handler, log};

wit_bindgen::generate!({
    path: ["../../wit/deps/io", "../sdk/wit/deps/clocks", "../sdk/wit/deps/http", "wit"],
    world: "tqhost:testing/printer",
    generate_all,
});

use wasi::io::streams::OutputStream;

#[derive(Default)]
struct Memory {
    tasks: u32,
    kept: Vec<Vec<u8>>,
    stdout: Option<OutputStream>,
}

thread_local! {
    static MEMORY: RefCell<Memory> = RefCell::default();
}

fn handle(task: Task) -> Result<Json<Value>, Failure> {
    let number = |name: &str| {
        task.text_opt(name).map(|text| text.and_then(|text| text.parse().ok()).unwrap_or(0_usize))
    };
    let (keep, ms, end) = (number("keep")?, number("ms")?, task.text_opt("end")?);
    let seen = MEMORY.with_borrow_mut(|memory| {
        memory.tasks += 1;
        memory.kept.push(vec![1; keep]);
        let stdout = memory.stdout.get_or_insert_with(wasi::cli::stdout::get_stdout);
        let printed = stdout.blocking_write_and_flush(format!("printed by {}\n", task.id).as_bytes());
        assert!(printed.is_ok(), "stdout is open");
        json!({ "tasks": memory.tasks, "kept": memory.kept.iter().map(Vec::len).sum::<usize>() })
    });
    log::info(format_args!("logged by {}", task.id));
    testing_guests::sleep(Duration::from_millis(ms as u64));
    match end {
        Some("trap") => core::arch::wasm32::unreachable(),
        Some("retry") => Err(Failure::retry("as told")),
        Some("reject") => Err(Failure::reject("as told")),
        Some("defer") => Err(Failure::defer("as told", Duration::from_millis(100))),
        _ => Ok(Json(seen)),
    }
}

handler!(handle);
