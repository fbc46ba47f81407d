//! Notes about a plugin's versions for the host's next start: the version that was rolled back, until the
//! plugin's file changes, and the last two good versions.
//!
//! In: a folder that is ours alone (that of the cache, which also has the code of good versions). Out: a
//! small file for each plugin with a version in quarantine, and one for each with good versions. Without the
//! folder, or when a note cannot be read or written, the next start knows nothing of these versions.

use std::io::{self, Read as _};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::folder::OwnFolder;

/// The largest note that is read.
const MAX_BYTES: u64 = 64 * 1024;
/// The extensions of the files of both kinds.
const QUARANTINE: &str = "quarantine";
const LINEAGE: &str = "good";

/// A content of a plugin's file that must not run.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Quarantine {
    pub(super) digest: String,
    pub(super) why: String,
    /// The version that runs in its place, if there is one.
    pub(super) good: Option<Good>,
}

/// A good version, or one that may become good.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Good {
    pub(super) digest: String,
    /// Size of the file.
    pub(super) bytes: u64,
}

/// The last two good versions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lineage {
    last: Option<Good>,
    earlier: Option<Good>,
}

impl Lineage {
    /// Notes the version to go back to. Returns false if it was this one before.
    pub(super) fn add(&mut self, good: Good) -> bool {
        if self.last.as_ref().is_some_and(|last| last.digest == good.digest) {
            return false;
        }
        let last = self.last.replace(good.clone());
        // After a step back, the version before this one is not known.
        let is_back = self.earlier.take().is_some_and(|earlier| earlier.digest == good.digest);
        self.earlier = last.filter(|_| !is_back);
        true
    }

    /// The newest comes first.
    pub(super) fn all(&self) -> impl Iterator<Item = &Good> {
        [&self.last, &self.earlier].into_iter().flatten()
    }
}

/// The files of the notes, if there is a folder for them.
#[derive(Debug, Clone)]
pub(super) struct Notes {
    folder: Option<Arc<OwnFolder>>,
}

impl Notes {
    pub(super) fn new(folder: Option<Arc<OwnFolder>>) -> Notes {
        Notes { folder }
    }

    /// The version in quarantine. Blocking.
    pub(super) fn read(&self, plugin: &str) -> Option<Quarantine> {
        self.note(plugin, QUARANTINE)
    }

    /// Writes the version in quarantine, or that there is none. Blocking. `life` asks for one of these notes
    /// at a time.
    pub(super) fn write(&self, plugin: &str, quarantine: Option<&Quarantine>) {
        self.put(plugin, QUARANTINE, quarantine);
    }

    /// The good versions. Blocking.
    pub(super) fn read_lineage(&self, plugin: &str) -> Option<Lineage> {
        self.note(plugin, LINEAGE)
    }

    /// Writes the good versions. Blocking. The caller must not write two of these notes at a time.
    pub(super) fn write_lineage(&self, plugin: &str, lineage: &Lineage) {
        self.put(plugin, LINEAGE, Some(lineage));
    }

    fn note<T: DeserializeOwned>(&self, plugin: &str, what: &str) -> Option<T> {
        let folder = self.folder.as_ref()?;
        let name = format!("{plugin}.{what}");
        let note = folder.file(&name).and_then(|file| {
            let mut bytes = Vec::new();
            file.take(MAX_BYTES).read_to_end(&mut bytes)?;
            Ok(serde_json::from_slice(&bytes)?)
        });
        match note {
            Ok(note) => Some(note),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                let path = folder.path(&name);
                tracing::warn!(path = %path.display(), %error, "cannot read what the last start knew of the \
                    plugin's versions");
                None
            }
        }
    }

    fn put<T: Serialize>(&self, plugin: &str, what: &str, note: Option<&T>) {
        let Some(folder) = &self.folder else { return };
        let name = format!("{plugin}.{what}");
        let written = match note {
            None => folder.remove(&name),
            Some(note) => folder.write(&name, &[&serde_json::to_vec(note).unwrap_or_default()]),
        };
        if let Err(error) = written {
            let path = folder.path(&name);
            tracing::warn!(path = %path.display(), %error, "cannot note what is known of the plugin's \
                versions: a restart will not know");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn notes_in(dir: &Path) -> Notes {
        Notes::new(Some(Arc::new(OwnFolder::open(dir).unwrap())))
    }

    #[test]
    fn a_note_is_read_as_it_was_written_and_nothing_else_is() {
        let root = tempfile::tempdir().unwrap();
        let notes = notes_in(root.path());
        let good = Some(Good { digest: "b".into(), bytes: 7 });
        let note = Quarantine { digest: "a".into(), why: "é".into(), good };
        assert_eq!(notes.read("p"), None);
        notes.write("p", Some(&note));
        assert_eq!((notes.read("p"), notes.read("q")), (Some(note), None));
        fs::write(root.path().join("p.quarantine"), "{").unwrap();
        assert_eq!(notes.read("p"), None);
        notes.write("p", None);
        notes.write("p", None);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_last_two_good_versions_are_known_and_a_step_back_forgets_the_other() {
        let good = |digest: &str| Good { digest: digest.into(), bytes: 1 };
        let mut lineage = Lineage::default();
        assert!(lineage.add(good("a")) && !lineage.add(good("a")));
        assert!(lineage.add(good("b")) && lineage.add(good("c")));
        assert!(lineage.all().eq(&[good("c"), good("b")]));
        assert!(lineage.add(good("b")));
        assert!(lineage.all().eq(&[good("b")]));
        let root = tempfile::tempdir().unwrap();
        let notes = notes_in(root.path());
        notes.write_lineage("p", &lineage);
        assert_eq!((notes.read_lineage("p"), notes.read("p")), (Some(lineage), None));
    }
}
