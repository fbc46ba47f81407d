//! The registry with real files: what is put into the folder, and what becomes of it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{PluginState, Plugins, Version};
use crate::config;
use crate::sandbox::testing::{self, DONE, ECHO, handler};
use crate::task::Outcome;

struct Folder {
    root: tempfile::TempDir,
    stop: CancellationToken,
    tracker: TaskTracker,
}

impl Folder {
    fn new() -> Folder {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("plugins")).unwrap();
        Folder { root, stop: CancellationToken::new(), tracker: TaskTracker::new() }
    }

    fn plugin(&self) -> PathBuf {
        self.root.path().join("plugins/p.wasm")
    }

    /// Puts a file there in one step, as an editor or a careful build does.
    fn put(&self, bytes: &[u8]) {
        let temporary = self.root.path().join("plugins/.p.part");
        fs::write(&temporary, bytes).unwrap();
        fs::rename(temporary, self.plugin()).unwrap();
    }

    async fn start(&self) -> Plugins {
        let names = BTreeMap::from([("p".to_owned(), config::Plugin::default())]);
        let path = |name: &str| self.root.path().join(name);
        Plugins::start(testing::sandbox(), path("plugins"), path("cache"), names, self.stop.clone(), &self.tracker).await.unwrap()
    }

    fn cached(&self) -> Vec<PathBuf> {
        fs::read_dir(self.root.path().join("cache")).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

type Active = watch::Receiver<Option<Arc<Version>>>;

/// Waits for the next published value.
async fn next(active: &mut Active) -> Option<Arc<Version>> {
    tokio::time::timeout(Duration::from_secs(20), active.changed()).await.expect("nothing was published").unwrap();
    active.borrow_and_update().clone()
}

async fn result(version: &Version) -> Option<Vec<u8>> {
    match version.handler.run(testing::attempt()).await.unwrap().outcome {
        Outcome::Completed { result } => result,
        other => panic!("{other:?}"),
    }
}

/// Waits until the status is as wanted; failures publish nothing that could be waited for.
async fn until(plugins: &Plugins, wanted: impl Fn(&super::PluginStatus) -> bool) -> super::PluginStatus {
    let waiting = async {
        loop {
            let status = plugins.status().remove(0);
            if wanted(&status) {
                return status;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("the status did not become what was wanted")
}

#[tokio::test]
async fn what_is_there_at_the_start_is_active_when_start_returns() {
    let folder = Folder::new();
    folder.put(&handler(ECHO));
    let plugins = folder.start().await;
    let version = plugins.subscribe("p").borrow().clone().unwrap();
    assert_eq!(result(&version).await, Some(b"1-0".to_vec()));
    let status = plugins.status().remove(0);
    assert_eq!((status.state, status.from_cache, status.reloads_ok), (PluginState::Active, Some(false), 1));
    assert!(plugins.subscribe("unknown").borrow().is_none());
}

#[tokio::test]
async fn a_renamed_file_replaces_the_version_and_the_old_one_still_runs() {
    let folder = Folder::new();
    folder.put(&handler(ECHO));
    let plugins = folder.start().await;
    let mut active = plugins.subscribe("p");
    let old = active.borrow_and_update().clone().unwrap();
    folder.put(&handler(DONE));
    let new = next(&mut active).await.unwrap();
    assert_eq!((result(&new).await, result(&old).await), (None, Some(b"1-0".to_vec())));
}

#[tokio::test]
async fn a_file_written_in_pieces_is_published_only_when_whole() {
    let folder = Folder::new();
    folder.put(&handler(ECHO));
    let plugins = folder.start().await;
    let mut active = plugins.subscribe("p");
    active.mark_unchanged();
    let whole = handler(DONE);
    // Truncate and write, as cp does, and stay half-written until the host has looked at it.
    let mut file = fs::File::create(folder.plugin()).unwrap();
    file.write_all(&whole[..whole.len() / 2]).unwrap();
    let status = until(&plugins, |status| status.state == PluginState::Failed).await;
    assert!(status.error.is_some() && status.digest.is_some(), "{status:?}");
    assert!(!active.has_changed().unwrap());
    file.write_all(&whole[whole.len() / 2..]).unwrap();
    drop(file);
    assert_eq!(result(&next(&mut active).await.unwrap()).await, None);
    assert_eq!(plugins.status()[0].error, None);
}

#[tokio::test]
async fn a_bad_file_keeps_the_old_version_and_the_good_one_put_back_clears_the_error() {
    let folder = Folder::new();
    let good = handler(ECHO);
    folder.put(&good);
    let plugins = folder.start().await;
    let before = plugins.status().remove(0);
    for bad in [&b""[..], b"text", &handler(DONE)[..100]] {
        folder.put(bad);
        let status = until(&plugins, |status| status.state == PluginState::Failed).await;
        assert_eq!(status.digest, before.digest);
        folder.put(&good);
        let status = until(&plugins, |status| status.state == PluginState::Active).await;
        assert_eq!((status.digest, status.error, status.reloads_ok), (before.digest.clone(), None, 1));
    }
}

#[tokio::test]
async fn a_removed_file_leaves_no_version_and_comes_back_at_once() {
    let folder = Folder::new();
    let bytes = handler(ECHO);
    folder.put(&bytes);
    let plugins = folder.start().await;
    let mut active = plugins.subscribe("p");
    let old = active.borrow_and_update().clone().unwrap();
    fs::remove_file(folder.plugin()).unwrap();
    assert!(next(&mut active).await.is_none());
    assert_eq!(plugins.status()[0].state, PluginState::Missing);
    assert_eq!(result(&old).await, Some(b"1-0".to_vec()));
    folder.put(&bytes);
    let again = next(&mut active).await.unwrap();
    assert_eq!(again.digest, old.digest);
    assert_eq!(plugins.status()[0].from_cache, Some(true));
}

#[tokio::test]
async fn a_second_start_takes_compiled_code_from_the_cache_unless_it_is_corrupt() {
    let folder = Folder::new();
    folder.put(&handler(ECHO));
    folder.start().await;
    assert_eq!(folder.start().await.status()[0].from_cache, Some(true));

    let cached = folder.cached().remove(0);
    let mut bytes = fs::read(&cached).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    fs::write(&cached, bytes).unwrap();
    let plugins = folder.start().await;
    assert_eq!(plugins.status()[0].from_cache, Some(false));
    let version = plugins.subscribe("p").borrow().clone().unwrap();
    assert_eq!(result(&version).await, Some(b"1-0".to_vec()));
    assert_eq!(folder.start().await.status()[0].from_cache, Some(true));
}

#[tokio::test]
async fn the_folder_may_come_later_and_be_made_anew() {
    let folder = Folder::new();
    let dir = folder.plugin().parent().map(Path::to_owned).unwrap();
    fs::remove_dir(&dir).unwrap();
    let plugins = folder.start().await;
    let mut active = plugins.subscribe("p");
    fs::create_dir(&dir).unwrap();
    folder.put(&handler(ECHO));
    next(&mut active).await.unwrap();
    fs::remove_dir_all(&dir).unwrap();
    assert!(next(&mut active).await.is_none());
    fs::create_dir(&dir).unwrap();
    folder.put(&handler(DONE));
    assert_eq!(result(&next(&mut active).await.unwrap()).await, None);
}

#[tokio::test]
async fn links_are_followed_and_what_is_no_file_is_reported() {
    let folder = Folder::new();
    let target = |name: &str| folder.root.path().join(name);
    fs::write(target("one"), handler(ECHO)).unwrap();
    fs::write(target("two"), handler(DONE)).unwrap();
    std::os::unix::fs::symlink(target("one"), folder.plugin()).unwrap();
    let plugins = folder.start().await;
    let mut active = plugins.subscribe("p");
    assert!(active.borrow_and_update().is_some());
    std::os::unix::fs::symlink(target("two"), target("plugins/link")).unwrap();
    fs::rename(target("plugins/link"), folder.plugin()).unwrap();
    assert_eq!(result(&next(&mut active).await.unwrap()).await, None);

    fs::remove_file(folder.plugin()).unwrap();
    let made = std::process::Command::new("mkfifo").arg(folder.plugin()).status().unwrap();
    assert!(made.success());
    let status = until(&plugins, |status| status.state == PluginState::Failed).await;
    assert_eq!(status.error.as_deref(), Some("it is not a regular file"));
}
