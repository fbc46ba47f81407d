//! Shared by the fuzz targets: a sandbox like the host's, an attempt, and a panic hook.
//!
//! In: nothing. Out: the functions below. Not here: the targets (`targets/`).
//!
//! The host catches a panic of the code that reads plugin files (`Sandbox::compile`, `Sandbox::inspect`) and
//! makes an error of it. libFuzzer's panic hook would end the process at once, so it is replaced: a panic
//! that is caught is printed once, and one that is not caught ends the process where libFuzzer calls the
//! target. Findings of other kinds need no hook: stack overflows, aborts, reports of a sanitizer, and inputs
//! that take too long or too much memory.

#[path = "../bench/attempt.rs"]
mod delivered;

use std::collections::BTreeSet;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tqhost::testing::sandbox::{Attempt, Compiler, Sandbox, SandboxOptions};
use tqhost::testing::task::Field;

/// The most places of panics that are printed.
const MAX_TOLD: usize = 100;

/// Lets panics unwind, and prints each place of a panic once.
pub fn bear_panics() {
    static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map_or_else(|| "nowhere".to_owned(), ToString::to_string);
        let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < MAX_TOLD && told.insert(place) {
            eprintln!("a panic, contained if this goes on: {panic}");
        }
    }));
}

/// One sandbox for all inputs, with the limits of a small plugin.
pub fn sandbox() -> &'static Sandbox {
    static SANDBOX: OnceLock<Sandbox> = OnceLock::new();
    SANDBOX.get_or_init(|| {
        Sandbox::new(SandboxOptions {
            max_concurrent: 1,
            max_warm: 0,
            max_memory: 16 << 20,
            compiler: Compiler::Here,
            backtraces: false,
        })
        .expect("a sandbox")
    })
}

/// An attempt at one task, with a timeout of 100 ms.
pub fn attempt() -> Attempt {
    let tasks = delivered::a_task(vec![Field { name: "name".into(), value: b"value".to_vec() }]);
    delivered::attempt(&tasks, Duration::from_millis(100))
}
