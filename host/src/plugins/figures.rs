//! Counts what a plugin's versions do in this host.
//!
//! In: outcomes of attempts, reloads. Out: counters that the metrics and the announcer read as they are. The
//! attempts are also counted for each of the last few versions.
//!
//! Not here: when a reload is counted (`news`), counting requests and lines of logs (`sandbox`).

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use strum::EnumCount as _;

use crate::sandbox::Share;
use crate::task::{AttemptEnd, Outcome};

/// The counts of one plugin in this host since its start, over all of its versions.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub attempts: Counter,
    pub failures: Counter,
    /// Versions that were taken, versions that were refused, and versions that were rolled back.
    pub reloads: Counter,
    pub failed_reloads: Counter,
    pub rolled_back: Counter,
    /// Bytes; the most that one of its instances has used.
    pub peak_memory: Gauge<u64, AtomicU64>,
    /// Counts its requests, and the lines that were dropped from its log.
    pub share: Arc<Share>,
    /// The newest last.
    versions: Mutex<VecDeque<Arc<VersionFigures>>>,
}

/// Versions of a plugin whose attempts are counted. An older one is forgotten.
pub(crate) const VERSIONS: usize = 3;

/// The attempts of one version in this host, by how they ended.
#[derive(Debug)]
pub(crate) struct VersionFigures {
    /// The first 12 digits of its digest.
    pub digest: String,
    attempts: [Counter; AttemptEnd::COUNT],
}

impl VersionFigures {
    pub(crate) fn attempts(&self, end: AttemptEnd) -> &Counter {
        &self.attempts[end as usize]
    }

    /// Counts one attempt.
    pub(super) fn record(&self, outcome: &Outcome) {
        self.attempts(AttemptEnd::from(outcome)).inc();
    }
}

impl Figures {
    /// Counts one attempt at one task; a failure is one that the sandbox ended, not one that the handler
    /// reported.
    pub(super) fn record(&self, outcome: &Outcome) {
        self.attempts.inc();
        if matches!(outcome, Outcome::Failed { .. }) {
            self.failures.inc();
        }
    }

    /// The counts of the version with this digest; the same ones at each call, until it is forgotten. All of
    /// them exist from now on.
    pub(crate) fn version(&self, digest: &str) -> Arc<VersionFigures> {
        let mut versions = self.lock();
        let known = versions.iter().position(|version| version.digest == digest);
        let version = known.and_then(|at| versions.remove(at)).unwrap_or_else(|| {
            Arc::new(VersionFigures { digest: digest.to_owned(), attempts: Default::default() })
        });
        versions.push_back(version.clone());
        if versions.len() > VERSIONS {
            versions.pop_front();
        }
        version
    }

    /// The versions whose attempts are counted, the newest last.
    pub(crate) fn versions(&self) -> Vec<Arc<VersionFigures>> {
        self.lock().iter().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<VersionFigures>>> {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_few_versions_are_counted() {
        let figures = Figures::default();
        let digests = || figures.versions().iter().map(|version| version.digest.clone()).collect::<Vec<_>>();
        let first = figures.version("a");
        first.record(&Outcome::Reject { message: String::new() });
        figures.version("b");
        figures.version("a");
        assert_eq!(digests(), ["b", "a"]);
        assert_eq!(figures.version("a").attempts(AttemptEnd::Rejected).get(), 1);
        figures.version("c");
        figures.version("d");
        assert_eq!(digests(), ["a", "c", "d"]);
    }
}
