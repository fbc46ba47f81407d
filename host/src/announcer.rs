//! Publishes what this host knows about itself.
//!
//! In: the state of plugins, fetch loops, queues and configuration. Out: an announcement in Redis, which the
//! commands read. On the way it reads the orders of operators: it hands those about versions
//! to the plugins, and rings for jobs.
//!
//! Not here: the form of an announcement (`queue::hosts`).

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::admin::Health;
use crate::builds::short;
use crate::clock::{ms, now_ms};
use crate::jobs::JobBell;
use crate::metrics;
use crate::operations::history::{completed, failed};
use crate::operations::jobs::is_under_way;
use crate::plugins::figures::judged;
use crate::plugins::{Change, PluginStatus, Plugins};
use crate::queue::Link;
use crate::queue::hosts::{self, HostChange, HostInfo, HostPlugin, HostQueue, HostVersion, LastMinute};
use crate::queue::orders;
use crate::reload::ConfigReloads;
use crate::sandbox;
use crate::task::SettledAs;
use crate::worker::capacity::Capacity;
use crate::worker::workers::{QueueBoard, QueueEntry};

/// A rate is the mean over this many announcements, which is a minute.
const RATE_SAMPLES: usize = 20;

/// The announced memory is rounded up to this, so that a host at rest announces nothing new.
const MEMORY_STEP: u64 = 16 << 20;

/// A version is judged by its attempts in this time, of which at most this number of samples is kept.
const WINDOW: Duration = Duration::from_secs(600);
const SAMPLES: u32 = 20;
/// A version that took the place of another one is new for this time.
const NEW: Duration = Duration::from_secs(3600);

/// The loop.
pub(crate) struct Announcer {
    id: Arc<str>,
    started_at: u64,
    link: Link,
    parts: AnnouncedParts,
    jobs: JobBell,
    rates: HashMap<Arc<str>, AttemptRate>,
    windows: HashMap<(Arc<str>, Arc<str>), AttemptWindow>,
}

/// The parts of the host that it tells of.
pub(crate) struct AnnouncedParts {
    pub plugins: Plugins,
    pub health: Health,
    pub board: QueueBoard,
    pub reloads: ConfigReloads,
    pub capacity: Capacity,
}

/// Samples of the judged attempts of a version at the tasks of a queue, and how many of them failed.
struct AttemptWindow(VecDeque<(Instant, (u64, u64))>);

/// Samples of how many attempts had completed their task, and how many had failed, at what time; oldest
/// first.
#[derive(Default)]
struct AttemptRate(VecDeque<(Instant, LastMinute)>);

impl Announcer {
    pub(crate) fn new(id: Arc<str>, link: Link, parts: AnnouncedParts, jobs: JobBell) -> Announcer {
        let (rates, windows) = (HashMap::new(), HashMap::new());
        Announcer { id, started_at: now_ms(), link, parts, jobs, rates, windows }
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut announced = None;
        loop {
            let host = self.describe();
            if let Err(error) = hosts::announce(&self.link, &host, &mut announced).await {
                tracing::debug!(%error, "could not announce this host");
            }
            // Without Redis, the orders that were read before hold.
            match orders::list(&self.link).await {
                Ok(orders) => {
                    if is_under_way(orders.jobs.values()) {
                        self.jobs.ring();
                    }
                    self.parts.plugins.order(orders);
                }
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
        let report = self.parts.health.report();
        let posted = self.parts.board.queues();
        self.rates.retain(|name, _| posted.iter().any(|queue| queue.name == *name));
        let statuses = self.parts.plugins.status();
        let serving: HashSet<String> = statuses.iter().filter_map(label).collect();
        let mut versions = self.versions(&posted, &serving, Instant::now());
        let wanted: u64 = posted.iter().map(|queue| u64::from(queue.queue.rules.concurrency)).sum();
        let queues = posted.into_iter().map(|queue| {
            let tally = queue.metrics.tally();
            let counted = LastMinute { completed: completed(&tally), failed: failed(&tally) };
            let (last_minute, rate) = self.rates.entry(queue.name.clone()).or_default().sample(counted);
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
                completed: counted.completed,
                retried: queue.metrics.settlements(SettledAs::Retried).get(),
                dead: queue.metrics.dead(),
                versions: versions.remove(&queue.name).unwrap_or_default(),
                last_minute,
                rate,
            }
        });
        HostInfo {
            id: self.id.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            started_at: self.started_at,
            queues: queues.collect(),
            config_error: self.parts.reloads.refusal(),
            plugins: statuses.into_iter().map(host_plugin).collect(),
            configured_at: self.parts.reloads.taken_at(),
            memory: metrics::resident().map(|bytes| bytes.div_ceil(MEMORY_STEP) * MEMORY_STEP),
            memory_most: sandbox::machine_memory(),
            capacity: Some(self.parts.capacity.limit().map_or(wanted, |most| wanted.min(most as u64))),
        }
    }

    /// The attempts on the last versions in each queue.
    fn versions(
        &mut self,
        posted: &[QueueEntry],
        serving: &HashSet<String>,
        now: Instant,
    ) -> HashMap<Arc<str>, Vec<HostVersion>> {
        let mut before = std::mem::take(&mut self.windows);
        let mut all: HashMap<Arc<str>, Vec<HostVersion>> = HashMap::new();
        for queue in posted {
            // A version that came back after others is there twice. It gets the place of the later entry, and
            // the attempts of both.
            let mut sums: Vec<(Arc<str>, (u64, u64))> = Vec::new();
            for (label, counts) in queue.metrics.versions() {
                let ends = counts.ends();
                let (mut attempts, mut failures) = judged(|end| ends[end as usize]);
                if let Some(at) = sums.iter().position(|(known, _)| *known == label) {
                    let (_, earlier) = sums.remove(at);
                    (attempts, failures) = (attempts + earlier.0, failures + earlier.1);
                }
                sums.push((label, (attempts, failures)));
            }
            for (label, counts) in sums {
                let key = (queue.name.clone(), label.clone());
                let mut window = before.remove(&key).unwrap_or_else(|| AttemptWindow::new(now));
                let (attempts, failures) = window.sample(now, counts, serving.contains(&*label));
                self.windows.insert(key, window);
                if attempts > 0 {
                    let version = HostVersion { version: label.to_string(), attempts, failures };
                    all.entry(queue.name.clone()).or_default().push(version);
                }
            }
        }
        all
    }
}

/// The name under which queues count the version that runs tasks.
fn label(plugin: &PluginStatus) -> Option<String> {
    Some(format!("{}@{}", plugin.name, short(plugin.digest.as_deref()?)))
}

impl AttemptWindow {
    fn new(now: Instant) -> AttemptWindow {
        AttemptWindow([(now, (0, 0))].into())
    }

    /// The attempts and failures of the last [`WINDOW`]: up to now while the version serves, and else of the
    /// time before its last attempt.
    fn sample(&mut self, now: Instant, counts: (u64, u64), is_serving: bool) -> (u64, u64) {
        let samples = &mut self.0;
        if samples.back().is_none_or(|(_, last)| *last != counts) {
            // One sample in each step of WINDOW / SAMPLES is kept, and the newest one.
            if samples.len() > 2 && now.duration_since(samples[samples.len() - 2].0) < WINDOW / SAMPLES {
                samples.pop_back();
            }
            samples.push_back((now, counts));
        }
        let end = if is_serving { now } else { samples.back().map_or(now, |(at, _)| *at) };
        while samples.get(1).is_some_and(|(at, _)| end.duration_since(*at) >= WINDOW) {
            samples.pop_front();
        }
        let (_, first) = samples.front().copied().unwrap_or((now, counts));
        (counts.0.saturating_sub(first.0), counts.1.saturating_sub(first.1))
    }
}

impl AttemptRate {
    /// The attempts since the oldest sample, and the tasks completed per second since then.
    fn sample(&mut self, counted: LastMinute) -> (LastMinute, f64) {
        let now = Instant::now();
        // The queue was removed and added again, so its counts began again at 0.
        if self.0.back().is_some_and(|(_, before)| before.completed > counted.completed) {
            self.0.clear();
        }
        self.0.push_back((now, counted));
        if self.0.len() > RATE_SAMPLES {
            self.0.pop_front();
        }
        let Some((since, before)) = self.0.front() else { return Default::default() };
        let completed = counted.completed.saturating_sub(before.completed);
        let failed = counted.failed.saturating_sub(before.failed);
        let seconds = now.duration_since(*since).as_secs_f64();
        let rate = if seconds > 0.0 { completed as f64 / seconds } else { 0.0 };
        (LastMinute { completed, failed }, rate)
    }
}

fn host_plugin(plugin: PluginStatus) -> HostPlugin {
    let serving = plugin.digest.as_deref().and_then(|digest| plugin.figures.counted(digest));
    let (version_attempts, version_failures) = serving.map(|version| version.judged()).unwrap_or_default();
    let has_replaced = plugin.digest.is_some() && plugin.figures.versions().len() > 1;
    let age_ms = plugin.loaded_at_ms.map(|loaded| now_ms().saturating_sub(loaded));
    let (compiling, compiling_since) = plugin.compiling.unzip();
    HostPlugin {
        name: plugin.name,
        state: plugin.state.into_str().to_owned(),
        version: plugin.digest,
        compiling,
        compiling_since,
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
        is_new: has_replaced && age_ms.is_some_and(|age| age < ms(NEW)),
        history: plugin.history.into_iter().map(host_change).collect(),
        builds: plugin.builds,
    }
}

fn host_change(change: Change) -> HostChange {
    let Change { at_ms, what, digest, took_ms, reason } = change;
    HostChange { at: at_ms, what: what.into_str().to_owned(), version: digest, took_ms, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_has_the_attempts_of_its_last_minutes() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut window = AttemptWindow::new(start);
        assert_eq!(window.sample(at(3), (100, 90), true), (100, 90));
        for second in (6..1000).step_by(3) {
            window.sample(at(second), (100 + second, 90), true);
            assert!(window.0.len() <= SAMPLES as usize + 5, "{}", window.0.len());
        }
        // The failures of ten minutes ago do not count any more.
        let (attempts, failures) = window.sample(at(1000), (1100, 90), true);
        assert!((600..=640).contains(&attempts) && failures == 0, "{attempts} {failures}");
        // It is replaced, and keeps its last minutes.
        assert_eq!(window.sample(at(5000), (1100, 90), false), (attempts, 0));
        // It serves again, and has not run anything lately.
        assert_eq!(window.sample(at(5003), (1100, 90), true), (0, 0));
    }
}
