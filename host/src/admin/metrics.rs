//! The figures of this host, as Prometheus scrapes them.
//!
//! In: what the loops count, through handles whose calls cost one atomic addition. Out: the text of a scrape
//! ([`Metrics::encode`]) and each queue's running totals ([`QueueMetrics::totals`]).
//! Every series of a queue exists, with 0, from the moment its handle is made.
//!
//! docs/operations.md says what each series means; a test checks that it names all of them.
//!
//! Not here: serving the text (`admin`), reading a queue's size from Redis (`worker::census`).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};
use serde::{Deserialize, Serialize};

use crate::task::SettledAs;

/// Upper bounds of the buckets in seconds, for durations and for waits.
const BUCKETS: [f64; 18] = [
    0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
    600.0,
];

/// The outcomes of a new version of a plugin: the values of the label `result`.
pub const RELOADS: [&str; 3] = ["ok", "failed", "rolled-back"];

/// The outcomes that end in the dead-letter stream.
const DEAD: [SettledAs; 5] = [
    SettledAs::Rejected,
    SettledAs::RetriesExhausted,
    SettledAs::DeferralsExhausted,
    SettledAs::Crashed,
    SettledAs::Malformed,
];

/// The label `outcome`.
fn label(outcome: SettledAs) -> &'static str {
    match outcome {
        SettledAs::Completed => "completed",
        SettledAs::Retried => "retried",
        SettledAs::Deferred => "deferred",
        SettledAs::Rejected => "rejected",
        SettledAs::RetriesExhausted => "retries-exhausted",
        SettledAs::DeferralsExhausted => "deferrals-exhausted",
        SettledAs::Crashed => "crashed",
        SettledAs::Malformed => "malformed",
        SettledAs::Released => "released",
        SettledAs::GivenBack => "given-back",
        SettledAs::Delayed => "delayed",
        SettledAs::Cancelled => "cancelled",
        SettledAs::Duplicate => "duplicate",
    }
}

/// How a call for several tasks ended: the label `result`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchResult {
    /// The handler gave a result for each task.
    Whole,
    /// The handler did not give a result for each task; each task was run again alone.
    Split,
}

impl BatchResult {
    const ALL: [BatchResult; 2] = [BatchResult::Whole, BatchResult::Split];

    fn as_str(self) -> &'static str {
        match self {
            BatchResult::Whole => "whole",
            BatchResult::Split => "apart",
        }
    }
}

/// Counts of what happened to a queue's tasks in this host since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    pub completed: u64,
    pub retried: u64,
    pub deferred: u64,
    /// All dead letters, whatever the reason.
    pub dead: u64,
    pub released: u64,
    pub reclaimed: u64,
    pub lease_lost: u64,
    pub lost_entries: u64,
}

/// One plugin as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginRow {
    pub plugin: String,
    pub version: String,
    pub state: String,
    /// Bytes; the most that one of its instances has used.
    pub peak_memory: u64,
    /// Each value of the label `result`, and how many requests of the handlers ended with it so far.
    pub requests: Vec<(&'static str, u64)>,
    /// Lines of its handlers that were dropped so far, because they logged more than `max_log_rate`.
    pub log_lines_dropped: u64,
}

/// All series of the process. Clones share them.
#[derive(Clone)]
pub struct Metrics(Arc<MetricFamilies>);

struct MetricFamilies {
    registry: Registry,
    tasks: Family<OutcomeLabels, Counter>,
    batches: Family<BatchLabels, Counter>,
    duration: Family<QueueLabels, Histogram, fn() -> Histogram>,
    wait: Family<QueueLabels, Histogram, fn() -> Histogram>,
    sizes: Family<StateLabels, Gauge>,
    oldest: Family<QueueLabels, Gauge<f64, std::sync::atomic::AtomicU64>>,
    lost_entries: Family<QueueLabels, Counter>,
    lease_lost: Family<QueueLabels, Counter>,
    reclaimed: Family<QueueLabels, Counter>,
    fetch_stalled: Family<QueueLabels, Gauge>,
    reloads: Family<ReloadLabels, Counter>,
    config_reloads: Family<ResultLabels, Counter>,
    reconnects: Counter,
    plugins: PluginSeries,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueueLabels {
    queue: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    queue: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BatchLabels {
    queue: String,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    queue: String,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReloadLabels {
    plugin: String,
    result: &'static str,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("tqhost");
        let r = &mut registry;
        let histogram: fn() -> Histogram = || Histogram::new(BUCKETS);
        let inner = MetricFamilies {
            tasks: add(r, "tasks", "Attempts settled, by what became of the task", Family::default()),
            batches: add(
                r,
                "batches",
                "Calls of a handler for several tasks, by how they ended",
                Family::default(),
            ),
            duration: add(
                r,
                "task_duration_seconds",
                "How long attempts ran",
                Family::new_with_constructor(histogram),
            ),
            wait: add(
                r,
                "task_wait_seconds",
                "How long tasks waited for an attempt",
                Family::new_with_constructor(histogram),
            ),
            sizes: add(r, "queue_tasks", "Tasks in each place", Family::default()),
            oldest: add(
                r,
                "queue_oldest_seconds",
                "Age of the oldest queued task, 0 if there is none",
                Family::default(),
            ),
            lost_entries: add(
                r,
                "lost_entries",
                "Pending entries that somebody else removed from the stream",
                Family::default(),
            ),
            lease_lost: add(
                r,
                "lease_lost",
                "Attempts stopped because another host took the task",
                Family::default(),
            ),
            reclaimed: add(r, "reclaimed", "Tasks taken over from a dead host", Family::default()),
            fetch_stalled: add(
                r,
                "fetch_stalled",
                "1 while the fetch loop makes no progress",
                Family::default(),
            ),
            reloads: add(r, "plugin_reloads", "Plugin versions tried", Family::default()),
            config_reloads: add(
                r,
                "config_reloads",
                "Changes of the configuration file, taken or refused",
                Family::default(),
            ),
            reconnects: add(
                r,
                "redis_reconnects",
                "Connections to Redis that were made again",
                Counter::default(),
            ),
            plugins: PluginSeries::default(),
            registry: Registry::default(),
        };
        registry.register_collector(Box::new(inner.plugins.clone()));
        Metrics(Arc::new(MetricFamilies { registry, ..inner }))
    }

    /// The handles of one queue. Another call with the same name gives handles of the same series.
    pub fn queue(&self, name: &str) -> QueueMetrics {
        let all = &*self.0;
        let queue = || name.to_owned();
        let labels = QueueLabels { queue: queue() };
        let size = |state| all.sizes.get_or_create_owned(&StateLabels { queue: queue(), state });
        QueueMetrics(Arc::new(QueueHandles {
            settled: SettledAs::ALL
                .map(|s| all.tasks.get_or_create_owned(&OutcomeLabels { queue: queue(), outcome: label(s) })),
            batches: BatchResult::ALL.map(|b| {
                all.batches.get_or_create_owned(&BatchLabels { queue: queue(), result: b.as_str() })
            }),
            duration: all.duration.get_or_create_owned(&labels),
            wait: all.wait.get_or_create_owned(&labels),
            sizes: [size("queued"), size("running"), size("delayed"), size("dead")],
            oldest: all.oldest.get_or_create_owned(&labels),
            lost_entries: all.lost_entries.get_or_create_owned(&labels),
            lease_lost: all.lease_lost.get_or_create_owned(&labels),
            reclaimed: all.reclaimed.get_or_create_owned(&labels),
            fetch_stalled: all.fetch_stalled.get_or_create_owned(&labels),
        }))
    }

    /// Removes the series of a queue that this host does not run any more. A handle that is left may still
    /// count; no scrape shows it.
    pub fn remove_queue(&self, name: &str) {
        let all = &*self.0;
        let queue = || name.to_owned();
        let labels = QueueLabels { queue: queue() };
        for outcome in SettledAs::ALL {
            all.tasks.remove(&OutcomeLabels { queue: queue(), outcome: label(outcome) });
        }
        for batch in BatchResult::ALL {
            all.batches.remove(&BatchLabels { queue: queue(), result: batch.as_str() });
        }
        for state in ["queued", "running", "delayed", "dead"] {
            all.sizes.remove(&StateLabels { queue: queue(), state });
        }
        all.duration.remove(&labels);
        all.wait.remove(&labels);
        all.oldest.remove(&labels);
        for counter in [&all.lost_entries, &all.lease_lost, &all.reclaimed] {
            counter.remove(&labels);
        }
        all.fetch_stalled.remove(&labels);
    }

    /// Counts a reload of the configuration, which was taken (`ok`) or refused.
    pub fn config_reload(&self, ok: bool) {
        let result = if ok { "ok" } else { "failed" };
        self.0.config_reloads.get_or_create_owned(&ResultLabels { result }).inc();
    }

    /// Counts a new version of a plugin; `result` is one of [`RELOADS`].
    pub fn plugin_reload(&self, plugin: &str, result: &'static str) {
        self.0.reloads.get_or_create_owned(&ReloadLabels { plugin: plugin.to_owned(), result }).inc();
    }

    /// Replaces the figures of all plugins. If a plugin has several rows, the last one counts.
    pub fn set_plugins(&self, rows: &[PluginRow]) {
        for row in rows {
            for result in RELOADS {
                self.0.reloads.get_or_create_owned(&ReloadLabels { plugin: row.plugin.clone(), result });
            }
        }
        let rows = rows.iter().map(|row| (row.plugin.clone(), row.clone())).collect();
        *self.0.plugins.0.lock().unwrap_or_else(PoisonError::into_inner) = rows;
    }

    pub fn redis_reconnected(&self) {
        self.0.reconnects.inc();
    }

    /// A scrape in the OpenMetrics text format.
    pub fn encode(&self) -> String {
        let mut out = String::new();
        if text::encode(&mut out, &self.0.registry).is_err() {
            // A scraper refuses a text without the closing `# EOF`.
            tracing::error!("the metrics could not be written as text");
        }
        out
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

fn add<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

/// The series of one queue. Clones share them.
#[derive(Debug, Clone)]
pub struct QueueMetrics(Arc<QueueHandles>);

#[derive(Debug)]
struct QueueHandles {
    settled: [Counter; SettledAs::ALL.len()],
    batches: [Counter; BatchResult::ALL.len()],
    duration: Histogram,
    wait: Histogram,
    /// queued, running, delayed, dead
    sizes: [Gauge; 4],
    oldest: Gauge<f64, std::sync::atomic::AtomicU64>,
    lost_entries: Counter,
    lease_lost: Counter,
    reclaimed: Counter,
    fetch_stalled: Gauge,
}

impl QueueMetrics {
    pub fn settled(&self, outcome: SettledAs) {
        self.0.settled[outcome as usize].inc();
    }

    /// Counts a call for several tasks.
    pub fn batch(&self, end: BatchResult) {
        self.0.batches[end as usize].inc();
    }

    /// Observes how long an attempt ran.
    pub fn duration(&self, ran: Duration) {
        self.0.duration.observe(ran.as_secs_f64());
    }

    /// Observes how long a task waited, from when it was due until its attempt.
    pub fn wait(&self, waited: Duration) {
        self.0.wait.observe(waited.as_secs_f64());
    }

    /// Sets how many tasks are in each place, and the age of the oldest queued task.
    pub fn census(&self, queued: u64, running: u64, delayed: u64, dead: u64, oldest: Option<Duration>) {
        for (gauge, value) in self.0.sizes.iter().zip([queued, running, delayed, dead]) {
            gauge.set(clamp(value));
        }
        self.0.oldest.set(oldest.unwrap_or_default().as_secs_f64());
    }

    pub fn lost_entries(&self, n: u64) {
        self.0.lost_entries.inc_by(n);
    }

    pub fn lease_lost(&self, n: u64) {
        self.0.lease_lost.inc_by(n);
    }

    pub fn reclaimed(&self, n: u64) {
        self.0.reclaimed.inc_by(n);
    }

    pub fn fetch_stalled(&self, stalled: bool) {
        self.0.fetch_stalled.set(i64::from(stalled));
    }

    pub fn totals(&self) -> Totals {
        let of = |outcome: SettledAs| self.0.settled[outcome as usize].get();
        Totals {
            completed: of(SettledAs::Completed),
            retried: of(SettledAs::Retried),
            deferred: of(SettledAs::Deferred),
            dead: DEAD.into_iter().map(of).sum(),
            released: of(SettledAs::Released),
            reclaimed: self.0.reclaimed.get(),
            lease_lost: self.0.lease_lost.get(),
            lost_entries: self.0.lost_entries.get(),
        }
    }
}

/// Series whose labels change (a plugin's version and state). Each scrape writes them from this list, so that
/// a former version leaves nothing behind.
#[derive(Debug, Clone, Default)]
struct PluginSeries(Arc<Mutex<BTreeMap<String, PluginRow>>>);

impl Collector for PluginSeries {
    fn encode(&self, mut out: DescriptorEncoder) -> fmt::Result {
        let rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if rows.is_empty() {
            return Ok(());
        }
        let help = "The version in use of each plugin, and its state";
        let mut info = out.encode_descriptor("plugin_info", help, None, MetricType::Gauge)?;
        for row in rows.values() {
            let labels = [
                ("plugin", row.plugin.as_str()),
                ("version", row.version.as_str()),
                ("state", row.state.as_str()),
            ];
            info.encode_family(&labels)?.encode_gauge(&1i64)?;
        }
        let help = "The most memory that one instance of the plugin has used";
        let mut memory = out.encode_descriptor("guest_memory_bytes", help, None, MetricType::Gauge)?;
        for row in rows.values() {
            memory
                .encode_family(&[("plugin", row.plugin.as_str())])?
                .encode_gauge(&clamp(row.peak_memory))?;
        }
        let help = "Requests of the plugin's handlers, by what became of them";
        let mut requests = out.encode_descriptor("http_requests", help, None, MetricType::Counter)?;
        for row in rows.values() {
            for (result, count) in &row.requests {
                let labels = [("plugin", row.plugin.as_str()), ("result", *result)];
                requests.encode_family(&labels)?.encode_counter::<NoLabelSet, _, f64>(count, None)?;
            }
        }
        let help =
            "Log lines of the plugin's handlers that were dropped, since they logged more than max_log_rate";
        let mut dropped =
            out.encode_descriptor("guest_log_lines_dropped", help, None, MetricType::Counter)?;
        for row in rows.values() {
            let labels = [("plugin", row.plugin.as_str())];
            dropped
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, _, f64>(&row.log_lines_dropped, None)?;
        }
        Ok(())
    }
}

fn clamp(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
