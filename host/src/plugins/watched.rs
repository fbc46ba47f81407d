//! One plugin's file: what of it has been dealt with, and what becomes of it when it is new.
//!
//! In: what lies at its path, now and then; its grants. Out: published, failed or removed versions in the registry.
//!
//! ```text
//! found ─▶ as before? ─▶ nothing
//!           │ new ─▶ same for SETTLE? ─▶ its turn at the gate ─▶ read whole ─▶ hash ─▶ known? ─▶ load ─▶ self-check ─▶ publish or fail
//!           └ failed, though nothing may be wrong with it, and its pause is over ─▶ its turn …
//! ```
//!
//! Not here: who looks, and when (`watcher`), how a file is read (`file`), how it becomes a handler (`loader`), how long the pauses are (`again`).

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use super::again::Failed;
use super::gate::Gate;
use super::history::What;
use super::loader::{self, Loader};
use super::quarantine::Good;
use super::registry::{Failure, Loaded, Refusal, Slot, short};
use super::watcher::{RESCAN, SETTLE};
use super::{Plugins, Times};
use crate::config;
use crate::file::{self, Found, Stamp};
use crate::sandbox::{Allowance, Handler, LoadError};

/// One plugin's file.
pub(super) struct Watched {
    pub(super) slot: Arc<Slot>,
    pub(super) path: PathBuf,
    grants: config::Plugin,
    /// Those that the active version has.
    granted: config::Plugin,
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

/// What takes a file.
#[derive(Clone)]
pub(super) struct Means {
    pub(super) loader: Loader,
    pub(super) registry: Plugins,
    pub(super) gate: Gate,
}

/// What a file's content is.
enum Content {
    /// Known: nothing is left to do.
    Known,
    /// In quarantine.
    Refused(String, Refusal),
    New(Fresh),
}

/// What was made of a file's content.
struct Fresh {
    digest: String,
    handler: Handler,
    loaded: Loaded,
    /// It is the version that runs, with other grants.
    is_active: bool,
    /// When its file was begun with.
    started: Instant,
}

impl Watched {
    pub(super) fn new(slot: Arc<Slot>, path: PathBuf, grants: config::Plugin, times: Times) -> Watched {
        let (granted, seen) = (grants.clone(), Some(Found::Missing));
        Watched { slot, path, grants, granted, seen, candidate: None, failed: None, is_ungranted: false, times }
    }

    /// Other grants, or the same, from now on.
    pub(super) fn adopt(&mut self, grants: config::Plugin) {
        if self.grants == grants {
            return;
        }
        // What failed may work with these.
        self.failed = None;
        self.seen = None;
        self.grants = grants;
        self.is_ungranted |= self.slot.checks_grants();
        if self.grants == self.granted {
            // Those before were never its own.
            self.is_ungranted = false;
        } else if !self.is_ungranted {
            self.regrant(Instant::now());
        }
    }

    /// Those that are configured.
    pub(super) fn grants(&self) -> &config::Plugin {
        &self.grants
    }

    /// When a new file has been the same for long enough.
    pub(super) fn settles(&self) -> Option<Instant> {
        self.candidate.map(|(_, since)| since + SETTLE)
    }

    /// When what failed is tried again. A file that changes is dealt with when it has settled.
    pub(super) fn due(&self) -> Option<Instant> {
        self.failed.as_ref().filter(|_| self.candidate.is_none())?.due()
    }

    pub(super) fn is_missing(&self) -> bool {
        self.seen == Some(Found::Missing) && self.candidate.is_none()
    }

    /// Looks at what was found. Gives what is to be taken now.
    pub(super) fn step(&mut self, found: Found) -> Option<Stamp> {
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
                return Some(stamp);
            }
            return None;
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
                    return Some(stamp);
                }
            }
        }
        None
    }

    /// The same, unless it is told to stop: then as if the file had only just been found.
    pub(super) async fn take_unless(mut self, stamp: Stamp, means: Means, stop: CancellationToken) -> Watched {
        tokio::select! {
            biased;
            () = self.take(stamp, &means) => {}
            () = stop.cancelled() => {
                self.seen = None;
                self.candidate = Some((stamp, Instant::now()));
            }
        }
        self
    }

    /// Reads a file that has settled and makes it the active version, if it is a new one and works. May be dropped wherever it waits.
    async fn take(&mut self, stamp: Stamp, means: &Means) {
        // A self-check waits for a service, perhaps, and holds up nobody.
        match means.gate.pass(self.load(stamp, means)).await {
            Content::Known => {}
            Content::Refused(digest, refusal) => self.goes_back(digest, refusal, &means.loader).await,
            Content::New(fresh) => self.begin(fresh, means).await,
        }
    }

    /// Reads and compiles.
    async fn load(&mut self, stamp: Stamp, means: &Means) -> Content {
        let (Means { loader, registry, .. }, started) = (means, Instant::now());
        if stamp.bytes() > file::MAX_BYTES {
            self.regrant_unasked();
            self.seen = Some(Found::File(stamp));
            self.candidate = None;
            self.fail(What::Failed, None, format!("{}: it has {} bytes", LoadError::TooLarge, stamp.bytes()), started, false);
            return Content::Known;
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
                return Content::Known;
            }
            Some(Err(error)) => {
                // It may be read another time: too many open files, a folder on a network.
                self.candidate = Some((stamp, Instant::now() + RESCAN));
                let error = format!("the file cannot be read: {error}");
                if self.failed.as_ref().is_none_or(|failed| failed.error != error) {
                    self.fail(What::Failed, None, error, started, false);
                }
                return Content::Known;
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
            return Content::Known;
        }
        if let Some(refusal) = self.slot.refuse(&digest) {
            return Content::Refused(digest, refusal);
        }
        if self.failed.as_ref().is_some_and(|failed| failed.is_of(&digest) && !failed.is_due(started)) {
            return Content::Known;
        }
        let (compiler, grants, size, name) = (loader.clone(), self.grants.clone(), bytes.len() as u64, digest.clone());
        let (registry, stop) = (registry.clone(), CancellationToken::new());
        let allowance = Allowance { cores: registry.cores(), stop: stop.clone() };
        let loading = blocking(move || compiler.load(&bytes, &name, &grants, &allowance, || registry.in_use()));
        let loader::Loaded { handler, took, from_cache } = match while_it_stays(&self.path, stamp, &digest, stop, loading).await {
            Some(Ok(loaded)) => loaded,
            Some(Err(LoadError::Abandoned)) => {
                tracing::info!(plugin = %self.slot.name, digest = short(&digest), "plugin file changed while it was compiled, which is broken off");
                // Whatever is there now, and before anybody says that all files have been tried.
                self.seen = None;
                self.candidate = Some((stamp, Instant::now()));
                return Content::Known;
            }
            Some(Err(error)) => {
                self.fail(What::Failed, Some(digest), error.to_string(), started, error.may_pass());
                return Content::Known;
            }
            None => {
                self.fail(What::Failed, Some(digest), "the compiler failed on it".into(), started, false);
                return Content::Known;
            }
        };
        if handler.lacks_hosts() {
            // It may never make one: a handler can have requests for some configurations only. A request that is refused is a warning.
            tracing::info!(plugin = %self.slot.name, "the plugin can make requests, and its allowed_hosts allows none: each would be refused");
        }
        Content::New(Fresh { digest, handler, loaded: Loaded { bytes: size, took, from_cache }, is_active, started })
    }

    /// Checks and publishes.
    async fn begin(&mut self, fresh: Fresh, means: &Means) {
        let Fresh { digest, handler, loaded, is_active, started } = fresh;
        if let Err(error) = handler.self_check(&self.slot.name, self.times.check).await {
            // An attempt may have brought the verdict meanwhile.
            if is_active && self.is_in_quarantine(&digest, &means.loader).await {
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
        let (took, from_cache, bytes) = (loaded.took, loaded.from_cache, loaded.bytes);
        match self.slot.publish(&digest, handler, loaded) {
            // Said when it is so: what begins after this line begins on this version.
            Some(on_probation) => {
                let digest = short(&digest);
                tracing::info!(plugin = %self.slot.name, digest, ?took, from_cache, bytes, on_probation, "plugin loaded");
            }
            // An attempt that still ran on the same content brought the verdict just now.
            None => drop(self.is_in_quarantine(&digest, &means.loader).await),
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

    /// Whether it was put in quarantine meanwhile.
    async fn is_in_quarantine(&mut self, digest: &str, loader: &Loader) -> bool {
        let Some(refusal) = self.slot.refuse(digest) else { return false };
        self.goes_back(digest.to_owned(), refusal, loader).await;
        true
    }

    /// The file holds what is in quarantine. Sees to it that the last good version runs, where there is one.
    async fn goes_back(&mut self, digest: String, refusal: Refusal, loader: &Loader) {
        self.regrant_unasked();
        let again = match refusal {
            Refusal::Covered => None,
            Refusal::Bare(good) => self.reinstate(good, &digest, loader).await,
        };
        self.failed = Some(Failed::new(Some(digest), String::new(), again, Instant::now()));
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
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes everything");
        text
    })
}
