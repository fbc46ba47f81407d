//! Watches folders, and gives a hint when something in them has changed.
//!
//! In: the paths of folders. Out: one hint per burst of changes, which does not tell what has changed; an
//! error if a folder cannot be watched.
//!
//! A hint may be missed, so whoever waits for one also looks at the files every [`RESCAN`]. The system
//! watches a folder and not its path, so [`FolderWatch::arm`] comes before each look at the files: it watches
//! the folder that the path names now.
//!
//! Not here: which file has changed and whether it is whole (`file`), what follows from a change (`plugins`,
//! `reload`), what is logged.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::FutureExt as _;
use notify::Watcher as _;
use tokio::sync::Notify;

/// How often files are looked at without a hint.
pub(crate) const RESCAN: Duration = Duration::from_secs(2);
/// How long a burst of changes lasts at most: many small changes become one hint.
const BURST: Duration = Duration::from_millis(20);

/// Gives hints of changes in a few folders.
pub(crate) struct FolderWatch {
    folders: BTreeSet<PathBuf>,
    hint: Arc<Notify>,
    /// The end of the burst that a call of [`FolderWatch::hint`] has begun to wait for.
    burst: Option<Instant>,
    armed: Option<Armed>,
    /// Whether the last attempt to watch has failed. The caller was told why.
    has_failed: bool,
}

struct Armed {
    /// Gives hints until it is dropped.
    _watcher: notify::RecommendedWatcher,
    /// The folders that it watches, in the order of their paths; `None` for a path that has none.
    folders: Vec<Option<FolderId>>,
}

/// Device, inode, and the time of birth where the file system has it: a folder that was made anew may get the
/// inode of the old one.
type FolderId = (u64, u64, Option<SystemTime>);

impl FolderWatch {
    /// There are no hints before the first [`FolderWatch::arm`].
    pub(crate) fn new(folders: impl IntoIterator<Item = PathBuf>) -> FolderWatch {
        let folders = folders.into_iter().collect();
        FolderWatch { folders, hint: Arc::default(), burst: None, armed: None, has_failed: false }
    }

    /// Watches the folders in which these files are: a file that is replaced by a rename is another file.
    pub(crate) fn of_files<'f>(files: impl IntoIterator<Item = &'f Path>) -> FolderWatch {
        let folders = files.into_iter().map(|file| match file.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            _ => PathBuf::from("."),
        });
        FolderWatch::new(folders)
    }

    /// Watches the folders that the paths name now. What changes from now on gives a hint, so the look at the
    /// files comes after this call. A path without a folder is no error: a later call finds it.
    ///
    /// Fails once when a folder cannot be watched. Later calls try again, and fail again only after all
    /// folders could be watched.
    pub(crate) async fn arm(&mut self) -> notify::Result<()> {
        let paths = self.folders.clone();
        // A folder on a network may take its time to answer.
        let ids = tokio::task::spawn_blocking(move || paths.iter().map(|path| id(path)).collect::<Vec<_>>());
        let Ok(ids) = ids.await else { return Ok(()) };
        if self.armed.as_ref().is_some_and(|armed| armed.folders == ids) {
            return Ok(());
        }
        // The old watches end first: they have the same paths.
        self.armed = None;
        let watched = self.watch(ids);
        self.fail_once(watched)
    }

    /// Passes an error on if the last attempt to watch has not failed.
    fn fail_once(&mut self, watched: notify::Result<()>) -> notify::Result<()> {
        let had_failed = std::mem::replace(&mut self.has_failed, watched.is_err());
        watched.or_else(|error| if had_failed { Ok(()) } else { Err(error) })
    }

    /// Watches each folder that can be watched. Returns the last error.
    fn watch(&mut self, mut ids: Vec<Option<FolderId>>) -> notify::Result<()> {
        let hint = self.hint.clone();
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // The host's own reading is an event, too.
            if !event.is_ok_and(|event| matches!(event.kind, notify::EventKind::Access(_))) {
                hint.notify_one();
            }
        })?;
        let mut watched = Ok(());
        for (path, id) in self.folders.iter().zip(&mut ids) {
            if id.is_some()
                && let Err(error) = watcher.watch(path, notify::RecursiveMode::NonRecursive)
            {
                // The next call sees a folder that is not watched yet.
                *id = None;
                watched = Err(error);
            }
        }
        self.armed = Some(Armed { _watcher: watcher, folders: ids });
        watched
    }

    /// Waits for a hint, then until its burst is over. A wait that is dropped loses no hint: the next wait
    /// goes on with it.
    pub(crate) async fn hint(&mut self) {
        let until = match self.burst {
            Some(until) => until,
            None => {
                self.hint.notified().await;
                *self.burst.insert(Instant::now() + BURST)
            }
        };
        tokio::time::sleep_until(until.into()).await;
        self.burst = None;
        // Hints that came meanwhile are of the same burst.
        let _ = self.hint.notified().now_or_never();
    }
}

/// Identifies the folder that the path names now, perhaps behind symbolic links.
fn id(path: &Path) -> Option<FolderId> {
    let meta = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_dir)?;
    Some((meta.dev(), meta.ino(), meta.created().ok()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// Waits for the hint of a change. Nothing else ends this wait.
    async fn hinted(watch: &mut FolderWatch) {
        tokio::time::timeout(Duration::from_secs(20), watch.hint()).await.expect("there was no hint");
    }

    /// Watches the folder that the path names now, and waits for the hint of a file in it.
    async fn changes_are_hinted(watch: &mut FolderWatch, folder: &Path) {
        watch.arm().await.unwrap();
        drain(watch).await;
        fs::write(folder.join("file"), "changed").unwrap();
        hinted(watch).await;
    }

    /// Takes the hints of what was done before.
    async fn drain(watch: &mut FolderWatch) {
        while tokio::time::timeout(BURST * 3, watch.hint()).await.is_ok() {}
    }

    #[tokio::test]
    async fn a_change_is_hinted_and_a_file_that_is_read_is_not() {
        let root = tempfile::tempdir().unwrap();
        let mut watch = FolderWatch::new([root.path().to_owned()]);
        changes_are_hinted(&mut watch, root.path()).await;
        drain(&mut watch).await;
        fs::read(root.path().join("file")).unwrap();
        assert!(tokio::time::timeout(BURST * 5, watch.hint()).await.is_err(), "reading is no change");
        fs::remove_file(root.path().join("file")).unwrap();
        hinted(&mut watch).await;
    }

    #[tokio::test]
    async fn a_wait_that_is_dropped_in_a_burst_leaves_the_hint() {
        let mut watch = FolderWatch::new([]);
        let mut is_dropped_early = || {
            watch.hint.notify_one();
            watch.hint().now_or_never().is_none()
        };
        // A machine that is busy may stop this test for longer than the burst lasts.
        assert!((0..100).any(|_| is_dropped_early()), "the burst lasts longer");
        hinted(&mut watch).await;
    }

    #[tokio::test]
    async fn hints_of_one_burst_are_one() {
        let mut watch = FolderWatch::new([]);
        let hint = watch.hint.clone();
        hint.notify_one();
        tokio::join!(watch.hint(), async {
            tokio::task::yield_now().await;
            hint.notify_one();
        });
        assert!(tokio::time::timeout(Duration::ZERO, watch.hint.notified()).await.is_err());
    }

    #[tokio::test]
    async fn a_folder_that_is_replaced_is_watched_again() {
        let root = tempfile::tempdir().unwrap();
        let [folder, old, new] = ["folder", "old", "new"].map(|name| root.path().join(name));
        let mut watch = FolderWatch::new([folder.clone()]);
        watch.arm().await.unwrap();
        assert!(!watch.has_failed, "a folder that is missing is no error");
        fs::create_dir(&folder).unwrap();
        changes_are_hinted(&mut watch, &folder).await;
        // Another one takes its name.
        fs::rename(&folder, &old).unwrap();
        fs::create_dir(&folder).unwrap();
        changes_are_hinted(&mut watch, &folder).await;
        // It is removed and made again.
        fs::remove_dir_all(&folder).unwrap();
        fs::create_dir(&folder).unwrap();
        changes_are_hinted(&mut watch, &folder).await;
        // A link leads to another one.
        fs::remove_dir_all(&folder).unwrap();
        symlink(&old, &folder).unwrap();
        changes_are_hinted(&mut watch, &folder).await;
        fs::create_dir(&new).unwrap();
        symlink(&new, root.path().join("link")).unwrap();
        fs::rename(root.path().join("link"), &folder).unwrap();
        changes_are_hinted(&mut watch, &folder).await;
    }

    #[tokio::test]
    async fn each_folder_of_some_files_is_watched() {
        let root = tempfile::tempdir().unwrap();
        let folders = ["a", "b"].map(|name| root.path().join(name));
        folders.iter().for_each(|folder| fs::create_dir(folder).unwrap());
        let files = [folders[0].join("x"), folders[0].join("y"), folders[1].join("z")];
        let mut watch = FolderWatch::of_files(files.iter().map(PathBuf::as_path));
        assert_eq!(watch.folders.len(), 2);
        for folder in &folders {
            changes_are_hinted(&mut watch, folder).await;
        }
        let here = FolderWatch::of_files([Path::new("tqhost.toml")]);
        assert_eq!(here.folders, BTreeSet::from([PathBuf::from(".")]));
    }

    #[tokio::test]
    async fn a_folder_that_cannot_be_watched_takes_nothing_from_the_others() {
        let root = tempfile::tempdir().unwrap();
        let (bad, good) = (root.path().join("bad"), root.path().join("good"));
        fs::create_dir(&good).unwrap();
        let mut watch = FolderWatch::new([bad.clone(), good.clone()]);
        // The first folder is removed between the look at it and the watch.
        let error = watch.watch(vec![id(&good), id(&good)]).unwrap_err();
        assert_eq!(error.paths, std::slice::from_ref(&bad));
        assert_eq!(watch.armed.as_ref().unwrap().folders, [None, id(&good)], "the next call tries again");
        changes_are_hinted(&mut watch, &good).await;
        fs::create_dir(&bad).unwrap();
        changes_are_hinted(&mut watch, &bad).await;
    }

    #[test]
    fn a_failure_is_given_back_once_until_all_is_well_again() {
        let mut watch = FolderWatch::new([]);
        let failed = || Err(notify::Error::generic("no"));
        let given = [failed(), failed(), Ok(()), failed()].map(|watched| watch.fail_once(watched).is_err());
        assert_eq!(given, [true, false, false, true]);
    }
}
