//! One plugin's file: what of it has been dealt with, and what becomes of it when it is new.
//!
//! In: what lies at its path, now and then; its grants. Out: published, failed or removed versions in the registry.
//!
//! ```text
//! found ─▶ as before? ─▶ nothing
//!           │ new ─▶ same for SETTLE? ─▶ its turn to read ─▶ hash ─▶ known? ─▶ cached? ─▶ load ─▶ self-check ─▶ publish or fail
//!           │                                                                   └ no ─▶ its turn to compile ─▲
//!           └ failed, though nothing may be wrong with it, and its pause is over ─▶ its turn to read …
//! ```
//!
//! Not here: who looks, and when (`watcher`), how a file is read (`file`), how it becomes a handler (`loader`), how long the pauses are (`again`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use super::again::Failed;
use super::gate::{Gate, Place};
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
    Refused(Refusal, New),
    /// Never compiled, or not for this host.
    Uncompiled(New),
    Loaded(Fresh),
}

/// A file's content that is to be dealt with.
struct New {
    stamp: Stamp,
    digest: String,
    /// It is the version that runs, with other grants.
    is_active: bool,
}

/// What was made of it.
struct Fresh {
    new: New,
    handler: Handler,
    loaded: Loaded,
    /// When that was begun.
    started: Instant,
}

impl Fresh {
    fn of(new: New, loaded: loader::Loaded, started: Instant) -> Fresh {
        let loader::Loaded { handler, took, from_cache } = loaded;
        let loaded = Loaded { bytes: new.stamp.bytes(), took, from_cache };
        Fresh { new, handler, loaded, started }
    }
}

impl Watched {
    pub(super) fn new(slot: Arc<Slot>, path: PathBuf, grants: config::Plugin, times: Times) -> Watched {
        let (granted, seen) = (grants.clone(), Some(Found::Missing));
        Watched {
            slot,
            path,
            grants,
            granted,
            seen,
            candidate: None,
            failed: None,
            is_ungranted: false,
            times,
        }
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

    /// Whether there is a new file that nobody has tried to read.
    pub(super) fn is_settling(&self) -> bool {
        self.candidate.is_some() && self.failed.is_none()
    }

    /// When a new file has been the same for long enough.
    pub(super) fn settles(&self) -> Option<Instant> {
        self.candidate.map(|(_, since)| since + SETTLE)
    }

    /// When what failed is tried again. A file that changes is dealt with when it has settled.
    pub(super) fn due(&self) -> Option<Instant> {
        self.failed.as_ref().filter(|_| self.candidate.is_none())?.due()
    }

    /// Whether what is to be taken has failed before.
    pub(super) fn is_again(&self) -> bool {
        self.failed.is_some() && self.candidate.is_none()
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
                    Some(_) => {
                        // It may change for as long as somebody likes.
                        self.regrant_unasked();
                        now
                    }
                    None => now,
                };
                self.candidate = Some((stamp, since));
                if now.duration_since(since) >= SETTLE || (stamp.is_old() && since == now) {
                    // Until it is read: if it is gone by then, that is new as well.
                    self.seen = None;
                    return Some(stamp);
                }
            }
        }
        None
    }

    /// Takes the file, unless it is told to stop: then it is as if the file had only just been found.
    pub(super) async fn take_unless(
        mut self,
        stop: CancellationToken,
        stamp: Stamp,
        place: Place,
        means: Means,
    ) -> Watched {
        tokio::select! {
            biased;
            () = self.take(stamp, place, &means) => {}
            () = stop.cancelled() => self.put_off(stamp),
        }
        self
    }

    /// It is to be dealt with when it has settled anew.
    fn put_off(&mut self, stamp: Stamp) {
        self.seen = None;
        self.candidate = Some((stamp, Instant::now()));
    }

    /// Reads a file that has settled and makes it the active version, if it is a new one and works. May be dropped wherever it waits.
    async fn take(&mut self, stamp: Stamp, place: Place, means: &Means) {
        // A self-check waits for a service, perhaps, and holds up nobody.
        match means.gate.read(place, self.read(stamp, &means.loader)).await {
            Content::Known => {}
            Content::Refused(refusal, new) => self.goes_back(&new, refusal, means).await,
            Content::Loaded(fresh) => self.begin(fresh, means).await,
            // It could not be asked before it is compiled once more, and that may take long.
            Content::Uncompiled(new) if new.is_active => {
                self.regrant_unasked();
                self.failed = None;
                self.slot.confirm(&new.digest);
            }
            Content::Uncompiled(new) => {
                if let Some(fresh) = self.compile(new, means).await {
                    self.begin(fresh, means).await;
                }
            }
        }
    }

    /// Finds out what there is to do.
    async fn read(&mut self, stamp: Stamp, loader: &Loader) -> Content {
        let started = Instant::now();
        if stamp.bytes() > file::MAX_BYTES {
            self.regrant_unasked();
            self.seen = Some(Found::File(stamp));
            self.candidate = None;
            self.fail(
                What::Failed,
                None,
                format!("{}: it has {} bytes", LoadError::TooLarge, stamp.bytes()),
                started,
                false,
            );
            return Content::Known;
        }
        let (path, slot) = (self.path.clone(), self.slot.clone());
        let read = blocking(move || {
            slot.recall();
            read_whole(&path, stamp)
        });
        let digest = match read.await {
            Some(Ok(Some((_, digest)))) => digest,
            // Somebody is at it, or it is gone: it settles anew.
            Some(Ok(None)) | None => {
                self.regrant_unasked();
                self.put_off(stamp);
                return Content::Known;
            }
            Some(Err(error)) => {
                // It may be read another time: too many open files, a folder on a network.
                self.candidate = Some((stamp, Instant::now() + RESCAN));
                let error = format!("the file cannot be read: {error}");
                if self.failed.as_ref().is_none_or(|failed| failed.error != error) {
                    self.fail(What::Failed, None, error, started, false);
                }
                self.regrant_unasked();
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
        let new = New { stamp, digest, is_active };
        if let Some(refusal) = self.slot.refuse(&new.digest) {
            return Content::Refused(refusal, new);
        }
        if self.failed.as_ref().is_some_and(|failed| failed.is_of(&new.digest) && !failed.is_due(started)) {
            return Content::Known;
        }
        let (loader, grants, name) = (loader.clone(), self.grants.clone(), new.digest.clone());
        match blocking(move || loader.load_cached(&name, &grants)).await {
            Some(Ok(Some(loaded))) => Content::Loaded(Fresh::of(new, loaded, started)),
            Some(Ok(None)) | None => Content::Uncompiled(new),
            Some(Err(error)) => {
                self.fail(What::Failed, Some(new.digest), error.to_string(), started, error.may_pass());
                Content::Known
            }
        }
    }

    /// Reads it again, since what waits to be compiled must not fill the memory, and compiles it.
    async fn compile(&mut self, new: New, means: &Means) -> Option<Fresh> {
        let Means { loader, registry, gate } = means.clone();
        let (path, digest, grants) = (self.path.clone(), new.digest.clone(), self.grants.clone());
        let compiling = means.gate.compile(async move {
            let (started, stop) = (Instant::now(), CancellationToken::new());
            let allowance = Allowance { cores: registry.cores(), stop: stop.clone() };
            let _stops = stop.drop_guard();
            let read = gate.read(gate.line_up(), blocking(move || read_now(&path))).await;
            let loading = blocking(move || match read {
                Some(Ok(Some((bytes, now)))) if now == digest => {
                    loader.load(&bytes, &digest, &grants, &allowance, || registry.in_use())
                }
                Some(Ok(_)) | None => Err(LoadError::Abandoned),
                Some(Err(error)) => Err(LoadError::Hindered(format!("the file cannot be read: {error}"))),
            });
            (loading.await, started)
        });
        let (loaded, started) = match while_it_stays(&means.gate, &self.path, &new, compiling).await {
            Some((Some(Err(LoadError::Abandoned)), _)) | None => {
                let digest = short(&new.digest);
                tracing::info!(plugin = %self.slot.name, digest, "plugin file changed while it was compiled or waited for that, which is broken off");
                // Whatever is there now, and before anybody says that all files have been tried.
                self.put_off(new.stamp);
                return None;
            }
            Some(done) => done,
        };
        match loaded {
            Some(Ok(loaded)) => return Some(Fresh::of(new, loaded, started)),
            Some(Err(error)) => {
                self.fail(What::Failed, Some(new.digest), error.to_string(), started, error.may_pass())
            }
            None => {
                self.fail(What::Failed, Some(new.digest), "the compiler failed on it".into(), started, false)
            }
        }
        None
    }

    /// Checks and publishes.
    async fn begin(&mut self, fresh: Fresh, means: &Means) {
        let Fresh { new, handler, loaded, started } = fresh;
        let New { stamp, digest, is_active } = &new;
        if handler.lacks_hosts() {
            // It may never make one: a handler can have requests for some configurations only. A request that is refused is a warning.
            tracing::info!(plugin = %self.slot.name, "the plugin can make requests, and its allowed_hosts allows none: each would be refused");
        }
        let check = handler.self_check(&self.slot.name, self.times.check);
        match while_it_stays(&means.gate, &self.path, &new, check).await {
            // What lies there now does not wait for what lay there before.
            None => return self.put_off(*stamp),
            Some(Ok(())) => {}
            Some(Err(error)) => {
                // An attempt may have brought the verdict meanwhile.
                if *is_active && self.is_in_quarantine(&new, means).await {
                    return;
                }
                let what = if *is_active {
                    "self-check with its new grants, without which it runs on"
                } else {
                    "self-check"
                };
                return self.fail(
                    What::SelfCheckFailed,
                    Some(new.digest),
                    format!("{what}: {error}"),
                    started,
                    error.may_pass(),
                );
            }
        }
        self.failed = None;
        if *is_active && self.slot.digest().as_ref() == Some(digest) {
            self.regrant(started);
            // Unless it had refused others before.
            self.slot.confirm(digest);
            return;
        }
        let Loaded { bytes, took, from_cache } = loaded;
        match self.slot.publish(digest, handler, loaded) {
            // Said when it is so: what begins after this line begins on this version.
            Some(on_probation) => {
                let digest = short(digest);
                tracing::info!(plugin = %self.slot.name, digest, ?took, from_cache, bytes, on_probation, "plugin loaded");
            }
            // An attempt that still ran on the same content brought the verdict just now.
            None => drop(self.is_in_quarantine(&new, means).await),
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
        let (reason, took) =
            (format!("other {}", self.granted.differences(&self.grants).join(", ")), since.elapsed());
        self.granted = self.grants.clone();
        self.slot.regrant(&self.grants, took, &reason);
        let digest = self.slot.digest();
        let digest = digest.as_deref().map(short);
        tracing::info!(plugin = %self.slot.name, digest, ?took, reason, "plugin has other grants: attempts that begin from now on have them");
    }

    /// Whether it was put in quarantine meanwhile.
    async fn is_in_quarantine(&mut self, new: &New, means: &Means) -> bool {
        let Some(refusal) = self.slot.refuse(&new.digest) else { return false };
        self.goes_back(new, refusal, means).await;
        true
    }

    /// The file holds what is in quarantine. Sees to it that the last good version runs, where there is one.
    async fn goes_back(&mut self, new: &New, refusal: Refusal, means: &Means) {
        self.regrant_unasked();
        let again = match refusal {
            Refusal::Covered => None,
            Refusal::Bare(good) => {
                match while_it_stays(&means.gate, &self.path, new, self.load_good(&good, means)).await {
                    Some(found) => self.reinstate(good, found, &new.digest),
                    None => return self.put_off(new.stamp),
                }
            }
        };
        self.failed = Some(Failed::new(Some(new.digest.clone()), String::new(), again, Instant::now()));
    }

    /// Loads the last good version out of the cache, and checks it. An error comes with whether it may pass.
    async fn load_good(&self, good: &Good, means: &Means) -> Result<loader::Loaded, (String, bool)> {
        let (loader, grants, name) = (means.loader.clone(), self.grants.clone(), good.digest.clone());
        let loading = blocking(move || loader.load_cached(&name, &grants));
        match means.gate.read(means.gate.line_up(), loading).await.unwrap_or(Ok(None)) {
            Ok(Some(loaded)) => match loaded.handler.self_check(&self.slot.name, self.times.check).await {
                Ok(()) => Ok(loaded),
                Err(error) => Err((format!("self-check: {error}"), error.may_pass())),
            },
            Ok(None) => Err(("it is not in the cache".to_owned(), false)),
            Err(error) => Err((error.to_string(), error.may_pass())),
        }
    }

    /// Runs the last good version in place of the one in quarantine. Gives the pause after which that is tried again.
    fn reinstate(
        &self,
        good: Good,
        found: Result<loader::Loaded, (String, bool)>,
        instead_of: &str,
    ) -> Option<Duration> {
        let label = short(&good.digest).to_owned();
        match found {
            Ok(loader::Loaded { handler, took, from_cache }) => {
                self.slot.reinstate(good.digest, handler, Loaded { bytes: good.bytes, took, from_cache });
                tracing::info!(plugin = %self.slot.name, digest = label, ?took, "the last good version of the plugin runs again");
                None
            }
            Err((error, may_pass)) => {
                let again = may_pass.then(|| self.times.pauses.next(self.failed.as_ref(), instead_of));
                self.slot.lacks_good(
                    &format!("{label} cannot run in its place ({error}): put another version there"),
                    again,
                );
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

/// A file's content and the digest of that; None while somebody is at it, and when it is gone. Blocking.
fn read_whole(path: &Path, stamp: Stamp) -> std::io::Result<Option<(Vec<u8>, String)>> {
    let bytes = match file::read(path, stamp) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        read => read?,
    };
    Ok(bytes.map(|bytes| {
        let digest = hex(&Sha256::digest(&bytes));
        (bytes, digest)
    }))
}

/// The same of what lies there now.
fn read_now(path: &Path) -> std::io::Result<Option<(Vec<u8>, String)>> {
    match file::look(path) {
        Found::File(stamp) if stamp.bytes() <= file::MAX_BYTES => read_whole(path, stamp),
        _ => Ok(None),
    }
}

/// Does something with a file's content while the file has it. None when it has another: then the work was dropped.
async fn while_it_stays<T>(gate: &Gate, path: &Path, new: &New, work: impl Future<Output = T>) -> Option<T> {
    let changes = async {
        let mut seen = Found::File(new.stamp);
        loop {
            tokio::time::sleep(RESCAN).await;
            let look = path.to_owned();
            let Some(found) = blocking(move || file::look(&look)).await else { continue };
            match found {
                _ if found == seen => {}
                Found::File(stamp) if stamp.bytes() <= file::MAX_BYTES => {
                    let path = path.to_owned();
                    match gate.read(gate.line_up(), blocking(move || read_whole(&path, stamp))).await {
                        Some(Ok(Some((_, digest)))) if digest == new.digest => seen = found,
                        Some(Ok(Some(_))) => break,
                        // Somebody is at it: that is for the next time.
                        Some(Ok(None) | Err(_)) | None => {}
                    }
                }
                _ => break,
            }
        }
    };
    tokio::select! {
        biased;
        done = work => Some(done),
        () = changes => None,
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
