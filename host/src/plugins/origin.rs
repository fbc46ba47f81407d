//! Where the file of one plugin is, and where it comes from.
//!
//! In: the plugin's `source`, and the result of each pull. Out: the path that the watcher looks at, and why
//! the last pull failed.
//!
//! ```text
//! the start: source ─▶ pulled/, whether the file is there or not;   no source ─▶ plugins_dir
//! a reload:  source ─▶ the path stays until a pull has put a file into pulled/, so nothing stops meanwhile
//!            no source any more ─▶ plugins_dir at once
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
    /// Operators put files there.
    pub(super) own: PathBuf,
    /// Pulls put files there.
    pub(super) pulled: PathBuf,
}

/// Where one plugin's file is, and the last answer of its registry.
#[derive(Debug)]
pub(super) struct Origin {
    own: PathBuf,
    pulled: PathBuf,
    state: Guarded<OriginState>,
    /// The registry is to be asked now.
    pub(super) ask: Notify,
}

#[derive(Debug)]
struct OriginState {
    path: PathBuf,
    source: Option<OciReference>,
    /// There is no file before the first pull, and this pull may still succeed.
    is_awaited: bool,
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
        let (own, pulled) = (folders.own.join(&file), folders.pulled.join(&file));
        let (path, is_awaited) = match source {
            Some(_) => (pulled.clone(), true),
            None => (own.clone(), false),
        };
        let state = OriginState { path, source, is_awaited, trouble: None };
        Origin { own, pulled, state: Guarded::new(state), ask: Notify::new() }
    }

    /// Takes another source, or none.
    pub(super) fn change(&self, source: Option<OciReference>) {
        let mut state = self.state.lock();
        if source.is_none() {
            state.path.clone_from(&self.own);
            state.is_awaited = false;
        }
        state.source = source;
        state.trouble = None;
    }

    pub(super) fn path(&self) -> PathBuf {
        self.state.lock().path.clone()
    }

    /// Where a pull puts the file.
    pub(super) fn pulled(&self) -> &Path {
        &self.pulled
    }

    pub(super) fn source(&self) -> Option<OciReference> {
        self.state.lock().source.clone()
    }

    pub(super) fn is_awaited(&self) -> bool {
        self.state.lock().is_awaited
    }

    pub(super) fn trouble(&self) -> Option<PullTrouble> {
        self.state.lock().trouble.clone()
    }

    /// Notes that a file of this source is in place, pulled now or before.
    pub(super) fn has_file(&self, source: &OciReference) {
        self.update(source, |state| {
            state.path.clone_from(&self.pulled);
            state.is_awaited = false;
        });
    }

    /// Notes that a pull has ended.
    pub(super) fn ended(&self, source: &OciReference, trouble: Option<PullTrouble>) {
        self.update(source, |state| {
            // The watcher waits for a source whose failure may pass, and decides how long.
            state.is_awaited &= trouble.as_ref().is_some_and(|trouble| !trouble.is_refusal);
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
    fn a_source_that_is_new_takes_the_place_of_the_file_when_it_was_pulled() {
        let folders = PluginFolders { own: "/own".into(), pulled: "/pulled".into() };
        let source = |tag: &str| OciReference::parse(&format!("oci://localhost/x:{tag}")).expect("good");
        let origin = Origin::new(&folders, "p", None);
        let path = || origin.path().display().to_string();
        origin.change(Some(source("1")));
        assert_eq!((path(), origin.is_awaited()), ("/own/p.wasm".into(), false));
        // This pull has begun before the source was changed.
        origin.has_file(&source("0"));
        assert_eq!(path(), "/own/p.wasm");
        origin.has_file(&source("1"));
        assert_eq!(path(), "/pulled/p.wasm");
        origin.change(Some(source("2")));
        assert_eq!(path(), "/pulled/p.wasm");
        let trouble = PullTrouble { error: "away".into(), is_refusal: false, retry_at: Instant::now() };
        origin.ended(&source("1"), Some(trouble.clone()));
        assert_eq!(origin.trouble(), None);
        origin.ended(&source("2"), Some(trouble.clone()));
        assert_eq!(origin.trouble(), Some(trouble));
        let refused = origin.trouble().expect("a failure");
        origin.change(None);
        assert_eq!((path(), origin.trouble()), ("/own/p.wasm".into(), None));
        let awaited = Origin::new(&folders, "p", Some(source("1")));
        assert!(awaited.is_awaited() && awaited.path() == Path::new("/pulled/p.wasm"));
        awaited.ended(&source("1"), Some(PullTrouble { error: "away".into(), ..refused.clone() }));
        assert!(awaited.is_awaited(), "it may pass");
        awaited.ended(&source("1"), Some(PullTrouble { is_refusal: true, ..refused }));
        assert!(!awaited.is_awaited());
    }
}
