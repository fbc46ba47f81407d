//! The last few changes of the versions of one plugin, for the commands.
//!
//! Not here: what is logged of them, and when (`news`).

use std::collections::VecDeque;
use std::time::Duration;

use strum::IntoStaticStr;

use crate::clock::{ms, now_ms};

/// How many changes of a plugin are kept.
const KEPT: usize = 20;
/// A reason is cut at this number of characters, since all reasons are in the host's announcement.
const MAX_REASON_CHARS: usize = 300;

/// A kind of change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr)]
#[strum(serialize_all = "kebab-case", const_into_str)]
pub(crate) enum Milestone {
    /// A version took over.
    Loaded,
    /// The content of the file cannot be used.
    Failed,
    /// The self-check of a version refused it.
    SelfCheckFailed,
    /// A version has passed its probation.
    Confirmed,
    /// A version runs with other grants.
    Regranted,
    /// A version failed its probation, and the last good one took over again.
    RolledBack,
    /// The file holds a version that was rolled back, and is left as it is.
    Quarantined,
    /// An operator has taken a version out of quarantine.
    Lifted,
    /// The last good version took over again, because its file was put back or another one is in quarantine.
    Restored,
    /// The file is gone.
    Removed,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    /// Milliseconds since the Unix epoch, by this host's clock.
    pub at_ms: u64,
    pub what: Milestone,
    pub digest: Option<String>,
    /// How long the change took. For a version that failed this includes its self-check, and the wait for
    /// other plugins.
    pub took_ms: Option<u64>,
    pub reason: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct VersionChanges(VecDeque<Change>);

impl VersionChanges {
    /// Adds a change. It replaces an equal change before it, so that a version that is tried again and again
    /// does not drive the others out.
    pub(super) fn add(
        &mut self,
        what: Milestone,
        digest: Option<&str>,
        took: Option<Duration>,
        reason: Option<&str>,
    ) {
        let reason = reason.map(|reason| reason.chars().take(MAX_REASON_CHARS).collect::<String>());
        let is_same =
            |last: &Change| last.what == what && last.digest.as_deref() == digest && last.reason == reason;
        if self.0.back().is_some_and(is_same) {
            self.0.pop_back();
        }
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(Change {
            at_ms: now_ms(),
            what,
            digest: digest.map(str::to_owned),
            took_ms: took.map(ms),
            reason,
        });
    }

    /// The versions that the changes name.
    pub(super) fn digests(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|change| change.digest.as_deref())
    }

    /// Oldest first.
    pub(super) fn list(&self) -> Vec<Change> {
        self.0.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_changes_are_kept_and_their_reasons_are_cut() {
        let mut changes = VersionChanges::default();
        for n in 0..KEPT + 3 {
            changes.add(Milestone::Failed, Some(&n.to_string()), None, Some(&"é".repeat(400)));
        }
        let list = changes.list();
        assert_eq!((list.len(), list[0].digest.as_deref()), (KEPT, Some("3")));
        assert!(list.iter().all(|change| change.reason == Some("é".repeat(300))));

        // A failure that repeats is one change, with the time of the last one.
        let took = Some(Duration::from_secs(7));
        changes.add(Milestone::Failed, Some(&(KEPT + 2).to_string()), took, Some(&"é".repeat(400)));
        let list = changes.list();
        assert_eq!(
            (list.len(), list[0].digest.as_deref(), list[KEPT - 1].took_ms),
            (KEPT, Some("3"), Some(7000))
        );
    }
}
