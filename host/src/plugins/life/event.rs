//! The events and the effects of a plugin's life, as plain data.
//!
//! Not here: what follows from what (`life`), who brings the events and carries out the effects (`registry`,
//! `watcher`, `loads`).

use std::time::Duration;

use crate::file::{Found, Stamp};
use crate::plugins::changes::Milestone;
use crate::plugins::probation::ProbationVerdict;
use crate::plugins::quarantine::{Good, Quarantine};

/// SHA-256 of a file, in hex.
pub(in crate::plugins) type Digest = String;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::plugins) enum LifeEvent {
    /// The quarantine that an earlier start noted.
    Recalled(Option<Quarantine>),
    /// The plugin has other grants.
    Granted,
    /// No queue uses the plugin any more.
    Unwanted,
    /// The result of a look at the path of the file, and whether its last change is long ago.
    Found(Found, bool),
    /// The load with this number has ended.
    Ended {
        load: u64,
        end: LoadEnd,
        /// Whether the version to go back to still counts as good, by the attempts on it.
        good_holds: bool,
    },
    /// The probation of a version has ended.
    Judged(Good, ProbationVerdict),
    /// The note of the quarantine is written.
    Noted,
    /// An operator has withdrawn a version. The good version before it is to run in its place.
    Withdrawn(Quarantine),
    /// A version may run again, after it was withdrawn or rolled back.
    Lifted(Digest),
}

/// The result of a load.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::plugins) enum LoadEnd {
    /// The digest of the file.
    Read(Digest),
    /// There is a version, and it has passed its self-check.
    Made,
    Failed(Trouble),
    /// The file got another content during the load, or somebody wrote to it.
    Changed,
}

/// Why something could not be used.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::plugins) struct Trouble {
    pub(in crate::plugins) what: Milestone,
    pub(in crate::plugins) error: String,
    pub(in crate::plugins) may_pass: bool,
}

impl Trouble {
    /// A trouble that does not pass: the same content would fail again.
    pub(in crate::plugins) fn lasting(error: impl Into<String>) -> Trouble {
        Trouble { what: Milestone::Failed, error: error.into(), may_pass: false }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::plugins) enum Effect {
    /// A plugin has one load at a time. It ends with an event, unless it is stopped.
    Begin {
        load: u64,
        stamp: Stamp,
        kind: LoadKind,
    },
    /// The load ends without an event.
    Stop,
    /// The version that the load has made serves from now on: if true on probation, or else as the version to
    /// go back to.
    Publish(Good, bool),
    /// The last good version serves again.
    GoBack,
    /// This version, which has passed its probation, is the one to go back to.
    Keep(Good),
    /// Nothing serves.
    Withdraw,
    /// There is no version to go back to.
    LetGo,
    /// The serving version and the kept one get the configured grants.
    Regrant,
    Note(Option<Quarantine>),
    Tell(News),
}

/// The work of a load on the file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::plugins) enum LoadKind {
    Read,
    /// Takes the code from the cache, or compiles the file. Then it runs the self-check.
    Make(Digest),
    /// Takes the last good version from the cache, while the file holds what is in quarantine. Then it runs
    /// the self-check.
    Restore(Digest, Good),
}

/// A piece of news for log, counts and changes. The first digest is that of the version.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::plugins) enum News {
    Removed(Digest),
    /// The file cannot be used. Without a digest it was not read.
    Failed {
        what: Milestone,
        digest: Option<Digest>,
        error: String,
        /// It is tried again after this time.
        again: Option<Duration>,
    },
    /// A version serves, and whether it is on probation.
    Loaded(Digest, bool),
    /// The file holds the version that serves, and whether people were shown another state before.
    ServesAgain(Digest, bool),
    /// A version that failed is in quarantine, with the reason. The log has a line for other news of it.
    Quarantined(Digest, String),
    /// The version in the file is in quarantine, or an operator has withdrawn it, with the reason.
    Refused(Digest, String),
    /// The last good version serves again, and whether a load has made it.
    Restored(Digest, bool),
    NotRestored(Digest, String, Option<Duration>),
    Confirmed(Digest),
    RolledBack {
        digest: Digest,
        good: Digest,
        why: String,
    },
    /// A version is out of quarantine by an operator's word.
    Lifted(Digest),
    /// A version was found to be bad after its file was removed, or after another one took over.
    BadAfterRemoval(Digest, String),
    BadAfterReplacement(Digest, String),
}
