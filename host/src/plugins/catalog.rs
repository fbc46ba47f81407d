//! The plugins that queues use, by their names.
//!
//! In: the names in use and their grants, each time that the configuration changes. Out: for each name its
//! entry, and the answers to questions of attempts and commands.
//!
//! Not here: one plugin (`registry`), looking at the files (`watcher`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::life::LifeEvent;
use super::origin::{Origin, PluginFolders};
use super::quarantine::Notes;
use super::registry::PluginEntry;
use super::retries::Pauses;
use super::shelf::Shelf;
use super::status::PluginStatus;
use super::version::Version;
use crate::config;
use crate::guarded::Guarded;
use crate::queue::orders::{Orders, Withdrawn};
use crate::sandbox::Cores;

/// The message for the operator when the watcher has ended.
pub(crate) const UNWATCHED: &str = "the watcher of the plugins folder has failed, which is a bug of tqhost: \
    no new versions are taken until the host starts again";

/// The registry. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Plugins(pub(super) Arc<Registry>);

pub(super) struct Registry {
    plugins: RwLock<BTreeMap<String, Arc<PluginEntry>>>,
    /// The folders with their files.
    pub(super) folders: PluginFolders,
    notes: Notes,
    pauses: Pauses,
    /// The orders of operators, also about plugins that no queue uses now.
    orders: Guarded<Orders>,
    pub(super) shelf: Shelf,
    /// Tells the watcher that there are other names or grants.
    pub(super) updated: Notify,
    /// Tells the pulls that there may be other sources.
    pub(super) sources: Notify,
    /// Cancelled when the first scan is over.
    pub(super) scanned: CancellationToken,
    /// Cancelled when the watcher or another part that drives the lives of plugins has failed.
    pub(super) unwatched: CancellationToken,
    /// The host has started, so tasks may run.
    pub(super) at_work: AtomicBool,
}

/// The names in use and their grants.
pub(super) type Wanted = BTreeMap<String, config::Plugin>;

impl Plugins {
    /// A registry that nobody watches yet.
    pub(super) fn new(
        folders: PluginFolders,
        notes: Notes,
        pauses: Pauses,
        wanted: Wanted,
        orders: Orders,
        shelf: Shelf,
    ) -> Plugins {
        let plugins = Plugins(Arc::new(Registry {
            plugins: RwLock::default(),
            folders,
            notes,
            pauses,
            orders: Guarded::new(orders),
            shelf,
            updated: Notify::new(),
            sources: Notify::new(),
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
        Plugins::new(
            PluginFolders::default(),
            Notes::new(None),
            Pauses::default(),
            wanted,
            Orders::default(),
            Shelf::default(),
        )
    }

    /// Waits until every file that was there at the start has been tried.
    pub(crate) async fn scanned(&self) {
        self.0.scanned.cancelled().await;
    }

    /// Waits until the watcher has ended because of a panic. [`UNWATCHED`] says what follows.
    pub(crate) async fn unwatched(&self) {
        self.0.unwatched.cancelled().await;
    }

    /// Takes other names or grants. A new name gets its version as soon as the watcher has found one. A
    /// version that serves gets its new grants at once, even if its file or its self-check fails now: an
    /// operator may have taken a grant away.
    pub(crate) fn update(&self, wanted: Wanted) {
        let gone: Vec<Arc<PluginEntry>> = {
            let mut plugins = self.0.plugins.write().unwrap_or_else(PoisonError::into_inner);
            let gone = plugins.extract_if(.., |name, _| !wanted.contains_key(name)).map(|(_, plugin)| plugin);
            let gone = gone.collect();
            for (name, grants) in &wanted {
                plugins.entry(name.clone()).or_insert_with(|| {
                    let origin = Origin::new(&self.0.folders, name, grants.source.clone());
                    let notes = self.0.notes.clone();
                    let (grants, unwatched) = (grants.clone(), self.0.unwatched.clone());
                    Arc::new(PluginEntry::new(name, origin, grants, notes, self.0.pauses, unwatched))
                });
            }
            gone
        };
        for plugin in self.entries() {
            if let Some(grants) = wanted.get(&*plugin.name) {
                plugin.grant(grants);
            }
        }
        self.pass_orders_on();
        gone.iter().for_each(|plugin| drop(plugin.tell(LifeEvent::Unwanted)));
        self.0.sources.notify_one();
        self.0.updated.notify_one();
    }

    /// Takes the orders of operators.
    pub(crate) fn order(&self, orders: Orders) {
        let (before, reloads) = {
            let mut known = self.0.orders.lock();
            if *known == orders {
                return;
            }
            let reloads = orders.reloads.clone();
            (std::mem::replace(&mut *known, orders), reloads)
        };
        self.pass_orders_on();
        for plugin in self.entries() {
            let at = reloads.get(&*plugin.name);
            if at.is_some() && at != before.reloads.get(&*plugin.name) {
                // A content that failed is tried again after this event, although the grants are the same.
                drop(plugin.tell(LifeEvent::Granted));
                plugin.origin.ask.notify_one();
            }
        }
        // The watcher looks at the files now.
        self.0.updated.notify_one();
    }

    fn pass_orders_on(&self) {
        let orders = self.0.orders.lock().clone();
        let none = Withdrawn::new();
        for plugin in self.entries() {
            let good = orders.good.get(&*plugin.name).map(Vec::as_slice).unwrap_or_default();
            plugin.share(good, &self.0.shelf);
            let withdrawn = orders.withdrawn.get(&*plugin.name).unwrap_or(&none);
            plugin.order(withdrawn, orders.last.get(&*plugin.name));
        }
    }

    fn plugins(&self) -> RwLockReadGuard<'_, BTreeMap<String, Arc<PluginEntry>>> {
        self.0.plugins.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// All plugins that queues use.
    pub(super) fn entries(&self) -> Vec<Arc<PluginEntry>> {
        self.plugins().values().cloned().collect()
    }

    /// The plugin's active version; `None` while no version works, and for a name that no queue uses.
    pub(crate) fn subscribe(&self, plugin: &str) -> watch::Receiver<Option<Arc<Version>>> {
        match self.plugins().get(plugin) {
            Some(plugin) => plugin.subscribe(),
            None => watch::channel(None).1,
        }
    }

    /// The cores that compiling may use.
    pub(super) fn cores(&self) -> Cores {
        if self.0.at_work.load(Ordering::Relaxed) { Cores::Half } else { Cores::All }
    }

    /// The digests of all versions that serve or may have to again. `None`: the first scan is not over, so
    /// they are not known.
    pub(super) fn in_use(&self) -> Option<BTreeSet<String>> {
        let all = || self.entries().iter().flat_map(|plugin| plugin.in_use()).collect();
        self.0.scanned.is_cancelled().then(all)
    }

    /// The grants of a plugin in the configuration of this host. `None`: no queue uses the plugin here.
    pub(crate) fn grants(&self, plugin: &str) -> Option<config::Plugin> {
        self.plugins().get(plugin).map(|plugin| plugin.grants())
    }

    /// All plugins by name.
    pub(crate) fn status(&self) -> Vec<PluginStatus> {
        self.entries().iter().map(|plugin| plugin.status()).collect()
    }
}
