//! Reports 10, 50 and 200 percent, and sleeps for `ms` milliseconds after each report. Completes.
#![cfg(target_family = "wasm")]

use std::time::Duration;

use tqhost_handler::{Failure, Task, handler, progress};

fn handle(task: Task) -> Result<&'static str, Failure> {
    let pause = Duration::from_millis(task.number("ms")?);
    for (percent, note) in [(10, "started"), (50, "half way"), (200, "more than there is")] {
        progress(percent, note);
        testing_guests::sleep(pause);
    }
    Ok("done")
}

handler!(handle);
