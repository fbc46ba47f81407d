//! The store and the grants that the instances of one version need for calls of blobs.
//!
//! Not here: the calls (`host::blobs`), the store (`crate::blobs`).

use std::sync::Arc;

use super::share::Owner;
use crate::blobs::Blobs;

/// The host's store, and the plugin that calls belong to.
pub(super) struct BlobAccess {
    pub(super) store: Blobs,
    pub(super) owner: Arc<Owner>,
}
