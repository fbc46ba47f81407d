//! Compiled code of the guests, shared by all tests and kept for the next run: each guest is compiled once.
//!
//! In: a bench's folder and the guests that it installs. Out: files in the cache of its hosts. A host loads
//! them by its own rules (digest, settings of the engine, checksum), as it does when a newer host is started
//! on the cache of an older one. Not here: tests of compiling, of versions and of files, which put files of
//! their own in place and compile them.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, SystemTime};

use super::files::digest;

/// How long code is kept that no test has used.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// The folder of the code.
static SHARED: LazyLock<PathBuf> = LazyLock::new(|| {
    let shared = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled");
    fs::create_dir_all(&shared).expect("a folder for compiled code");
    for file in fs::read_dir(&shared).into_iter().flatten().flatten() {
        let used = file.metadata().and_then(|about| about.modified());
        if used.is_ok_and(|used| used.elapsed().is_ok_and(|unused| unused > KEPT)) {
            // Another run may have removed it.
            let _ = fs::remove_file(file.path());
        }
    }
    shared
});

/// The digests of the guests by their paths: a file is read once.
static DIGESTS: LazyLock<Mutex<HashMap<PathBuf, String>>> = LazyLock::new(Mutex::default);

/// The cache of one bench's hosts. What they compile of the installed guests is shared when this is dropped.
pub struct Compiled {
    cache: PathBuf,
    installed: Mutex<BTreeSet<String>>,
}

impl Compiled {
    pub fn new(bench: &Path) -> Compiled {
        Compiled { cache: bench.join(".tqhost/cache"), installed: Mutex::default() }
    }

    /// Puts the code of this guest into the cache, if a host has compiled it before.
    pub fn give(&self, guest: &Path) {
        let digest = {
            let mut digests = DIGESTS.lock().expect("the digests");
            let read = || digest(&fs::read(guest).expect("read a guest"));
            digests.entry(guest.to_owned()).or_insert_with(read).clone()
        };
        for (name, path) in code(&SHARED).filter(|(name, _)| name.starts_with(&digest)) {
            let parent = self.cache.parent().expect("its folder");
            fs::create_dir_all(parent).expect("the data folder");
            // The host asks that nobody else may write here.
            let _ = DirBuilder::new().mode(0o700).create(&self.cache);
            copy(&path, &self.cache.join(name));
            // Another run may have removed it.
            let _ = File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        }
        self.installed.lock().expect("the guests").insert(digest);
    }
}

impl Drop for Compiled {
    fn drop(&mut self) {
        let installed = self.installed.lock().expect("the guests");
        for (name, path) in code(&self.cache) {
            let is_guest = name.get(..64).is_some_and(|digest| installed.contains(digest));
            if is_guest && !SHARED.join(&name).exists() {
                copy(&path, &SHARED.join(name));
            }
        }
    }
}

/// The files of compiled code in a folder.
fn code(folder: &Path) -> impl Iterator<Item = (String, PathBuf)> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files
        .map(|file| (file.file_name().to_string_lossy().into_owned(), file.path()))
        .filter(|(name, _)| name.ends_with(".cwasm"))
}

/// Copies a file and renames it, so that nobody reads half of it. Without the copy a host compiles.
fn copy(from: &Path, to: &Path) {
    let new = to.with_extension(format!("new-{}", fastrand::u64(..)));
    if fs::copy(from, &new).and_then(|_| fs::rename(&new, to)).is_err() {
        let _ = fs::remove_file(new);
    }
}
