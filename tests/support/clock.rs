//! A clock that a test can shift: for hosts and Redis servers that are started with it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The time of day of the programs that were started with [`Clock::env`].
pub struct Clock {
    library: PathBuf,
    shift: PathBuf,
}

impl Clock {
    /// Builds the library that shifts it (`preload/clock.rs`), in `dir`.
    pub fn new(dir: &Path) -> Clock {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/support/preload/clock.rs");
        let library = dir.join("libshiftedclock.so");
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let mut build = Command::new(rustc);
        build.args(["--edition", "2024", "--crate-type", "cdylib", "-O", "-C", "panic=abort", "-o"]).arg(&library).arg(source);
        assert!(build.status().expect("run rustc").success(), "the library that shifts the clock is built");
        let clock = Clock { library, shift: dir.join("shift") };
        clock.shift(0);
        clock
    }

    /// Sets the clock this many seconds ahead of the machine's.
    pub fn shift(&self, seconds: i64) {
        let new = self.shift.with_extension("new");
        std::fs::write(&new, seconds.to_string()).expect("write the shift");
        std::fs::rename(new, &self.shift).expect("rename the shift");
    }

    /// What a program needs in its environment.
    pub fn env(&self) -> Vec<(String, PathBuf)> {
        vec![("LD_PRELOAD".to_owned(), self.library.clone()), ("SHIFTED_CLOCK".to_owned(), self.shift.clone())]
    }
}
