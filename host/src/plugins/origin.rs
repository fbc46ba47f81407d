//! Where the file of one plugin is, and where it comes from.
//!
//! In: the plugin's `source`, and the result of each pull. Out: the path that the watcher looks at, and why
//! the last pull failed.
//!
//! ```text
//! the start: source ─▶ the pulled file, whether it is there or not;   no source ─▶ the operator's file
//! a reload:  source ─▶ the path stays until a pull has put a file there, so nothing stops meanwhile
//!            no source any more ─▶ the operator's file at once
//! ```
//!
//! Not here: pulls (`pulls`).

use std::path::{Path, PathBuf};
use std::time::Instant;

use tokio::sync::Notify;

use crate::config::OciReference;
use crate::guarded::Guarded;

/// The folders of plugins' files.
#[derive(Debug, Clone, Default)]
pub(super) struct PluginFolders {
    /// `plugins_dir`, into which operators put files.
    pub(super) own: PathBuf,
    /// The folder into which pulls put files.
    pub(super) pulled: PathBuf,
}

/// Where one plugin's file is, and the last answer of its registry.
#[derive(Debug)]
pub(super) struct Origin {
    /// The operator's file.
    own_file: PathBuf,
    /// The file that pulls write.
    pulled_file: PathBuf,
    state: Guarded<OriginState>,
    /// The registry is to be asked now.
    pub(super) ask: Notify,
}

#[derive(Debug)]
struct OriginState {
    path: PathBuf,
    source: Option<OciReference>,
    /// Since the start no file of the source is known to be in place, and the first pull may still succeed.
    awaits_first_pull: bool,
    trouble: Option<PullTrouble>,
}

/// Why the last pull failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PullTrouble {
    pub(super) error: String,
    /// The registry refused the pull, so a person has to do something.
    pub(super) is_refusal: bool,
    pub(super) retry_at: Instant,
}

impl Origin {
    pub(super) fn new(folders: &PluginFolders, plugin: &str, source: Option<OciReference>) -> Origin {
        let file = format!("{plugin}.wasm");
        let (own_file, pulled_file) = (folders.own.join(&file), folders.pulled.join(&file));
        let (path, awaits_first_pull) = match source {
            Some(_) => (pulled_file.clone(), true),
            None => (own_file.clone(), false),
        };
        let state = OriginState { path, source, awaits_first_pull, trouble: None };
        Origin { own_file, pulled_file, state: Guarded::new(state), ask: Notify::new() }
    }

    /// Takes another source, or none.
    pub(super) fn change(&self, source: Option<OciReference>) {
        let mut state = self.state.lock();
        if source.is_none() {
            state.path.clone_from(&self.own_file);
            state.awaits_first_pull = false;
        }
        state.source = source;
        state.trouble = None;
    }

    pub(super) fn path(&self) -> PathBuf {
        self.state.lock().path.clone()
    }

    /// Where a pull puts the file.
    pub(super) fn pulled(&self) -> &Path {
        &self.pulled_file
    }

    pub(super) fn source(&self) -> Option<OciReference> {
        self.state.lock().source.clone()
    }

    pub(super) fn awaits_first_pull(&self) -> bool {
        self.state.lock().awaits_first_pull
    }

    pub(super) fn trouble(&self) -> Option<PullTrouble> {
        self.state.lock().trouble.clone()
    }

    /// Notes that a file of this source is in place, pulled now or before.
    pub(super) fn note_file(&self, source: &OciReference) {
        self.update(source, |state| {
            state.path.clone_from(&self.pulled_file);
            state.awaits_first_pull = false;
        });
    }

    /// Notes that a pull has ended.
    pub(super) fn note_end(&self, source: &OciReference, trouble: Option<PullTrouble>) {
        self.update(source, |state| {
            // Success and refusal end the waiting. After another failure it goes on for as long as the
            // watcher decides.
            state.awaits_first_pull &= trouble.as_ref().is_some_and(|trouble| !trouble.is_refusal);
            state.trouble = trouble;
        });
    }

    /// Changes the state, unless the configuration names another source by now.
    fn update(&self, source: &OciReference, change: impl FnOnce(&mut OriginState)) {
        let mut state = self.state.lock();
        if state.source.as_ref() == Some(source) {
            change(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_old_file_stays_until_a_new_source_was_pulled() {
        let folders = PluginFolders { own: "/own".into(), pulled: "/pulled".into() };
        let source = |tag: &str| OciReference::parse(&format!("oci://localhost/x:{tag}")).expect("good");
        let origin = Origin::new(&folders, "p", None);
        let path = || origin.path().display().to_string();
        origin.change(Some(source("1")));
        assert_eq!((path(), origin.awaits_first_pull()), ("/own/p.wasm".into(), false));
        // This pull has begun before the source was changed.
        origin.note_file(&source("0"));
        assert_eq!(path(), "/own/p.wasm");
        origin.note_file(&source("1"));
        assert_eq!(path(), "/pulled/p.wasm");
        origin.change(Some(source("2")));
        assert_eq!(path(), "/pulled/p.wasm");
        let trouble = PullTrouble { error: "away".into(), is_refusal: false, retry_at: Instant::now() };
        origin.note_end(&source("1"), Some(trouble.clone()));
        assert_eq!(origin.trouble(), None);
        origin.note_end(&source("2"), Some(trouble.clone()));
        assert_eq!(origin.trouble(), Some(trouble));
        let passing = origin.trouble().expect("a failure");
        origin.change(None);
        assert_eq!((path(), origin.trouble()), ("/own/p.wasm".into(), None));
        let awaited = Origin::new(&folders, "p", Some(source("1")));
        assert!(awaited.awaits_first_pull() && awaited.path() == Path::new("/pulled/p.wasm"));
        awaited.note_end(&source("1"), Some(PullTrouble { error: "away".into(), ..passing.clone() }));
        assert!(awaited.awaits_first_pull(), "it may pass");
        awaited.note_end(&source("1"), Some(PullTrouble { is_refusal: true, ..passing }));
        assert!(!awaited.awaits_first_pull());
    }
}
