//! Holds all data of queues that Redis keeps. Each operation is a method of [`Queue`], and one script or one
//! command.
//!
//! In: a queue's configuration, tasks, settlements. Out: entries, statuses, dead letters, figures. Nothing
//! here loops over time or decides the outcome of a task: that is `worker`. Commands repeat nothing by
//! themselves, except to load a script. Not here: examining a whole queue and all of its keys (`doctor`,
//! which builds on this module).

pub mod cancel;
pub mod census;
pub mod claim;
pub mod codec;
pub mod dead;
pub mod delay;
pub mod duties;
pub mod error;
pub mod hosts;
pub mod keys;
pub mod link;
pub mod list;
pub mod pause;
pub mod produce;
pub mod rate;
pub(crate) mod reply;
pub mod schedule;
pub mod script;
pub mod server;
pub mod settle;
pub mod status;
pub mod upkeep;
pub mod wait;

use std::sync::Arc;
use std::time::Duration;

pub use census::Census;
pub use claim::{Begun, HeartbeatReport, Lease, Reclaimed, Start};
pub use codec::StreamEntry;
pub use dead::{DeadFilter, DeadLetter, Redriven};
pub use error::QueueError;
pub use link::{Link, Redis};
pub use produce::{Enqueued, NewTask};
pub use settle::{Ending, EndingSubject, Reason, SettleCall, Settled, Settlement};
pub use status::{Status, TaskStatus};

use crate::config;
use keys::QueueKeys;

/// After an outage every living host renews its leases within this time: it connects again within 4 seconds,
/// and its heartbeats are 2 seconds apart.
const HEARD_AGAIN: Duration = Duration::from_secs(6);

/// One queue in Redis. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Queue {
    pub rules: Arc<config::QueueRules>,
    pub(crate) keys: Arc<QueueKeys>,
    pub(crate) link: Link,
}

impl Queue {
    /// Does not connect yet. All queues may share `link`.
    pub fn new(rules: config::QueueRules, link: Link) -> Queue {
        let keys = Arc::new(QueueKeys::new(&rules.stream, rules.dead_letter.as_deref()));
        Queue { rules: Arc::new(rules), keys, link }
    }

    /// Whether Redis answered again only recently, after a silence in which leases may have ended. Living
    /// hosts have had no time yet to renew theirs, so a task that looks abandoned may not be.
    pub fn is_just_back(&self) -> bool {
        self.is_back_for_less_than(HEARD_AGAIN)
    }

    /// Whether there was a silence in which leases may have ended, and Redis has answered again for less than
    /// `time`.
    fn is_back_for_less_than(&self, time: Duration) -> bool {
        let is_long = |back: &link::Recovery| back.silence >= self.rules.lease / 2;
        self.link.recovery().is_some_and(|back| is_long(&back) && back.since.elapsed() < time)
    }

    /// Turns a reply of an unexpected shape into an error of the call `what`.
    pub(crate) fn shaped<T>(&self, what: &'static str, shaped: reply::Shaped<T>) -> Result<T, QueueError> {
        shaped.map_err(|reply::UnexpectedShape| QueueError::unexpected(what, self.link.address()))
    }
}

/// Whole milliseconds, rounded up, so that a short delay does not become zero.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
