//! Counts what happens to the tasks of one queue in this host.
//!
//! In: what the loops of the queue count; a count costs one atomic addition. Out: the counts, and the queue's
//! latest census.
//!
//! Not here: the series that show them (`crate::metrics`), reading the census from Redis (`census`).

use std::sync::{Mutex, MutexGuard, PoisonError};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use strum::{EnumCount as _, VariantArray as _};

use crate::queue::{Census, Reason};
use crate::task::SettledAs;

/// Upper bounds of the buckets in seconds, for durations and for waits.
const BUCKETS: [f64; 18] = [
    0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
    600.0,
];

/// The counts of one queue. They outlive a worker that is replaced because the queue's rules changed.
#[derive(Debug)]
pub(crate) struct QueueMetrics {
    settled: [Counter; SettledAs::COUNT],
    /// Calls for several tasks that gave a result for each task.
    pub whole_batches: Counter,
    /// Calls for several tasks that did not; each task was run again alone.
    pub split_batches: Counter,
    /// How many seconds attempts ran.
    pub duration: Histogram,
    /// How many seconds tasks waited, from when they were due until their attempt.
    pub wait: Histogram,
    pub lost_entries: Counter,
    pub lease_lost: Counter,
    pub reclaimed: Counter,
    /// 1 while the queue is held, as far as this host knows.
    pub held: Gauge,
    census: Mutex<Census>,
}

impl Default for QueueMetrics {
    fn default() -> QueueMetrics {
        QueueMetrics {
            settled: Default::default(),
            whole_batches: Counter::default(),
            split_batches: Counter::default(),
            duration: Histogram::new(BUCKETS),
            wait: Histogram::new(BUCKETS),
            lost_entries: Counter::default(),
            lease_lost: Counter::default(),
            reclaimed: Counter::default(),
            held: Gauge::default(),
            census: Mutex::default(),
        }
    }
}

impl QueueMetrics {
    /// Counts a settlement.
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

    /// The queue's latest census; the census taker replaces it.
    pub(crate) fn census(&self) -> MutexGuard<'_, Census> {
        self.census.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
