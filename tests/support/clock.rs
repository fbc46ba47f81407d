//! A clock that a test can shift, for hosts and Redis servers that are started with it.
//!
//! In: seconds to shift by. Out: environment variables for a program. Not here: the shift itself
//! (`preload/clock.rs`).

use std::path::{Path, PathBuf};

use super::names::preload;

/// The time of day of the programs that were started with [`Clock::env`].
pub struct Clock {
    library: PathBuf,
    shift: PathBuf,
}

impl Clock {
    /// Builds the library that shifts it (`preload/clock.rs`), in `dir`.
    pub fn new(dir: &Path) -> Clock {
        let clock = Clock { library: preload(dir, "clock"), shift: dir.join("shift") };
        clock.shift(0);
        clock
    }

    /// Sets the clock this many seconds ahead of the machine's.
    pub fn shift(&self, seconds: i64) {
        let new = self.shift.with_extension("new");
        std::fs::write(&new, seconds.to_string()).expect("write the shift");
        std::fs::rename(new, &self.shift).expect("rename the shift");
    }

    /// The environment variables that a program needs.
    pub fn env(&self) -> Vec<(String, PathBuf)> {
        vec![
            ("LD_PRELOAD".to_owned(), self.library.clone()),
            ("SHIFTED_CLOCK".to_owned(), self.shift.clone()),
        ]
    }
}
