//! Identifies one version of a plugin with one set of grants, in this process.
//!
//! Not here: the version's digest, which people see (`plugins`).

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct VersionNumber(u64);

impl VersionNumber {
    /// A number that no other version has.
    pub(super) fn fresh() -> VersionNumber {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        VersionNumber(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
