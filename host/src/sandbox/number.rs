//! Names one version with one set of grants, for what versions share.

/// Identifies one version with one set of grants, in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Number(pub(super) u64);
