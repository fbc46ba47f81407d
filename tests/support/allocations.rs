//! How often a program asks for memory.

use std::path::{Path, PathBuf};

use super::names::preload;

/// Counts the allocations of the programs that were started with [`Allocations::env`], together.
pub struct Allocations {
    library: PathBuf,
    count: PathBuf,
}

impl Allocations {
    /// Builds the library that counts them (`preload/allocations.rs`), in `dir`.
    pub fn new(dir: &Path) -> Allocations {
        let count = dir.join("allocations");
        std::fs::write(&count, 0u64.to_ne_bytes()).expect("write the count");
        Allocations { library: preload(dir, "allocations"), count }
    }

    /// What a program needs in its environment.
    pub fn env(&self) -> Vec<(String, PathBuf)> {
        vec![("LD_PRELOAD".to_owned(), self.library.clone()), ("ALLOCATIONS".to_owned(), self.count.clone())]
    }

    /// How many there were so far.
    pub fn count(&self) -> u64 {
        let bytes = std::fs::read(&self.count).expect("read the count");
        u64::from_ne_bytes(bytes.try_into().expect("eight bytes"))
    }
}
