//! The jobs that a plugin's file asks for: read it, make a handler of it, check that, or load the last good
//! version instead.
//!
//! In: a [`JobKind`], and where the file is. Out: the event that it ends with, and what it has made; nothing
//! if it was stopped. A job may be dropped wherever it waits.
//!
//! Not here: which job comes when (`life`), who may read and compile at once (`gate`), how bytes become a
//! handler (`loader`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::catalog::Plugins;
use super::gate::{Gate, Place};
use super::life::{Digest, JobEnd, JobKind, LifeEvent, Trouble};
use super::loader::{Loader, Prepared};
use super::registry::{Brought, PluginEntry, Work};
use crate::config;
use crate::file::{self, Found, Stamp};
use crate::sandbox::{Allowance, Handler, LoadError};
use crate::watch::RESCAN;

/// The tools of a job.
#[derive(Clone)]
pub(super) struct Workshop {
    pub(super) loader: Loader,
    pub(super) registry: Plugins,
    pub(super) gate: Gate,
    /// How long a self-check may take.
    pub(super) check: Duration,
}

/// How a job ended; no event if it was stopped.
pub(super) type Ended = (Arc<PluginEntry>, Option<(LifeEvent, Brought)>);

impl Workshop {
    /// Begins a job. Its place in the line of those that read is the one it has now: a task that is spawned
    /// is polled at some time.
    pub(super) fn begin(&self, jobs: &mut JoinSet<Ended>, plugin: Arc<PluginEntry>, work: Work) {
        let (shop, place) = (self.clone(), self.gate.line_up());
        jobs.spawn(async move {
            let ended = tokio::select! {
                biased;
                ended = shop.work(&plugin, place, &work) => Some(ended),
                () = work.stop.cancelled() => None,
            };
            (plugin, ended)
        });
    }

    async fn work(&self, plugin: &Arc<PluginEntry>, place: Place, work: &Work) -> (LifeEvent, Brought) {
        let Work { job, stamp, grants, handler, .. } = work;
        let (end, brought) = match &work.kind {
            JobKind::Read => {
                let read = self.read(plugin, place, *stamp).await.transpose();
                (read.map_or(JobEnd::Changed, JobEnd::Read), Brought::Nothing)
            }
            JobKind::Compile(digest) => {
                made(self.make(plugin, place, *stamp, digest, grants).await, JobEnd::Compiled)
            }
            JobKind::Check(digest) => {
                drop(place);
                let check = self.check(plugin, handler.as_ref());
                let passed = self.while_it_stays(&plugin.path, *stamp, digest, check).await;
                let end = passed.map_or(JobEnd::Changed, |passed| JobEnd::Checked(passed, true));
                (end, Brought::Nothing)
            }
            JobKind::Restore(digest, good) => {
                let loading = self.restore(plugin, place, &good.digest, grants);
                made(self.while_it_stays(&plugin.path, *stamp, digest, loading).await, JobEnd::Restored)
            }
        };
        (LifeEvent::Ended(*job, end), brought)
    }

    /// Finds out which content the file has. None if somebody is at it.
    async fn read(&self, plugin: &PluginEntry, place: Place, stamp: Stamp) -> Result<Option<Digest>, String> {
        let path = plugin.path.clone();
        let reading = async {
            plugin.begins();
            blocking(move || read_whole(&path, stamp)).await
        };
        let read = self.gate.read(place, reading).await.unwrap_or(Ok(None));
        read.map(|read| read.map(|(_, digest)| digest)).map_err(|error| error.to_string())
    }

    /// Makes a handler of the file. What the cache has does not wait for what it has not. None if the file
    /// has changed.
    async fn make(
        &self,
        plugin: &Arc<PluginEntry>,
        place: Place,
        stamp: Stamp,
        digest: &str,
        grants: &config::Plugin,
    ) -> Option<Result<Prepared, Trouble>> {
        match self.cached(place, digest, grants).await {
            Ok(Some(prepared)) => return Some(Ok(prepared)),
            Err(trouble) => return Some(Err(trouble)),
            Ok(None) => {}
        }
        let Workshop { loader, registry, gate, .. } = self.clone();
        let (path, name, grants) = (plugin.path.clone(), digest.to_owned(), grants.clone());
        let compiling = self.gate.compile(async move {
            plugin.begins();
            let stop = CancellationToken::new();
            let allowance = Allowance { cores: registry.cores(), cancel: stop.clone() };
            let _stops = stop.drop_guard();
            // It is read again, since what waits to be compiled must not fill the memory.
            let read = gate.read(gate.line_up(), blocking(move || read_now(&path))).await;
            let loading = blocking(move || match read {
                Some(Ok(Some((bytes, now)))) if now == name => {
                    loader.load(&bytes, &name, &grants, &allowance, || registry.in_use())
                }
                Some(Ok(_)) | None => Err(LoadError::Cancelled),
                Some(Err(error)) => Err(LoadError::Hindered(format!("the file cannot be read: {error}"))),
            });
            loading.await
        });
        match self.while_it_stays(&plugin.path, stamp, digest, compiling).await? {
            Some(Err(LoadError::Cancelled)) => None,
            Some(made) => Some(made.map_err(|error| trouble(&error))),
            None => Some(Err(Trouble { error: "the compiler failed on it".to_owned(), may_pass: false })),
        }
    }

    async fn cached(
        &self,
        place: Place,
        digest: &str,
        grants: &config::Plugin,
    ) -> Result<Option<Prepared>, Trouble> {
        let (loader, grants, name) = (self.loader.clone(), grants.clone(), digest.to_owned());
        let loading = blocking(move || loader.load_cached(&name, &grants));
        let loaded = self.gate.read(place, loading).await.unwrap_or(Ok(None));
        loaded.map_err(|error| trouble(&error))
    }

    async fn check(&self, plugin: &Arc<PluginEntry>, handler: Option<&Handler>) -> Result<(), Trouble> {
        let handler = handler.expect("what is checked was made before");
        if handler.lacks_hosts() {
            // It may never make one: a handler can have requests for some configurations only. A request that
            // is refused is a warning.
            tracing::info!(plugin = %plugin.name, "the plugin can make requests, and its allowed_hosts \
                allows none: each would be refused");
        }
        let passed = handler.self_check(&plugin.name, self.check).await;
        passed.map_err(|error| Trouble { error: error.to_string(), may_pass: error.may_pass() })
    }

    /// Loads the last good version from the cache, and checks it.
    async fn restore(
        &self,
        plugin: &Arc<PluginEntry>,
        place: Place,
        good: &str,
        grants: &config::Plugin,
    ) -> Result<Prepared, Trouble> {
        let Some(prepared) = self.cached(place, good, grants).await? else {
            return Err(Trouble { error: "it is not in the cache".to_owned(), may_pass: false });
        };
        match prepared.handler.self_check(&plugin.name, self.check).await {
            Ok(()) => Ok(prepared),
            Err(error) => Err(Trouble { error: format!("self-check: {error}"), may_pass: error.may_pass() }),
        }
    }

    /// Does something with a file's content while the file has it. None if it has another one: then the work
    /// was dropped.
    async fn while_it_stays<T>(
        &self,
        path: &Path,
        stamp: Stamp,
        digest: &str,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self.changes(path.to_owned(), stamp, digest) => None,
        }
    }

    /// Waits until the file has another content: not until it is touched.
    async fn changes(&self, path: PathBuf, stamp: Stamp, digest: &str) {
        let mut seen = Found::File(stamp);
        loop {
            tokio::time::sleep(RESCAN).await;
            let look = path.clone();
            match blocking(move || file::look(&look)).await {
                Some(found) if found == seen => {}
                Some(found @ Found::File(stamp)) if stamp.bytes() <= file::MAX_BYTES => {
                    let path = path.clone();
                    let read = blocking(move || read_whole(&path, stamp));
                    match self.gate.read(self.gate.line_up(), read).await {
                        Some(Ok(Some((_, now)))) if now == digest => seen = found,
                        Some(Ok(Some(_))) => return,
                        // Somebody is at it: that is for the next time.
                        Some(Ok(None) | Err(_)) | None => {}
                    }
                }
                Some(_) => return,
                None => {}
            }
        }
    }
}

/// How a job ended, and what it has made. Nothing was made if the file has changed.
fn made(
    made: Option<Result<Prepared, Trouble>>,
    end: impl FnOnce(Result<(), Trouble>) -> JobEnd,
) -> (JobEnd, Brought) {
    match made {
        Some(Ok(prepared)) => (end(Ok(())), Brought::Prepared(prepared)),
        Some(Err(trouble)) => (end(Err(trouble)), Brought::Nothing),
        None => (JobEnd::Changed, Brought::Nothing),
    }
}

fn trouble(error: &LoadError) -> Trouble {
    Trouble { error: error.to_string(), may_pass: error.may_pass() }
}

/// A file's content and its digest; None while somebody is at it, and when it is gone. Blocking.
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

/// The content and the digest of what lies there now.
fn read_now(path: &Path) -> std::io::Result<Option<(Vec<u8>, String)>> {
    match file::look(path) {
        Found::File(stamp) if stamp.bytes() <= file::MAX_BYTES => read_whole(path, stamp),
        _ => Ok(None),
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
