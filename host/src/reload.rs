//! Takes changes of the configuration file while the host runs.
//!
//! In: hints that something changed in the file's folder (`watch`), a look every 2 seconds for what the hints
//! miss, SIGHUP. Out: queues and grants added, changed and removed; or the reason why the file is refused.
//!
//! ```text
//! look ─▶ stamp is known? ─▶ nothing
//!           │ new ─▶ same for SETTLE? ─▶ Config::load ─▶ bad: reported ─▶ nothing
//!           │                               └─ good ─▶ Workers::apply, Plugins::update
//! ```
//!
//! Some keys take effect only at the start of the host (the addresses, the folders). When one of them
//! changes, the log says that a restart is needed.
//!
//! Not here: how a queue is replaced (`worker::workers`), how a plugin gets its grants (`plugins`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use prometheus_client::metrics::counter::Counter;
use tokio::signal::unix::Signal;

use crate::chain::chain;
use crate::clock::now_ms;
use crate::config::{self, BlobStore, Config, QueueRules};
use crate::descriptors::{self, Scarcity};
use crate::file::{self, Found, SETTLE, Stamp};
use crate::guarded::Guarded;
use crate::plugins::Plugins;
use crate::queue::{Link, Queue};
use crate::watch::{FolderWatch, RESCAN};
use crate::worker::capacity::Capacity;
use crate::worker::workers::{Applied, Workers};

/// The changes of the file that were taken and refused, and what the host runs by. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct ConfigReloads {
    pub taken: Counter,
    pub refused: Counter,
    refusal: Arc<Guarded<Option<String>>>,
    taken_at: Arc<Guarded<Option<u64>>>,
    queues: Arc<Guarded<Arc<[QueueRules]>>>,
}

impl ConfigReloads {
    /// All problems of the file as it is now; `None` while the host runs by the file.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.refusal.lock().clone()
    }

    /// When a change of the file was taken last, in milliseconds since the Unix epoch.
    pub(crate) fn taken_at(&self) -> Option<u64> {
        *self.taken_at.lock()
    }

    /// The queues that the host runs by now.
    pub(crate) fn queues(&self) -> Arc<[QueueRules]> {
        Arc::clone(&self.queues.lock())
    }

    pub(crate) fn set_queues(&self, queues: &[QueueRules]) {
        *self.queues.lock() = queues.into();
    }

    fn set_refusal(&self, why: Option<String>) {
        *self.refusal.lock() = why;
    }
}

/// Notices changes of one file.
pub(crate) struct FileWatch {
    file: PathBuf,
    seen: Found,
    /// Editors and orchestrators replace the file, or a link in its place, or the whole folder.
    folder: FolderWatch,
    hangup: Signal,
}

impl FileWatch {
    /// The first look counts as a change, because the file may have changed since it was read. `hangup` is
    /// SIGHUP.
    pub(crate) fn new(file: &Path, hangup: Signal) -> FileWatch {
        let folder = FolderWatch::of_files([file]);
        FileWatch { file: file.to_owned(), seen: Found::Missing, folder, hangup }
    }

    /// Waits for a new, stable state of the file, or for SIGHUP. It may be dropped while it waits: the next
    /// call sees what this one would have seen.
    pub(crate) async fn changed(&mut self) {
        let mut candidate: Option<(Stamp, Instant)> = None;
        loop {
            if let Err(error) = self.folder.arm().await {
                let seconds = RESCAN.as_secs();
                tracing::warn!(%error, "cannot watch the configuration; looking at it every {seconds} s");
            }
            candidate = match self.look().await {
                found @ Found::File(stamp) if found != self.seen => {
                    let known = candidate.filter(|(known, _)| *known == stamp);
                    let since = known.map_or_else(Instant::now, |(_, since)| since);
                    if since.elapsed() >= SETTLE {
                        self.seen = found;
                        return;
                    }
                    Some((stamp, since))
                }
                // The file is as it was; or it is being replaced, or was removed, and the host keeps its
                // configuration.
                _ => None,
            };
            let next = candidate.map_or_else(|| Instant::now() + RESCAN, |(_, since)| since + SETTLE);
            tokio::select! {
                () = self.folder.hint() => {}
                () = tokio::time::sleep_until(next.into()) => {}
                Some(()) = self.hangup.recv() => {
                    tracing::info!("SIGHUP: reading the configuration again");
                    self.seen = self.look().await;
                    return;
                }
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

/// The parts of the host that a change of the configuration acts on.
pub(crate) struct Reloader<'h> {
    pub config: &'h mut Config,
    pub workers: &'h mut Workers,
    pub plugins: &'h Plugins,
    pub capacity: &'h Capacity,
    pub link: &'h Link,
    pub reloads: &'h ConfigReloads,
    pub size: SandboxSize,
}

/// The bounds that the sandbox is made with. They last until the host ends.
#[derive(Clone, Copy)]
pub(crate) struct SandboxSize {
    /// Bytes of the largest grant of memory.
    pub max_memory: u64,
    /// Attempts that may run at once, of all queues together.
    pub max_attempts: u32,
    /// Instances that may wait for a task, of all plugins together.
    pub max_warm: u32,
}

impl SandboxSize {
    /// The bounds that a configuration needs.
    pub(crate) fn of(config: &Config) -> SandboxSize {
        let grants = grants(config);
        let sum = |counts: &mut dyn Iterator<Item = u32>| counts.fold(0, u32::saturating_add);
        let attempts = sum(&mut config.queues.iter().map(|queue| queue.concurrency));
        SandboxSize {
            max_memory: grants.values().map(|grant| grant.memory).max().unwrap_or_default(),
            max_attempts: config.concurrency.map_or(attempts, |most| most.min(attempts)),
            max_warm: sum(&mut grants.values().filter_map(|grant| grant.warm).map(|warm| warm.idle)),
        }
    }
}

impl Reloader<'_> {
    /// Reads the file again and applies it, or notes why it is refused.
    pub(crate) async fn reload(self) {
        let path = self.config.path.clone();
        let loaded = tokio::task::spawn_blocking(move || Config::load(&path)).await;
        let checked = match loaded {
            Ok(Ok(config)) => {
                let why = too_much_memory(&config, self.size.max_memory);
                why.or_else(|| too_many_connections(&config)).map_or(Ok(config), Err)
            }
            Ok(Err(errors)) => Err(errors.to_string()),
            Err(panic) => Err(format!("the configuration could not be read: {panic}")),
        };
        match checked {
            Ok(config) if config == *self.config => {
                // The file was only touched; or a good file replaced a bad one; or this is the first look,
                // which always counts as a change.
                if self.reloads.refusal().is_some() {
                    tracing::info!("the configuration file is again what this host runs by");
                }
                self.reloads.set_refusal(None);
            }
            Ok(config) => {
                let accepted = config.clone();
                drop(tokio::task::spawn_blocking(move || accepted.keep()));
                self.reloads.taken.inc();
                *self.reloads.taken_at.lock() = Some(now_ms());
                self.reloads.set_refusal(None);
                self.take(config).await;
            }
            Err(why) => {
                self.reloads.refused.inc();
                tracing::error!(
                    why,
                    "the configuration was changed, and cannot be used: everything stays as it is"
                );
                self.reloads.set_refusal(Some(why));
            }
        }
    }

    async fn take(self, new: Config) {
        for warning in &new.warnings {
            tracing::warn!("{warning}");
        }
        let late_keys = needs_restart(self.config, &new);
        if !late_keys.is_empty() {
            tracing::warn!(
                keys = late_keys.join(", "),
                "these keys take effect at the next start of the host"
            );
        }
        let needed = SandboxSize::of(&new);
        if needed.max_attempts > self.size.max_attempts {
            tracing::warn!(
                attempts = needed.max_attempts,
                room = self.size.max_attempts,
                "more attempts may run at once than this host has room for: some wait until its next start"
            );
        }
        if needed.max_warm > self.size.max_warm {
            tracing::warn!(
                kept = needed.max_warm,
                room = self.size.max_warm,
                "more instances may be kept than this host has room for: some are given up early until its \
                 next start"
            );
        }
        let queues = prepared(&new, self.link).await;
        self.reloads.set_queues(&new.queues);
        self.plugins.update(grants(&new));
        self.capacity.resize(new.concurrency);
        let Applied { added, changed, removed } = self.workers.apply(queues);
        let [added, changed, removed] = [added, changed, removed].map(|queues| queues.join(", "));
        tracing::info!(added, changed, removed, "the configuration was read again");
        // Keys that need a restart keep their old values until then.
        let (redis, admin) = (self.config.redis.clone(), self.config.admin.clone());
        let (plugins_dir, data_dir) = (self.config.plugins_dir.clone(), self.config.data_dir.clone());
        let (memory, blobs) = (self.config.memory, self.config.blobs.clone());
        let telemetry = self.config.telemetry.clone();
        *self.config = Config { redis, admin, blobs, telemetry, plugins_dir, data_dir, memory, ..new };
    }
}

/// All queues, with their groups. A queue that cannot be prepared now waits by itself until it can
/// (`worker::preparer`).
pub(crate) async fn prepared(config: &Config, link: &Link) -> Vec<Queue> {
    let queues: Vec<Queue> =
        config.queues.iter().map(|rules| Queue::new(rules.clone(), link.clone())).collect();
    for queue in &queues {
        let name = &queue.rules.name;
        if let Err(error) = queue.ensure_group().await
            && error.unfit(name).is_none()
        {
            tracing::warn!(queue = name, error = chain(&error), "could not prepare the queue yet");
            // Redis is away, so the others would wait in vain, one after the other.
            if error.may_pass() {
                break;
            }
        }
    }
    queues
}

/// The grants of every plugin that a queue uses.
pub(crate) fn grants(config: &Config) -> std::collections::BTreeMap<String, config::Plugin> {
    let names = config.queues.iter().map(|queue| &queue.plugin);
    names.map(|name| (name.clone(), config.plugins.get(name).cloned().unwrap_or_default())).collect()
}

/// Why the configuration is refused when a grant is larger than the sandbox has room for: every attempt of
/// that plugin would fail.
fn too_much_memory(config: &Config, max: u64) -> Option<String> {
    let grants = grants(config);
    let (name, grant) = grants.iter().find(|(_, grant)| grant.memory > max)?;
    let (asked, max) = (grant.memory >> 20, max >> 20);
    Some(format!(
        "{}: plugins.{name}.memory: {asked}MiB is more than the {max}MiB that this host has room for: \
         restart it",
        config.path.display()
    ))
}

/// Why the configuration is refused when its queues need more connections than the process may have.
fn too_many_connections(config: &Config) -> Option<String> {
    match descriptors::scarcity(config)? {
        Scarcity::Refused(why) => Some(format!("{}: {why}", config.path.display())),
        Scarcity::Tight(_) => None,
    }
}

/// The keys that differ and that only a restart can change.
fn needs_restart(old: &Config, new: &Config) -> Vec<&'static str> {
    let differs = [
        ("redis", old.redis != new.redis),
        ("admin", old.admin != new.admin),
        ("plugins_dir", old.plugins_dir != new.plugins_dir),
        ("data_dir", old.data_dir != new.data_dir),
        ("blobs", blobs_differ(old, new)),
        ("telemetry", old.telemetry != new.telemetry),
        ("memory", old.memory != new.memory),
    ];
    differs.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
}

/// Whether `[blobs]` differs. A store that only follows `data_dir` does not.
fn blobs_differ(old: &Config, new: &Config) -> bool {
    let follows = |config: &Config| config.blobs.store == BlobStore::Files(config.data_dir.join("blobs"));
    let mut blobs = new.blobs.clone();
    if follows(old) && follows(new) {
        blobs.store = old.blobs.store.clone();
    }
    old.blobs != blobs
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    use super::*;
    use crate::shutdown::HostSignals;

    /// A watch that has seen the file as it is.
    async fn watched(file: &Path) -> FileWatch {
        let mut watch = FileWatch::new(file, HostSignals::listen().unwrap().hangup);
        watch.changed().await;
        watch
    }

    /// Waits for the hint of a change, so the look every [`RESCAN`] does not help, then for the change.
    async fn noticed(watch: &mut FileWatch) {
        tokio::time::timeout(Duration::from_secs(20), watch.folder.hint()).await.expect("there was no hint");
        watch.changed().await;
    }

    #[tokio::test]
    async fn a_volume_of_kubernetes_is_updated_by_the_swap_of_a_link() {
        let root = tempfile::tempdir().unwrap();
        let (volume, file) = (root.path(), root.path().join("tqhost.toml"));
        let update = |name: &str| {
            fs::create_dir(volume.join(name)).unwrap();
            fs::write(volume.join(name).join("tqhost.toml"), name).unwrap();
            symlink(name, volume.join("..data_tmp")).unwrap();
            fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
        };
        update("..first");
        symlink("..data/tqhost.toml", &file).unwrap();
        let mut watch = watched(&file).await;
        for name in ["..second", "..third"] {
            update(name);
            noticed(&mut watch).await;
            assert_eq!(fs::read_to_string(&file).unwrap(), name);
        }
    }

    #[tokio::test]
    async fn a_folder_that_is_replaced_goes_on_being_watched() {
        let root = tempfile::tempdir().unwrap();
        let [folder, old, new] = ["config", "old", "new"].map(|name| root.path().join(name));
        let file = folder.join("tqhost.toml");
        fs::create_dir(&folder).unwrap();
        fs::write(&file, "first").unwrap();
        let mut watch = watched(&file).await;
        fs::create_dir(&new).unwrap();
        fs::write(new.join("tqhost.toml"), "second").unwrap();
        fs::rename(&folder, &old).unwrap();
        fs::rename(&new, &folder).unwrap();
        noticed(&mut watch).await;
        // This takes the hints that are left. The host's own reading gives none.
        fs::read(&file).unwrap();
        assert!(tokio::time::timeout(SETTLE * 3, watch.changed()).await.is_err(), "nothing has changed");
        fs::write(&file, "third").unwrap();
        noticed(&mut watch).await;
    }
}
