//! The files that a deploy writes into `plugins_dir`.
//!
//! In: the path of the plugin's file, and what is to be in it. Out: the file, and two hidden ones beside it,
//! at which hosts do not look: `.NAME.wasm.lock`, whose lock lets one deploy run at a time, and
//! `.NAME.wasm.builds` with the labels of the versions that were put in place.
//!
//! Not here: which file is put in place, and whether it stays (`deploy`).

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};

use super::super::exit::CommandResult;
use crate::builds::BuildNote;

/// The labelled versions that are remembered of each plugin, and the most bytes that are read of them.
const MAX_REMEMBERED: usize = 100;
const MAX_REMEMBERED_BYTES: u64 = 256 << 10;

/// The path of a hidden file beside the plugin's.
fn beside(target: &Path, end: &str) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.{end}"))
}

/// Takes the lock of the plugin's file, which is held until the result is dropped.
pub(super) fn lock(target: &Path, plugin: &str) -> CommandResult<File> {
    let path = beside(target, "lock");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let file = match file {
        // The file of another user can be locked without the right to write it.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => File::open(&path).map_err(|_| error),
        file => file,
    };
    let trouble = || format!("cannot lock {}; nothing was put in place", path.display());
    let file = file.with_context(trouble)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(anyhow!(
            "another deploy of {plugin} is under way and holds {}; nothing was put in place: deploy again \
             when it has ended",
            path.display()
        )
        .into()),
        Err(TryLockError::Error(error)) => Err(anyhow::Error::new(error).context(trouble()).into()),
    }
}

/// The digests and builds of the labelled versions that were put in place, oldest first. None of them has to
/// be there any more.
pub(super) fn remembered(target: &Path) -> Vec<(String, BuildNote)> {
    let read = || -> io::Result<Vec<(String, BuildNote)>> {
        let mut json = Vec::new();
        File::open(beside(target, "builds"))?.take(MAX_REMEMBERED_BYTES).read_to_end(&mut json)?;
        Ok(serde_json::from_slice(&json)?)
    };
    read().unwrap_or_default()
}

/// Remembers the build of a version. The digest of a handler with a label depends on the time of its build,
/// which is known nowhere else when the file is gone.
pub(super) fn remember(target: &Path, digest: &str, build: &BuildNote) -> io::Result<()> {
    if *build == BuildNote::default() {
        return Ok(());
    }
    let mut all = remembered(target);
    all.retain(|(known, _)| known != digest);
    all.push((digest.to_owned(), build.clone()));
    let first = all.len().saturating_sub(MAX_REMEMBERED);
    put(&beside(target, "builds"), &serde_json::to_vec(&all[first..])?)
}

/// Writes the file beside its place and renames it, so that nobody sees a part of it.
pub(super) fn put(target: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = beside(target, &uuid::Uuid::now_v7().to_string());
    let write = || {
        let mut file = File::create_new(&temporary)?;
        file.write_all(bytes)?;
        if let Ok(before) = fs::metadata(target) {
            file.set_permissions(before.permissions())?;
        }
        file.sync_all()?;
        fs::rename(&temporary, target)
    };
    write().inspect_err(|_| drop(fs::remove_file(&temporary)))
}
