//! Compiled code on disk, so that a restart does not compile again.
//!
//! In: a name made of the file's digest and the engine's settings. Out: what was stored under it, if it is
//! whole.
//!
//! The host runs files of the cache as machine code. So the directory must be ours alone, and each file
//! carries the SHA-256 of its content: a torn write or a bad disk must not be run. Without a safe directory
//! there is no cache, which is slower but right.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest as _, Sha256};

/// Files that a host keeps beside those of versions in use; the least recently used ones go first.
const MAX_FILES: usize = 100;
/// The most bytes of these files: a component that brings the runtime of its language has tens of MiB of
/// code.
const MAX_BYTES: u64 = 1 << 30;
const EXTENSION: &str = "cwasm";
const DIGEST_BYTES: usize = 32;

/// A directory of compiled code, or none.
#[derive(Debug, Clone)]
pub(super) struct Cache {
    dir: Option<PathBuf>,
    max_files: usize,
}

impl Cache {
    /// Makes the directory if need be. One that others could write to is not used, loudly.
    pub(super) fn open(dir: &Path) -> Cache {
        match prepare(dir) {
            Ok(()) => Cache { dir: Some(dir.to_owned()), max_files: MAX_FILES },
            Err(error) => {
                tracing::error!(dir = %dir.display(), %error, "no compiled-code cache: every start \
                    compiles every plugin");
                Cache::none()
            }
        }
    }

    /// Where it is: a directory that is ours alone.
    pub(super) fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    /// None at all.
    pub(super) fn none() -> Cache {
        Cache { dir: None, max_files: 0 }
    }

    /// A cache with room for fewer files.
    pub(super) fn with_at_most(self, max_files: usize) -> Cache {
        Cache { max_files, ..self }
    }

    /// Gives the content that was stored under `name`. It removes a file that is not whole. A file that
    /// cannot be read stays, as it may be the last copy of a version, and is an error.
    pub(super) fn get(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        let Some(path) = self.path(name) else { return Ok(None) };
        match read(&path) {
            Ok(code) => Ok(Some(code)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
            {
                tracing::warn!(path = %path.display(), %error, "removing a cached file that cannot be used");
                self.remove(name);
                Ok(None)
            }
            Err(error) => Err(format!("its compiled code in {} cannot be read: {error}", path.display())),
        }
    }

    /// Stores compiled code. A cache that cannot be written costs time, nothing else.
    pub(super) fn put(&self, name: &str, code: &[u8]) {
        let (Some(dir), Some(path)) = (&self.dir, self.path(name)) else { return };
        if let Err(error) = write(dir, &path, code) {
            tracing::warn!(path = %path.display(), %error, "cannot cache compiled code");
        }
    }

    /// Removes what is too much: nothing of what is in use.
    pub(super) fn prune(&self, in_use: &BTreeSet<String>) {
        let Some(dir) = &self.dir else { return };
        let stay = in_use.iter().filter_map(|name| self.path(name)).collect();
        if let Err(error) = prune(dir, &stay, self.max_files, MAX_BYTES) {
            tracing::warn!(dir = %dir.display(), %error, "cannot remove what is too much in the cache");
        }
    }

    pub(super) fn remove(&self, name: &str) {
        if let Some(path) = self.path(name)
            && let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %path.display(), %error, "cannot remove a cached file");
        }
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        Some(self.dir.as_ref()?.join(name).with_extension(EXTENSION))
    }
}

fn prepare(dir: &Path) -> io::Result<()> {
    if let Some(parent) = dir.parent() {
        fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // Not `metadata`: a link could lead to a place that is made safe here and changed there.
    let meta = fs::symlink_metadata(dir)?;
    if !meta.is_dir() {
        return Err(io::Error::other("it is not a directory of its own (perhaps a symbolic link)"));
    }
    if meta.uid() != nix::unistd::geteuid().as_raw() {
        return Err(io::Error::other("it belongs to another user"));
    }
    if meta.mode() & 0o077 != 0 {
        fs::set_permissions(dir, Permissions::from_mode(0o700))?;
        if fs::symlink_metadata(dir)?.mode() & 0o077 != 0 {
            return Err(io::Error::other("others can read or write it, and that cannot be changed"));
        }
        // Others may have put files there while the directory was open to them. These must not be run.
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            if is_ours(&path) {
                fs::remove_file(path)?;
            }
        }
    }
    Ok(())
}

fn is_ours(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == EXTENSION || extension == "tmp")
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let meta = fs::symlink_metadata(path)?;
    if !meta.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a regular file"));
    }
    let mut file = File::open(path)?;
    let mut expected = [0; DIGEST_BYTES];
    file.read_exact(&mut expected)?;
    let mut code = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or(0));
    file.read_to_end(&mut code)?;
    if Sha256::digest(&code)[..] != expected {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "its content is not what was written"));
    }
    // Its turn to be removed comes later now; it is no harm if that fails.
    file.set_modified(SystemTime::now()).ok();
    Ok(code)
}

fn write(dir: &Path, path: &Path, code: &[u8]) -> io::Result<()> {
    // Two hosts may share the directory.
    let temporary = dir.join(format!("{}.tmp", uuid::Uuid::now_v7()));
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(&Sha256::digest(code))?;
        file.write_all(code)?;
        fs::rename(&temporary, path)
    })();
    if written.is_err() {
        fs::remove_file(&temporary).ok();
    }
    written
}

/// Removes the least recently used files beyond `max_files` and `max_bytes` of what need not stay, which is
/// also what crashed writers left behind.
fn prune(dir: &Path, stay: &BTreeSet<PathBuf>, max_files: usize, max_bytes: u64) -> io::Result<()> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        // Another host may just have removed it.
        if is_ours(&path)
            && !stay.contains(&path)
            && let Ok(meta) = fs::symlink_metadata(&path)
            && let Ok(used) = meta.modified()
        {
            files.push((used, path, meta.len()));
        }
    }
    // The latest first.
    files.sort_by(|one, other| other.cmp(one));
    let mut bytes: u64 = 0;
    for (number, (_, path, length)) in files.into_iter().enumerate() {
        bytes = bytes.saturating_add(length);
        if number < max_files && bytes <= max_bytes {
            continue;
        }
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_got_and_only_if_whole() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("a/b");
        let cache = Cache::open(&dir);
        assert_eq!(cache.get("x"), Ok(None));
        cache.put("x", b"code");
        assert_eq!(cache.get("x").unwrap().as_deref(), Some(&b"code"[..]));
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);

        // A file that cannot be read may be sound.
        assert!(cache.get(&"x".repeat(300)).is_err_and(|error| error.contains("cannot be read")));
        let path = dir.join("x.cwasm");
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, bytes).unwrap();
        assert_eq!(cache.get("x"), Ok(None));
        assert!(!path.exists());
    }

    #[test]
    fn a_directory_that_was_open_to_others_is_emptied_and_closed() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("cache");
        Cache::open(&dir).put("x", b"code");
        fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
        let cache = Cache::open(&dir);
        assert_eq!(cache.get("x"), Ok(None));
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_link_is_not_used() {
        let root = tempfile::tempdir().unwrap();
        let elsewhere = root.path().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        let dir = root.path().join("cache");
        std::os::unix::fs::symlink(&elsewhere, &dir).unwrap();
        let cache = Cache::open(&dir);
        cache.put("x", b"code");
        assert_eq!(cache.get("x"), Ok(None));
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::open(root.path());
        let in_use = BTreeSet::from(["000", "001"].map(str::to_owned));
        for n in 0..MAX_FILES + 5 {
            let name = format!("{n:03}");
            cache.put(&name, b"code");
            cache.prune(&in_use.iter().cloned().chain([name]).collect());
        }
        let has = |n: usize| cache.get(&format!("{n:03}")).unwrap().is_some();
        // The one that is stored at the time stays as well.
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), MAX_FILES + 3);
        assert!(has(0) && has(1) && has(MAX_FILES + 4), "the latest one, and what is in use");
        assert!(!has(2) && !has(3) && has(4));
    }

    #[test]
    fn the_oldest_go_when_they_are_too_large() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::open(root.path());
        for name in ["a", "b", "c", "d"] {
            cache.put(name, b"code");
        }
        let of_each = fs::metadata(root.path().join("a.cwasm")).unwrap().len();
        let stay = BTreeSet::from([root.path().join("a.cwasm")]);
        prune(root.path(), &stay, MAX_FILES, 2 * of_each + 1).unwrap();
        assert_eq!(
            ["a", "b", "c", "d"].map(|name| cache.get(name).unwrap().is_some()),
            [true, false, true, true]
        );
    }
}
