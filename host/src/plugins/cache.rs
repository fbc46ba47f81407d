//! Compiled code on disk, so that a restart does not compile again.
//!
//! In: a name made of the file's digest and the engine's settings. Out: the code that was stored under this
//! name, if it is whole.
//!
//! The host runs files of the cache as machine code. So the folder is ours alone (`folder`), and each file
//! has the SHA-256 of its content, which finds torn writes and bad disks. Without a safe folder there is no
//! cache, which is slower but right.
//!
//! `tqhost try` and `tqhost check` have the cache of their user, and a host has one under its `data_dir`.
//! Each reads from the cache of the other, if both run as the same user, and writes only to its own.

use std::collections::BTreeSet;
use std::env;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use sha2::{Digest as _, Sha256};

use super::folder::{OwnFolder, UnnamedFile};

/// How many files a host keeps beside those of versions in use. The least recently used files go first.
const MAX_FILES: usize = 100;
/// How many files the commands of a user keep. People who try a handler make many versions of it.
const MAX_USER_FILES: usize = 8;
/// The most bytes of these files. A component with the runtime of its language has tens of MiB of code.
const MAX_BYTES: u64 = 1 << 30;
const EXTENSION: &str = ".cwasm";
const OF_FUNCTIONS: &str = ".functions";
const DIGEST_BYTES: usize = 32;

/// A folder of compiled code, or none.
#[derive(Debug, Clone)]
pub(super) struct Cache {
    folder: Option<Arc<OwnFolder>>,
    /// The folder of another cache of this user. Nothing is written there; a damaged file is removed.
    other: Option<PathBuf>,
    /// Whether code that is found in the other folder is stored here, since its owner may remove it there.
    takes_over: bool,
    max_files: usize,
}

/// Where the commands of this user keep compiled code.
pub(crate) fn user_cache() -> Option<PathBuf> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
    Some(caches.join("tqhost/try/cache"))
}

impl Cache {
    /// The cache of a host, which takes over code from the cache of the same user's commands.
    pub(super) fn of_host(dir: &Path, commands: Option<PathBuf>) -> Cache {
        Cache { other: commands, takes_over: true, ..Cache::open(dir) }
    }

    /// The cache of this user's commands, which also find what a host keeps.
    pub(super) fn of_user(host: Option<PathBuf>) -> Cache {
        let own = user_cache().map_or_else(Cache::none, |dir| Cache::open(&dir));
        Cache { other: host, max_files: MAX_USER_FILES, ..own }
    }

    /// Makes the folder if need be. A folder that is not safe is not used, and an error is logged.
    fn open(dir: &Path) -> Cache {
        match OwnFolder::open(dir) {
            Ok(folder) => Cache { folder: Some(Arc::new(folder)), max_files: MAX_FILES, ..Cache::none() },
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

    /// A cache that keeps nothing.
    pub(super) fn none() -> Cache {
        Cache { folder: None, other: None, takes_over: false, max_files: 0 }
    }

    /// Opens the other folder, which may have been made since the last call.
    fn other(&self) -> Option<OwnFolder> {
        let dir = self.other.as_deref().filter(|dir| dir.is_dir())?;
        OwnFolder::open(dir).ok()
    }

    /// Returns the content that was stored under `name`. It removes a file that is not whole. A file that
    /// cannot be read stays, as it may be the last copy of a version, and is an error.
    pub(super) fn get(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        let own = self.folder.as_ref().map_or(Ok(None), |folder| get(folder, &file(name)))?;
        if own.is_some() {
            return Ok(own);
        }
        // If the file cannot be read in the other folder, the plugin is compiled.
        let found = self.other().and_then(|folder| get(&folder, &file(name)).ok().flatten());
        if let Some(code) = found.as_ref().filter(|_| self.takes_over) {
            self.put(name, code);
        }
        Ok(found)
    }

    /// Opens the compiled functions of this name. The caller checks them.
    pub(super) fn functions(&self, name: &str) -> Option<File> {
        let file = format!("{name}{OF_FUNCTIONS}");
        let own = self.folder.as_ref().and_then(|folder| folder.file(&file).ok());
        own.or_else(|| self.other()?.file(&file).ok())
    }

    /// Begins a file of functions.
    pub(super) fn new_functions(&self) -> Option<UnnamedFile<'_>> {
        self.folder.as_ref()?.create().ok()
    }

    /// Stores a file of functions that was written.
    pub(super) fn keep_functions(&self, name: &str, new: UnnamedFile<'_>) {
        if let Err(error) = new.keep(&format!("{name}{OF_FUNCTIONS}")) {
            tracing::warn!(name, %error, "cannot cache compiled functions");
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

    /// Removes files until the bounds hold, but none that is in use, and not the functions of this name.
    pub(super) fn prune(&self, in_use: &BTreeSet<String>, functions: &str) {
        let Some(folder) = &self.folder else { return };
        let functions = format!("{functions}{OF_FUNCTIONS}");
        let stay = in_use.iter().map(|name| file(name)).chain([functions]).collect();
        if let Err(error) = prune(folder, &stay, self.max_files, MAX_BYTES) {
            let dir = folder.dir();
            tracing::warn!(dir = %dir.display(), %error, "cannot remove what is too much in the cache");
        }
    }

    pub(super) fn remove(&self, name: &str) {
        if let Some(folder) = &self.folder {
            remove(folder, &file(name));
        }
    }
}

/// The content of a file, if it is there and whole.
fn get(folder: &OwnFolder, file: &str) -> Result<Option<Vec<u8>>, String> {
    let path = folder.path(file);
    match folder.file(file).and_then(read) {
        Ok(code) => Ok(Some(code)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) => {
            tracing::warn!(path = %path.display(), %error, "removing a cached file that cannot be used");
            remove(folder, file);
            Ok(None)
        }
        Err(error) => Err(format!("its compiled code in {} cannot be read: {error}", path.display())),
    }
}

fn remove(folder: &OwnFolder, file: &str) {
    if let Err(error) = folder.remove(file) {
        tracing::warn!(path = %folder.path(file).display(), %error, "cannot remove a cached file");
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
    // The time of the last use decides when the file is removed. It does no harm if this fails.
    file.set_modified(SystemTime::now()).ok();
    Ok(code)
}

/// Removes the least recently used files beyond `max_files` and `max_bytes`. The files in `stay` do not
/// count. Temporary files do: writers that crashed have left them behind.
fn prune(folder: &OwnFolder, stay: &BTreeSet<String>, max_files: usize, max_bytes: u64) -> io::Result<()> {
    let mut files = folder.entries()?;
    let is_cached = |name: &str| [EXTENSION, OF_FUNCTIONS].iter().any(|end| name.ends_with(end));
    files.retain(|file| is_cached(&file.name) || file.is_temporary());
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
    fn code_of_another_folder_is_found_and_taken_over_by_a_host() {
        let root = tempfile::tempdir().unwrap();
        let [commands, host] = ["commands", "host"].map(|name| root.path().join(name));
        // The commands are first used when the host has run for long.
        let of_host = Cache::of_host(&host, Some(commands.clone()));
        assert_eq!(of_host.get("x"), Ok(None));
        let of_commands = || Cache { other: Some(host.clone()), ..Cache::open(&commands) };
        let of_commands_before = of_commands();
        of_commands_before.put("x", b"code");
        of_commands_before.keep_functions("f", of_commands_before.new_functions().unwrap());
        drop(of_commands_before.new_functions());
        assert_eq!(fs::read_dir(&commands).unwrap().count(), 2, "a file that is not kept is removed");
        assert_eq!(of_host.get("x").unwrap().as_deref(), Some(&b"code"[..]));
        assert_eq!(["f", "g"].map(|name| of_host.functions(name).is_some()), [true, false]);
        fs::remove_dir_all(&commands).unwrap();
        assert!(of_host.get("x").unwrap().is_some(), "it has taken it over");

        let of_commands = of_commands();
        assert!(of_commands.get("x").unwrap().is_some());
        fs::write(host.join("x.cwasm"), [0; 40]).unwrap();
        assert_eq!(of_commands.get("x"), Ok(None), "a damaged file");
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::open(root.path());
        let in_use = BTreeSet::from(["000", "001"].map(str::to_owned));
        for n in 0..MAX_FILES + 5 {
            let name = format!("{n:03}");
            cache.put(&name, b"code");
            cache.prune(&in_use.iter().cloned().chain([name]).collect(), "");
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
