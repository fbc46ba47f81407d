//! The states of a plugin's life, and questions about them.
//!
//! Plain data: `life::step` is the only place that changes it. docs/decisions/0010-life-of-a-version.md has
//! the table of states.

use std::collections::BTreeMap;
use std::time::Instant;

use super::event::{Digest, LoadKind};
use crate::file::Found;
use crate::plugins::quarantine::{Good, Quarantine};
use crate::plugins::retries::{Failed, Pauses};
use crate::plugins::status::PluginState;

/// The state by which the host decides about one plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(in crate::plugins) struct Life {
    /// The result of the last look at the file. While a load is at work, the result that it began with.
    pub(super) found: Found,
    pub(in crate::plugins) candidate: Candidate,
    pub(in crate::plugins) serving: Serving,
    /// The last failure, until another content takes its place.
    pub(super) failed: Option<Failed>,
    pub(super) quarantine: Option<Quarantine>,
    /// The versions that operators have withdrawn, until they are lifted.
    pub(super) withdrawn: BTreeMap<Digest, Quarantine>,
    /// Whether the note of an earlier start was looked for.
    pub(in crate::plugins) is_recalled: bool,
    pub(super) noting: Noting,
    pub(in crate::plugins) shown: Shown,
    /// The number of the last load. Results of any other load are too late.
    pub(in crate::plugins) load: u64,
    pub(super) pauses: Pauses,
}

/// How far the content of the file has come.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(in crate::plugins) enum Candidate {
    #[default]
    Absent,
    /// The file is read at this time if it stays as it is.
    Settling(Instant),
    /// A load is at work on it.
    InWork(LoadKind),
    /// The content cannot be used, or there is no regular file.
    Refused,
    Quarantined,
    /// The file holds the version that serves.
    Taken,
    /// No queue uses the plugin any more.
    Unwanted,
}

/// The version that attempts begin on, and the one to go back to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(in crate::plugins) enum Serving {
    /// There never was a version that worked.
    #[default]
    Absent,
    Good(Good),
    /// The first one serves on probation, the second one is the good version.
    Probation(Good, Good),
    /// The file is gone, and nothing serves. Programs that copy a file may remove the old one first, so the
    /// good version is kept.
    Draining(Good),
}

/// Whether the note of the quarantine is being written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) enum Noting {
    #[default]
    Idle,
    Busy,
    /// The note that is being written is out of date.
    Outdated,
}

/// The file's state as commands show it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(in crate::plugins) struct Shown {
    pub(in crate::plugins) state: PluginState,
    pub(in crate::plugins) error: Option<String>,
    /// When the same content is tried again.
    pub(in crate::plugins) retry_at: Option<Instant>,
}

impl Life {
    pub(in crate::plugins) fn new(pauses: Pauses) -> Life {
        Life { pauses, ..Life::default() }
    }

    /// When the file is to be looked at even if nothing hints at a change.
    pub(in crate::plugins) fn due(&self) -> Option<Instant> {
        match &self.candidate {
            Candidate::Settling(until) => Some(*until),
            Candidate::Refused | Candidate::Quarantined => self.failed.as_ref()?.due(),
            _ => None,
        }
    }

    /// Whether a new file has not been tried yet.
    pub(in crate::plugins) fn is_settling(&self) -> bool {
        matches!(self.candidate, Candidate::Settling(..)) && self.failed.is_none()
    }

    /// Whether a load is at work on a content that did not fail before.
    pub(in crate::plugins) fn is_trying(&self) -> bool {
        self.candidate.has_load() && self.failed.is_none()
    }

    /// The digests of the versions that serve or may have to, also after the next start.
    pub(in crate::plugins) fn in_use(&self) -> impl Iterator<Item = &str> {
        let noted = self.quarantine.as_ref().and_then(|quarantine| quarantine.good.as_ref());
        let all = [self.serving.active(), self.serving.good(), noted];
        all.into_iter().flatten().map(|version| version.digest.as_str())
    }

    pub(in crate::plugins) fn is_in_quarantine(&self, digest: &str) -> bool {
        self.banned(digest).is_some()
    }

    /// The version that takes over if the one that serves is withdrawn. `earlier` is the good version before
    /// it.
    pub(in crate::plugins) fn goes_back_to<'g>(&'g self, earlier: Option<&'g Good>) -> Option<&'g Good> {
        match &self.serving {
            Serving::Probation(_, good) => Some(good),
            // The earlier version takes the place of what is in quarantine, not of what cannot be used.
            Serving::Good(_) if self.candidate != Candidate::Refused => {
                earlier.filter(|earlier| !self.is_in_quarantine(&earlier.digest))
            }
            Serving::Good(_) | Serving::Absent | Serving::Draining(_) => None,
        }
    }

    /// The quarantine of this content, if it must not run.
    pub(super) fn banned(&self, digest: &str) -> Option<&Quarantine> {
        let quarantine = self.quarantine.as_ref().filter(|quarantine| quarantine.digest == digest);
        quarantine.or_else(|| self.withdrawn.get(digest))
    }
}

impl Candidate {
    pub(in crate::plugins) fn has_load(&self) -> bool {
        matches!(self, Candidate::InWork(_))
    }
}

impl Serving {
    /// The version that attempts begin on.
    pub(in crate::plugins) fn active(&self) -> Option<&Good> {
        match self {
            Serving::Good(good) => Some(good),
            Serving::Probation(new, _) => Some(new),
            Serving::Absent | Serving::Draining(_) => None,
        }
    }

    /// The version to go back to.
    pub(in crate::plugins) fn good(&self) -> Option<&Good> {
        match self {
            Serving::Good(good) | Serving::Probation(_, good) | Serving::Draining(good) => Some(good),
            Serving::Absent => None,
        }
    }

    pub(super) fn is_active(&self, digest: &str) -> bool {
        self.active().is_some_and(|active| active.digest == digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_can_go_back_where_another_version_takes_over() {
        let good = |digest: &str| Good { digest: digest.into(), bytes: 1 };
        let can =
            |serving: Serving, candidate: Candidate, quarantined: Option<&str>, earlier: Option<&str>| {
                let quarantine = quarantined.map(|digest| Quarantine {
                    digest: digest.into(),
                    why: "it spoiled tasks".into(),
                    good: Some(good("a")),
                });
                let life = Life { serving, candidate, quarantine, ..Life::new(Pauses::default()) };
                life.goes_back_to(earlier.map(good).as_ref()).is_some()
            };
        let serves = || Serving::Good(good("a"));
        let (taken, refused, quarantined) = (Candidate::Taken, Candidate::Refused, Candidate::Quarantined);
        assert!(can(Serving::Probation(good("b"), good("a")), refused.clone(), None, None));
        assert!(!can(serves(), taken.clone(), None, None));
        assert!(can(serves(), taken, None, Some("b")));
        assert!(!can(serves(), refused, None, Some("b")));
        // The version before it is the very one that failed.
        assert!(!can(serves(), quarantined.clone(), Some("b"), Some("b")));
        assert!(can(serves(), quarantined.clone(), Some("b"), Some("c")));
        // An operator has withdrawn what the file holds.
        assert!(!can(serves(), quarantined, None, None));
        assert!(!can(Serving::Draining(good("a")), Candidate::Absent, None, Some("b")));
        assert!(!can(Serving::Absent, Candidate::Absent, None, Some("b")));
    }
}
