//! The state of one plugin as `tqhost plugins` and the metrics show it.
//!
//! Plain data: the registry fills it in. Not here: what the states mean for the versions (`life`).

use serde::Serialize;

use super::history::Change;
use crate::sandbox::Requests;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PluginState {
    /// The file that is there is the active version.
    Active,
    /// The file that is there cannot be used; an older version may still be active.
    Failed,
    /// The file that is there holds a version that was rolled back; the last good version is active, where
    /// there is one.
    Quarantined,
    /// There is no file.
    Missing,
}

impl PluginState {
    pub fn as_str(self) -> &'static str {
        match self {
            PluginState::Active => "active",
            PluginState::Failed => "failed",
            PluginState::Quarantined => "quarantined",
            PluginState::Missing => "missing",
        }
    }
}

/// One plugin, as `tqhost plugins` and the HTTP API show it.
#[derive(Debug, Clone, Serialize)]
pub struct PluginStatus {
    pub name: String,
    pub state: PluginState,
    /// Digest of the active version.
    pub digest: Option<String>,
    /// The active version replaced a good one and is not found to be good yet.
    pub on_probation: bool,
    /// Why the file that is there cannot be used.
    pub error: Option<String>,
    /// When it is tried again, in milliseconds since the Unix epoch. None: when another file is there, or
    /// other grants.
    pub retry_at_ms: Option<u64>,
    /// When the active version was taken, in milliseconds since the Unix epoch.
    pub loaded_at_ms: Option<u64>,
    /// How long it took to compile the active version, or to load it from the cache.
    pub compile_ms: Option<u64>,
    pub from_cache: Option<bool>,
    pub bytes: Option<u64>,
    pub attempts: u64,
    pub failures: u64,
    pub peak_memory: u64,
    /// How many requests of its handlers there were, by result. For the metrics.
    #[serde(skip)]
    pub requests: [(&'static str, u64); Requests::RESULTS.len()],
    /// Lines of its handlers that were dropped; for the metrics.
    pub log_lines_dropped: u64,
    pub reloads_ok: u64,
    pub reloads_failed: u64,
    pub rolled_back: u64,
    /// The last changes, oldest first.
    pub history: Vec<Change>,
}
