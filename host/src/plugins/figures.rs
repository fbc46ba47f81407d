//! Counts what a plugin's versions do in this host.
//!
//! In: outcomes of attempts, reloads. Out: counters that the metrics and the announcer read as they are.
//!
//! Not here: when a reload is counted (`news`), counting requests and lines of logs (`sandbox`).

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

use crate::sandbox::Share;
use crate::task::Outcome;

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
}
