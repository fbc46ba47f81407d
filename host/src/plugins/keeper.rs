//! Looks for versions that are good here and not kept for other hosts yet.
//!
//! In: the plugins of this host. Out: their files on the shelf. A version that any host has put on the list
//! is left alone. If the list was lost, or overwritten by another host, the next look completes it.
//!
//! Not here: where files are kept, and how many (`shelf`).

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::catalog::Plugins;
use super::loads::{blocking, read_now};
use crate::builds::short;

/// The time between two looks.
const EVERY: Duration = Duration::from_secs(2);
/// A file that could not be kept is tried again after this time.
const AGAIN: Duration = Duration::from_secs(600);

pub(super) async fn run(plugins: Plugins) {
    let mut failed: HashMap<String, Instant> = HashMap::new();
    loop {
        tokio::time::sleep(EVERY).await;
        failed.retain(|_, at| at.elapsed() < AGAIN);
        for plugin in plugins.entries() {
            let Some(digest) = plugin.unkept().filter(|digest| !failed.contains_key(digest)) else {
                continue;
            };
            // The file may have another content by now.
            let Some(file) = file(plugin.origin.path(), &digest).await else { continue };
            let (name, version) = (&*plugin.name, short(&digest));
            match plugins.0.shelf.keep(name, &digest, file, plugin.build(&digest)).await {
                Ok(kept) => {
                    tracing::info!(plugin = name, digest = version, "the version is kept for all hosts");
                    plugin.note_kept(kept);
                }
                Err(why) => {
                    tracing::warn!(
                        plugin = name,
                        digest = version,
                        why,
                        "the version is not kept for other hosts: one that never had it cannot go back to it"
                    );
                    failed.insert(digest, Instant::now());
                }
            }
        }
    }
}

async fn file(path: PathBuf, digest: &str) -> Option<Vec<u8>> {
    let read = blocking(move || read_now(&path)).await?;
    let (bytes, found) = read.ok().flatten()?;
    (found == digest).then_some(bytes)
}
