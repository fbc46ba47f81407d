//! One handler's file by itself, for `tqhost try` and `tqhost check`: read when it is stable, compiled
//! through a small cache, watched for its next version.
//!
//! In: a path. Out: the handler in the file, and whether it was compiled; a wait for the next change of this
//! and other files. A file is stable by the rules of a running host. Not here: versions that replace one
//! another (`watcher`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use sha2::{Digest as _, Sha256};

use super::cache::Cache;
use super::loader::{Loader, Prepared};
use crate::config;
use crate::file::{self, Found, SETTLE};
use crate::sandbox::{Allowance, Handler, LoadError, Sandbox};
use crate::secrets::hex;
use crate::watch::{FolderWatch, RESCAN};

/// How long a file may go on changing before it is given up.
const PATIENCE: Duration = Duration::from_secs(10);

/// A handler that was loaded from a file.
pub(crate) struct Single {
    pub handler: Handler,
    /// SHA-256 of the file, in hex.
    pub digest: String,
    /// Size of the file.
    pub bytes: u64,
    /// How long it took to compile the handler, or to load its compiled code.
    pub took: Duration,
    pub from_cache: bool,
}

/// Makes handlers of files. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Singles {
    loader: Loader,
}

impl Singles {
    /// Keeps compiled code for the commands of this user, and uses what a host keeps in `of_host`.
    pub(crate) fn new(sandbox: Sandbox, of_host: Option<PathBuf>) -> Singles {
        Singles { loader: Loader::new(sandbox, Cache::of_user(of_host)) }
    }

    /// Compiles everything each time.
    pub(crate) fn without_cache(sandbox: Sandbox) -> Singles {
        Singles { loader: Loader::new(sandbox, Cache::none()) }
    }

    /// Loads the bytes of a file. Blocks while it compiles.
    pub(crate) fn load(
        &self,
        bytes: &[u8],
        grants: &config::Plugin,
        allowance: &Allowance,
    ) -> Result<Single, LoadError> {
        let digest = hex(&Sha256::digest(bytes));
        let Prepared { handler, took, from_cache } =
            self.loader.load(bytes, &digest, grants, allowance, || Some(BTreeSet::new()))?;
        Ok(Single { handler, digest, bytes: bytes.len() as u64, took, from_cache })
    }
}

/// Reads a file once it is stable.
pub(crate) async fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let end = Instant::now() + PATIENCE;
    let mut seen = None;
    loop {
        match file::look(path) {
            Found::Missing => bail!("there is no such file"),
            Found::Other(why) => bail!("{why}"),
            Found::File(stamp) if stamp.bytes() > file::MAX_BYTES => bail!(LoadError::TooLarge),
            Found::File(stamp) => {
                if (stamp.is_old() || seen == Some(stamp))
                    && let Some(bytes) = file::read(path, stamp).context("it cannot be read")?
                {
                    return Ok(bytes);
                }
                if Instant::now() > end {
                    bail!("it keeps changing");
                }
                seen = Some(stamp);
            }
        }
        tokio::time::sleep(SETTLE).await;
    }
}

/// Waits for changes of a few files.
pub(crate) struct Watch {
    paths: Vec<PathBuf>,
    seen: Vec<Found>,
    folders: FolderWatch,
}

impl Watch {
    /// Changes count from now on.
    pub(crate) fn new(paths: Vec<PathBuf>) -> Watch {
        let folders = FolderWatch::of_files(paths.iter().map(PathBuf::as_path));
        let mut watch = Watch { paths, seen: Vec::new(), folders };
        watch.seen = watch.look();
        watch
    }

    /// Waits until one of the files differs from what it was at the end of the last call, and none is being
    /// written any more.
    pub(crate) async fn changed(&mut self) {
        loop {
            if let Err(error) = self.folders.arm().await {
                let seconds = RESCAN.as_secs();
                tracing::warn!("cannot watch the files ({error}); looking every {seconds} s instead");
            }
            let mut found = self.look();
            while found != self.seen {
                tokio::time::sleep(SETTLE).await;
                let later = self.look();
                if later == found {
                    self.seen = found;
                    return;
                }
                found = later;
            }
            tokio::select! {
                () = self.folders.hint() => {}
                () = tokio::time::sleep(RESCAN) => {}
            }
        }
    }

    fn look(&self) -> Vec<Found> {
        self.paths.iter().map(|path| file::look(path)).collect()
    }
}
