//! The plugins that queues use, replaced while the host runs.
//!
//! In: a folder with `<name>.wasm` files, the names in use and their grants. Out: for each name the active
//! [`Version`], as a value that can be watched, and its [`PluginStatus`].
//!
//! ```text
//! folder ─▶ watcher ─ events ─▶ registry: one step of life ─▶ watch::Receiver: what attempts begin on
//!              ▲                  │ job       ▲ verdict
//!              └───── jobs ◀──────┘           └──── version: its attempts, its probation
//! ```
//!
//! Not here: what a component may do (`sandbox`), which attempt runs on which version (`worker`: it takes the
//! active one once and keeps it).

mod cache;
mod figures;
mod gate;
mod history;
mod jobs;
mod life;
mod loader;
mod locked;
mod news;
mod probation;
mod quarantine;
mod registry;
mod retries;
mod single;
mod status;
#[cfg(test)]
mod tests;
mod version;
mod watcher;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config;
use crate::sandbox::{CHECK_TIMEOUT, Cores, Sandbox};

pub(crate) use history::Change;
pub(crate) use probation::Ruling;
pub(crate) use single::{Single, Singles, Watch, read};
pub(crate) use status::PluginStatus;
pub(crate) use version::{Judged, Version};

use life::LifeEvent;
use quarantine::Notes;
use registry::{Brought, PluginEntry};
use retries::Pauses;

/// The registry. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Plugins(Arc<Registry>);

struct Registry {
    plugins: RwLock<BTreeMap<String, Arc<PluginEntry>>>,
    /// The folder with their files.
    dir: PathBuf,
    notes: Notes,
    pauses: Pauses,
    /// Tells the watcher that there are other names or grants.
    updated: Notify,
    /// Cancelled when the first scan is over.
    scanned: CancellationToken,
    /// Cancelled when the watcher or another part that drives the lives of plugins has failed.
    unwatched: CancellationToken,
    /// There may be tasks.
    at_work: AtomicBool,
}

/// How long a start waits for the first scan.
const PATIENCE: Duration = Duration::from_secs(10);

/// The message for the operator when the watcher has ended.
pub(crate) const UNWATCHED: &str = "the watcher of the plugins folder has failed, which is a bug of tqhost: \
    no new versions are taken until the host starts again";

/// Where plugins come from, and what makes handlers of them.
pub(crate) struct Source {
    pub sandbox: Sandbox,
    /// The folder with their files.
    pub dir: PathBuf,
    /// Where compiled code is kept.
    pub cache_dir: PathBuf,
}

/// The names in use and their grants.
type Wanted = BTreeMap<String, config::Plugin>;

/// How long a self-check may take, what failed waits for its next try, and how long a file is compiled before
/// others are beside it.
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
    /// Tries every file that is there once, then goes on watching in the background until `stop`. Large files
    /// that were never compiled may take minutes: after [`PATIENCE`] it gives the registry as it is, and the
    /// rest comes while the host runs.
    pub(crate) async fn start(
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
        let plugins = Plugins::new(dir, Notes::new(cache.dir()), times.pauses, wanted);
        let loader = loader::Loader::new(sandbox, cache);
        let watcher = watcher::Watcher::new(loader, plugins.clone(), times);
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
                tracing::info!("plugins are still being compiled; starting with those that are ready, \
                    and the queues of the others wait");
            }
        }
        plugins.0.at_work.store(true, Ordering::Relaxed);
        Ok(plugins)
    }

    /// A registry that nobody watches yet.
    fn new(dir: PathBuf, notes: Notes, pauses: Pauses, wanted: Wanted) -> Plugins {
        let plugins = Plugins(Arc::new(Registry {
            plugins: RwLock::default(),
            dir,
            notes,
            pauses,
            updated: Notify::new(),
            scanned: CancellationToken::new(),
            unwatched: CancellationToken::new(),
            at_work: AtomicBool::new(false),
        }));
        plugins.update(wanted);
        plugins
    }

    /// Plugins without files, for the tests of what shows them.
    #[cfg(test)]
    pub(crate) fn without_files(names: &[&str]) -> Plugins {
        let wanted = names.iter().map(|name| ((*name).to_owned(), config::Plugin::default())).collect();
        Plugins::new(PathBuf::new(), Notes::new(None), Pauses::default(), wanted)
    }

    /// Waits until every file that was there at the start has been tried.
    pub(crate) async fn scanned(&self) {
        self.0.scanned.cancelled().await;
    }

    /// Waits until nobody watches the plugins any more, which only a bug brings about. [`UNWATCHED`] says
    /// what follows from it.
    pub(crate) async fn unwatched(&self) {
        self.0.unwatched.cancelled().await;
    }

    /// Other names or grants from now on. A name that is new gets its version as soon as the watcher has
    /// found one. A version that serves gets its new grants at once: what an operator takes away must not
    /// stay granted because of a file or a check.
    pub(crate) fn update(&self, wanted: Wanted) {
        let gone: Vec<Arc<PluginEntry>> = {
            let mut plugins = self.0.plugins.write().unwrap_or_else(PoisonError::into_inner);
            let gone = plugins.extract_if(.., |name, _| !wanted.contains_key(name)).map(|(_, plugin)| plugin);
            let gone = gone.collect();
            for (name, grants) in &wanted {
                plugins.entry(name.clone()).or_insert_with(|| {
                    let (path, notes) = (self.0.dir.join(format!("{name}.wasm")), self.0.notes.clone());
                    let (grants, unwatched) = (grants.clone(), self.0.unwatched.clone());
                    Arc::new(PluginEntry::new(name, path, grants, notes, self.0.pauses, unwatched))
                });
            }
            gone
        };
        for plugin in self.entries() {
            if let Some(grants) = wanted.get(&*plugin.name) {
                plugin.grant(grants);
            }
        }
        gone.iter().for_each(|plugin| drop(plugin.tell(LifeEvent::Unwanted, Brought::Nothing)));
        self.0.updated.notify_one();
    }

    fn plugins(&self) -> RwLockReadGuard<'_, BTreeMap<String, Arc<PluginEntry>>> {
        self.0.plugins.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// All plugins that queues use.
    fn entries(&self) -> Vec<Arc<PluginEntry>> {
        self.plugins().values().cloned().collect()
    }

    /// The plugin's active version: None while there is none that works. A name that no queue uses never has
    /// one.
    pub(crate) fn subscribe(&self, plugin: &str) -> watch::Receiver<Option<Arc<Version>>> {
        match self.plugins().get(plugin) {
            Some(plugin) => plugin.subscribe(),
            None => watch::channel(None).1,
        }
    }

    /// The cores that may compile.
    fn cores(&self) -> Cores {
        if self.0.at_work.load(Ordering::Relaxed) { Cores::Half } else { Cores::All }
    }

    /// The digests of all versions that run tasks, or may have to again. None: that is not known before the
    /// first scan is over.
    fn in_use(&self) -> Option<BTreeSet<String>> {
        let all = || self.entries().iter().flat_map(|plugin| plugin.in_use()).collect();
        self.0.scanned.is_cancelled().then(all)
    }

    /// All plugins by name.
    pub(crate) fn status(&self) -> Vec<PluginStatus> {
        self.entries().iter().map(|plugin| plugin.status()).collect()
    }
}
