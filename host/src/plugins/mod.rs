//! The plugins that queues use, replaced while the host runs.
//!
//! In: a folder with `<name>.wasm` files, the names in use and their grants. Out: for each name the active
//! [`Version`], as a value that can be watched, and its [`PluginStatus`].
//!
//! ```text
//! folder ─▶ watcher ─▶ watched (stable?) ─▶ gate ─▶ loader (cache, compile) ─▶ self-check ─▶ registry ─▶ watch::Receiver
//!                                                                                            ▲ verdict of its probation: stays, or rolled back
//! ```
//!
//! Not here: what a component may do (`sandbox`), which attempt runs on which version (`worker`: it takes the active
//! one once and keeps it).

mod again;
mod cache;
mod gate;
mod history;
mod loader;
mod locked;
mod probation;
mod quarantine;
mod registry;
mod single;
#[cfg(test)]
mod tests;
mod watched;
mod watcher;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config;
use crate::sandbox::{CHECK_TIMEOUT, Cores, Sandbox};

pub use history::{Change, What};
pub use probation::Ruling;
pub use registry::{Figures, Judged, PluginState, PluginStatus, Version};
pub use single::{Single, Singles, Watch, read};

use again::Pauses;
use locked::Locked;
use quarantine::Notes;
use registry::Slot;

/// The registry. Cheap to clone.
#[derive(Clone)]
pub struct Plugins(Arc<Registry>);

struct Registry {
    slots: RwLock<BTreeMap<String, Arc<Slot>>>,
    notes: Notes,
    /// The names in use and their grants, for the watcher.
    wanted: watch::Sender<Wanted>,
    /// Cancelled when the first scan is over.
    scanned: CancellationToken,
    /// Cancelled when the watcher has ended although nobody told it to.
    unwatched: CancellationToken,
    /// There may be tasks.
    at_work: AtomicBool,
}

/// How long a start waits for the first scan.
const PATIENCE: Duration = Duration::from_secs(10);

/// The message for the operator when the watcher has ended.
pub const UNWATCHED: &str = "the watcher of the plugins folder has failed, which is a bug of tqhost: no new versions and grants are taken until the host starts again";

/// Where plugins come from, and what makes handlers of them.
pub struct Source {
    pub sandbox: Sandbox,
    /// The folder with their files.
    pub dir: PathBuf,
    /// Where compiled code is kept.
    pub cache_dir: PathBuf,
}

/// The names in use and their grants.
type Wanted = BTreeMap<String, config::Plugin>;

/// How long a self-check may take, what failed waits for its next try, and how long a file is compiled before others are beside it.
#[derive(Debug, Clone, Copy)]
struct Times {
    check: Duration,
    pauses: Pauses,
    patience: Duration,
}

impl Default for Times {
    fn default() -> Times {
        Times { check: CHECK_TIMEOUT, pauses: Pauses::default(), patience: gate::PATIENCE }
    }
}

impl Plugins {
    /// Tries every file that is there once, then goes on watching in the background until `stop`. Large files that were never compiled may
    /// take minutes: after [`PATIENCE`] it gives the registry as it is, and the rest comes while the host runs.
    pub async fn start(
        source: Source,
        wanted: Wanted,
        stop: CancellationToken,
        tracker: &TaskTracker,
    ) -> anyhow::Result<Plugins> {
        Plugins::start_with(Times::default(), source, wanted, stop, tracker).await
    }

    async fn start_with(
        times: Times,
        source: Source,
        wanted: Wanted,
        stop: CancellationToken,
        tracker: &TaskTracker,
    ) -> anyhow::Result<Plugins> {
        let Source { sandbox, dir, cache_dir } = source;
        let cache = tokio::task::spawn_blocking(move || cache::Cache::open(&cache_dir))
            .await
            .context("cannot look at the cache")?;
        let notes = Notes::new(cache.dir());
        let loader = loader::Loader::new(sandbox, cache);
        let plugins = Plugins(Arc::new(Registry {
            slots: RwLock::default(),
            notes,
            wanted: watch::Sender::default(),
            scanned: CancellationToken::new(),
            unwatched: CancellationToken::new(),
            at_work: AtomicBool::new(false),
        }));
        plugins.update(wanted);
        let watcher =
            watcher::Watcher::new(dir, loader, plugins.clone(), plugins.0.wanted.subscribe(), times);
        let watching = tokio::spawn(watcher.run(stop.clone()));
        let unwatched = plugins.0.unwatched.clone();
        tracker.spawn(async move {
            if let Err(error) = watching.await
                && error.is_panic()
            {
                tracing::error!(%error, "{UNWATCHED}");
                unwatched.cancel();
            }
        });
        tokio::select! {
            () = plugins.scanned() => {}
            () = plugins.unwatched() => {}
            () = stop.cancelled() => {}
            () = tokio::time::sleep(PATIENCE) => {
                tracing::info!("plugins are still being compiled; starting with those that are ready, and the queues of the others wait");
            }
        }
        plugins.0.at_work.store(true, Ordering::Relaxed);
        Ok(plugins)
    }

    /// Waits until every file that was there at the start has been tried.
    pub async fn scanned(&self) {
        self.0.scanned.cancelled().await;
    }

    /// Waits until nobody watches the plugins any more, which only a bug brings about. [`UNWATCHED`] says what follows from it.
    pub async fn unwatched(&self) {
        self.0.unwatched.cancelled().await;
    }

    /// Other names or grants from now on. A name that is new gets its version as soon as the watcher has found one; a version that runs
    /// gets its new grants at once, whatever its file holds by now; one that lies in its file and checks itself does that with them first.
    pub fn update(&self, wanted: Wanted) {
        let gone: Vec<Arc<Slot>> = {
            let mut slots =
                Locked::<_, Arc<Slot>>::new(self.0.slots.write().unwrap_or_else(PoisonError::into_inner));
            for name in wanted.keys() {
                slots.entry(name.clone()).or_insert_with(|| Arc::new(Slot::new(name, self.0.notes.clone())));
            }
            let gone = slots.extract_if(.., |name, _| !wanted.contains_key(name));
            gone.map(|(_, slot)| slot).collect()
        };
        // Without the lock, as the versions may go with them.
        gone.iter().for_each(|slot| drop(slot.remove()));
        self.0.wanted.send_replace(wanted);
    }

    fn slots(&self) -> RwLockReadGuard<'_, BTreeMap<String, Arc<Slot>>> {
        self.0.slots.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The plugin's active version: None while there is none that works. A name that no queue uses never has one.
    pub fn subscribe(&self, plugin: &str) -> watch::Receiver<Option<Arc<Version>>> {
        match self.slots().get(plugin) {
            Some(slot) => slot.subscribe(),
            None => watch::channel(None).1,
        }
    }

    /// What may be taken to compile.
    fn cores(&self) -> Cores {
        if self.0.at_work.load(Ordering::Relaxed) { Cores::Half } else { Cores::All }
    }

    /// The digests of all versions that run tasks, or may have to again. None: that is not known before the first scan is over.
    fn in_use(&self) -> Option<BTreeSet<String>> {
        self.0.scanned.is_cancelled().then(|| self.slots().values().flat_map(|slot| slot.in_use()).collect())
    }

    /// All plugins by name.
    pub fn status(&self) -> Vec<PluginStatus> {
        self.slots().values().map(|slot| slot.status()).collect()
    }
}
