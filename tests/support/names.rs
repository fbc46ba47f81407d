//! Names that a host finds addresses for although no name server knows them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What a program needs in its environment to find these names at these addresses. Builds a library for it (`preload/names.rs`), in `dir`.
pub fn names(dir: &Path, names: &[(&str, &str)]) -> Vec<(String, PathBuf)> {
    let library = preload(dir, "names");
    let names: Vec<String> = names.iter().map(|(name, address)| format!("{name}={address}")).collect();
    vec![("LD_PRELOAD".to_owned(), library), ("FAKE_NAMES".to_owned(), names.join(",").into())]
}

/// Builds a library of the folder `preload`.
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
