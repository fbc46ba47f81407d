//! Watches the plugins folder, and sees to it that what is new is taken.
//!
//! In: hints that something changed (notify), and a slow look at every file for what the hints miss. Out: files to be taken, each by a task of its
//! own (`watched`), which has its plugin for that time: other plugins go on meanwhile.
//!
//! ```text
//! look at all files ─▶ nothing to do, for each of them
//!                       │ a file to be taken ─▶ away ─▶ here again
//!                       └ other grants, or none any more: whoever is away with it is told to stop
//! ```
//!
//! Not here: what becomes of a file (`watched`), who reads and compiles at once (`gate`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use notify::Watcher as _;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::gate::Gate;
use super::loader::Loader;
use super::registry::Slot;
use super::watched::{Means, Watched, blocking};
use super::{Plugins, Times, Wanted};
use crate::config;
use crate::file::{self, Stamp};

/// How long a file must stay the same before it is read.
pub(super) const SETTLE: Duration = Duration::from_millis(100);
/// How often every file is looked at without a hint.
pub(super) const RESCAN: Duration = Duration::from_secs(2);
/// How long to wait after a hint: hints come in bursts.
pub(super) const BURST: Duration = Duration::from_millis(20);
/// How long the first scan waits for files that somebody is still writing.
const FIRST_SCAN: Duration = Duration::from_secs(10);

pub(super) struct Watcher {
    dir: PathBuf,
    means: Means,
    /// Those that nothing is done with.
    here: Vec<Watched>,
    /// Those whose file is being taken.
    away: Vec<Away>,
    taking: JoinSet<Watched>,
    wanted: watch::Receiver<Wanted>,
    times: Times,
    hint: Arc<Notify>,
    /// The watcher and the directory that it watches.
    hints: Option<(notify::RecommendedWatcher, DirId)>,
    /// The hints do not work and that has been said.
    deaf: bool,
}

/// Device and inode: a directory that was made anew is another one.
type DirId = (u64, u64);

/// A plugin that is with the task that takes its file.
struct Away {
    slot: Arc<Slot>,
    /// Those that it is to have.
    grants: config::Plugin,
    stop: CancellationToken,
    /// The file failed before.
    is_again: bool,
}

impl Watcher {
    pub(super) fn new(
        dir: PathBuf,
        loader: Loader,
        registry: Plugins,
        wanted: watch::Receiver<Wanted>,
        times: Times,
    ) -> Watcher {
        let means = Means { loader, registry, gate: Gate::new(times.patience) };
        let (here, away, taking, hint) = (Vec::new(), Vec::new(), JoinSet::new(), Arc::new(Notify::new()));
        let mut watcher =
            Watcher { dir, means, here, away, taking, wanted, times, hint, hints: None, deaf: false };
        watcher.adopt();
        watcher
    }

    /// Watches what is wanted now, and hands on grants that changed.
    fn adopt(&mut self) {
        let wanted = self.wanted.borrow_and_update().clone();
        let slots = self.means.registry.slots().clone();
        let (mut here, mut away) = (std::mem::take(&mut self.here), std::mem::take(&mut self.away));
        for (name, grants) in wanted {
            // Updated again meanwhile: that will be adopted next.
            let Some(slot) = slots.get(&name) else { continue };
            // A name that was gone and came back has a slot anew.
            if let Some(at) = here.iter().position(|plugin| Arc::ptr_eq(&plugin.slot, slot)) {
                let mut plugin = here.swap_remove(at);
                plugin.adopt(grants);
                self.here.push(plugin);
            } else if let Some(at) = away.iter().position(|plugin| Arc::ptr_eq(&plugin.slot, slot)) {
                let mut plugin = away.swap_remove(at);
                if plugin.grants != grants {
                    // It adopts them when it is here.
                    plugin.stop.cancel();
                    plugin.grants = grants;
                }
                self.away.push(plugin);
            } else {
                let path = self.dir.join(format!("{name}.wasm"));
                self.here.push(Watched::new(slot.clone(), path, grants, self.times));
            }
        }
        // Those that nobody wants any more.
        away.iter().for_each(|plugin| plugin.stop.cancel());
    }

    /// Lets a task take a plugin's file.
    fn send(&mut self, plugin: Watched, stamp: Stamp) {
        plugin.slot.begins();
        let (slot, grants, stop) = (plugin.slot.clone(), plugin.grants().clone(), CancellationToken::new());
        self.away.push(Away { slot, grants, stop: stop.clone(), is_again: plugin.is_again() });
        self.taking.spawn(plugin.take_unless(stop, stamp, self.means.gate.line_up(), self.means.clone()));
    }

    /// A plugin is here again, unless nobody wants it any more.
    fn comes(&mut self, plugin: Result<Watched, JoinError>) {
        let mut plugin = match plugin.map_err(JoinError::try_into_panic) {
            Ok(plugin) => plugin,
            // Without its plugin the watcher is of no more use than without itself.
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            // The runtime ends, and the watcher with it.
            Err(Err(_)) => return,
        };
        if let Some(at) = self.away.iter().position(|away| Arc::ptr_eq(&away.slot, &plugin.slot)) {
            plugin.adopt(self.away.swap_remove(at).grants);
            self.here.push(plugin);
        }
    }

    /// Tries every file that is there once.
    async fn first_scan(&mut self) {
        let mut end = None;
        loop {
            self.scan().await;
            // Those that failed have been tried; what is tried again may fail for ever.
            if self.away.iter().all(|plugin| plugin.is_again) && !self.wanted.has_changed().unwrap_or(false) {
                if !self.here.iter().any(Watched::is_settling) {
                    break;
                }
                // From when nothing else is to be compiled, which may take minutes.
                if Instant::now() > *end.get_or_insert_with(|| Instant::now() + FIRST_SCAN) {
                    tracing::warn!(dir = %self.dir.display(), "plugin files keep changing; going on without them for now");
                    break;
                }
            }
            self.wait().await;
        }
        // Those without a file may have a version to go back to as well.
        let slots: Vec<_> = self.here.iter().map(|plugin| plugin.slot.clone()).collect();
        blocking(move || slots.iter().for_each(|slot| slot.recall())).await;
        for plugin in &self.here {
            if plugin.is_missing() {
                tracing::warn!(plugin = %plugin.slot.name, path = %plugin.path.display(), "plugin missing: its queues wait for it");
            }
        }
    }

    /// Tries every file that is there, then watches until it is told to stop.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => return,
            () = self.first_scan() => self.means.registry.0.scanned.cancel(),
        }
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.wait() => {}
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.scan() => {}
            }
        }
    }

    /// Waits until there may be something to do.
    async fn wait(&mut self) {
        let next = Instant::now() + RESCAN;
        let next = [self.next_settled(), self.here.iter().filter_map(Watched::due).min()]
            .into_iter()
            .flatten()
            .fold(next, Instant::min);
        tokio::select! {
            () = self.hint.notified() => tokio::time::sleep(BURST).await,
            Ok(()) = self.wanted.changed() => self.adopt(),
            Some(plugin) = self.taking.join_next() => self.comes(plugin),
            () = tokio::time::sleep_until(next.into()) => {}
        }
    }

    /// When the first of the new files has been the same for long enough.
    fn next_settled(&self) -> Option<Instant> {
        self.here.iter().filter_map(Watched::settles).min()
    }

    async fn scan(&mut self) {
        let dir = self.dir.clone();
        // The watch comes before the look: what happens in between is then a hint.
        let Some(id) = blocking(move || dir_id(&dir)).await else { return };
        self.listen(id);
        let paths: Vec<PathBuf> = self.here.iter().map(|plugin| plugin.path.clone()).collect();
        // A folder on a network may take its time to answer.
        let Some(found) =
            blocking(move || paths.iter().map(|path| file::look(path)).collect::<Vec<_>>()).await
        else {
            return;
        };
        let now = Instant::now();
        self.away.iter().for_each(|plugin| plugin.slot.look(now));
        let mut new = Vec::new();
        for (mut plugin, found) in std::mem::take(&mut self.here).into_iter().zip(found) {
            plugin.slot.look(now);
            match plugin.step(found) {
                Some(stamp) => new.push((stamp, plugin)),
                None => self.here.push(plugin),
            }
        }
        // What is soon done comes before what takes minutes to compile.
        new.sort_by_key(|(stamp, _)| stamp.bytes());
        for (stamp, plugin) in new {
            self.send(plugin, stamp);
        }
    }

    /// Watches the directory that the path names now. Until it exists, and wherever watching fails, the rescan serves.
    fn listen(&mut self, id: Option<DirId>) {
        if self.hints.as_ref().map(|(_, id)| *id) == id {
            return;
        }
        // The old watch first: it names the same path.
        self.hints = None;
        let Some(id) = id else { return };
        let hint = self.hint.clone();
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // Our own reading is an event too.
            if !event.is_ok_and(|event| matches!(event.kind, notify::EventKind::Access(_))) {
                hint.notify_one();
            }
        });
        let watching = watcher.and_then(|mut watcher| {
            watcher.watch(&self.dir, notify::RecursiveMode::NonRecursive)?;
            Ok(watcher)
        });
        match watching {
            Ok(watcher) => {
                self.hints = Some((watcher, id));
                self.deaf = false;
            }
            Err(error) if !self.deaf => {
                self.deaf = true;
                tracing::warn!(dir = %self.dir.display(), %error, "cannot watch the plugins folder; looking at it every 2 s instead");
            }
            Err(_) => {}
        }
    }
}

fn dir_id(dir: &Path) -> Option<DirId> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(dir).ok().filter(std::fs::Metadata::is_dir).map(|meta| (meta.dev(), meta.ino()))
}
