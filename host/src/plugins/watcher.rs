//! Watches the plugins folder and takes what is new.
//!
//! In: hints that something changed (notify), and a slow look at every file for what the hints miss. Out: published,
//! failed or removed versions in the registry.
//!
//! ```text
//! look ─▶ stamp as before? ─▶ nothing
//!           │ new ─▶ same for SETTLE? ─▶ read whole ─▶ hash ─▶ known? ─▶ load ─▶ self-check ─▶ publish or fail
//!           └ failed, though nothing may be wrong with it, and its pause is over ─▶ read whole ─▶ …
//! ```
//!
//! One loop for all plugins, so at most one compiles at a time. Not here: how a file is read (`file`), how it becomes a
//! handler (`loader`), how long the pauses are (`again`).

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use notify::Watcher as _;
use sha2::{Digest as _, Sha256};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::again::Failed;
use super::history::What;
use super::loader::{self, Loader};
use super::quarantine::Good;
use super::registry::{Failure, Loaded, Refusal, Slot, short};
use super::{Plugins, Times, Wanted};
use crate::config;
use crate::file::{self, Found, Stamp};
use crate::sandbox::{Allowance, LoadError};

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
    loader: Loader,
    plugins: Vec<Watched>,
    registry: Plugins,
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

/// One plugin's file.
struct Watched {
    slot: Arc<Slot>,
    grants: config::Plugin,
    /// Those that the active version has.
    granted: config::Plugin,
    path: PathBuf,
    /// What was dealt with last; None: whatever is there is to be dealt with.
    seen: Option<Found>,
    /// A new state of the file and when it was first seen.
    candidate: Option<(Stamp, Instant)>,
    /// What failed last, as long as nothing else took its place.
    failed: Option<Failed>,
    /// The active version runs with the grants before these: it has not checked itself with them, or has refused them.
    is_ungranted: bool,
    times: Times,
}

impl Watcher {
    pub(super) fn new(dir: PathBuf, loader: Loader, registry: Plugins, wanted: watch::Receiver<Wanted>, times: Times) -> Watcher {
        let hint = Arc::new(Notify::new());
        let mut watcher = Watcher { dir, loader, plugins: Vec::new(), registry, wanted, times, hint, hints: None, deaf: false };
        watcher.adopt();
        watcher
    }

    /// Watches what is wanted now, and hands on grants that changed.
    fn adopt(&mut self) {
        let wanted = self.wanted.borrow_and_update().clone();
        let slots = self.registry.slots().clone();
        let mut before = std::mem::take(&mut self.plugins);
        for (name, grants) in wanted {
            // Updated again meanwhile: that will be adopted next.
            let Some(slot) = slots.get(&name) else { continue };
            // A name that was gone and came back has a slot anew.
            let known = before.iter().position(|plugin| Arc::ptr_eq(&plugin.slot, slot)).map(|at| before.swap_remove(at));
            self.plugins.push(match known {
                Some(mut plugin) => {
                    if plugin.grants != grants {
                        // What failed may work with these.
                        plugin.failed = None;
                        plugin.seen = None;
                        plugin.grants = grants;
                        plugin.is_ungranted |= slot.checks_grants();
                        if plugin.grants == plugin.granted {
                            // Those before were never its own.
                            plugin.is_ungranted = false;
                        } else if !plugin.is_ungranted {
                            plugin.regrant(Instant::now());
                        }
                    }
                    plugin
                }
                None => {
                    let path = self.dir.join(format!("{name}.wasm"));
                    let (slot, seen, times) = (slot.clone(), Some(Found::Missing), self.times);
                    let granted = grants.clone();
                    Watched { slot, grants, granted, path, seen, candidate: None, failed: None, is_ungranted: false, times }
                }
            });
        }
    }

    /// Tries every file that is there once.
    async fn first_scan(&mut self) {
        let mut end = None;
        loop {
            self.scan().await;
            if self.wanted.has_changed().unwrap_or(false) {
                self.adopt();
                continue;
            }
            let Some(settled) = self.next_settled() else { break };
            // From when nothing else is to be compiled, which may take minutes.
            if Instant::now() > *end.get_or_insert_with(|| Instant::now() + FIRST_SCAN) {
                tracing::warn!(dir = %self.dir.display(), "plugin files keep changing; going on without them for now");
                break;
            }
            tokio::time::sleep_until(settled.into()).await;
        }
        // Those without a file may have a version to go back to as well.
        let slots: Vec<_> = self.plugins.iter().map(|plugin| plugin.slot.clone()).collect();
        blocking(move || slots.iter().for_each(|slot| slot.recall())).await;
        for plugin in &self.plugins {
            if plugin.seen == Some(Found::Missing) && plugin.candidate.is_none() {
                tracing::warn!(plugin = %plugin.slot.name, path = %plugin.path.display(), "plugin missing: its queues wait for it");
            }
        }
    }

    /// Tries every file that is there, then watches until it is told to stop.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => return,
            () = self.first_scan() => self.registry.0.scanned.cancel(),
        }
        loop {
            let next = Instant::now() + RESCAN;
            let next = [self.next_settled(), self.next_due()].into_iter().flatten().fold(next, Instant::min);
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.hint.notified() => tokio::time::sleep(BURST).await,
                Ok(()) = self.wanted.changed() => self.adopt(),
                () = tokio::time::sleep_until(next.into()) => {}
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.scan() => {}
            }
        }
    }

    /// When the first of the new files has been the same for long enough.
    fn next_settled(&self) -> Option<Instant> {
        self.plugins.iter().filter_map(|plugin| plugin.candidate).map(|(_, since)| since + SETTLE).min()
    }

    /// When the first of those that failed is tried again.
    fn next_due(&self) -> Option<Instant> {
        // A file that changes is dealt with when it has settled.
        let waiting = self.plugins.iter().filter(|plugin| plugin.candidate.is_none());
        waiting.filter_map(|plugin| plugin.failed.as_ref()?.due()).min()
    }

    async fn scan(&mut self) {
        let dir = self.dir.clone();
        // The watch comes before the look: what happens in between is then a hint.
        let Some(id) = blocking(move || dir_id(&dir)).await else { return };
        self.listen(id);
        let paths: Vec<PathBuf> = self.plugins.iter().map(|plugin| plugin.path.clone()).collect();
        // A folder on a network may take its time to answer.
        let Some(found) = blocking(move || paths.iter().map(|path| file::look(path)).collect::<Vec<_>>()).await else { return };
        let mut steps: Vec<(&mut Watched, Found)> = self.plugins.iter_mut().zip(found).collect();
        // What is soon done does not wait for what takes minutes to compile.
        steps.sort_by_key(|(_, found)| if let Found::File(stamp) = found { stamp.bytes() } else { 0 });
        for (plugin, found) in steps {
            plugin.slot.look(Instant::now());
            plugin.step(found, &self.loader, &self.registry).await;
            // Other grants do not wait for what takes minutes to compile, either: the rest is tried after them.
            if self.wanted.has_changed().unwrap_or(false) {
                return;
            }
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

impl Watched {
    async fn step(&mut self, found: Found, loader: &Loader, registry: &Plugins) {
        let now = Instant::now();
        if self.seen == Some(found) {
            self.candidate = None;
            let of_file = self.failed.as_ref().and_then(|failed| failed.digest.clone());
            if self.slot.digest() != of_file {
                // It was rolled back since it refused them.
                self.regrant_unasked();
            }
            if let Found::File(stamp) = found
                && self.failed.as_ref().is_some_and(|failed| failed.is_due(now))
            {
                // Until it is read.
                self.seen = None;
                self.take(stamp, loader, registry).await;
            }
            return;
        }
        match found {
            Found::Missing => {
                self.regrant_unasked();
                self.seen = Some(found);
                self.candidate = None;
                self.failed = None;
                if let Some(digest) = self.slot.remove() {
                    let digest = short(&digest);
                    tracing::info!(plugin = %self.slot.name, digest, "plugin removed: running attempts finish, its queues wait");
                }
            }
            Found::Other(why) => {
                self.regrant_unasked();
                self.seen = Some(found);
                self.candidate = None;
                self.fail(What::Failed, None, why.to_owned(), now, false);
            }
            Found::File(stamp) => {
                let since = match self.candidate {
                    Some((candidate, since)) if candidate == stamp => since,
                    _ => now,
                };
                self.candidate = Some((stamp, since));
                if now.duration_since(since) >= SETTLE || (stamp.is_old() && since == now) {
                    self.take(stamp, loader, registry).await;
                }
            }
        }
    }

    /// Reads a file that has settled and makes it the active version, if it is a new one and works.
    async fn take(&mut self, stamp: Stamp, loader: &Loader, registry: &Plugins) {
        let started = Instant::now();
        if stamp.bytes() > file::MAX_BYTES {
            self.regrant_unasked();
            self.seen = Some(Found::File(stamp));
            self.candidate = None;
            return self.fail(What::Failed, None, format!("{}: it has {} bytes", LoadError::TooLarge, stamp.bytes()), started, false);
        }
        let (path, slot) = (self.path.clone(), self.slot.clone());
        let read = blocking(move || {
            slot.recall();
            read_whole(&path, stamp)
        });
        let (bytes, digest) = match read.await {
            Some(Ok(Some(read))) => read,
            // Somebody is at it: it settles anew.
            Some(Ok(None)) | None => {
                self.candidate = Some((stamp, Instant::now()));
                return;
            }
            Some(Err(error)) => {
                // It may be read another time: too many open files, a folder on a network.
                self.candidate = Some((stamp, Instant::now() + RESCAN));
                let error = format!("the file cannot be read: {error}");
                if self.failed.as_ref().is_none_or(|failed| failed.error != error) {
                    self.fail(What::Failed, None, error, started, false);
                }
                return;
            }
        };
        self.seen = Some(Found::File(stamp));
        self.candidate = None;
        let is_active = self.slot.digest().as_ref() == Some(&digest);
        if !is_active {
            self.regrant_unasked();
        }
        if is_active && !self.is_ungranted {
            // Touched, or the good file put back over a bad one.
            let had_failed = self.failed.take().is_some();
            if self.slot.confirm(&digest) || had_failed {
                tracing::info!(plugin = %self.slot.name, digest = short(&digest), "plugin file is the active version again");
            }
            return;
        }
        let is_known_bad = |failed: &Failed| failed.is_of(&digest) && !failed.is_due(started);
        if self.is_in_quarantine(&digest, loader).await || self.failed.as_ref().is_some_and(is_known_bad) {
            return;
        }
        let (compiler, grants, size, name) = (loader.clone(), self.grants.clone(), bytes.len() as u64, digest.clone());
        let (cores, in_use, stop) = (registry.cores(), registry.in_use(), CancellationToken::new());
        let allowance = Allowance { cores, stop: stop.clone() };
        self.slot.begins();
        let loading = blocking(move || compiler.load(&bytes, &name, &grants, &allowance, in_use.as_ref()));
        let (handler, took, from_cache) = match while_it_stays(&self.path, stamp, &digest, stop, loading).await {
            Some(Ok(loader::Loaded { handler, took, from_cache })) => (handler, took, from_cache),
            Some(Err(LoadError::Abandoned)) => {
                tracing::info!(plugin = %self.slot.name, digest = short(&digest), "plugin file changed while it was compiled, which is broken off");
                // Whatever is there now, and before anybody says that all files have been tried.
                self.seen = None;
                self.candidate = Some((stamp, Instant::now()));
                return;
            }
            Some(Err(error)) => return self.fail(What::Failed, Some(digest), error.to_string(), started, error.may_pass()),
            None => return self.fail(What::Failed, Some(digest), "the compiler failed on it".into(), started, false),
        };
        if handler.lacks_hosts() {
            // It may never make one: a handler can have requests for some configurations only. A request that is refused is a warning.
            tracing::info!(plugin = %self.slot.name, "the plugin can make requests, and its allowed_hosts allows none: each would be refused");
        }
        if let Err(error) = handler.self_check(&self.slot.name, self.times.check).await {
            // An attempt may have brought the verdict meanwhile.
            if is_active && self.is_in_quarantine(&digest, loader).await {
                return;
            }
            let what = if is_active { "self-check with its new grants, without which it runs on" } else { "self-check" };
            return self.fail(What::SelfCheckFailed, Some(digest), format!("{what}: {error}"), started, error.may_pass());
        }
        self.failed = None;
        if is_active && self.slot.digest().as_ref() == Some(&digest) {
            self.regrant(started);
            // Unless it had refused others before.
            self.slot.confirm(&digest);
            return;
        }
        match self.slot.publish(&digest, handler, Loaded { bytes: size, took, from_cache }) {
            // Said when it is so: what begins after this line begins on this version.
            Some(on_probation) => {
                let digest = short(&digest);
                tracing::info!(plugin = %self.slot.name, digest, ?took, from_cache, bytes = size, on_probation, "plugin loaded");
            }
            // An attempt that still ran on the same content brought the verdict just now.
            None => drop(self.is_in_quarantine(&digest, loader).await),
        }
    }

    /// What the file holds is not the version that runs: that one is not asked about grants that are configured now, which must not wait for ever.
    fn regrant_unasked(&mut self) {
        if self.is_ungranted {
            self.regrant(Instant::now());
        }
    }

    /// Lets attempts begin with the grants that are configured now. `since` is when it was begun with.
    fn regrant(&mut self, since: Instant) {
        self.is_ungranted = false;
        let (reason, took) = (format!("other {}", self.granted.differences(&self.grants).join(", ")), since.elapsed());
        self.granted = self.grants.clone();
        self.slot.regrant(&self.grants, took, &reason);
        let digest = self.slot.digest();
        let digest = digest.as_deref().map(short);
        tracing::info!(plugin = %self.slot.name, digest, ?took, reason, "plugin has other grants: attempts that begin from now on have them");
    }

    /// Whether the file holds what is in quarantine. Sees to it that the last good version runs, where there is one.
    async fn is_in_quarantine(&mut self, digest: &str, loader: &Loader) -> bool {
        let Some(refusal) = self.slot.refuse(digest) else { return false };
        self.regrant_unasked();
        let again = match refusal {
            Refusal::Covered => None,
            Refusal::Bare(good) => self.reinstate(good, digest, loader).await,
        };
        self.failed = Some(Failed::new(Some(digest.to_owned()), String::new(), again, Instant::now()));
        true
    }

    /// Runs the last good version, out of the cache, in place of the one in quarantine. Gives the pause after which that is tried again.
    async fn reinstate(&self, good: Good, instead_of: &str, loader: &Loader) -> Option<Duration> {
        let (loader, grants, name) = (loader.clone(), self.grants.clone(), good.digest.clone());
        let found = match blocking(move || loader.load_cached(&name, &grants)).await.unwrap_or(Ok(None)) {
            Ok(Some(loaded)) => match loaded.handler.self_check(&self.slot.name, self.times.check).await {
                Ok(()) => Ok(loaded),
                Err(error) => Err((format!("self-check: {error}"), error.may_pass())),
            },
            Ok(None) => Err(("it is not in the cache".to_owned(), false)),
            Err(error) => Err((error.to_string(), error.may_pass())),
        };
        let label = short(&good.digest).to_owned();
        match found {
            Ok(loader::Loaded { handler, took, from_cache }) => {
                self.slot.reinstate(good.digest, handler, Loaded { bytes: good.bytes, took, from_cache });
                tracing::info!(plugin = %self.slot.name, digest = label, ?took, "the last good version of the plugin runs again");
                None
            }
            Err((error, may_pass)) => {
                let again = may_pass.then(|| self.times.pauses.next(self.failed.as_ref(), instead_of));
                self.slot.lacks_good(&format!("{label} cannot run in its place ({error}): put another version there"), again);
                tracing::error!(
                    plugin = %self.slot.name,
                    digest = label,
                    error,
                    again = again.map(tracing::field::debug),
                    "the last good version of the plugin cannot run: its queues wait"
                );
                again
            }
        }
    }

    /// Reports once per content and try; whatever is active stays. `since` is when it was begun with; what `may_pass` is tried again.
    fn fail(&mut self, what: What, digest: Option<String>, error: String, since: Instant, may_pass: bool) {
        let (kept, took) = (self.slot.digest(), since.elapsed());
        let content = digest.as_deref().filter(|_| may_pass);
        let again = content.map(|digest| self.times.pauses.next(self.failed.as_ref(), digest));
        tracing::error!(
            plugin = %self.slot.name,
            path = %self.path.display(),
            digest = digest.as_deref().map(short),
            active = kept.as_deref().map(short),
            ?took,
            again = again.map(tracing::field::debug),
            error,
            "plugin cannot be used"
        );
        self.slot.fail(&Failure { what, digest: digest.as_deref(), error: &error, took, again });
        // What has no digest is remembered too: the good file put back over it must be noticed.
        self.failed = Some(Failed::new(digest, error, again, Instant::now()));
    }
}

/// A file's content and the digest of that; None while somebody is at it. Blocking.
fn read_whole(path: &Path, stamp: Stamp) -> std::io::Result<Option<(Vec<u8>, String)>> {
    let bytes = file::read(path, stamp)?;
    Ok(bytes.map(|bytes| {
        let digest = hex(&Sha256::digest(&bytes));
        (bytes, digest)
    }))
}

/// Waits for what is made of a file's content. When the file has another, or nobody waits here any more, it is told to stop.
async fn while_it_stays<T>(path: &Path, stamp: Stamp, digest: &str, stop: CancellationToken, work: impl Future<Output = T>) -> T {
    let _stops = stop.clone().drop_guard();
    let (mut work, mut seen) = (pin!(work), Found::File(stamp));
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = tokio::time::sleep(RESCAN) => {}
        }
        let (path, before, digest) = (path.to_owned(), seen, digest.to_owned());
        let look = move || {
            let found = file::look(&path);
            let is_same = match found {
                _ if found == before => true,
                Found::File(stamp) if stamp.bytes() <= file::MAX_BYTES => match read_whole(&path, stamp) {
                    Ok(Some((_, now))) => now == digest,
                    // Somebody is at it: that is for the next time.
                    Ok(None) | Err(_) => return (before, true),
                },
                _ => false,
            };
            (found, is_same)
        };
        if let Some((found, is_same)) = blocking(look).await {
            seen = found;
            if !is_same {
                stop.cancel();
            }
        }
    }
}

/// Runs `work` where it may block. None if it panicked, which has been logged then.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

fn dir_id(dir: &Path) -> Option<DirId> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(dir).ok().filter(std::fs::Metadata::is_dir).map(|meta| (meta.dev(), meta.ino()))
}

pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes everything");
        text
    })
}
