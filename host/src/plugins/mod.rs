//! The plugins that queues use, replaced while the host runs.
//!
//! In: a folder with `<name>.wasm` files, the names in use and their grants. Out: for each name the active
//! [`Version`], as a value that can be watched, and its [`PluginStatus`].
//!
//! ```text
//! registry of images ─▶ pulls ─▶ folder
//! folder ─▶ watcher ─ events ─▶ registry: one step of life ─▶ watch::Receiver: what attempts begin on
//!                               ▲ end   │ load   ▲ verdict
//!                               └ loads ◀┘       └──── version: its attempts, its probation
//! ```
//!
//! Not here: what a component may do (`sandbox`), which attempt runs on which version (`worker`: it takes the
//! active one once and keeps it).

mod build_file;
mod cache;
mod catalog;
mod changes;
pub(crate) mod figures;
mod folder;
mod keeper;
mod life;
mod line;
mod loader;
mod loads;
mod locked;
mod news;
mod origin;
mod probation;
mod pulls;
mod quarantine;
mod registry;
mod retries;
mod shelf;
mod single;
mod status;
#[cfg(test)]
mod tests;
mod version;
mod watcher;

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::queue::orders::Orders;
use crate::sandbox::Sandbox;

pub(crate) use build_file::build_of;
pub(crate) use cache::user_cache;
pub(crate) use catalog::{Plugins, UNWATCHED};
pub(crate) use changes::Change;
pub(crate) use probation::Ruling;
pub(crate) use shelf::Shelf;
pub(crate) use single::{Single, Singles, Watch, read};
pub(crate) use status::PluginStatus;
pub(crate) use version::{Judged, RanAttempt, Version};

use cache::Cache;
use catalog::Wanted;
use origin::PluginFolders;
use quarantine::Notes;
use watcher::{Times, Watcher};

/// How long a start waits for the first scan.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where plugins come from, and what makes handlers of them.
pub(crate) struct Source {
    pub sandbox: Sandbox,
    /// The folder with their files.
    pub dir: PathBuf,
    /// Where files from registries are kept.
    pub pulled_dir: PathBuf,
    /// Where compiled code is kept.
    pub cache_dir: PathBuf,
    /// Where the commands of this user keep compiled code.
    pub user_cache: Option<PathBuf>,
    /// The orders of operators that hold at the start. A reload that was ordered before is done by the start.
    pub orders: Orders,
    /// Where good versions are kept for all hosts.
    pub shelf: Shelf,
}

impl Plugins {
    /// Tries every file that is there once, then watches the files in the background until `stop`. Large
    /// files that were never compiled may take minutes: after [`PATIENCE`] it returns the registry as it is,
    /// and the other versions come while the host runs.
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
        let Source { sandbox, dir, pulled_dir, cache_dir, user_cache, orders, shelf } = source;
        let cache = tokio::task::spawn_blocking(move || Cache::of_host(&cache_dir, user_cache))
            .await
            .context("cannot look at the cache")?;
        let notes = Notes::new(cache.folder());
        let plugins = Plugins::new(
            PluginFolders { own: dir, pulled: pulled_dir },
            notes,
            times.pauses,
            wanted,
            orders,
            shelf,
        );
        let unwatched = plugins.0.unwatched.clone();
        let keeping = unwatched.run_until_cancelled_owned(keeper::run(plugins.clone()));
        tracker.spawn(stop.clone().run_until_cancelled_owned(keeping));
        let unwatched = plugins.0.unwatched.clone();
        let pulling = unwatched.clone().run_until_cancelled_owned(pulls::run(plugins.clone()));
        let pulling = tokio::spawn(stop.clone().run_until_cancelled_owned(pulling));
        tracker.spawn(async move {
            if pulling.await.is_err_and(|error| error.is_panic()) {
                unwatched.cancel();
            }
        });
        let loader = loader::Loader::new(sandbox, cache);
        let watcher = Watcher::new(loader, plugins.clone(), times);
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
}
