//! Compiled code on disk, so that a restart does not compile again.
//!
//! In: a name made of the file's digest and the engine's settings. Out: what was stored under it, if it is
//! whole.
//!
//! The host runs files of the cache as machine code. So the folder is ours alone (`folder`), and each file
//! carries the SHA-256 of its content: a torn write or a bad disk must not be run. Without a safe folder
//! there is no cache, which is slower but right.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use sha2::{Digest as _, Sha256};

use super::folder::OwnFolder;

/// Files that a host keeps beside those of versions in use; the least recently used ones go first.
const MAX_FILES: usize = 100;
/// The most bytes of these files: a component that brings the runtime of its language has tens of MiB of
/// code.
const MAX_BYTES: u64 = 1 << 30;
const EXTENSION: &str = ".cwasm";
const DIGEST_BYTES: usize = 32;

/// A folder of compiled code, or none.
#[derive(Debug, Clone)]
pub(super) struct Cache {
    folder: Option<Arc<OwnFolder>>,
    max_files: usize,
}

impl Cache {
    /// Makes the folder if need be. One that is not safe is not used, loudly.
    pub(super) fn open(dir: &Path) -> Cache {
        match OwnFolder::open(dir) {
            Ok(folder) => Cache { folder: Some(Arc::new(folder)), max_files: MAX_FILES },
            Err(error) => {
                tracing::error!(dir = %dir.display(), %error, "no compiled-code cache: every start \
                    compiles every plugin");
                Cache::none()
            }
        }
    }

    /// The folder, for what else must be ours alone.
    pub(super) fn folder(&self) -> Option<Arc<OwnFolder>> {
        self.folder.clone()
    }

    /// None at all.
    pub(super) fn none() -> Cache {
        Cache { folder: None, max_files: 0 }
    }

    /// A cache with room for fewer files.
    pub(super) fn with_at_most(self, max_files: usize) -> Cache {
        Cache { max_files, ..self }
    }

    /// Returns the content that was stored under `name`. It removes a file that is not whole. A file that
    /// cannot be read stays, as it may be the last copy of a version, and is an error.
    pub(super) fn get(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let file = file(name);
        match folder.file(&file).and_then(read) {
            Ok(code) => Ok(Some(code)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
            {
                let path = folder.path(&file);
                tracing::warn!(path = %path.display(), %error, "removing a cached file that cannot be used");
                self.remove(name);
                Ok(None)
            }
            Err(error) => {
                let path = folder.path(&file);
                Err(format!("its compiled code in {} cannot be read: {error}", path.display()))
            }
        }
    }

    /// Stores compiled code. A cache that cannot be written costs time, nothing else.
    pub(super) fn put(&self, name: &str, code: &[u8]) {
        let Some(folder) = &self.folder else { return };
        if let Err(error) = folder.write(&file(name), &[&Sha256::digest(code), code]) {
            let path = folder.path(&file(name));
            tracing::warn!(path = %path.display(), %error, "cannot cache compiled code");
        }
    }

    /// Removes what is too much: nothing of what is in use.
    pub(super) fn prune(&self, in_use: &BTreeSet<String>) {
        let Some(folder) = &self.folder else { return };
        let stay = in_use.iter().map(|name| file(name)).collect();
        if let Err(error) = prune(folder, &stay, self.max_files, MAX_BYTES) {
            let dir = folder.dir();
            tracing::warn!(dir = %dir.display(), %error, "cannot remove what is too much in the cache");
        }
    }

    pub(super) fn remove(&self, name: &str) {
        if let Some(folder) = &self.folder
            && let Err(error) = folder.remove(&file(name))
        {
            let path = folder.path(&file(name));
            tracing::warn!(path = %path.display(), %error, "cannot remove a cached file");
        }
    }
}

fn file(name: &str) -> String {
    format!("{name}{EXTENSION}")
}

fn read(mut file: File) -> io::Result<Vec<u8>> {
    let mut expected = [0; DIGEST_BYTES];
    file.read_exact(&mut expected)?;
    let mut code = Vec::with_capacity(usize::try_from(file.metadata()?.len()).unwrap_or(0));
    file.read_to_end(&mut code)?;
    if Sha256::digest(&code)[..] != expected {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "its content is not what was written"));
    }
    // Its turn to be removed comes later now; it is no harm if that fails.
    file.set_modified(SystemTime::now()).ok();
    Ok(code)
}

/// Removes the least recently used files beyond `max_files` and `max_bytes` of what need not stay, which is
/// also what crashed writers left behind.
fn prune(folder: &OwnFolder, stay: &BTreeSet<String>, max_files: usize, max_bytes: u64) -> io::Result<()> {
    let mut files = folder.entries()?;
    files.retain(|file| file.name.ends_with(EXTENSION) || file.is_temporary());
    files.retain(|file| !stay.contains(&file.name));
    // The latest first.
    files.sort_by(|one, other| (other.used, &other.name).cmp(&(one.used, &one.name)));
    let mut bytes: u64 = 0;
    for (number, file) in files.into_iter().enumerate() {
        bytes = bytes.saturating_add(file.bytes);
        if number >= max_files || bytes > max_bytes {
            folder.remove(&file.name)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn code_that_was_put_is_got_and_only_if_whole() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("a/b");
        let cache = Cache::open(&dir);
        assert_eq!(cache.get("x"), Ok(None));
        cache.put("x", b"code");
        assert_eq!(cache.get("x").unwrap().as_deref(), Some(&b"code"[..]));

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
        let stay = BTreeSet::from(["a.cwasm".to_owned()]);
        prune(&OwnFolder::open(root.path()).unwrap(), &stay, MAX_FILES, 2 * of_each + 1).unwrap();
        assert_eq!(
            ["a", "b", "c", "d"].map(|name| cache.get(name).unwrap().is_some()),
            [true, false, true, true]
        );
    }
}
