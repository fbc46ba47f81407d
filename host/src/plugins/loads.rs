//! The loads of a plugin's file: read the file, make a version of it, or load the last good version instead.
//!
//! In: a [`LoadKind`], and where the file is. Out: how the load ended and the version that it made, for the
//! plugin, unless the load was stopped. A load may be dropped wherever it waits.
//!
//! Not here: which load comes when (`life`), the order of reading and compiling (`line`), how bytes become a
//! handler (`loader`).

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::build_file::build_of;
use super::catalog::Plugins;
use super::changes::Milestone;
use super::life::{LoadEnd, LoadKind, Trouble};
use super::line::{Line, Place};
use super::loader::{Loader, Prepared};
use super::registry::Work;
use crate::builds::short;
use crate::file::{self, Found, Stamp};
use crate::sandbox::{Allowance, LoadError, NOT_CONCURRENT};
use crate::secrets::hex;
use crate::watch::RESCAN;

/// The tools of a load.
#[derive(Clone)]
pub(super) struct Workshop {
    pub(super) loader: Loader,
    pub(super) registry: Plugins,
    pub(super) line: Line,
    /// How long a self-check may take.
    pub(super) check: Duration,
}

impl Workshop {
    /// Begins a load, and after its end the next load that the plugin asks for, and so on. A load lines up to
    /// read when it is asked for, and not when its task is polled, which may be at any time.
    pub(super) fn begin(&self, loads: &mut JoinSet<()>, work: Work) {
        let (shop, mut next) = (self.clone(), Some((self.line.line_up(), work)));
        loads.spawn(async move {
            while let Some((place, work)) = next {
                let Some((end, made)) = work.stop.run_until_cancelled(shop.work(place, &work)).await else {
                    return;
                };
                next = work.plugin.ended(work.load, end, made).map(|work| (shop.line.line_up(), work));
            }
        });
    }

    async fn work(&self, place: Place, work: &Work) -> (LoadEnd, Option<Prepared>) {
        let made = match &work.kind {
            LoadKind::Read => return (self.read(place, work).await, None),
            LoadKind::Make(digest) => Box::pin(self.make(place, work, digest)).await,
            LoadKind::Restore(digest, good) => {
                self.while_it_stays(work, digest, self.restore(place, work, &good.digest)).await
            }
        };
        match made {
            Ok(prepared) => (LoadEnd::Made, Some(prepared)),
            Err(end) => (end, None),
        }
    }

    /// Finds out which content the file has.
    async fn read(&self, place: Place, work: &Work) -> LoadEnd {
        let (path, stamp) = (work.plugin.origin.path(), work.stamp);
        let reading = async {
            work.plugin.has_turn();
            let read = blocking(move || {
                let read = read_whole(&path, stamp)?;
                Ok(read.map(|(bytes, digest)| (build_of(&path, &bytes, &digest), digest)))
            });
            read.await
        };
        match self.line.read(place, reading).await {
            Some(Ok(Some((build, digest)))) => {
                work.plugin.learn_build(&digest, build);
                LoadEnd::Read(digest)
            }
            // It has another content, or reading panicked: the file is looked at once more.
            Some(Ok(None)) | None => LoadEnd::Changed,
            // A load that only reads is tried again, whatever its trouble.
            Some(Err::<_, io::Error>(error)) => {
                LoadEnd::Failed(Trouble::lasting(format!("the file cannot be read: {error}")))
            }
        }
    }

    /// Makes a version of the file. A version that the cache has does not wait until others are compiled.
    async fn make(&self, place: Place, work: &Work, digest: &str) -> Result<Prepared, LoadEnd> {
        let prepared = match self.cached(place, work, digest).await? {
            Some(prepared) => prepared,
            None => self.compile(work, digest).await?,
        };
        if prepared.handler.lacks_hosts() {
            // This is no warning: a handler may make requests with some configurations only. A request that
            // is refused is a warning.
            tracing::info!(plugin = %work.plugin.name, "the plugin can make requests, and its allowed_hosts \
                allows none: each would be refused");
        }
        if prepared.handler.lacks_concurrency() {
            tracing::warn!(plugin = %work.plugin.name, "`concurrent` has no effect: {NOT_CONCURRENT}");
        }
        self.while_it_stays(work, digest, self.checked(work, prepared)).await
    }

    async fn compile(&self, work: &Work, digest: &str) -> Result<Prepared, LoadEnd> {
        let compiling = self.line.compile(async {
            work.plugin.has_turn();
            tracing::info!(plugin = %work.plugin.name, digest = short(digest), "compiling the plugin");
            let path = work.plugin.origin.path();
            // The file is read again, since files that wait to be compiled must not fill the memory.
            let read = self.line.read(self.line.line_up(), blocking(move || read_now(&path))).await;
            match read {
                Some(Ok(Some((bytes, now)))) if now == digest => self.load(bytes, digest, work).await,
                Some(Ok(_)) | None => Err(LoadEnd::Changed),
                Some(Err(error)) => {
                    Err(failed(&LoadError::Hindered(format!("the file cannot be read: {error}"))))
                }
            }
        });
        let compiled = self.while_it_stays(work, digest, compiling).await;
        if matches!(compiled, Err(LoadEnd::Changed)) {
            let (plugin, digest) = (&*work.plugin.name, short(digest));
            tracing::info!(
                plugin,
                digest,
                "plugin file changed while it was compiled or waited for that, which is broken off"
            );
        }
        compiled
    }

    /// Makes a handler of these bytes. The compiler stops when this future is dropped.
    async fn load(&self, bytes: Vec<u8>, digest: &str, work: &Work) -> Result<Prepared, LoadEnd> {
        let Workshop { loader, registry, .. } = self.clone();
        let (digest, grants) = (digest.to_owned(), work.grants.clone());
        let stop = CancellationToken::new();
        let allowance = Allowance { cores: registry.cores(), cancel: stop.clone() };
        let _stops = stop.drop_guard();
        let load = move || loader.load(&bytes, &digest, &grants, &allowance, || registry.in_use());
        match blocking(load).await {
            Some(made) => made.map_err(|error| failed(&error)),
            None => Err(LoadEnd::Failed(Trouble::lasting("the compiler failed on it"))),
        }
    }

    async fn cached(&self, place: Place, work: &Work, digest: &str) -> Result<Option<Prepared>, LoadEnd> {
        let (loader, grants, name) = (self.loader.clone(), work.grants.clone(), digest.to_owned());
        let loading = blocking(move || loader.load_cached(&name, &grants));
        let loaded = self.line.read(place, loading).await.unwrap_or(Ok(None));
        loaded.map_err(|error| failed(&error))
    }

    /// Loads the last good version from the cache, or from the shelf of all hosts, and checks it.
    async fn restore(&self, place: Place, work: &Work, good: &str) -> Result<Prepared, LoadEnd> {
        let prepared = match self.cached(place, work, good).await? {
            Some(prepared) => prepared,
            None => Box::pin(self.fetched(work, good)).await?,
        };
        self.checked(work, prepared).await
    }

    async fn fetched(&self, work: &Work, good: &str) -> Result<Prepared, LoadEnd> {
        let Some(kept) = work.plugin.kept(good) else {
            let why = "it is not in the cache, and no host has kept its file";
            return Err(LoadEnd::Failed(Trouble::lasting(why)));
        };
        let compiling = self.line.compile(async {
            work.plugin.has_turn();
            let fetched = self.registry.0.shelf.fetch(&kept).await;
            let bytes = fetched.map_err(|why| failed(&LoadError::Hindered(why)))?;
            self.load(bytes, good, work).await
        });
        compiling.await
    }

    async fn checked(&self, work: &Work, prepared: Prepared) -> Result<Prepared, LoadEnd> {
        let passed = prepared.handler.self_check(&work.plugin.name, self.check).await;
        passed.map(|()| prepared).map_err(|error| {
            let (what, may_pass) = (Milestone::SelfCheckFailed, error.may_pass());
            LoadEnd::Failed(Trouble { what, error: format!("self-check: {error}"), may_pass })
        })
    }

    /// Works on a file's content as long as the file has this content. Otherwise the work is dropped.
    async fn while_it_stays(
        &self,
        work: &Work,
        digest: &str,
        doing: impl Future<Output = Result<Prepared, LoadEnd>>,
    ) -> Result<Prepared, LoadEnd> {
        tokio::select! {
            biased;
            done = doing => done,
            () = self.changes(work.plugin.origin.path(), work.stamp, digest) => Err(LoadEnd::Changed),
        }
    }

    /// Waits until the file has another content. A file that is only touched has the same.
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
                    match self.line.read(self.line.line_up(), read).await {
                        Some(Ok(Some((_, now)))) if now == digest => seen = found,
                        Some(Ok(Some(_))) => return,
                        // Somebody writes to the file. The next look finds out more.
                        Some(Ok(None) | Err(_)) | None => {}
                    }
                }
                Some(_) => return,
                None => {}
            }
        }
    }
}

fn failed(error: &LoadError) -> LoadEnd {
    LoadEnd::Failed(Trouble { may_pass: error.may_pass(), ..Trouble::lasting(error.to_string()) })
}

/// A file's content and its digest. `None`: somebody writes to the file, or it is gone. Blocking.
fn read_whole(path: &Path, stamp: Stamp) -> io::Result<Option<(Vec<u8>, String)>> {
    let bytes = match file::read(path, stamp) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        read => read?,
    };
    Ok(bytes.map(|bytes| {
        let digest = hex(&Sha256::digest(&bytes));
        (bytes, digest)
    }))
}

/// The content and the digest that the file has now. `None`: as of [`read_whole`], or it is too large.
/// Blocking.
pub(super) fn read_now(path: &Path) -> io::Result<Option<(Vec<u8>, String)>> {
    match file::look(path) {
        Found::File(stamp) if stamp.bytes() <= file::MAX_BYTES => read_whole(path, stamp),
        _ => Ok(None),
    }
}

/// Runs `work` where it may block. `None`: it panicked, which the hook for panics has logged.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}
