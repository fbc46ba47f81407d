//! Publishes what this host knows about itself.
//!
//! In: the state of plugins, fetch loops, queues and configuration. Out: an announcement in Redis, which the
//! commands read. On the way it reads the orders of operators, and hands them to the plugins.
//!
//! Not here: the form of an announcement (`queue::hosts`).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::admin::Health;
use crate::clock::now_ms;
use crate::plugins::{Change, PluginStatus, Plugins};
use crate::queue::Link;
use crate::queue::hosts::{self, HostChange, HostInfo, HostPlugin, HostQueue};
use crate::queue::orders;
use crate::reload::ConfigReloads;
use crate::task::SettledAs;
use crate::worker::workers::QueueBoard;

/// A rate is the mean over this many announcements, which is a minute.
const RATE_SAMPLES: usize = 20;

/// The loop.
pub(crate) struct Announcer {
    id: Arc<str>,
    started_at: u64,
    link: Link,
    plugins: Plugins,
    health: Health,
    board: QueueBoard,
    reloads: ConfigReloads,
    rates: HashMap<Arc<str>, CompletionRate>,
}

/// Samples of how many tasks had been completed at what time, oldest first.
#[derive(Default)]
struct CompletionRate(VecDeque<(Instant, u64)>);

impl Announcer {
    pub(crate) fn new(
        id: Arc<str>,
        link: Link,
        plugins: Plugins,
        health: Health,
        board: QueueBoard,
        reloads: ConfigReloads,
    ) -> Announcer {
        Announcer { id, started_at: now_ms(), link, plugins, health, board, reloads, rates: HashMap::new() }
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut said = None;
        loop {
            let host = self.describe();
            if let Err(error) = hosts::announce(&self.link, &host, &mut said).await {
                tracing::debug!(%error, "could not announce this host");
            }
            // Without Redis, what was ordered before stands.
            match orders::list(&self.link).await {
                Ok(orders) => self.plugins.order(orders),
                Err(error) => tracing::debug!(%error, "could not read the orders of operators"),
            }
            tokio::select! {
                () = tokio::time::sleep(hosts::EVERY) => {}
                () = stop.cancelled() => break,
            }
        }
        if let Err(error) = hosts::withdraw(&self.link, &self.id).await {
            tracing::debug!(%error, "could not withdraw this host's announcement");
        }
    }

    fn describe(&mut self) -> HostInfo {
        let report = self.health.report();
        let posted = self.board.queues();
        self.rates.retain(|name, _| posted.iter().any(|queue| queue.name == *name));
        let queues = posted.into_iter().map(|queue| {
            let completed = queue.metrics.settlements(SettledAs::Completed).get();
            let health = report.queues.iter().find(|health| *health.queue == *queue.name);
            HostQueue {
                name: queue.name.to_string(),
                stream: queue.queue.rules.stream.clone(),
                rules: queue.rules.to_string(),
                state: health
                    .map_or("starting", |health| {
                        if health.ok || health.state == "starting" { health.state } else { "stalled" }
                    })
                    .to_owned(),
                reason: health.filter(|health| !health.ok).and_then(|health| health.reason.clone()),
                running: queue.running() as u64,
                completed,
                retried: queue.metrics.settlements(SettledAs::Retried).get(),
                dead: queue.metrics.dead(),
                rate: self.rates.entry(queue.name).or_default().sample(completed),
            }
        });
        HostInfo {
            id: self.id.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            started_at: self.started_at,
            queues: queues.collect(),
            config_error: self.reloads.refusal(),
            plugins: self.plugins.status().into_iter().map(host_plugin).collect(),
        }
    }
}

impl CompletionRate {
    /// Tasks completed per second since the oldest sample.
    fn sample(&mut self, completed: u64) -> f64 {
        let now = Instant::now();
        // The queue was removed and added again, so its count began again at 0.
        if self.0.back().is_some_and(|(_, before)| *before > completed) {
            self.0.clear();
        }
        self.0.push_back((now, completed));
        if self.0.len() > RATE_SAMPLES {
            self.0.pop_front();
        }
        let Some((since, before)) = self.0.front() else { return 0.0 };
        let seconds = now.duration_since(*since).as_secs_f64();
        if seconds > 0.0 { (completed - before) as f64 / seconds } else { 0.0 }
    }
}

fn host_plugin(plugin: PluginStatus) -> HostPlugin {
    let serving = plugin.digest.as_deref().and_then(|digest| plugin.figures.counted(digest));
    let (version_attempts, version_failures) = serving.map(|version| version.judged()).unwrap_or_default();
    HostPlugin {
        name: plugin.name,
        state: plugin.state.into_str().to_owned(),
        version: plugin.digest,
        error: plugin.error,
        retry_at: plugin.retry_at_ms,
        loaded_at: plugin.loaded_at_ms,
        compile_ms: plugin.compile_ms,
        from_cache: plugin.from_cache.unwrap_or_default(),
        bytes: plugin.bytes,
        attempts: plugin.figures.attempts.get(),
        failures: plugin.figures.failures.get(),
        version_attempts,
        version_failures,
        peak_memory: plugin.figures.peak_memory.get(),
        reloads: plugin.figures.reloads.get(),
        failed_reloads: plugin.figures.failed_reloads.get(),
        rolled_back: plugin.figures.rolled_back.get(),
        on_probation: plugin.on_probation,
        can_go_back: plugin.can_go_back,
        back_to: plugin.back_to,
        history: plugin.history.into_iter().map(host_change).collect(),
    }
}

fn host_change(change: Change) -> HostChange {
    let Change { at_ms, what, digest, took_ms, reason } = change;
    HostChange { at: at_ms, what: what.into_str().to_owned(), version: digest, took_ms, reason }
}
