//! A version that was rolled back, remembered until its file changes: also by the host's next start.
//!
//! In: a directory that is ours alone (the cache's, where the last good version's code lies too). Out: one
//! small file per plugin whose file holds a version in quarantine. Without the directory, or when a file
//! cannot be read or written, the next start knows nothing of it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The largest note that is read.
const MAX_BYTES: u64 = 64 * 1024;

/// A content of a plugin's file that must not run.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Quarantine {
    pub(super) digest: String,
    pub(super) why: String,
    /// The version that runs in its place.
    pub(super) good: Good,
}

/// The last good version.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Good {
    pub(super) digest: String,
    /// Size of the file.
    pub(super) bytes: u64,
}

/// The files, if there is a place for them.
#[derive(Debug, Clone)]
pub(super) struct Notes {
    dir: Option<PathBuf>,
}

impl Notes {
    pub(super) fn new(dir: Option<&Path>) -> Notes {
        Notes { dir: dir.map(Path::to_owned) }
    }

    /// Blocking.
    pub(super) fn read(&self, plugin: &str) -> Option<Quarantine> {
        let path = self.path(plugin)?;
        let note = fs::metadata(&path).and_then(|meta| {
            let bytes = if meta.is_file() && meta.len() <= MAX_BYTES { fs::read(&path)? } else { Vec::new() };
            Ok(serde_json::from_slice(&bytes)?)
        });
        match note {
            Ok(note) => Some(note),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot read which version of the plugin \
                    is in quarantine");
                None
            }
        }
    }

    /// Writes the note of a plugin, or removes it. Blocking. `life` sees to it that one is written at a time.
    pub(super) fn write(&self, plugin: &str, quarantine: Option<&Quarantine>) {
        let Some(path) = self.path(plugin) else { return };
        let written = match quarantine {
            None => fs::remove_file(&path),
            Some(note) => {
                let temporary = path.with_extension(format!("{}.tmp", uuid::Uuid::now_v7()));
                let text = serde_json::to_vec(note).unwrap_or_default();
                fs::write(&temporary, text)
                    .and_then(|()| fs::rename(&temporary, &path))
                    .inspect_err(|_| drop(fs::remove_file(&temporary)))
            }
        };
        match written {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), %error, "cannot note which version of the plugin \
                    is in quarantine: a restart will not know");
            }
            _ => {}
        }
    }

    fn path(&self, plugin: &str) -> Option<PathBuf> {
        Some(self.dir.as_ref()?.join(format!("{plugin}.quarantine")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written_and_nothing_else_is() {
        let root = tempfile::tempdir().unwrap();
        let notes = Notes::new(Some(root.path()));
        let note =
            Quarantine { digest: "a".into(), why: "é".into(), good: Good { digest: "b".into(), bytes: 7 } };
        assert_eq!(notes.read("p"), None);
        notes.write("p", Some(&note));
        assert_eq!((notes.read("p"), notes.read("q")), (Some(note), None));
        fs::write(root.path().join("p.quarantine"), "{").unwrap();
        assert_eq!(notes.read("p"), None);
        notes.write("p", None);
        notes.write("p", None);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }
}
