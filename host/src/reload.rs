//! Takes changes of the configuration file while the host runs.
//!
//! In: hints that something changed in the file's folder (notify), a slow look for what the hints miss,
//! SIGHUP. Out: queues and grants added, changed and removed; or a report of why the file changes nothing.
//!
//! ```text
//! look ─▶ stamp as before? ─▶ nothing
//!           │ new ─▶ same for SETTLE? ─▶ Config::load ─▶ bad: reported ─▶ nothing
//!           │                               └─ good ─▶ Workers::apply, Plugins::update
//! ```
//!
//! What lives as long as the process (the addresses, the folders) stays as it is, and the log says that a
//! restart is needed for it. Not here: how a queue is replaced (`worker::workers`), how a plugin gets its
//! grants (`plugins`).

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use notify::Watcher as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

use crate::admin::Metrics;
use crate::chain::chain;
use crate::config::{self, Config};
use crate::file::{self, Found, Stamp};
use crate::plugins::Plugins;
use crate::queue::{Link, Queue};
use crate::worker::capacity::Capacity;
use crate::worker::workers::{Applied, Workers};

/// How long the file must stay the same before it is read.
const SETTLE: Duration = Duration::from_millis(100);
/// How often the file is looked at without a hint.
const RESCAN: Duration = Duration::from_secs(2);
/// How long to wait after a hint: hints come in bursts.
const BURST: Duration = Duration::from_millis(20);

/// Why the file as it is now was not taken. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct ConfigRefusal(Arc<Mutex<Option<String>>>);

impl ConfigRefusal {
    /// All of its problems; none while the host runs by what the file says.
    pub fn why(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, why: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }
}

/// Notices changes of one file.
pub struct FileWatch {
    file: std::path::PathBuf,
    seen: Found,
    hint: Arc<Notify>,
    /// Dropped, it watches no more. Without it, the slow look serves.
    _hints: Option<notify::RecommendedWatcher>,
    hangup: Signal,
}

impl FileWatch {
    /// The file as it is now counts as changed: it may have been since somebody read it. An error: SIGHUP
    /// cannot be heard.
    pub fn new(file: &Path) -> std::io::Result<FileWatch> {
        let hint = Arc::new(Notify::new());
        let told = hint.clone();
        let hints = notify::recommended_watcher(move |_| told.notify_one()).and_then(|mut watcher| {
            // The folder, not the file: editors and orchestrators put another file, or link, in its place.
            watcher.watch(file.parent().unwrap_or(Path::new(".")), notify::RecursiveMode::NonRecursive)?;
            Ok(watcher)
        });
        let hints = hints
            .inspect_err(|error| tracing::warn!(%error, "changes of the configuration are noticed late"))
            .ok();
        Ok(FileWatch {
            file: file.to_owned(),
            seen: Found::Missing,
            hint,
            _hints: hints,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for a new, stable state of the file, or for SIGHUP. Dropped while it waits, it misses nothing.
    pub async fn changed(&mut self) {
        let mut candidate: Option<(Stamp, Instant)> = None;
        loop {
            let settled = candidate.map(|(_, since)| since + SETTLE);
            let next = settled.unwrap_or_else(|| Instant::now() + RESCAN);
            tokio::select! {
                () = self.hint.notified() => tokio::time::sleep(BURST).await,
                () = tokio::time::sleep_until(next.into()) => {}
                Some(()) = self.hangup.recv() => {
                    tracing::info!("SIGHUP: reading the configuration again");
                    self.seen = self.look().await;
                    return;
                }
            }
            let found = self.look().await;
            let Found::File(stamp) = found else {
                // Gone for a moment while it is replaced, or for good: what runs, runs on.
                candidate = None;
                continue;
            };
            if found == self.seen {
                candidate = None;
                continue;
            }
            let since =
                candidate.filter(|(known, _)| *known == stamp).map_or_else(Instant::now, |(_, since)| since);
            candidate = Some((stamp, since));
            if since.elapsed() >= SETTLE {
                self.seen = found;
                return;
            }
        }
    }

    async fn look(&self) -> Found {
        let file = self.file.clone();
        tokio::task::spawn_blocking(move || file::look(&file))
            .await
            .unwrap_or(Found::Other("it cannot be looked at"))
    }
}

/// What a change of the configuration is carried out on.
pub struct Reloader<'h> {
    pub config: &'h mut Config,
    pub workers: &'h mut Workers,
    pub plugins: &'h Plugins,
    pub capacity: &'h Capacity,
    pub link: &'h Link,
    pub metrics: &'h Metrics,
    pub refused: &'h ConfigRefusal,
    /// The largest memory grant that the sandbox was made for, bytes.
    pub max_memory: u64,
    /// The attempts that the sandbox was made for.
    pub max_attempts: u32,
    /// The instances that it has room to keep beside them.
    pub max_warm: u32,
}

impl Reloader<'_> {
    /// Reads the file again, and makes it so.
    pub async fn reload(self) {
        let path = self.config.path.clone();
        let loaded = tokio::task::spawn_blocking(move || Config::load(&path)).await;
        let checked = match loaded {
            Ok(Ok(config)) => match too_much_memory(&config, self.max_memory) {
                None => Ok(config),
                Some(why) => Err(why),
            },
            Ok(Err(errors)) => Err(errors.to_string()),
            Err(panic) => Err(format!("the configuration could not be read: {panic}")),
        };
        match checked {
            Ok(config) if config == *self.config => {
                // Touched, or the good file put back over a bad one; or looked at for the first time, since
                // nobody knows what happened to it between its reading and the first look.
                if self.refused.why().is_some() {
                    tracing::info!("the configuration file is again what this host runs by");
                }
                self.refused.set(None);
            }
            Ok(config) => {
                self.metrics.config_reload(true);
                self.refused.set(None);
                self.take(config).await;
            }
            Err(why) => {
                self.metrics.config_reload(false);
                tracing::error!(
                    why,
                    "the configuration was changed, and cannot be used: everything stays as it is"
                );
                self.refused.set(Some(why));
            }
        }
    }

    async fn take(self, new: Config) {
        for warning in &new.warnings {
            tracing::warn!("{warning}");
        }
        let late = needs_restart(self.config, &new);
        if !late.is_empty() {
            tracing::warn!(keys = late.join(", "), "these keys take effect at the next start of the host");
        }
        let attempts = attempts(&new);
        if attempts > self.max_attempts {
            tracing::warn!(
                attempts,
                room = self.max_attempts,
                "more attempts may run at once than this host has room for: some wait until its next start"
            );
        }
        let kept = warm(&new);
        if kept > self.max_warm {
            tracing::warn!(
                kept,
                room = self.max_warm,
                "more instances may be kept than this host has room for: some are given up early until its next start"
            );
        }
        let queues: Vec<Queue> =
            new.queues.iter().map(|rules| Queue::new(rules.clone(), self.link.clone())).collect();
        for queue in &queues {
            // Without Redis the fetch loop does it later.
            if let Err(error) = queue.ensure_group().await {
                tracing::warn!(
                    queue = queue.rules.name,
                    error = chain(&error),
                    "could not prepare the queue yet"
                );
            }
        }
        self.plugins.update(grants(&new));
        self.capacity.resize(new.concurrency);
        let applied = self.workers.apply(queues);
        let Applied { added, changed, removed } = applied;
        tracing::info!(?added, ?changed, ?removed, "the configuration was read again");
        // What needs a restart stays what it is until then.
        let (redis, admin) = (self.config.redis.clone(), self.config.admin.clone());
        let (plugins_dir, data_dir) = (self.config.plugins_dir.clone(), self.config.data_dir.clone());
        *self.config = Config { redis, admin, plugins_dir, data_dir, memory: self.config.memory, ..new };
    }
}

/// The grants of every plugin that a queue uses.
pub fn grants(config: &Config) -> std::collections::BTreeMap<String, config::Plugin> {
    let names = config.queues.iter().map(|queue| &queue.plugin);
    names.map(|name| (name.clone(), config.plugins.get(name).cloned().unwrap_or_default())).collect()
}

/// Attempts that may run at once, of all queues together.
pub fn attempts(config: &Config) -> u32 {
    let attempts = config.queues.iter().map(|queue| queue.concurrency).fold(0, u32::saturating_add);
    config.concurrency.map_or(attempts, |most| most.min(attempts))
}

/// Instances that may wait for a task, of all plugins together.
pub fn warm(config: &Config) -> u32 {
    grants(config).values().filter_map(|grant| grant.warm).fold(0, |sum, warm| sum.saturating_add(warm.idle))
}

/// A grant beyond what the sandbox has room for would fail every attempt of its plugin.
fn too_much_memory(config: &Config, max: u64) -> Option<String> {
    let grants = grants(config);
    let (name, grant) = grants.iter().find(|(_, grant)| grant.memory > max)?;
    let (asked, max) = (grant.memory >> 20, max >> 20);
    Some(format!(
        "{}: plugins.{name}.memory: {asked}MiB is more than the {max}MiB that this host has room for: restart it",
        config.path.display()
    ))
}

/// The keys that differ and belong to what lives as long as the process.
fn needs_restart(old: &Config, new: &Config) -> Vec<&'static str> {
    let differs = [
        ("redis", old.redis != new.redis),
        ("admin", old.admin != new.admin),
        ("plugins_dir", old.plugins_dir != new.plugins_dir),
        ("data_dir", old.data_dir != new.data_dir),
        ("memory", old.memory != new.memory),
    ];
    differs.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
}
