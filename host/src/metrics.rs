//! All series of this host, as Prometheus scrapes them: their names, labels and values.
//!
//! In: what there is at the moment of a scrape ([`Sources`]): the counts of the queues, health, reloads of
//! the configuration, Redis's connections, plugins. Out: a registry that reads them at each scrape. Nothing
//! is copied in between, so a queue, plugin or version that is gone leaves nothing behind.
//!
//! docs/operations.md says what each series means; a test checks that it names all of them.
//!
//! Not here: counting (`worker::metrics`, `plugins::figures`), serving the text (`admin`).

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use strum::VariantArray as _;

use crate::admin::Health;
use crate::plugins::Plugins;
use crate::queue::Redis;
use crate::reload::ConfigReloads;
use crate::task::SettledAs;
use crate::worker::workers::QueueBoard;

/// The parts of the host that have figures.
pub(crate) struct Sources {
    pub board: QueueBoard,
    pub health: Health,
    pub reloads: ConfigReloads,
    pub redis: Redis,
    pub plugins: Plugins,
}

impl Sources {
    pub(crate) fn registry(self) -> Registry {
        let mut registry = Registry::with_prefix("tqhost");
        registry.register_collector(Box::new(self));
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
        out.write("task_duration_seconds", "How long attempts ran.", |(_, queue)| {
            [([], queue.duration.clone())]
        })?;
        out.write("task_wait_seconds", "How long tasks waited for an attempt.", |(_, queue)| {
            [([], queue.wait.clone())]
        })?;
        out.write("queue_tasks", "Tasks in each place.", |(_, queue)| {
            let census = queue.census();
            [
                ("queued", census.queued),
                ("running", census.running),
                ("delayed", census.delayed),
                ("held", census.held_tasks),
                ("dead", census.dead),
            ]
            .map(|(state, tasks)| ([("state", state)], ConstGauge::new(tasks)))
        })?;
        let help = "Age of the oldest queued task, 0 if there is none.";
        out.write("queue_oldest_seconds", help, |(_, queue)| {
            [([], ConstGauge::new(queue.census().oldest.unwrap_or_default().as_secs_f64()))]
        })?;
        let help = "1 while the queue waits because something outside is down.";
        out.write("queue_held", help, |(_, queue)| [([], queue.held.clone())])?;
        let help = "Pending entries that somebody else removed from the stream.";
        out.write("lost_entries", help, |(_, queue)| [([], queue.lost_entries.clone())])?;
        let help = "Attempts stopped because another host took the task.";
        out.write("lease_lost", help, |(_, queue)| [([], queue.lease_lost.clone())])?;
        let help = "Tasks taken over from a dead host.";
        out.write("reclaimed", help, |(_, queue)| [([], queue.reclaimed.clone())])
    }

    fn health(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let queues = self.health.report().queues;
        let mut out = SeriesWriter { out, label: "queue", all: &queues, name: |queue| &queue.queue };
        out.write("fetch_stalled", "1 while the fetch loop makes no progress.", |queue| {
            [([], ConstGauge::new(i64::from(!queue.ok)))]
        })
    }

    /// Each result of a reload has a series from its first reload on.
    fn config(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let all = [("ok", &self.reloads.taken), ("failed", &self.reloads.refused)];
        let all: Vec<_> = all.into_iter().filter(|(_, count)| count.get() > 0).collect();
        let mut out = SeriesWriter { out, label: "result", all: &all, name: |(result, _)| result };
        out.write("config_reloads", "Changes of the configuration file, taken or refused.", |(_, count)| {
            [([], (*count).clone())]
        })
    }

    fn redis(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Connections to Redis that were made again.";
        let out = out.encode_descriptor("redis_reconnects", help, None, MetricType::Counter)?;
        ConstCounter::new(self.redis.reconnects()).encode(out)
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
        let help = "The most memory that one instance of the plugin has used";
        out.write("guest_memory_bytes", help, |plugin| [([], plugin.figures.peak_memory.clone())])?;
        let help = "Requests of the plugin's handlers, by what became of them";
        out.write("http_requests", help, |plugin| {
            let totals = plugin.figures.share.requests.totals();
            totals.map(|(result, count)| ([("result", result)], ConstCounter::new(count)))
        })?;
        let help =
            "Log lines of the plugin's handlers that were dropped, since they logged more than max_log_rate";
        out.write("guest_log_lines_dropped", help, |plugin| {
            [([], ConstCounter::new(plugin.figures.share.lines_dropped()))]
        })
    }
}

impl Collector for Sources {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> fmt::Result {
        self.queues(&mut out)?;
        self.health(&mut out)?;
        self.config(&mut out)?;
        self.redis(&mut out)?;
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
    /// Writes the series that `read` gives for each thing: further labels, and the value. Writes nothing if
    /// there are none.
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
