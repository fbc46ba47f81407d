//! News of the life of a plugin: lines of the log, changes in the history, counts.
//!
//! In: [`News`] from `life`, in the order in which they happened. Each is told after what it tells of has
//! been done: what begins after the line begins on the version that the line names. Not here: what is news
//! (`life`).

use std::time::Duration;

use super::history::What;
use super::life::News;
use super::registry::{PluginEntry, Record};
use super::version::Version;
use crate::builds::short;
use crate::clock::ms;

impl Record {
    /// `since` is how long ago the version was taken whose probation has ended, `active` is what serves now.
    pub(super) fn publish_news(
        &mut self,
        entry: &PluginEntry,
        news: News,
        since: Option<Duration>,
        active: Option<&Version>,
    ) {
        let (plugin, took) = (&*entry.name, self.began.elapsed());
        match news {
            News::Removed(digest) => {
                self.history.add(What::Removed, Some(&digest), None, None);
                let digest = short(&digest);
                tracing::info!(plugin, digest, "plugin removed: running attempts finish, its queues wait");
            }
            News::Failed { what, digest, error, again } => {
                entry.figures.failed_reloads.inc();
                self.history.add(what, digest.as_deref(), Some(took), Some(&error));
                tracing::error!(
                    plugin,
                    path = %entry.path.display(),
                    digest = digest.as_deref().map(short),
                    active = active.map(Version::short),
                    took_ms = ms(took),
                    again_in_ms = again.map(ms),
                    error,
                    "plugin cannot be used"
                );
            }
            News::Loaded(digest, on_probation) => {
                let Some(Version { took, from_cache, bytes, .. }) = active else { return };
                entry.figures.reloads.inc();
                self.history.add(What::Loaded, Some(&digest), Some(*took), None);
                let label = self.builds.of(&digest).and_then(|build| build.label.as_deref());
                let digest = short(&digest);
                tracing::info!(
                    plugin,
                    digest,
                    label,
                    took_ms = ms(*took),
                    from_cache,
                    bytes,
                    on_probation,
                    "plugin loaded"
                );
            }
            News::ServesAgain(digest, is_news) => {
                if is_news {
                    self.history.add(What::Restored, Some(&digest), None, None);
                }
                let digest = short(&digest);
                tracing::info!(plugin, digest, "plugin file is the active version again");
            }
            News::Refused(digest, why) => {
                self.history.add(What::Quarantined, Some(&digest), None, Some(&why));
                let digest = short(&digest);
                tracing::error!(
                    plugin,
                    digest,
                    reason = why,
                    "plugin version is in quarantine and does not run"
                );
            }
            News::Restored(digest, is_loaded) => {
                let took = active.map(|active| active.took).filter(|_| is_loaded);
                self.history.add(What::Restored, Some(&digest), took, None);
                let digest = short(&digest);
                tracing::info!(
                    plugin,
                    digest,
                    took_ms = took.map(ms),
                    "the last good version of the plugin runs again"
                );
            }
            News::NotRestored(digest, error, again) => {
                tracing::error!(
                    plugin,
                    digest = short(&digest),
                    error,
                    again_in_ms = again.map(ms),
                    "the last good version of the plugin cannot run: its queues wait"
                );
            }
            News::Confirmed(digest) => {
                self.history.add(What::Confirmed, Some(&digest), since, None);
                let (digest, took) = (short(&digest), since.unwrap_or_default());
                tracing::info!(
                    plugin,
                    digest,
                    took_ms = ms(took),
                    "plugin version confirmed: its probation is over"
                );
            }
            News::RolledBack { digest, good, why } => {
                entry.figures.rolled_back.inc();
                self.history.add(What::RolledBack, Some(&digest), since, Some(&why));
                let (digest, good, took) = (short(&digest), short(&good), since.unwrap_or_default());
                tracing::error!(
                    plugin,
                    digest,
                    good,
                    took_ms = ms(took),
                    reason = why,
                    "plugin version rolled back"
                );
            }
            News::Quarantined(digest, why) => {
                self.history.add(What::Quarantined, Some(&digest), None, Some(&why));
            }
            News::Lifted(digest) => {
                self.history.add(What::Lifted, Some(&digest), None, None);
                let digest = short(&digest);
                tracing::info!(plugin, digest, "plugin version is out of quarantine");
            }
            News::BadAfterRemoval(digest, why) => {
                let digest = short(&digest);
                tracing::warn!(
                    plugin,
                    digest,
                    reason = why,
                    "plugin version has failed, and was removed before that"
                );
            }
            News::BadAfterReplacement(digest, why) => {
                let digest = short(&digest);
                tracing::info!(
                    plugin,
                    digest,
                    reason = why,
                    "plugin version has failed, and was replaced before that"
                );
            }
        }
    }
}
