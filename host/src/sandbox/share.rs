//! Keeps each plugin's part of the host's shared resources, over all of its versions.
//!
//! In: the use of these resources by the plugin's handlers. Out: the rest that is left for them, and the
//! counts for the metrics. A plugin that has used up its part waits or is refused; other plugins are not
//! affected.
//!
//! Not here: the state of one attempt (`state`), time slices to compute (`slices`), memory (`budget`).

use std::sync::{Arc, OnceLock};

use tokio::sync::Semaphore;

use super::host::http::requests::Requests;
use super::log_rate::Lines;

/// Largest number of name lookups of one plugin at once. A lookup holds a thread and cannot be cancelled, so
/// a name server that does not answer may hold all of them for long. The plugin's other lookups wait then.
pub(super) const MAX_LOOKUPS: usize = 8;

/// Largest number of calls of one plugin at once that read or write a blob.
const MAX_BLOB_CALLS: usize = 16;

/// The part of one plugin.
#[derive(Debug)]
pub struct Share {
    pub requests: Requests,
    /// Free places for lookups.
    pub(super) lookups: Arc<Semaphore>,
    /// Free places for calls of blobs.
    pub(super) blob_calls: Arc<Semaphore>,
    /// The lines that its handlers log.
    pub(super) lines: Arc<Lines>,
}

impl Share {
    /// The number of log lines that were dropped, since the handlers logged more than they may.
    pub fn lines_dropped(&self) -> u64 {
        self.lines.dropped()
    }
}

impl Default for Share {
    fn default() -> Share {
        Share {
            requests: Requests::default(),
            lookups: Arc::new(Semaphore::new(MAX_LOOKUPS)),
            blob_calls: Arc::new(Semaphore::new(MAX_BLOB_CALLS)),
            lines: Arc::default(),
        }
    }
}

/// The share that a version uses: its plugin's. A version without a plugin, as during its self-check, has a
/// share of its own.
#[derive(Debug, Default)]
pub(super) struct Owner {
    /// The plugin's share, and the version's name for people.
    plugin: OnceLock<(Arc<Share>, Arc<str>)>,
    own: Arc<Share>,
}

impl Owner {
    /// Makes this version use the plugin's share from now on, under this name. A second call changes nothing.
    pub(super) fn belongs_to(&self, plugin: Arc<Share>, label: Arc<str>) {
        self.plugin.get_or_init(|| (plugin, label));
    }

    /// `name@digest` of the version. None during the self-check.
    pub(super) fn label(&self) -> Option<&Arc<str>> {
        self.plugin.get().map(|(_, label)| label)
    }

    pub(super) fn share(&self) -> &Arc<Share> {
        self.plugin.get().map_or(&self.own, |(share, _)| share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_a_plugin_have_one_part() {
        let (plugin, versions) = (Arc::<Share>::default(), [(); 2].map(|()| Owner::default()));
        assert!(!Arc::ptr_eq(versions[0].share(), versions[1].share()));
        for version in &versions {
            version.belongs_to(plugin.clone(), "p@1".into());
            version.belongs_to(Arc::default(), "p@2".into());
            assert!(Arc::ptr_eq(version.share(), &plugin));
            assert_eq!(version.label().map(|label| &**label), Some("p@1"));
        }
    }
}
