//! All series of this host, as Prometheus scrapes them: their names, labels and values.
//!
//! In: the parts of the host that have figures ([`Sources`]): queues, health, reloads of the configuration,
//! connections to Redis, plugins. Out: a registry that reads them at each scrape. Nothing is copied in
//! between, so a queue, plugin or version that is gone leaves no series behind.
//!
//! docs/monitoring.md says what each series means; a test checks that it names all of them.
//!
//! Not here: counting (`worker::metrics`, `plugins::figures`), serving the text (`admin`).

mod alarms;
mod process;

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use strum::VariantArray as _;

use crate::admin::{Health, RefusedTokens};
use crate::plugins::figures::VersionFigures;
use crate::plugins::{PluginStatus, Plugins};
use crate::queue::Redis;
use crate::reload::ConfigReloads;
use crate::task::{AttemptEnd, SettledAs};
use crate::telemetry::Traces;
use crate::worker::capacity::Capacity;
use crate::worker::workers::QueueBoard;
pub(crate) use alarms::AlarmBoard;
pub(crate) use process::resident;
use process::{Process, write_one};

/// The parts of the host that have figures.
pub(crate) struct Sources {
    pub board: QueueBoard,
    pub capacity: Capacity,
    pub health: Health,
    pub reloads: ConfigReloads,
    pub redis: Redis,
    pub plugins: Plugins,
    pub traces: Traces,
    pub refused: RefusedTokens,
    pub alarms: AlarmBoard,
}

impl Sources {
    pub(crate) fn registry(self) -> Registry {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Process::new()));
        registry.sub_registry_with_prefix("tqhost").register_collector(Box::new(self));
        registry
    }

    /// Every series of a queue exists, with 0, from the moment the queue's worker is made.
    fn queues(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let all = self.board.metrics();
        let mut out = SeriesWriter { out, label: "queue", all: &all, name: |(name, _)| name };
        out.write("tasks", "Attempts settled, by what became of the task.", |(_, queue)| {
            SettledAs::VARIANTS
                .iter()
                .map(move |outcome| ([("outcome", outcome.into_str())], queue.settlements(*outcome).clone()))
        })?;
        out.write("batches", "Calls of a handler for several tasks, by how they ended.", |(_, queue)| {
            [("whole", &queue.whole_batches), ("apart", &queue.split_batches)]
                .map(|(result, count)| ([("result", result)], count.clone()))
        })?;
        out.write("queue_tasks", "Tasks in each place.", |(_, queue)| {
            let census = queue.census();
            [
                ("queued", census.waiting()),
                ("running", census.running),
                ("delayed", census.delayed),
                ("held", census.held_tasks),
                ("dead", census.dead),
            ]
            .map(|(state, tasks)| ([("state", state)], ConstGauge::new(tasks)))
        })?;
        let help = "Age of the oldest queued task, 0 if there is none.";
        out.write_each("queue_oldest_seconds", help, |(_, queue)| {
            ConstGauge::new(queue.census().oldest.unwrap_or_default().as_secs_f64())
        })?;
        let help = "1 while the queue is paused.";
        out.write_each("queue_paused", help, |(_, queue)| {
            ConstGauge::new(i64::from(queue.census().pause.is_some()))
        })?;
        let help = "1 while the queue waits because something outside is down.";
        out.write_each("queue_held", help, |(_, queue)| queue.held.clone())?;
        let help = "Pending entries that somebody else removed from the stream.";
        out.write_each("lost_entries", help, |(_, queue)| queue.lost_entries.clone())?;
        let help = "Attempts stopped because another host took the task.";
        out.write_each("lease_lost", help, |(_, queue)| queue.lease_lost.clone())?;
        let help = "Tasks taken over from a dead host.";
        out.write_each("reclaimed", help, |(_, queue)| queue.reclaimed.clone())
    }

    /// One pair of histograms for each queue, or for all of them together.
    fn histograms(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let all = self.board.times();
        let mut out = SeriesWriter { out, label: "queue", all: &all, name: |(queue, _)| queue };
        out.write_each("task_duration_seconds", "How long attempts ran.", |(_, [ran, _])| ran.clone())?;
        let help = "How long tasks waited for an attempt.";
        out.write_each("task_wait_seconds", help, |(_, [_, waited])| waited.clone())
    }

    /// The attempts that this host can run at once, and those that it runs.
    fn work(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let all = self.board.queues();
        let wanted: u64 = all.iter().map(|queue| u64::from(queue.queue.rules.concurrency)).sum();
        let capacity = self.capacity.limit().map_or(wanted, |most| wanted.min(most as u64));
        let help = "Attempts that may run at once in this host, of all queues together.";
        write_one(out, "capacity", help, &ConstGauge::new(capacity))?;
        let mut out = SeriesWriter { out, label: "queue", all: &all, name: |queue| &queue.name };
        out.write_each("queue_concurrency", "Attempts that may run at once in this host.", |queue| {
            ConstGauge::new(u64::from(queue.queue.rules.concurrency))
        })?;
        out.write_each("queue_attempts", "Attempts that run in this host, or are being settled.", |queue| {
            ConstGauge::new(queue.running() as u64)
        })?;
        let help = "Age of the oldest attempt in this host, 0 if there is none.";
        out.write_each("queue_oldest_attempt_seconds", help, |queue| {
            ConstGauge::new(queue.oldest().as_secs_f64())
        })
    }

    fn health(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let report = self.health.report();
        let help = "1 while the host is ready, as /readyz says.";
        write_one(out, "ready", help, &ConstGauge::new(i64::from(report.ready)))?;
        let queues = report.queues;
        let mut out = SeriesWriter { out, label: "queue", all: &queues, name: |queue| &queue.queue };
        let help = "1 while the fetch loop makes no progress, and the host does not stop.";
        out.write_each("fetch_stalled", help, |queue| ConstGauge::new(i64::from(!queue.ok)))?;
        let help = "1 while this host would take a task of the queue.";
        out.write_each("queue_ready", help, |queue| ConstGauge::new(i64::from(queue.takes_tasks())))
    }

    fn config(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let all = [("ok", &self.reloads.taken), ("failed", &self.reloads.refused)];
        let mut out = SeriesWriter { out, label: "result", all: &all, name: |(result, _)| result };
        let help = "Changes of the configuration file, taken or refused.";
        out.write_each("config_reloads", help, |(_, count)| (*count).clone())
    }

    fn alarms(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let all: Vec<_> = self.alarms.scrape().into_iter().collect();
        let mut out = SeriesWriter { out, label: "kind", all: &all, name: |((kind, ..), _)| kind };
        let help = "Alarms of the dashboard, by kind, queue (empty: of none) and severity (urgent, look).";
        out.write("alarm", help, |((_, queue, severity), count)| {
            [([("queue", queue.as_str()), ("severity", severity)], ConstGauge::new(*count))]
        })
    }

    fn traces(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let all = self.traces.counts();
        let mut out = SeriesWriter { out, label: "result", all: &all, name: |(result, _)| result };
        out.write_each("trace_spans", "Spans of traces, by what became of them.", |(_, count)| {
            ConstCounter::new(*count)
        })?;
        let help = "Traces that were left out because more began in one second than telemetry.max_traces.";
        write_one(out.out, "traces_left_out", help, &ConstCounter::new(self.traces.left_out()))
    }

    fn refused(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Requests and logins with a wrong token of [admin].";
        write_one(out, "refused_tokens", help, self.refused.count())
    }

    fn redis(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Connections to Redis that were made again.";
        write_one(out, "redis_reconnects", help, &ConstCounter::new(self.redis.reconnects()))?;
        let all = [env!("CARGO_PKG_VERSION")];
        let mut out = SeriesWriter { out, label: "version", all: &all, name: |version| version };
        out.write_each("build_info", "The version of tqhost that runs.", |_| ConstGauge::new(1i64))
    }

    fn plugins(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let all = self.plugins.status();
        let mut out = SeriesWriter { out, label: "plugin", all: &all, name: |plugin| &plugin.name };
        out.write("plugin_reloads", "Plugin versions tried.", |plugin| {
            let figures = &plugin.figures;
            [
                ("ok", &figures.reloads),
                ("failed", &figures.failed_reloads),
                ("rolled-back", &figures.rolled_back),
            ]
            .map(|(result, count)| ([("result", result)], count.clone()))
        })?;
        out.write("plugin_info", "The version in use of each plugin, and its state", |plugin| {
            let version = plugin.digest.as_deref().unwrap_or_default();
            [([("version", version), ("state", plugin.state.into_str())], ConstGauge::new(1i64))]
        })?;
        self.attempts(out.out, &all)?;
        let mut out = SeriesWriter { out: out.out, label: "plugin", all: &all, name: |plugin| &plugin.name };
        let help = "The most memory that one instance of the plugin has used";
        out.write_each("guest_memory_bytes", help, |plugin| plugin.figures.peak_memory.clone())?;
        let help = "Requests of the plugin's handlers, by what became of them";
        out.write("http_requests", help, |plugin| {
            let totals = plugin.figures.share.requests.totals();
            totals.map(|(result, count)| ([("result", result)], ConstCounter::new(count)))
        })?;
        let help =
            "Log lines of the plugin's handlers that were dropped, since they logged more than max_log_rate";
        out.write_each("guest_log_lines_dropped", help, |plugin| {
            ConstCounter::new(plugin.figures.share.lines_dropped())
        })
    }

    /// The attempts of the last few versions of each plugin.
    fn attempts(&self, out: &mut DescriptorEncoder<'_>, plugins: &[PluginStatus]) -> fmt::Result {
        let of_plugin = |plugin: &PluginStatus| -> Vec<(String, Arc<VersionFigures>)> {
            let versions = plugin.figures.versions();
            versions.into_iter().map(|version| (plugin.name.to_string(), version)).collect()
        };
        let all: Vec<_> = plugins.iter().flat_map(of_plugin).collect();
        let mut out = SeriesWriter { out, label: "plugin", all: &all, name: |(plugin, _)| plugin };
        out.write("plugin_attempts", "Attempts of a version, by how they ended.", |(_, version)| {
            AttemptEnd::VARIANTS.iter().map(move |end| {
                let labels = [("version", version.digest.as_str()), ("outcome", end.into_str())];
                (labels, ConstCounter::new(version.attempts(*end)))
            })
        })
    }
}

impl Collector for Sources {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> fmt::Result {
        self.queues(&mut out)?;
        self.histograms(&mut out)?;
        self.work(&mut out)?;
        self.health(&mut out)?;
        self.config(&mut out)?;
        self.redis(&mut out)?;
        self.refused(&mut out)?;
        self.traces(&mut out)?;
        self.alarms(&mut out)?;
        self.plugins(&mut out)
    }
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sources")
    }
}

/// Writes series about things of one kind, such as the queues.
struct SeriesWriter<'p, 'o, T> {
    out: &'p mut DescriptorEncoder<'o>,
    /// The label that names the thing.
    label: &'static str,
    name: fn(&T) -> &str,
    all: &'p [T],
}

impl<'p, T> SeriesWriter<'p, '_, T> {
    /// Writes one series for each thing.
    fn write_each<M: EncodeMetric>(
        &mut self,
        name: &str,
        help: &str,
        read: impl Fn(&'p T) -> M,
    ) -> fmt::Result {
        self.write(name, help, |thing| [([], read(thing))])
    }

    /// Writes the series that `read` returns for each thing: further labels, and the value. Writes nothing if
    /// there are no series.
    fn write<M: EncodeMetric, S, const LABELS: usize>(
        &mut self,
        name: &str,
        help: &str,
        read: impl Fn(&'p T) -> S,
    ) -> fmt::Result
    where
        S: IntoIterator<Item = ([(&'static str, &'p str); LABELS], M)>,
    {
        let named = |thing| read(thing).into_iter().map(move |series| (thing, series));
        let series: Vec<_> = self.all.iter().flat_map(named).collect();
        let Some((_, (_, first))) = series.first() else { return Ok(()) };
        let mut out = self.out.encode_descriptor(name, help, None, first.metric_type())?;
        for (thing, (labels, value)) in &series {
            let labels: Vec<_> = [(self.label, (self.name)(thing))].into_iter().chain(*labels).collect();
            value.encode(out.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
