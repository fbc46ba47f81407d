//! What the host knows of one plugin: the active version, the last good one, the state of its file, its figures.
//!
//! The watcher brings versions and takes them away; the attempts on a version bring the verdict of its probation. Both write here, each in one step
//! under one lock.
//!
//! Not here: the rule of the probation (`probation`), what is kept for the next start (`quarantine`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::history::{Change, History, What, now_ms};
use super::locked::{self, Locked};
use super::probation::{Probation, Ruling, Verdict};
use super::quarantine::{Good, Notes, Quarantine};
use crate::config;
use crate::sandbox::{Attempt, Ended, Handler, Report, Requests, Share};
use crate::task::{FailureKind, Outcome};

/// One version of a plugin that works. Attempts hold it until they end.
pub struct Version {
    pub plugin: Arc<str>,
    label: Arc<str>,
    /// SHA-256 of the file, in hex.
    pub digest: String,
    pub handler: Handler,
    /// Shared by all versions of the plugin.
    pub figures: Arc<Figures>,
    loaded: Loaded,
    since: Instant,
    /// Shared by all copies of this version.
    probation: Arc<Probation>,
    slot: Weak<Slot>,
}

/// What follows from an attempt.
#[derive(Debug)]
pub enum Judged {
    /// For each task, in their order.
    Each(Vec<(Outcome, Ruling)>),
    /// The call for several tasks failed, which says nothing of any of them, nor of the version: each is to be run alone.
    Split { kind: FailureKind, message: String },
}

/// How a version came to be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Loaded {
    /// Of the file.
    pub(super) bytes: u64,
    pub(super) took: Duration,
    pub(super) from_cache: bool,
}

impl Version {
    /// `name@digest`, with the first 12 digits: how the version is shown to people.
    pub fn label(&self) -> Arc<str> {
        self.label.clone()
    }

    /// Runs one attempt on this version, counts it, and tells of each task how it ended and whether it is to be charged; before that, how long
    /// it took. None only when it was told to stop.
    pub async fn run(self: &Arc<Self>, attempt: Attempt) -> Option<(Duration, Judged)> {
        let tasks = attempt.tasks.clone();
        let Report { ended, peak_memory, duration } = self.handler.run(attempt).await?;
        self.figures.peak_memory.fetch_max(peak_memory, Ordering::Relaxed);
        let outcomes = match ended {
            Ended::Each(outcomes) => outcomes,
            Ended::Failed { kind, message } if tasks.len() == 1 => vec![Outcome::Failed { kind, message }],
            Ended::Failed { kind, message } => return Some((duration, Judged::Split { kind, message })),
        };
        let judged = tasks.iter().zip(outcomes).map(|(task, outcome)| {
            self.figures.record(&outcome);
            let (ruling, verdict) = self.probation.judge(&task.id, &outcome, Instant::now());
            self.found(verdict);
            (outcome, ruling)
        });
        Some((duration, Judged::Each(judged.collect())))
    }

    /// The same version with other grants.
    fn regranted(&self, grants: &config::Plugin) -> Arc<Version> {
        let handler = self.handler.with_grants(grants);
        handler.belongs_to(self.figures.share.clone());
        Arc::new(Version {
            plugin: self.plugin.clone(),
            label: self.label.clone(),
            digest: self.digest.clone(),
            handler,
            figures: self.figures.clone(),
            loaded: self.loaded,
            since: self.since,
            probation: self.probation.clone(),
            slot: self.slot.clone(),
        })
    }

    fn found(self: &Arc<Self>, verdict: Option<Verdict>) {
        if let (Some(verdict), Some(slot)) = (verdict, self.slot.upgrade()) {
            slot.found(self, verdict);
        }
    }
}

impl Drop for Version {
    fn drop(&mut self) {
        debug_assert!(
            !locked::is_held(),
            "a version of {} is dropped under a lock of the registry",
            self.plugin
        );
    }
}

impl std::fmt::Debug for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Version")
            .field("plugin", &self.plugin)
            .field("digest", &self.digest)
            .finish_non_exhaustive()
    }
}

/// What became of a plugin's attempts in this host, since it started.
#[derive(Debug, Default)]
pub struct Figures {
    attempts: AtomicU64,
    failures: AtomicU64,
    peak_memory: AtomicU64,
    share: Arc<Share>,
}

impl Figures {
    /// Counts one attempt at one task; a failure is one that the sandbox ended, not one that the handler reported.
    fn record(&self, outcome: &Outcome) {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        if matches!(outcome, Outcome::Failed { .. }) {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PluginState {
    /// The file that is there is the active version.
    Active,
    /// The file that is there cannot be used; an older version may still be active.
    Failed,
    /// The file that is there holds a version that was rolled back; the last good version is active, where there is one.
    Quarantined,
    /// There is no file.
    Missing,
}

impl PluginState {
    pub fn as_str(self) -> &'static str {
        match self {
            PluginState::Active => "active",
            PluginState::Failed => "failed",
            PluginState::Quarantined => "quarantined",
            PluginState::Missing => "missing",
        }
    }
}

/// One plugin, as `tqhost plugins` and the HTTP API show it.
#[derive(Debug, Clone, Serialize)]
pub struct PluginStatus {
    pub name: String,
    pub state: PluginState,
    /// Of the active version.
    pub digest: Option<String>,
    /// The active version replaced a good one and is not found to be good yet.
    pub on_probation: bool,
    /// Why the file that is there cannot be used.
    pub error: Option<String>,
    /// When it is tried again, in milliseconds since the Unix epoch. None: when another file is there, or other grants.
    pub retry_at_ms: Option<u64>,
    /// When the active version was taken, in milliseconds since the Unix epoch.
    pub loaded_at_ms: Option<u64>,
    /// How long it took to compile the active version, or to load it from the cache.
    pub compile_ms: Option<u64>,
    pub from_cache: Option<bool>,
    pub bytes: Option<u64>,
    pub attempts: u64,
    pub failures: u64,
    pub peak_memory: u64,
    /// How many requests ended how; for the metrics.
    #[serde(skip)]
    pub requests: [(&'static str, u64); Requests::RESULTS.len()],
    /// Lines of its handlers that were dropped; for the metrics.
    pub log_lines_dropped: u64,
    pub reloads_ok: u64,
    pub reloads_failed: u64,
    pub rolled_back: u64,
    /// The last changes, oldest first.
    pub history: Vec<Change>,
}

/// The place of one plugin in the registry.
pub(super) struct Slot {
    pub(super) name: Arc<str>,
    active: watch::Sender<Option<Arc<Version>>>,
    figures: Arc<Figures>,
    about: Mutex<About>,
    notes: Notes,
}

struct About {
    state: PluginState,
    error: Option<String>,
    /// When the same file is tried again.
    retry_at_ms: Option<u64>,
    /// The version to go back to. It stays when the file goes: whoever copies a file may remove the old one first.
    good: Option<Arc<Version>>,
    quarantine: Option<Quarantine>,
    /// What an earlier start noted was looked for.
    is_recalled: bool,
    loaded_at_ms: u64,
    reloads_ok: u64,
    reloads_failed: u64,
    rolled_back: u64,
    history: History,
}

/// Why the file that is there cannot be used.
pub(super) struct Failure<'f> {
    pub(super) what: What,
    /// None: it was not read.
    pub(super) digest: Option<&'f str>,
    pub(super) error: &'f str,
    /// To find out about it.
    pub(super) took: Duration,
    /// After which it is tried again, though it stays the same.
    pub(super) again: Option<Duration>,
}

/// What a version's quarantine means for a file that holds it.
pub(super) enum Refusal {
    /// The last good version is active.
    Covered,
    /// No version is active. The last good one may be in the cache.
    Bare(Good),
}

impl Slot {
    pub(super) fn new(name: &str, notes: Notes) -> Slot {
        let about = About {
            state: PluginState::Missing,
            error: None,
            retry_at_ms: None,
            good: None,
            quarantine: None,
            is_recalled: false,
            loaded_at_ms: 0,
            reloads_ok: 0,
            reloads_failed: 0,
            rolled_back: 0,
            history: History::default(),
        };
        Slot {
            name: name.into(),
            active: watch::Sender::new(None),
            figures: Arc::default(),
            about: Mutex::new(about),
            notes,
        }
    }

    /// Looks, once, what was in quarantine when the host ended last. Blocking; comes before anything is published.
    pub(super) fn recall(&self) {
        if !self.about().is_recalled {
            let noted = self.notes.read(&self.name);
            let mut about = self.about();
            // Somebody who was told to stop may still be reading it.
            if !about.is_recalled {
                about.quarantine = noted;
                about.is_recalled = true;
            }
        }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Option<Arc<Version>>> {
        self.active.subscribe()
    }

    /// The active version's digest.
    pub(super) fn digest(&self) -> Option<String> {
        self.active.borrow().as_ref().map(|version| version.digest.clone())
    }

    /// The digests of the active version and of the one to go back to, also for the next start.
    pub(super) fn in_use(&self) -> Vec<String> {
        let about = self.about();
        let good = about.good.as_ref().map(|good| good.digest.clone());
        let noted = about.quarantine.as_ref().map(|quarantine| quarantine.good.digest.clone());
        [self.digest(), good, noted].into_iter().flatten().collect()
    }

    /// Makes a version the active one; what runs on the one before it finishes there. Tells whether it is on probation, or nothing when it was
    /// put in quarantine while it was loaded.
    pub(super) fn publish(self: &Arc<Self>, digest: &str, handler: Handler, loaded: Loaded) -> Option<bool> {
        let mut about = self.about();
        if about.quarantine.as_ref().is_some_and(|quarantine| quarantine.digest == digest) {
            return None;
        }
        let good = about.good.clone().filter(|good| good.probation.is_good() && good.digest != digest);
        let probation = if good.is_some() { Probation::new(Instant::now()) } else { Probation::first() };
        let on_probation = good.is_some();
        let version = self.version(digest.to_owned(), handler, loaded, probation);
        about.set_good(Some(good.unwrap_or_else(|| version.clone())));
        about.reloads_ok += 1;
        about.history.add(What::Loaded, Some(&version.digest), Some(loaded.took), None);
        self.activate(&mut about, version);
        self.settled(&mut about);
        Some(on_probation)
    }

    /// Makes the last good version active while the file holds the one in quarantine.
    pub(super) fn reinstate(self: &Arc<Self>, digest: String, handler: Handler, loaded: Loaded) {
        let mut about = self.about();
        let version = self.version(digest, handler, loaded, Probation::first());
        about.set_good(Some(version.clone()));
        self.activate(&mut about, version);
        let digest = self.digest();
        about.history.add(What::Restored, digest.as_deref(), Some(loaded.took), None);
    }

    /// Whether the content that is in the file now is in quarantine, and what that leaves.
    pub(super) fn refuse(&self, digest: &str) -> Option<Refusal> {
        let mut about = self.about();
        let quarantine = about.quarantine.clone().filter(|quarantine| quarantine.digest == digest)?;
        if about.state != PluginState::Quarantined {
            about.history.add(What::Quarantined, Some(digest), None, Some(&quarantine.why));
            tracing::error!(plugin = %self.name, digest = short(digest), reason = quarantine.why, "plugin version is in quarantine and does not run");
        }
        about.state = PluginState::Quarantined;
        about.error = Some(quarantine.why);
        about.retry_at_ms = None;
        if self.active.borrow().is_some() {
            return Some(Refusal::Covered);
        }
        let Some(good) = about.good.clone() else { return Some(Refusal::Bare(quarantine.good)) };
        about.history.add(What::Restored, Some(&good.digest), None, None);
        tracing::info!(plugin = %self.name, digest = short(&good.digest), "the last good version of the plugin runs again");
        self.activate(&mut about, good);
        Some(Refusal::Covered)
    }

    /// Somebody makes a handler of the file that is there. Shown where nothing else is: it may take long.
    pub(super) fn begins(&self) {
        let mut about = self.about();
        if about.state == PluginState::Missing {
            about.error =
                Some("there is a file, which is being compiled and checked, or waits for its turn".into());
        }
    }

    /// Whether the file holds the active version, and that wants to look at its grants before it runs with them.
    pub(super) fn checks_grants(&self) -> bool {
        let about = self.about();
        about.state == PluginState::Active
            && self.active.borrow().as_ref().is_some_and(|active| active.handler.checks_itself())
    }

    /// From now on attempts begin with these grants, on the version to go back to as well; what runs keeps those it has.
    pub(super) fn regrant(&self, grants: &config::Plugin, took: Duration, reason: &str) {
        let mut about = self.about();
        if let Some(digest) = self.digest() {
            about.history.add(What::Regranted, Some(&digest), Some(took), Some(reason));
        }
        let regranted = |version: Option<&Arc<Version>>| version.map(|version| version.regranted(grants));
        let (good, active) = (regranted(about.good.as_ref()), regranted(self.active.borrow().as_ref()));
        about.set_good(good);
        self.set_active(&mut about, active);
    }

    /// The file that is there cannot be used. The active version, if any, stays.
    pub(super) fn fail(&self, failure: &Failure<'_>) {
        let mut about = self.about();
        about.history.add(failure.what, failure.digest, Some(failure.took), Some(failure.error));
        about.state = PluginState::Failed;
        about.error = Some(failure.error.to_owned());
        about.retry_at_ms = failure.again.map(at_ms);
        about.reloads_failed += 1;
    }

    /// There is nothing to run in place of the version in quarantine, unless it can be had when it is tried `again`.
    pub(super) fn lacks_good(&self, why: &str, again: Option<Duration>) {
        let mut about = self.about();
        if let Some(error) = &mut about.error {
            *error = format!("{error}; {why}");
        }
        about.retry_at_ms = again.map(at_ms);
    }

    /// The file that is there holds the active version again. Tells whether there was anything to confirm.
    pub(super) fn confirm(self: &Arc<Self>, digest: &str) -> bool {
        let mut about = self.about();
        // It may have been rolled back this moment.
        if self.digest().as_deref() != Some(digest) || about.state == PluginState::Active {
            return false;
        }
        about.history.add(What::Restored, Some(digest), None, None);
        self.settled(&mut about);
        true
    }

    /// The file is gone: whoever waits for a version waits on. Gives the digest of the one that was active.
    pub(super) fn remove(&self) -> Option<String> {
        let mut about = self.about();
        about.state = PluginState::Missing;
        about.error = None;
        about.retry_at_ms = None;
        let digest = self.digest();
        if digest.is_some() {
            about.history.add(What::Removed, digest.as_deref(), None, None);
        }
        self.set_active(&mut about, None);
        digest
    }

    /// Ends a probation whose time is over.
    pub(super) fn look(&self, now: Instant) {
        let active = self.active.borrow().clone();
        if let Some(version) = active {
            version.found(version.probation.look(now));
        }
    }

    /// The probation of a version has come to its end.
    fn found(self: &Arc<Self>, version: &Arc<Version>, verdict: Verdict) {
        let mut about = self.about();
        let (active, digest) = (self.active.borrow().clone(), short(&version.digest));
        let took = version.since.elapsed();
        // The same content may have been put there twice.
        let only = about.good.as_ref().is_some_and(|good| good.digest == version.digest)
            && matches!(verdict, Verdict::Bad(_));
        if let Some(active) = active.as_ref().filter(|active| active.digest == version.digest && !only) {
            active.probation.follow(&verdict);
        }
        match verdict {
            Verdict::Good => {
                match active {
                    Some(active) if active.digest == version.digest => about.set_good(Some(active)),
                    // A version that was replaced meanwhile is of use as long as its successor is on probation itself.
                    Some(active) if !active.probation.is_open() => {}
                    _ => about.set_good(Some(version.clone())),
                }
                about.history.add(What::Confirmed, Some(&version.digest), Some(took), None);
                tracing::info!(plugin = %self.name, digest, ?took, "plugin version confirmed: its probation is over");
            }
            Verdict::Bad(why) => match (active, about.good.clone()) {
                // Nothing is rolled back to itself: whatever an older attempt of it said, it is all there is.
                (Some(active), Some(good))
                    if active.digest == version.digest && good.digest != version.digest =>
                {
                    about.history.add(What::RolledBack, Some(&version.digest), Some(took), Some(&why));
                    about.rolled_back += 1;
                    let back_to = short(&good.digest).to_owned();
                    self.activate(&mut about, good.clone());
                    // Said when it is so: what begins after this line begins on the good version.
                    tracing::error!(plugin = %self.name, digest, good = back_to, ?took, reason = why, "plugin version rolled back");
                    self.quarantine(&mut about, version, &good, format!("rolled back to {back_to}: {why}"));
                    about.state = PluginState::Quarantined;
                    about.error = about.quarantine.as_ref().map(|quarantine| quarantine.why.clone());
                }
                (None, Some(good)) => {
                    tracing::warn!(plugin = %self.name, digest, reason = why, "plugin version has failed, and was removed before that");
                    self.quarantine(&mut about, version, &good, why);
                }
                _ => {
                    tracing::info!(plugin = %self.name, digest, reason = why, "plugin version has failed, and was replaced before that")
                }
            },
        }
    }

    fn quarantine(self: &Arc<Self>, about: &mut About, version: &Version, good: &Version, why: String) {
        about.history.add(What::Quarantined, Some(&version.digest), None, Some(&why));
        let good = Good { digest: good.digest.clone(), bytes: good.loaded.bytes };
        about.quarantine = Some(Quarantine { digest: version.digest.clone(), why, good });
        self.note();
    }

    /// The file holds the active version.
    fn settled(self: &Arc<Self>, about: &mut About) {
        about.state = PluginState::Active;
        about.error = None;
        about.retry_at_ms = None;
        if about.quarantine.take().is_some() {
            self.note();
        }
    }

    /// Keeps the quarantine, or that there is none, for the next start: as it is when the note is written, which may be later.
    fn note(self: &Arc<Self>) -> JoinHandle<()> {
        let slot = self.clone();
        tokio::task::spawn_blocking(move || slot.notes.write(&slot.name, || slot.about().quarantine.clone()))
    }

    fn version(
        self: &Arc<Self>,
        digest: String,
        handler: Handler,
        loaded: Loaded,
        probation: Probation,
    ) -> Arc<Version> {
        handler.belongs_to(self.figures.share.clone());
        Arc::new(Version {
            plugin: self.name.clone(),
            label: format!("{}@{}", self.name, short(&digest)).into(),
            digest,
            handler,
            figures: self.figures.clone(),
            loaded,
            since: Instant::now(),
            probation: Arc::new(probation),
            slot: Arc::downgrade(self),
        })
    }

    fn activate(&self, about: &mut LockedAbout<'_>, version: Arc<Version>) {
        about.loaded_at_ms = now_ms();
        self.set_active(about, Some(version));
    }

    /// Nobody is told of none after none.
    fn set_active(&self, about: &mut LockedAbout<'_>, version: Option<Arc<Version>>) {
        if version.is_some() || self.active.borrow().is_some() {
            about.let_go(self.active.send_replace(version));
        }
    }

    pub(super) fn status(&self) -> PluginStatus {
        let about = self.about();
        let active = self.active.borrow().clone();
        let active = active.as_ref();
        PluginStatus {
            name: self.name.to_string(),
            state: about.state,
            digest: active.map(|version| version.digest.clone()),
            on_probation: active.is_some_and(|version| version.probation.is_open()),
            error: about.error.clone(),
            retry_at_ms: about.retry_at_ms,
            loaded_at_ms: active.map(|_| about.loaded_at_ms),
            compile_ms: active
                .map(|version| u64::try_from(version.loaded.took.as_millis()).unwrap_or(u64::MAX)),
            from_cache: active.map(|version| version.loaded.from_cache),
            bytes: active.map(|version| version.loaded.bytes),
            attempts: self.figures.attempts.load(Ordering::Relaxed),
            failures: self.figures.failures.load(Ordering::Relaxed),
            peak_memory: self.figures.peak_memory.load(Ordering::Relaxed),
            requests: self.figures.share.requests.totals(),
            log_lines_dropped: self.figures.share.lines_dropped(),
            reloads_ok: about.reloads_ok,
            reloads_failed: about.reloads_failed,
            rolled_back: about.rolled_back,
            history: about.history.list(),
        }
    }

    fn about(&self) -> LockedAbout<'_> {
        Locked::new(self.about.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

type LockedAbout<'s> = Locked<MutexGuard<'s, About>, Arc<Version>>;

impl LockedAbout<'_> {
    fn set_good(&mut self, good: Option<Arc<Version>>) {
        let old = std::mem::replace(&mut self.good, good);
        self.let_go(old);
    }
}

/// So long from now, in milliseconds since the Unix epoch.
fn at_ms(later: Duration) -> u64 {
    now_ms().saturating_add(u64::try_from(later.as_millis()).unwrap_or(u64::MAX))
}

/// A digest as it is shown to people.
pub(super) fn short(digest: &str) -> &str {
    &digest[..digest.len().min(12)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_last_verdict_is_the_one_that_the_next_start_reads() {
        for round in 0..20 {
            let root = tempfile::tempdir().unwrap();
            let slot = Arc::new(Slot::new("p", Notes::new(Some(root.path()))));
            let verdict = |n: u64| Quarantine {
                digest: n.to_string(),
                why: String::new(),
                good: Good { digest: String::new(), bytes: n },
            };
            let noting: Vec<JoinHandle<()>> = (0..50)
                .map(|n| {
                    // Put in quarantine, and lifted again by another content.
                    slot.about().quarantine = (n % 2 == round % 2).then(|| verdict(n));
                    slot.note()
                })
                .collect();
            for note in noting {
                note.await.unwrap();
            }
            assert_eq!(slot.notes.read("p"), (round % 2 == 1).then(|| verdict(49)));
        }
    }
}
