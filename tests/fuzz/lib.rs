//! What the targets share: a sandbox like the host's, and panics as the host bears them.
//!
//! The host contains a panic of what reads plugin files (`Sandbox::compile`, `Sandbox::inspect`) and makes an error of it. libFuzzer's hook would
//! end the process at once. So the hook is replaced: a panic that somebody catches is told once, one that nobody catches ends the process
//! where libFuzzer calls the target. Stack overflows, aborts, what a sanitizer finds, and inputs that take too long or too much memory are
//! findings without any help.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tqhost::sandbox::{Attempt, Compiler, Sandbox, SandboxOptions};
use tqhost::task::{Field, Origin, Progress, Task};

/// Different places of panics that are told.
const MAX_TOLD: usize = 100;

/// Lets panics unwind, and tells each place of one once.
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

/// One for all inputs, with the limits of a small plugin.
pub fn sandbox() -> &'static Sandbox {
    static SANDBOX: OnceLock<Sandbox> = OnceLock::new();
    SANDBOX.get_or_init(|| {
        Sandbox::new(SandboxOptions {
            max_concurrent: 1,
            max_warm: 0,
            max_memory: 16 << 20,
            compiler: Compiler::Here,
        })
        .expect("a sandbox")
    })
}

/// An attempt that is over soon.
pub fn attempt() -> Attempt {
    let task = Task {
        id: "1-0".into(),
        queue: "q".into(),
        entry: "1-0".into(),
        fields: vec![Field { name: "name".into(), value: b"value".to_vec() }],
        attempt: 1,
        deferrals: 0,
        crashes: 0,
        enqueued_at_ms: 7,
        delay: None,
        origin: Origin::Producer,
        traceparent: None,
        reserved: Vec::new(),
    };
    Attempt {
        tasks: Arc::new(vec![task]),
        plugin: "p".into(),
        max_attempts: 1,
        timeout: Duration::from_millis(100),
        progress: vec![Progress::default()],
        stop: CancellationToken::new(),
    }
}
