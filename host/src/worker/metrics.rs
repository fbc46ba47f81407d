//! Counts what happens to the tasks of one queue in this host.
//!
//! In: what the loops of the queue count; a count costs one atomic addition, or a short lock for a version.
//! Out: the counts, and the queue's latest census.
//!
//! Not here: the series that show them (`crate::metrics`), the history that is made of them (`recorder`),
//! reading the census from Redis (`census`).

use std::array;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use strum::{EnumCount as _, VariantArray as _};

use crate::config::Config;
use crate::config::model::HistogramForm;
use crate::guarded::Guarded;
use crate::plugins::figures::{AttemptCounts, VersionFigures};
use crate::queue::tally::{BOUNDS, MAX_VERSIONS, Tally, TimeBuckets, VersionTally};
use crate::queue::{Census, Reason};
use crate::task::{AttemptEnd, SettledAs};

/// A scrape shows the buckets up to this many seconds, and more for a queue with a longer timeout.
const ALWAYS_SHOWN: f64 = 600.0;

/// The bounds of the few buckets: some of [`BOUNDS`].
const FEW_BOUNDS: [f64; 10] = [0.01, 0.1, 1.0, 10.0, 60.0, ALWAYS_SHOWN, 1800.0, 3600.0, 21_600.0, 86_400.0];

/// With more queues, a host has few buckets, unless its configuration says otherwise.
const MANY_QUEUES: usize = 100;

/// The form of the histograms in a host with this configuration.
pub(crate) fn histogram_form(config: &Config) -> HistogramForm {
    let by_size = if config.queues.len() > MANY_QUEUES { HistogramForm::Few } else { HistogramForm::Full };
    config.admin.histograms.unwrap_or(by_size)
}

/// The counts of one queue. They outlive a worker that is replaced because the queue's rules changed.
#[derive(Debug, Default)]
pub(crate) struct QueueMetrics {
    settled: [Counter; SettledAs::COUNT],
    /// Calls for several tasks that gave a result for each task.
    pub whole_batches: Counter,
    /// Calls for several tasks that failed as a whole. Each task was run again alone.
    pub split_batches: Counter,
    /// How many seconds attempts ran.
    pub duration: TimeHistogram,
    /// How many seconds tasks waited, from when they were due until their attempt.
    pub wait: TimeHistogram,
    /// How long an attempt may run, in milliseconds.
    timeout_ms: AtomicU64,
    pub lost_entries: Counter,
    pub lease_lost: Counter,
    pub reclaimed: Counter,
    /// 1 while the queue is held, as far as this host knows.
    pub held: Gauge,
    census: Guarded<Census>,
    has_census: AtomicBool,
    /// The counts of attempts on the last versions: [`MAX_VERSIONS`] at most.
    versions: Guarded<Vec<CountedVersion>>,
}

/// A version, and the part of its figures that is this queue's.
#[derive(Debug)]
struct CountedVersion {
    figures: Arc<VersionFigures>,
    /// [`Version::label`](crate::plugins::Version::label).
    label: Arc<str>,
    counts: Arc<AttemptCounts>,
}

/// Counts times in the buckets of [`BOUNDS`].
#[derive(Debug)]
pub(crate) struct TimeHistogram {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    sum_us: AtomicU64,
}

impl Default for TimeHistogram {
    fn default() -> TimeHistogram {
        TimeHistogram { buckets: array::from_fn(|_| AtomicU64::new(0)), sum_us: AtomicU64::new(0) }
    }
}

impl TimeHistogram {
    pub(crate) fn observe(&self, time: Duration) {
        self.buckets[TimeBuckets::bucket(time.as_secs_f64())].fetch_add(1, Ordering::Relaxed);
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    fn times(&self) -> TimeBuckets {
        TimeBuckets(array::from_fn(|at| self.buckets[at].load(Ordering::Relaxed)))
    }

    fn scraped(&self, bounds: &'static [f64]) -> ScrapedTimes {
        ScrapedTimes { times: self.times(), sum_us: self.sum_us.load(Ordering::Relaxed), bounds }
    }
}

/// The bounds that a scrape shows of a queue with this timeout: up to the first one that is not shorter.
fn bounds(form: HistogramForm, timeout: Duration) -> &'static [f64] {
    let all = if form == HistogramForm::Few { &FEW_BOUNDS[..] } else { &BOUNDS[..] };
    let longest = timeout.as_secs_f64().max(ALWAYS_SHOWN);
    let shorter = all.partition_point(|bound| *bound < longest);
    &all[..all.len().min(shorter + 1)]
}

/// Times of one queue, or of all queues of a host, in the buckets that are shown.
#[derive(Debug, Clone)]
pub(crate) struct ScrapedTimes {
    times: TimeBuckets,
    sum_us: u64,
    /// Some of [`BOUNDS`].
    bounds: &'static [f64],
}

impl ScrapedTimes {
    /// The times of both, with the bounds of the one that has more.
    pub(crate) fn with(mut self, other: ScrapedTimes) -> ScrapedTimes {
        if other.bounds.len() > self.bounds.len() {
            self.bounds = other.bounds;
        }
        self.times.0.iter_mut().zip(other.times.0).for_each(|(own, other)| *own += other);
        self.sum_us += other.sum_us;
        self
    }
}

impl EncodeMetric for ScrapedTimes {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let mut buckets: Vec<(f64, u64)> = self.bounds.iter().map(|bound| (*bound, 0)).collect();
        buckets.push((f64::INFINITY, 0));
        for (at, count) in self.times.0.iter().enumerate() {
            let bound = BOUNDS.get(at).copied().unwrap_or(f64::INFINITY);
            let shown = buckets.iter_mut().find(|(upper, _)| bound <= *upper);
            shown.expect("infinity is the last bound").1 += count;
        }
        encoder.encode_histogram::<NoLabelSet>(self.sum_us as f64 / 1e6, self.times.count(), &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

impl QueueMetrics {
    /// Notes how long an attempt may run, from now on.
    pub(crate) fn set_timeout(&self, timeout: Duration) {
        let ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        self.timeout_ms.store(ms, Ordering::Relaxed);
    }

    /// How long attempts ran, and how long tasks waited, as a scrape shows these times.
    pub(crate) fn scraped(&self, form: HistogramForm) -> [ScrapedTimes; 2] {
        let timeout = Duration::from_millis(self.timeout_ms.load(Ordering::Relaxed));
        [&self.duration, &self.wait].map(|times| times.scraped(bounds(form, timeout)))
    }

    pub(crate) fn settled(&self, outcome: SettledAs) {
        self.settlements(outcome).inc();
    }

    /// How often tasks were settled in this way.
    pub(crate) fn settlements(&self, outcome: SettledAs) -> &Counter {
        &self.settled[outcome as usize]
    }

    /// All dead letters, whatever the reason.
    pub(crate) fn dead(&self) -> u64 {
        Reason::VARIANTS.iter().map(|reason| self.settlements((*reason).into()).get()).sum()
    }

    /// Counts an attempt on a version, for a scrape and for the history. Drops the counts of the oldest
    /// version if there are too many.
    pub(crate) fn attempted(
        &self,
        figures: &Arc<VersionFigures>,
        label: &Arc<str>,
        end: AttemptEnd,
        ran: Duration,
    ) {
        let mut versions = self.versions.lock();
        let known = versions.iter().rposition(|known| Arc::ptr_eq(&known.figures, figures));
        let at = known.unwrap_or_else(|| {
            if versions.len() == MAX_VERSIONS {
                versions.remove(0);
            }
            let (figures, label, counts) = (figures.clone(), label.clone(), figures.counts());
            versions.push(CountedVersion { figures, label, counts });
            versions.len() - 1
        });
        versions[at].counts.record(end, ran);
    }

    /// The versions of the plugin with their counts, the newest last. One may be there twice, if it came back
    /// after others.
    pub(crate) fn versions(&self) -> Vec<(Arc<str>, Arc<AttemptCounts>)> {
        let versions = self.versions.lock();
        versions.iter().map(|version| (version.label.clone(), version.counts.clone())).collect()
    }

    /// All counts for the history.
    pub(crate) fn tally(&self) -> Tally {
        let mut versions: BTreeMap<String, VersionTally> = BTreeMap::new();
        for (label, counts) in self.versions() {
            let counted = VersionTally { ends: counts.ends(), ran_us: counts.ran_us() };
            versions.entry(label.to_string()).or_default().add(&counted);
        }
        Tally {
            settled: array::from_fn(|at| self.settled[at].get()),
            waited: self.wait.times(),
            ran: self.duration.times(),
            versions,
        }
    }

    pub(crate) fn note_census(&self, census: Census) {
        *self.census() = census;
        self.has_census.store(true, Ordering::Release);
    }

    /// Whether there was a census.
    pub(crate) fn has_census(&self) -> bool {
        self.has_census.load(Ordering::Acquire)
    }

    /// The queue's latest census.
    pub(crate) fn census(&self) -> MutexGuard<'_, Census> {
        self.census.lock()
    }
}
