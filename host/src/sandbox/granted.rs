//! The access that one version of a plugin is granted. All of its instances share it.
//!
//! Not here: memory and time (`limits`, `handler`), the plugin's part of shared resources (`share`).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::host::http::Grant;
use super::share::Owner;
use crate::blobs::Blobs;
use crate::config::{RecordGrants, Secret};

pub(super) struct Granted {
    /// The values that wasi:config/store returns.
    pub(super) config: BTreeMap<String, Secret>,
    /// The keys of Redis hashes that the plugin may use.
    pub(super) records: RecordGrants,
    /// The host's store of blobs.
    pub(super) blobs: Blobs,
    pub(super) http: Arc<Grant>,
    /// The plugin whose share of the host the version uses.
    pub(super) owner: Arc<Owner>,
}
