//! How long each test takes: `make test` prints the slowest ones from what is noted here.
//!
//! In: the test's thread, from its first use of a bench or a command on. Out: a line for each test in
//! `times-of-tests`, in cargo's folder for tests: start and end in milliseconds, and the name. Not here: the
//! sum (`scripts/slowest-tests.sh`), and tests that use neither a bench nor a command.

use std::io::Write;
use std::path::Path;
use std::time::SystemTime;

/// Notes the test of this thread, once. It ends when its thread ends.
pub fn note() {
    TEST.with(|_| {});
}

thread_local! {
    static TEST: Timed = Timed::start();
}

/// A test that runs. The harness names its thread after it; other threads have no name.
struct Timed {
    name: Option<String>,
    started: u128,
}

impl Timed {
    fn start() -> Timed {
        let name = std::thread::current().name().filter(|name| name.contains("::")).map(str::to_owned);
        Timed { name, started: now() }
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        let Some(name) = &self.name else { return };
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("times-of-tests");
        let line = format!("{} {} {name}\n", self.started, now());
        // One write for each line, so that lines of several tests do not mix. Without the file the test is
        // not listed, and nothing else is different.
        if let Ok(mut file) = std::fs::File::options().create(true).append(true).open(path) {
            let _ = file.write_all(line.as_bytes());
        }
    }
}

fn now() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_millis())
}
