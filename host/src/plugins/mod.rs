//! The plugins that queues use, replaced while the host runs.
//!
//! In: a folder with `<name>.wasm` files, the names in use and their grants. Out: for each name the active
//! [`Version`], as a value that can be watched, and its [`PluginStatus`].
//!
//! ```text
//! folder ─▶ watcher ─▶ file (stable?) ─▶ loader (cache, compile) ─▶ registry ─▶ watch::Receiver
//! ```
//!
//! Not here: what a component may do (`sandbox`), which attempt runs on which version (`worker`: it takes the active
//! one once and keeps it).

mod cache;
mod file;
mod loader;
mod registry;
mod single;
#[cfg(test)]
mod tests;
mod watcher;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config;
use crate::sandbox::Sandbox;

pub use registry::{Figures, PluginState, PluginStatus, Version};
pub use single::{Single, Singles, Watch, read};

use registry::Slot;

/// The registry. Cheap to clone.
#[derive(Clone)]
pub struct Plugins(Arc<BTreeMap<String, Arc<Slot>>>);

impl Plugins {
    /// Tries every file that is there once, then goes on watching in the background until `stop`.
    pub async fn start(
        sandbox: Sandbox,
        dir: PathBuf,
        cache_dir: PathBuf,
        names: BTreeMap<String, config::Plugin>,
        stop: CancellationToken,
        tracker: &TaskTracker,
    ) -> anyhow::Result<Plugins> {
        let cache = tokio::task::spawn_blocking(move || cache::Cache::open(&cache_dir)).await.context("cannot look at the cache")?;
        let slots: BTreeMap<String, Arc<Slot>> = names.keys().map(|name| (name.clone(), Arc::new(Slot::new(name)))).collect();
        let slots = Arc::new(slots);
        let loader = loader::Loader::new(sandbox, cache);
        let mut watcher = watcher::Watcher::new(dir, loader, slots.values().cloned().zip(names.into_values()));
        tokio::select! {
            () = watcher.first_scan() => {}
            () = stop.cancelled() => {}
        }
        tracker.spawn(watcher.run(stop));
        Ok(Plugins(slots))
    }

    /// The plugin's active version: None while there is none that works. A name that no queue uses never has one.
    pub fn subscribe(&self, plugin: &str) -> watch::Receiver<Option<Arc<Version>>> {
        match self.0.get(plugin) {
            Some(slot) => slot.subscribe(),
            None => watch::channel(None).1,
        }
    }

    /// All plugins by name.
    pub fn status(&self) -> Vec<PluginStatus> {
        self.0.values().map(|slot| slot.status()).collect()
    }
}
