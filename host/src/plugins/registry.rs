//! What the host knows of one plugin: the active version, the state of its file, its figures.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tokio::sync::watch;

use crate::config;
use crate::sandbox::{Attempt, Handler, Report};
use crate::task::Outcome;

/// One version of a plugin that works. Attempts hold it until they end.
pub struct Version {
    pub plugin: Arc<str>,
    /// SHA-256 of the file, in hex.
    pub digest: String,
    pub handler: Handler,
    /// Of the file.
    pub bytes: u64,
    /// Shared by all versions of the plugin.
    pub figures: Arc<Figures>,
}

impl Version {
    /// `name@digest`, with the first 12 digits: how the version is shown to people.
    pub fn label(&self) -> Arc<str> {
        format!("{}@{}", self.plugin, &self.digest[..12]).into()
    }

    /// Runs one attempt on this version and counts it. None only when it was told to stop.
    pub async fn run(&self, attempt: Attempt) -> Option<Report> {
        let report = self.handler.run(attempt).await?;
        self.figures.record(&report);
        Some(report)
    }
}

impl std::fmt::Debug for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Version").field("plugin", &self.plugin).field("digest", &self.digest).finish_non_exhaustive()
    }
}

/// What became of a plugin's attempts in this host, since it started.
#[derive(Debug, Default)]
pub struct Figures {
    attempts: AtomicU64,
    failures: AtomicU64,
    peak_memory: AtomicU64,
}

impl Figures {
    /// Counts one attempt; a failure is one that the sandbox ended, not one that the handler reported.
    pub fn record(&self, report: &Report) {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        if matches!(report.outcome, Outcome::Failed { .. }) {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        self.peak_memory.fetch_max(report.peak_memory, Ordering::Relaxed);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PluginState {
    /// The file that is there is the active version.
    Active,
    /// The file that is there cannot be used; an older version may still be active.
    Failed,
    /// There is no file.
    Missing,
}

impl PluginState {
    pub fn as_str(self) -> &'static str {
        match self {
            PluginState::Active => "active",
            PluginState::Failed => "failed",
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
    /// Why the file that is there cannot be used.
    pub error: Option<String>,
    /// When the active version was taken, in milliseconds since the Unix epoch.
    pub loaded_at_ms: Option<u64>,
    /// How long it took to compile the active version, or to load it from the cache.
    pub compile_ms: Option<u64>,
    pub from_cache: Option<bool>,
    pub bytes: Option<u64>,
    pub attempts: u64,
    pub failures: u64,
    pub peak_memory: u64,
    pub reloads_ok: u64,
    pub reloads_failed: u64,
}

/// The place of one plugin in the registry. Only the watcher writes to it.
pub(super) struct Slot {
    pub(super) name: Arc<str>,
    active: watch::Sender<Option<Arc<Version>>>,
    figures: Arc<Figures>,
    about: Mutex<About>,
}

struct About {
    state: PluginState,
    error: Option<String>,
    loaded: Option<Loaded>,
    reloads_ok: u64,
    reloads_failed: u64,
}

/// How the active version came to be.
#[derive(Clone, Copy)]
struct Loaded {
    at_ms: u64,
    took: Duration,
    from_cache: bool,
}

impl Slot {
    pub(super) fn new(name: &str) -> Slot {
        let about = About { state: PluginState::Missing, error: None, loaded: None, reloads_ok: 0, reloads_failed: 0 };
        Slot { name: name.into(), active: watch::Sender::new(None), figures: Arc::default(), about: Mutex::new(about) }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Option<Arc<Version>>> {
        self.active.subscribe()
    }

    /// The active version's digest.
    pub(super) fn digest(&self) -> Option<String> {
        self.active.borrow().as_ref().map(|version| version.digest.clone())
    }

    /// Makes a version the active one; what runs on the one before it finishes there.
    pub(super) fn publish(&self, digest: String, handler: Handler, bytes: u64, took: Duration, from_cache: bool) {
        let version = Version { plugin: self.name.clone(), digest, handler, bytes, figures: self.figures.clone() };
        {
            let at_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
            let mut about = self.about();
            about.loaded = Some(Loaded { at_ms: u64::try_from(at_ms).unwrap_or(u64::MAX), took, from_cache });
            about.state = PluginState::Active;
            about.error = None;
            about.reloads_ok += 1;
        }
        self.active.send_replace(Some(Arc::new(version)));
    }

    /// From now on attempts begin with these grants; what runs keeps those it has.
    pub(super) fn regrant(&self, grants: &config::Plugin) {
        self.active.send_if_modified(|active| {
            let Some(version) = active.as_deref() else { return false };
            *active = Some(Arc::new(Version {
                plugin: version.plugin.clone(),
                digest: version.digest.clone(),
                handler: version.handler.with_grants(grants),
                bytes: version.bytes,
                figures: version.figures.clone(),
            }));
            true
        });
    }

    /// The file that is there cannot be used. The active version, if any, stays.
    pub(super) fn fail(&self, error: String) {
        let mut about = self.about();
        about.state = PluginState::Failed;
        about.error = Some(error);
        about.reloads_failed += 1;
    }

    /// The file that is there holds the active version again.
    pub(super) fn confirm(&self) {
        let mut about = self.about();
        about.state = PluginState::Active;
        about.error = None;
    }

    /// The file is gone: whoever waits for a version waits on. Tells whether there was one.
    pub(super) fn remove(&self) -> bool {
        {
            let mut about = self.about();
            about.state = PluginState::Missing;
            about.error = None;
            about.loaded = None;
        }
        self.active.send_if_modified(|active| active.take().is_some())
    }

    pub(super) fn status(&self) -> PluginStatus {
        let active = self.active.borrow().clone();
        let about = self.about();
        PluginStatus {
            name: self.name.to_string(),
            state: about.state,
            digest: active.as_ref().map(|version| version.digest.clone()),
            error: about.error.clone(),
            loaded_at_ms: about.loaded.map(|loaded| loaded.at_ms),
            compile_ms: about.loaded.map(|loaded| u64::try_from(loaded.took.as_millis()).unwrap_or(u64::MAX)),
            from_cache: about.loaded.map(|loaded| loaded.from_cache),
            bytes: active.as_ref().map(|version| version.bytes),
            attempts: self.figures.attempts.load(Ordering::Relaxed),
            failures: self.figures.failures.load(Ordering::Relaxed),
            peak_memory: self.figures.peak_memory.load(Ordering::Relaxed),
            reloads_ok: about.reloads_ok,
            reloads_failed: about.reloads_failed,
        }
    }

    fn about(&self) -> MutexGuard<'_, About> {
        self.about.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
