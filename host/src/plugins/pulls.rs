//! Keeps the files of plugins that come from registries.
//!
//! In: the plugins and their sources. Out: for each its file in a folder that is ours alone, which the
//! watcher takes like any other file. What is new there goes through compile, self-check and probation by the
//! same code.
//!
//! ```text
//! by tag:    pull ─▶ every minute: has the tag another digest? ─▶ pull
//! by digest: pull ─▶ nothing more, while the file is there
//! ```
//!
//! A file changes only by a rename, after its bytes were checked. So a registry that is away, or gives
//! something else, changes nothing. Beside each file is a note of what it is: a host that starts with both
//! needs no registry.
//!
//! Not here: what a registry is asked (`oci`), what becomes of a file (`watcher`).

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::catalog::Plugins;
use super::folder::OwnFolder;
use super::loads::{blocking, read_now};
use super::origin::PullTrouble;
use super::registry::PluginEntry;
use crate::builds::short;
use crate::clock::ms;
use crate::config::OciReference;
use crate::file::{self, Found};
use crate::oci::{Layer, OciError, RegistryHttp, Repository, TRANSFER};

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

/// The pulls of one plugin.
struct Puller {
    plugins: Plugins,
    plugin: Arc<PluginEntry>,
    source: OciReference,
    /// None: it cannot be used.
    tools: Arc<Result<Tools, OciError>>,
    /// It keeps what let the last request in. None: the tools cannot be used.
    repository: Option<Repository>,
}

/// The client and the folder, which all pulls share.
struct Tools {
    http: RegistryHttp,
    folder: OwnFolder,
}

/// A puller that runs, until it is dropped.
struct Running {
    plugin: Arc<PluginEntry>,
    source: OciReference,
    _stop: DropGuard,
}

/// Pulls for each plugin with a source until it is dropped.
pub(super) async fn run(plugins: Plugins) {
    let (mut pullers, mut running) = (JoinSet::new(), BTreeMap::<Arc<str>, Running>::new());
    let mut tools = None;
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
            let made = match &tools {
                Some(made) => Arc::clone(made),
                None => Arc::clone(tools.insert(Arc::new(make_tools(&plugins).await))),
            };
            let stop = CancellationToken::new();
            let repository = made.as_ref().as_ref().ok();
            let repository = repository.map(|tools| Repository::new(tools.http.clone(), &source));
            let puller = Puller {
                plugins: plugins.clone(),
                plugin: plugin.clone(),
                source: source.clone(),
                tools: made,
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

/// An error is shown with each plugin that has a source, and the next start tries again.
async fn make_tools(plugins: &Plugins) -> Result<Tools, OciError> {
    let path = plugins.0.folders.pulled.clone();
    let made = blocking(move || {
        let folder =
            OwnFolder::open(&path)
                .and_then(|folder| remove_left_behind(&folder).map(|()| folder))
                .map_err(|error| OciError::lasting(format!("{} cannot be used: {error}", path.display())))?;
        Ok(Tools { http: RegistryHttp::new()?, folder })
    });
    made.await.unwrap_or_else(|| Err(OciError::lasting("the client for registries cannot be made")))
}

fn remove_left_behind(folder: &OwnFolder) -> io::Result<()> {
    let now = SystemTime::now();
    let is_old = |used| now.duration_since(used).is_ok_and(|age| age > LEFT_BEHIND);
    let all = folder.entries()?.into_iter();
    all.filter(|file| file.is_temporary() && is_old(file.used)).try_for_each(|file| folder.remove(&file.name))
}

impl Puller {
    async fn run(self) {
        let (mut note, mut failures) = (self.recall().await, 0_u32);
        let mut told: Option<(String, Instant)> = None;
        if note.as_ref().is_some_and(|note| note.source == self.source.to_string()) {
            self.plugin.origin.has_file(&self.source);
            self.plugins.0.updated.notify_one();
        }
        loop {
            let pulled = match tokio::time::timeout(TRANSFER, self.look(&mut note)).await {
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
                    self.plugin.origin.ended(&self.source, None);
                    jittered(EVERY)
                }
                Err(error) => {
                    let pause = jittered(pause_after(failures));
                    failures += 1;
                    self.fails(&error, pause, &mut told);
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

    /// It is logged when it is another failure than before, and once in a while.
    fn fails(&self, error: &OciError, pause: Duration, told: &mut Option<(String, Instant)>) {
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
        self.plugin.origin.ended(source, Some(trouble));
    }

    fn name(&self, extension: &str) -> String {
        format!("{}.{extension}", self.plugin.name)
    }

    /// The note of the last pull, from this source or another one, if the file is still what it says.
    async fn recall(&self) -> Option<Note> {
        let (tools, name) = (Arc::clone(&self.tools), self.name("source"));
        let path = self.plugin.origin.pulled().to_owned();
        blocking(move || {
            let folder = &tools.as_ref().as_ref().ok()?.folder;
            let note: Note = serde_json::from_reader(folder.file(&name).ok()?).ok()?;
            let (_, digest) = read_now(&path).ok()??;
            (note.layer == format!("sha256:{digest}")).then_some(note)
        })
        .await?
    }

    /// Makes sure that the file is what the source leads to now.
    async fn look(&self, note: &mut Option<Note>) -> Result<(), OciError> {
        let tools = self.tools.as_ref().as_ref().map_err(OciError::clone)?;
        let is_there = is_file(self.plugin.origin.pulled()).await;
        let there = note.as_ref().filter(|_| is_there);
        if let (Some(there), Some(wanted)) = (there, &self.source.digest)
            && there.manifest == *wanted
        {
            self.plugin.origin.has_file(&self.source);
            return Ok(());
        }
        let repository = self.repository.as_ref().ok_or_else(|| OciError::lasting("there is no client"))?;
        if let Some(there) = there.filter(|there| there.source == self.source.to_string())
            && repository.digest().await?.as_ref() == Some(&there.manifest)
        {
            return Ok(());
        }
        let since = Instant::now();
        let manifest = repository.manifest().await?;
        if there.is_none_or(|there| there.layer != manifest.layer.digest) {
            self.pull(repository, &tools.folder, &manifest.layer).await?;
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
        self.note(&tools.folder, note, new)?;
        self.plugin.origin.has_file(&self.source);
        Ok(())
    }

    fn note(&self, folder: &OwnFolder, note: &mut Option<Note>, new: Note) -> Result<(), OciError> {
        if note.as_ref() == Some(&new) {
            return Ok(());
        }
        let text = serde_json::to_vec(&new).map_err(|error| OciError::lasting(error.to_string()))?;
        folder.write(&self.name("source"), &[&text]).map_err(|error| unkept(&error))?;
        *note = Some(new);
        Ok(())
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

async fn is_file(path: &Path) -> bool {
    let path = path.to_owned();
    blocking(move || matches!(file::look(&path), Found::File(_))).await.unwrap_or(false)
}

fn pause_after(failures: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << failures.min(16)).min(LONGEST_PAUSE)
}

/// Hosts that started together do not ask together.
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
        remove_left_behind(&folder).expect("look");
        let mut left: Vec<String> =
            folder.entries().expect("list").into_iter().map(|file| file.name).collect();
        left.sort();
        assert_eq!(left, ["a.source", "a.wasm", "b.tmp"]);
    }
}
