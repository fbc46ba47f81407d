//! Keeps the part that each plugin has of the host's shared things, over all of its versions.
//!
//! In: what its handlers use. Out: how much of it there is left for them, and the counts for the metrics. A
//! plugin that has used up its part waits, or goes without, and no other plugin notices.
//!
//! Not here: what belongs to one attempt (`state`), turns to compute (`turns`), memory (`budget`).

use std::sync::{Arc, OnceLock};

use tokio::sync::Semaphore;

use super::host::http::requests::Requests;
use super::log_rate::Lines;

/// Names that are looked up for one plugin at once. A lookup holds a thread and cannot be broken off, so a
/// name server that does not answer may hold all of them for long. The plugin's other names wait then.
pub(super) const MAX_LOOKUPS: usize = 8;

/// The part of one plugin.
#[derive(Debug)]
pub struct Share {
    pub requests: Requests,
    /// Free places for lookups.
    pub(super) lookups: Arc<Semaphore>,
    /// Counts what its handlers log.
    pub(super) lines: Lines,
}

impl Share {
    /// Lines of its handlers that were dropped, since they logged more than they may.
    pub fn lines_dropped(&self) -> u64 {
        self.lines.dropped()
    }
}

impl Default for Share {
    fn default() -> Share {
        Share {
            requests: Requests::default(),
            lookups: Arc::new(Semaphore::new(MAX_LOOKUPS)),
            lines: Lines::default(),
        }
    }
}

/// Whose part a version uses: its plugin's, and a part of its own until it is a plugin's version, as in its
/// self-check.
#[derive(Debug, Default)]
pub(super) struct Owner {
    plugin: OnceLock<Arc<Share>>,
    own: Arc<Share>,
}

impl Owner {
    /// It is a version of this plugin from now on. A second word changes nothing.
    pub(super) fn belongs_to(&self, plugin: Arc<Share>) {
        self.plugin.get_or_init(|| plugin);
    }

    pub(super) fn share(&self) -> &Arc<Share> {
        self.plugin.get().unwrap_or(&self.own)
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
            version.belongs_to(plugin.clone());
            version.belongs_to(Arc::default());
            assert!(Arc::ptr_eq(version.share(), &plugin));
        }
    }
}
