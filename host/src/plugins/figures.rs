//! Counts what a plugin's versions do in this host.
//!
//! In: outcomes of attempts, reloads. Out: counters, which the metrics and the announcer read. Attempts are
//! also counted for each of the last few versions, and of these for each queue.
//!
//! Not here: when a reload is counted (`news`), counting requests and lines of logs (`sandbox`).

use std::array;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use strum::{EnumCount as _, VariantArray as _};

use crate::guarded::Guarded;
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
    /// The most bytes that an instance has used.
    pub peak_memory: Gauge<u64, AtomicU64>,
    /// Counts requests, and the lines that were dropped from the log.
    pub share: Arc<Share>,
    /// The newest last.
    versions: Guarded<VecDeque<Arc<VersionFigures>>>,
}

/// How many versions of a plugin have counts. Those of older versions are forgotten.
pub(crate) const VERSIONS: usize = 3;

/// The attempts of one version in this host, by how they ended.
#[derive(Debug)]
pub(crate) struct VersionFigures {
    /// The first 12 digits of its digest.
    pub digest: String,
    queues: Guarded<CountedQueues>,
}

#[derive(Debug, Default)]
struct CountedQueues {
    /// The counts of each queue.
    present: Vec<Arc<AttemptCounts>>,
    /// The sum of the counts of queues that are gone.
    gone: [u64; AttemptEnd::COUNT],
}

/// The attempts of one version at the tasks of one queue.
#[derive(Debug, Default)]
pub(crate) struct AttemptCounts {
    ends: [AtomicU64; AttemptEnd::COUNT],
    ran_us: AtomicU64,
}

impl AttemptCounts {
    pub(crate) fn record(&self, end: AttemptEnd, ran: Duration) {
        self.ends[end as usize].fetch_add(1, Ordering::Relaxed);
        let us = u64::try_from(ran.as_micros()).unwrap_or(u64::MAX);
        self.ran_us.fetch_add(us, Ordering::Relaxed);
    }

    /// The attempts by how they ended, in the order of [`AttemptEnd::VARIANTS`](strum::VariantArray).
    pub(crate) fn ends(&self) -> [u64; AttemptEnd::COUNT] {
        array::from_fn(|at| self.ends[at].load(Ordering::Relaxed))
    }

    /// The sum of the times that the attempts ran, in microseconds.
    pub(crate) fn ran_us(&self) -> u64 {
        self.ran_us.load(Ordering::Relaxed)
    }
}

impl VersionFigures {
    pub(crate) fn new(digest: &str) -> VersionFigures {
        VersionFigures { digest: digest.to_owned(), queues: Guarded::default() }
    }

    /// The number of attempts that ended like this.
    pub(crate) fn attempts(&self, end: AttemptEnd) -> u64 {
        let queues = self.queues.lock();
        let present = queues.present.iter().map(|counts| counts.ends()[end as usize]);
        present.sum::<u64>() + queues.gone[end as usize]
    }

    /// The attempts by which the version is judged, and how many of them failed. A deferred one, and one that
    /// found a service down, say nothing about the version.
    pub(crate) fn judged(&self) -> (u64, u64) {
        judged(|end| self.attempts(end))
    }

    /// Counts that begin at 0, for a queue that has none yet.
    pub(crate) fn counts(&self) -> Arc<AttemptCounts> {
        let mut queues = self.queues.lock();
        let CountedQueues { present, gone } = &mut *queues;
        // Counts that nobody else holds are those of queues that are gone.
        for counts in present.extract_if(.., |counts| Arc::strong_count(counts) == 1) {
            gone.iter_mut().zip(counts.ends()).for_each(|(sum, count)| *sum += count);
        }
        let counts = Arc::<AttemptCounts>::default();
        present.push(counts.clone());
        counts
    }
}

/// The number of attempts by which a version is judged, and how many of these failed. `count` returns the
/// number of attempts that ended in one way.
pub(crate) fn judged(count: impl Fn(AttemptEnd) -> u64) -> (u64, u64) {
    let sum = |fails: Option<bool>| -> u64 {
        AttemptEnd::VARIANTS.iter().filter(|end| is_failure(**end) == fails).map(|end| count(*end)).sum()
    };
    let failed = sum(Some(true));
    (failed + sum(Some(false)), failed)
}

/// Whether an attempt that ended like this failed. `None`: the end says nothing about the version.
fn is_failure(end: AttemptEnd) -> Option<bool> {
    match end {
        AttemptEnd::Completed => Some(false),
        AttemptEnd::Retried
        | AttemptEnd::Rejected
        | AttemptEnd::Trapped
        | AttemptEnd::TimedOut
        | AttemptEnd::OutOfMemory
        | AttemptEnd::Failed => Some(true),
        AttemptEnd::Deferred | AttemptEnd::Unavailable => None,
    }
}

impl Figures {
    /// Counts an attempt at a task. It counts as a failure if the sandbox ended it, and not if the handler
    /// reported an error.
    pub(super) fn record(&self, outcome: &Outcome) {
        self.attempts.inc();
        if matches!(outcome, Outcome::Failed { .. }) {
            self.failures.inc();
        }
    }

    /// The counts of the version with this digest. Each call returns the same counts, until the version is
    /// forgotten.
    pub(crate) fn version(&self, digest: &str) -> Arc<VersionFigures> {
        let mut versions = self.versions.lock();
        let known = versions.iter().position(|version| version.digest == digest);
        let version =
            known.and_then(|at| versions.remove(at)).unwrap_or_else(|| Arc::new(VersionFigures::new(digest)));
        versions.push_back(version.clone());
        if versions.len() > VERSIONS {
            versions.pop_front();
        }
        version
    }

    /// The counts of the version with this digest, in full or its first 12 digits, if they are not forgotten.
    pub(crate) fn counted(&self, digest: &str) -> Option<Arc<VersionFigures>> {
        self.versions.lock().iter().find(|version| digest.starts_with(&version.digest)).cloned()
    }

    /// The versions whose attempts are counted, the newest last.
    pub(crate) fn versions(&self) -> Vec<Arc<VersionFigures>> {
        self.versions.lock().iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_few_versions_are_counted() {
        let figures = Figures::default();
        let digests = || figures.versions().iter().map(|version| version.digest.clone()).collect::<Vec<_>>();
        let first = figures.version("a").counts();
        first.record(AttemptEnd::Rejected, Duration::ZERO);
        figures.version("b");
        figures.version("a");
        assert_eq!(digests(), ["b", "a"]);
        assert_eq!(figures.version("a").attempts(AttemptEnd::Rejected), 1);
        figures.version("c");
        figures.version("d");
        assert_eq!(digests(), ["a", "c", "d"]);
    }

    #[test]
    fn a_version_is_judged_by_its_own_attempts_and_not_by_deferrals_and_services() {
        let figures = Figures::default();
        let (bad, good) = (figures.version("aaaaaaaaaaaa"), figures.version("bbbbbbbbbbbb"));
        let counts = bad.counts();
        AttemptEnd::VARIANTS.iter().for_each(|end| counts.record(*end, Duration::ZERO));
        assert_eq!(bad.judged(), (7, 6));
        assert_eq!(good.judged(), (0, 0));
        let of = |digest| figures.counted(digest).map(|version| version.judged());
        assert_eq!((of("aaaaaaaaaaaa0123"), of("cccccccccccc0123")), (Some((7, 6)), None));
    }

    #[test]
    fn the_counts_of_queues_that_are_gone_stay_in_the_sum() {
        let version = VersionFigures::new("a");
        let count = |times: u64| {
            let counts = version.counts();
            (0..times).for_each(|_| counts.record(AttemptEnd::Trapped, Duration::from_millis(3)));
            counts
        };
        let (first, second) = (count(2), count(3));
        assert_eq!((first.ends()[AttemptEnd::Trapped as usize], first.ran_us()), (2, 6000));
        drop(first);
        let third = count(1);
        assert_eq!(version.attempts(AttemptEnd::Trapped), 6);
        assert_eq!(version.queues.lock().present.len(), 2);
        drop((second, third));
    }
}
