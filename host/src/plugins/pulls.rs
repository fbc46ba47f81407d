//! Keeps the files of plugins that come from registries.
//!
//! In: the plugins and their sources. Out: for each plugin its file in a folder that is ours alone. The
//! watcher takes it like any other file: it is compiled, checked and put on probation.
//!
//! ```text
//! by tag:    pull ─▶ every minute: has the tag another digest? ─▶ pull
//! by digest: pull ─▶ nothing more, while the file is there
//! ```
//!
//! A file changes only by a rename, after its bytes were checked. So a registry that is away, or returns
//! other bytes, changes nothing. Beside each file is a note of its source and digests: a host that starts
//! with both needs no registry.
//!
//! Not here: the requests to a registry (`oci`), what becomes of a file (`watcher`).

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::catalog::Plugins;
use super::folder::OwnFolder;
use super::loads::blocking;
use super::origin::PullTrouble;
use super::registry::PluginEntry;
use crate::builds::short;
use crate::clock::ms;
use crate::config::OciReference;
use crate::file::{self, Found};
use crate::oci::{Layer, OciError, RegistryHttp, Repository, TRANSFER, shown_digest};

/// The time between two looks at a tag.
const EVERY: Duration = Duration::from_secs(60);
/// The first and the longest wait after a pull that failed.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// A failure that stays the same is logged again after this time.
const TELL_AGAIN: Duration = Duration::from_secs(3600);
/// A temporary file of this age belongs to a writer that crashed. No pull takes as long.
const LEFT_BEHIND: Duration = Duration::from_secs(2 * TRANSFER.as_secs());

/// The source and the digests of a pulled file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    source: String,
    /// The digest of the manifest.
    manifest: String,
    /// The digest of the file.
    layer: String,
}

/// The file of a plugin and its note, as they were at the last look.
struct Kept {
    found: Found,
    note: Option<Note>,
}

/// The pulls of one plugin.
struct Puller {
    plugins: Plugins,
    plugin: Arc<PluginEntry>,
    source: OciReference,
    /// It keeps the token of the last request.
    repository: Result<Repository, OciError>,
}

/// The task of a puller, which stops when this is dropped.
struct Running {
    plugin: Arc<PluginEntry>,
    source: OciReference,
    _stop: DropGuard,
}

/// Pulls for each plugin with a source until it is dropped.
pub(super) async fn run(plugins: Plugins) {
    let (mut pullers, mut running) = (JoinSet::new(), BTreeMap::<Arc<str>, Running>::new());
    let http = RegistryHttp::new();
    let folder = plugins.0.folders.pulled.clone();
    if plugins.entries().iter().any(|plugin| plugin.origin.source().is_some()) {
        blocking(move || remove_left_behind(&folder)).await;
    }
    loop {
        let entries = plugins.entries();
        running.retain(|_, old| {
            let is_same = |plugin: &Arc<PluginEntry>| Arc::ptr_eq(plugin, &old.plugin);
            entries.iter().any(is_same) && old.plugin.origin.source().as_ref() == Some(&old.source)
        });
        for plugin in entries {
            let Some(source) = plugin.origin.source() else { continue };
            if running.contains_key(&plugin.name) {
                continue;
            }
            let stop = CancellationToken::new();
            let repository = http.as_ref().map_err(OciError::clone);
            let repository = repository.map(|http| Repository::new(http.clone(), &source));
            let puller = Puller {
                plugins: plugins.clone(),
                plugin: plugin.clone(),
                source: source.clone(),
                repository,
            };
            pullers.spawn(stop.clone().run_until_cancelled_owned(puller.run()));
            running.insert(plugin.name.clone(), Running { plugin, source, _stop: stop.drop_guard() });
        }
        tokio::select! {
            () = plugins.0.sources.notified() => {}
            Some(ended) = pullers.join_next() => {
                if let Err(error) = ended && error.is_panic() {
                    std::panic::resume_unwind(error.into_panic());
                }
            }
        }
    }
}

/// Removes the files of pulls that a crash has ended. They only take room, so an error is logged.
fn remove_left_behind(path: &Path) {
    let removed = OwnFolder::open(path).and_then(|folder| {
        let now = SystemTime::now();
        let is_old = |used| now.duration_since(used).is_ok_and(|age| age > LEFT_BEHIND);
        let mut old = folder.entries()?.into_iter().filter(|file| file.is_temporary() && is_old(file.used));
        old.try_for_each(|file| folder.remove(&file.name))
    });
    if let Err(error) = removed {
        tracing::warn!(folder = %path.display(), %error, "files that a crash left behind cannot be removed");
    }
}

impl Puller {
    async fn run(self) {
        let (mut kept, mut failures) = (self.recall().await, 0_u32);
        let mut told: Option<(String, Instant)> = None;
        let is_of_source = |note: &Note| note.source == self.source.to_string();
        // A start takes the file at once. After a reload, the old version runs on until the registry has
        // answered what the tag is now.
        if self.plugin.origin.awaits_first_pull() && kept.note.as_ref().is_some_and(is_of_source) {
            self.plugin.origin.note_file(&self.source);
            self.plugins.0.updated.notify_one();
        }
        loop {
            let pulled = match tokio::time::timeout(TRANSFER, self.look(&mut kept)).await {
                Ok(pulled) => pulled,
                Err(_) => {
                    let seconds = TRANSFER.as_secs();
                    Err(OciError::passing(format!("the pull did not end within {seconds} s")))
                }
            };
            let pause = match pulled {
                Ok(()) => {
                    if told.take().is_some() {
                        let (plugin, source) = (&*self.plugin.name, &self.source);
                        tracing::info!(plugin, %source, "the plugin's source answers again");
                    }
                    failures = 0;
                    self.plugin.origin.note_end(&self.source, None);
                    jittered(EVERY)
                }
                Err(error) => {
                    let pause = jittered(pause_after(failures));
                    failures += 1;
                    self.note_failure(&error, pause, &mut told);
                    pause
                }
            };
            self.plugins.0.updated.notify_one();
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.plugin.origin.ask.notified() => {}
            }
        }
    }

    /// Notes a failure. It is logged if it is another one than before, and once in a while.
    fn note_failure(&self, error: &OciError, pause: Duration, told: &mut Option<(String, Instant)>) {
        let (plugin, source) = (&*self.plugin.name, &self.source);
        let is_known = told.as_ref().is_some_and(|(why, at)| *why == error.why && at.elapsed() < TELL_AGAIN);
        if !is_known {
            *told = Some((error.why.clone(), Instant::now()));
            let again_in_ms = ms(pause);
            tracing::warn!(
                plugin,
                %source,
                %error,
                again_in_ms,
                "the plugin cannot be pulled: what runs goes on, and it is tried again"
            );
        }
        let trouble = PullTrouble {
            error: format!("{source} cannot be pulled: {error}"),
            is_refusal: !error.may_pass,
            retry_at: Instant::now() + pause,
        };
        self.plugin.origin.note_end(source, Some(trouble));
    }

    fn name(&self, extension: &str) -> String {
        format!("{}.{extension}", self.plugin.name)
    }

    /// Opens the folder each time, since somebody may have removed or moved it.
    async fn folder(&self) -> Result<OwnFolder, OciError> {
        let path = self.plugins.0.folders.pulled.clone();
        let opened = blocking(move || {
            OwnFolder::open(&path).map_err(|error| {
                let way_out = "make it a folder that only the host's user may write";
                OciError::passing(format!("{} cannot be used: {error}: {way_out}", path.display()))
            })
        });
        opened.await.unwrap_or_else(|| Err(OciError::passing("the folder for pulls cannot be opened")))
    }

    /// The file, and the note of the last pull, from this source or another one, if the file still has the
    /// noted digest.
    async fn recall(&self) -> Kept {
        let found = look_at(self.plugin.origin.pulled()).await;
        let Ok(folder) = self.folder().await else { return Kept { found, note: None } };
        let (wasm, source) = (self.name("wasm"), self.name("source"));
        let read = blocking(move || {
            let note: Note = serde_json::from_reader(folder.file(&source).ok()?).ok()?;
            let (mut file, mut hash) = (folder.file(&wasm).ok()?, Sha256::new());
            io::copy(&mut file, &mut hash).ok()?;
            (note.layer == shown_digest(&hash.finalize())).then_some(note)
        });
        Kept { found, note: read.await.flatten() }
    }

    /// Makes sure that the file is the one that the source names now.
    async fn look(&self, kept: &mut Kept) -> Result<(), OciError> {
        // Another host may share the folder, and have put another file there.
        if look_at(self.plugin.origin.pulled()).await != kept.found {
            *kept = self.recall().await;
        }
        let there = kept.note.as_ref().filter(|_| matches!(kept.found, Found::File(_)));
        if let (Some(there), Some(wanted)) = (there, &self.source.digest)
            && there.manifest == *wanted
        {
            self.plugin.origin.note_file(&self.source);
            return Ok(());
        }
        let repository = self.repository.as_ref().map_err(OciError::clone)?;
        if let Some(there) = there.filter(|there| there.source == self.source.to_string())
            && repository.digest().await?.as_ref() == Some(&there.manifest)
        {
            self.plugin.origin.note_file(&self.source);
            return Ok(());
        }
        let folder = self.folder().await?;
        let since = Instant::now();
        let manifest = repository.manifest().await?;
        if there.is_none_or(|there| there.layer != manifest.layer.digest) {
            self.pull(repository, &folder, &manifest.layer).await?;
            let (plugin, source) = (&*self.plugin.name, &self.source);
            let digest = manifest.layer.digest.trim_start_matches("sha256:");
            tracing::info!(
                plugin,
                %source,
                manifest = manifest.digest,
                digest = short(digest),
                bytes = manifest.layer.size,
                took_ms = ms(since.elapsed()),
                "plugin pulled"
            );
        }
        let new =
            Note { source: self.source.to_string(), manifest: manifest.digest, layer: manifest.layer.digest };
        self.plugin.origin.note_file(&self.source);
        if there == Some(&new) {
            return Ok(());
        }
        let text = serde_json::to_vec(&new).map_err(|error| OciError::lasting(error.to_string()))?;
        let written = folder.write(&self.name("source"), &[&text]);
        // Without a note in the folder, the next start pulls once more.
        *kept = Kept { found: look_at(self.plugin.origin.pulled()).await, note: Some(new) };
        written.map_err(|error| unkept(&error))
    }

    async fn pull(&self, from: &Repository, folder: &OwnFolder, layer: &Layer) -> Result<(), OciError> {
        let new = folder.create().map_err(|error| unkept(&error))?;
        let mut file = tokio::fs::File::from_std(new.file.try_clone().map_err(|error| unkept(&error))?);
        from.layer(layer, &mut file).await?;
        // The file has its bytes before it has its name, also after a crash of the machine.
        file.sync_all().await.map_err(|error| unkept(&error))?;
        new.keep(&self.name("wasm")).map_err(|error| unkept(&error))
    }
}

fn unkept(error: &io::Error) -> OciError {
    OciError::passing(format!("the plugin cannot be kept: {error}"))
}

async fn look_at(path: &Path) -> Found {
    let path = path.to_owned();
    blocking(move || file::look(&path)).await.unwrap_or(Found::Missing)
}

fn pause_after(failures: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << failures.min(16)).min(LONGEST_PAUSE)
}

/// The jitter keeps hosts that started together from asking at the same time.
fn jittered(time: Duration) -> Duration {
    time.mul_f64(0.8 + 0.4 * fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_differ() {
        let seconds: Vec<u64> = [0, 1, 5, 6, 40].map(|failures| pause_after(failures).as_secs()).into();
        assert_eq!(seconds, [5, 10, 160, 300, 300]);
        let times: Vec<Duration> = (0..100).map(|_| jittered(EVERY)).collect();
        let bounds = Duration::from_secs(48)..Duration::from_secs(72);
        assert!(times.iter().all(|time| bounds.contains(time)), "{times:?}");
        assert!(times.iter().max() > times.iter().min());
    }

    #[test]
    fn files_that_a_crash_left_behind_are_removed() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = OwnFolder::open(root.path()).expect("a folder");
        let long_ago = SystemTime::now() - 2 * LEFT_BEHIND;
        for (name, time) in
            [("a.wasm", long_ago), ("a.source", long_ago), ("b.tmp", SystemTime::now()), ("c.tmp", long_ago)]
        {
            folder.write(name, &[b"x"]).expect("write");
            let file = std::fs::File::options().write(true).open(root.path().join(name)).expect("open");
            file.set_modified(time).expect("set its time");
        }
        remove_left_behind(root.path());
        let mut left: Vec<String> =
            folder.entries().expect("list").into_iter().map(|file| file.name).collect();
        left.sort();
        assert_eq!(left, ["a.source", "a.wasm", "b.tmp"]);
    }
}
