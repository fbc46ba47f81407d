//! The state of one plugin as `tqhost plugins` and the metrics show it.
//!
//! Plain data: the registry fills it in. Not here: what the states mean for the versions (`life`).

use std::sync::Arc;

use strum::IntoStaticStr;

use super::changes::Change;
use super::figures::Figures;
use crate::builds::Builds;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, IntoStaticStr)]
#[strum(serialize_all = "kebab-case", const_into_str)]
pub(crate) enum PluginState {
    /// The file that is there is the active version.
    Active,
    /// The file that is there cannot be used; an older version may still be active.
    Failed,
    /// The file that is there holds a version that was rolled back. The last good version is active, if there
    /// is one.
    Quarantined,
    /// There is no file.
    #[default]
    Missing,
}

/// One plugin, as `tqhost plugins` and the metrics show it.
#[derive(Debug, Clone)]
pub(crate) struct PluginStatus {
    pub name: String,
    pub state: PluginState,
    /// Digest of the active version.
    pub digest: Option<String>,
    /// The active version replaced a good one and is not found to be good yet.
    pub on_probation: bool,
    /// Whether another version takes over if an operator withdraws the active one. `None`: no version is
    /// active.
    pub can_go_back: Option<bool>,
    /// Digest of that version.
    pub back_to: Option<String>,
    /// Digest of the version that is being compiled and checked, and since when, in milliseconds since the
    /// Unix epoch.
    pub compiling: Option<(String, u64)>,
    /// Why the file that is there cannot be used.
    pub error: Option<String>,
    /// When the file is tried again, in milliseconds since the Unix epoch. `None`: only after it has changed,
    /// or the grants have.
    pub retry_at_ms: Option<u64>,
    /// When the active version was taken, in milliseconds since the Unix epoch.
    pub loaded_at_ms: Option<u64>,
    /// How long it took to compile the active version, or to load it from the cache.
    pub compile_ms: Option<u64>,
    pub from_cache: Option<bool>,
    pub bytes: Option<u64>,
    pub figures: Arc<Figures>,
    /// The last changes, oldest first.
    pub history: Vec<Change>,
    /// The builds of these versions, as far as they are known.
    pub builds: Builds,
}
