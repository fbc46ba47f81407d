//! Publishes the news of a plugin's life: as lines of the log, changes of the plugin, and counts.
//!
//! In: [`News`] from `life`, in the order in which they happened. They are published after the effects of
//! their step: an attempt that begins after a line begins on the version that the line names. Not here: what
//! is news (`life`).

use std::time::Duration;

use tracing::Level;

use super::changes::Milestone;
use super::life::News;
use super::registry::{PluginEntry, Record};
use super::version::Version;
use crate::builds::short;
use crate::clock::ms;

/// A line of the log about one version.
struct VersionLine<'l> {
    plugin: &'l str,
    digest: &'l str,
    /// The version that serves in its place.
    good: Option<&'l str>,
    took: Option<Duration>,
    why: Option<&'l str>,
}

impl<'l> VersionLine<'l> {
    fn new(plugin: &'l str, digest: &'l str) -> VersionLine<'l> {
        VersionLine { plugin, digest: short(digest), good: None, took: None, why: None }
    }

    fn log(self, level: Level, text: &str) {
        let VersionLine { plugin, digest, good, took, why: reason } = self;
        let took_ms = took.map(ms);
        match level {
            Level::ERROR => tracing::error!(plugin, digest, good, took_ms, reason, "{text}"),
            Level::WARN => tracing::warn!(plugin, digest, good, took_ms, reason, "{text}"),
            _ => tracing::info!(plugin, digest, good, took_ms, reason, "{text}"),
        }
    }
}

impl Record {
    /// `since` is the time since the version was taken whose probation has ended; `active` serves now.
    pub(super) fn publish_news(
        &mut self,
        entry: &PluginEntry,
        news: News,
        since: Option<Duration>,
        active: Option<&Version>,
    ) {
        let (changes, plugin) = (&mut self.changes, &*entry.name);
        match news {
            News::Removed(digest) => {
                changes.add(Milestone::Removed, Some(&digest), None, None);
                VersionLine::new(plugin, &digest)
                    .log(Level::INFO, "plugin removed: running attempts finish, its queues wait");
            }
            News::Failed { what, digest, error, again } => {
                self.publish_failure(entry, what, digest.as_deref(), &error, again, active);
            }
            News::Loaded(digest, on_probation) => self.publish_load(entry, &digest, on_probation, active),
            News::ServesAgain(digest, is_news) => {
                if is_news {
                    changes.add(Milestone::Restored, Some(&digest), None, None);
                }
                VersionLine::new(plugin, &digest).log(Level::INFO, "plugin file is the active version again");
            }
            News::Refused(digest, why) => {
                changes.add(Milestone::Quarantined, Some(&digest), None, Some(&why));
                let line = VersionLine { why: Some(&why), ..VersionLine::new(plugin, &digest) };
                line.log(Level::ERROR, "plugin version is in quarantine and does not run");
            }
            News::Restored(digest, is_loaded) => {
                let took = active.map(|active| active.took).filter(|_| is_loaded);
                changes.add(Milestone::Restored, Some(&digest), took, None);
                let line = VersionLine { took, ..VersionLine::new(plugin, &digest) };
                line.log(Level::INFO, "the last good version of the plugin runs again");
            }
            News::NotRestored(digest, error, again) => {
                let (digest, again_in_ms) = (short(&digest), again.map(ms));
                let what = "the last good version of the plugin cannot run: its queues wait";
                tracing::error!(plugin, digest, error, again_in_ms, "{what}");
            }
            News::Confirmed(digest) => {
                changes.add(Milestone::Confirmed, Some(&digest), since, None);
                let line = VersionLine { took: since, ..VersionLine::new(plugin, &digest) };
                line.log(Level::INFO, "plugin version confirmed: its probation is over");
            }
            News::RolledBack { digest, good, why } => {
                entry.figures.rolled_back.inc();
                changes.add(Milestone::RolledBack, Some(&digest), since, Some(&why));
                let (took, good) = (Some(since.unwrap_or_default()), Some(short(&good)));
                let line = VersionLine { good, took, why: Some(&why), ..VersionLine::new(plugin, &digest) };
                line.log(Level::ERROR, "plugin version rolled back");
            }
            News::Quarantined(digest, why) => {
                changes.add(Milestone::Quarantined, Some(&digest), None, Some(&why));
            }
            News::Lifted(digest) => {
                changes.add(Milestone::Lifted, Some(&digest), None, None);
                VersionLine::new(plugin, &digest).log(Level::INFO, "plugin version is out of quarantine");
            }
            News::BadAfterRemoval(digest, why) => {
                let line = VersionLine { why: Some(&why), ..VersionLine::new(plugin, &digest) };
                line.log(Level::WARN, "plugin version has failed, and was removed before that");
            }
            News::BadAfterReplacement(digest, why) => {
                let line = VersionLine { why: Some(&why), ..VersionLine::new(plugin, &digest) };
                line.log(Level::INFO, "plugin version has failed, and was replaced before that");
            }
        }
    }

    /// The file cannot be used.
    fn publish_failure(
        &mut self,
        entry: &PluginEntry,
        what: Milestone,
        digest: Option<&str>,
        error: &str,
        again: Option<Duration>,
        active: Option<&Version>,
    ) {
        let took = self.began.elapsed();
        entry.figures.failed_reloads.inc();
        self.changes.add(what, digest, Some(took), Some(error));
        tracing::error!(
            plugin = &*entry.name,
            path = %entry.origin.path().display(),
            digest = digest.map(short),
            active = active.map(Version::short),
            took_ms = ms(took),
            again_in_ms = again.map(ms),
            error,
            "plugin cannot be used"
        );
    }

    /// A version has taken over.
    fn publish_load(
        &mut self,
        entry: &PluginEntry,
        digest: &str,
        on_probation: bool,
        active: Option<&Version>,
    ) {
        let Some(Version { took, from_cache, bytes, .. }) = active else { return };
        entry.figures.reloads.inc();
        self.changes.add(Milestone::Loaded, Some(digest), Some(*took), None);
        tracing::info!(
            plugin = &*entry.name,
            digest = short(digest),
            label = self.builds.of(digest).and_then(|build| build.label.as_deref()),
            took_ms = ms(*took),
            from_cache,
            bytes,
            on_probation,
            "plugin loaded"
        );
    }
}
