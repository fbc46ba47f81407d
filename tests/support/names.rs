//! Host names that resolve to addresses of the test's choice, without a name server.
//!
//! In: names and addresses. Out: environment variables for a program. Not here: the lookup
//! (`preload/names.rs`).

use std::path::{Path, PathBuf};
use std::process::Command;

/// The environment variables with which a program resolves these names to these addresses. Builds the library
/// that does so (`preload/names.rs`) in `dir`.
pub fn names(dir: &Path, names: &[(&str, &str)]) -> Vec<(String, PathBuf)> {
    let library = preload(dir, "names");
    let names: Vec<String> = names.iter().map(|(name, address)| format!("{name}={address}")).collect();
    vec![("LD_PRELOAD".to_owned(), library), ("FAKE_NAMES".to_owned(), names.join(",").into())]
}

/// Builds `preload/{name}.rs` as a library in `dir`.
pub fn preload(dir: &Path, name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../tests/support/preload/{name}.rs"));
    let library = dir.join(format!("libpreload_{name}.so"));
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut build = Command::new(rustc);
    build
        .args(["--edition", "2024", "--crate-type", "cdylib", "-O", "-C", "panic=abort", "-o"])
        .arg(&library)
        .arg(source);
    assert!(build.status().expect("run rustc").success(), "the library of preload/{name}.rs is built");
    library
}
