//! The log of changes: who changed something for a whole queue or plugin, when, and why.
//!
//! In: a change that was made. Out: the last 500 changes, the newest first. A change is noted after it was
//! made, and stands even if Redis refuses the note.
//!
//! Not here: the line for each request in the log of the host (`admin::audit`).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::deed::Deed;
use super::error::{OperationError, OperationResult};
use crate::chain::chain;
use crate::queue::Link;
use crate::queue::changes::{self, ChangeEntry};
use crate::queue::codec::entry_time_ms;
use crate::queue::repeat::patiently;

/// The longest reason, and the longest of the other texts, in characters.
pub(crate) const MAX_WHY: usize = 200;
const MAX_TEXT: usize = 300;

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum ChangeKind {
    Pause,
    Resume,
    Limit,
    LimitCleared,
    JobStarted,
    JobPaused,
    JobResumed,
    JobStopped,
    Cancel,
    Requeue,
    Purge,
    Adopt,
    Rollback,
    Lift,
    Reload,
    Deploy,
    Acknowledge,
}

/// A change that somebody has made. The names are stable.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub(crate) struct ChangeView {
    /// Its time, in milliseconds since the Unix epoch, by Redis's clock.
    #[serde(skip_deserializing)]
    pub at: u64,
    /// The operator: a user of a machine, the name of a token, or a user of the proxy.
    pub who: String,
    /// `pause`, `resume`, `job-started`, `rollback` and the like.
    pub what: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugin: Option<String>,
    /// The particulars in words: a job, versions, a time.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// The operator's reason.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
}

impl ChangeView {
    pub(crate) fn new(what: ChangeKind, who: &str) -> ChangeView {
        let what: &str = what.into();
        ChangeView { what: what.to_owned(), who: cut(who), ..ChangeView::default() }
    }

    /// Work on some tasks, which were chosen one by one.
    pub(crate) fn chosen(deed: Deed, who: &str) -> ChangeView {
        let kind = match deed {
            Deed::Cancel | Deed::Drain => ChangeKind::Cancel,
            Deed::Requeue | Deed::Import => ChangeKind::Requeue,
            Deed::Purge => ChangeKind::Purge,
            // Only jobs export.
            Deed::Export => ChangeKind::JobStarted,
        };
        ChangeView::new(kind, who)
    }

    pub(crate) fn queue(self, name: &str) -> ChangeView {
        ChangeView { queue: Some(name.to_owned()), ..self }
    }

    pub(crate) fn plugin(self, name: &str) -> ChangeView {
        ChangeView { plugin: Some(name.to_owned()), ..self }
    }

    pub(crate) fn detail(self, text: &str) -> ChangeView {
        ChangeView { detail: cut(text), ..self }
    }

    pub(crate) fn job(self, deed: Deed, id: &str) -> ChangeView {
        let deed: &str = deed.into();
        self.detail(&format!("{deed}, job {id}"))
    }

    pub(crate) fn why(self, text: &str) -> ChangeView {
        ChangeView { why: cut(text), ..self }
    }

    /// None: another version of tqhost wrote it in another form.
    fn read(entry: &ChangeEntry) -> Option<ChangeView> {
        let change: ChangeView = serde_json::from_str(&entry.text).ok()?;
        Some(ChangeView { at: entry_time_ms(&entry.id), ..change })
    }

    /// Its queue, or its plugin.
    pub(crate) fn subject(&self) -> Option<&str> {
        self.queue.as_deref().or(self.plugin.as_deref())
    }
}

fn cut(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}

/// Refuses a reason that is too long. Where a reason is required, `orders` refuses an empty one.
pub(crate) fn check_why(why: &str) -> OperationResult {
    if why.chars().count() > MAX_WHY {
        return Err(OperationError::Invalid(format!("why: it has more than {MAX_WHY} characters")));
    }
    Ok(())
}

/// Notes a change. If Redis refuses it, only the host's log says so.
pub(crate) async fn note(link: &Link, change: ChangeView) {
    let text = serde_json::to_string(&change).unwrap_or_default();
    if let Err(error) = changes::add(link, &text).await {
        tracing::warn!(
            error = chain(&error),
            change = text,
            "a change was made, but it could not be added to the log of changes"
        );
    }
}

/// The changes of a queue or a plugin, or all of them: the newest first.
pub(crate) async fn list(
    link: &Link,
    queue: Option<&str>,
    plugin: Option<&str>,
    limit: usize,
) -> OperationResult<Vec<ChangeView>> {
    let found = patiently(|| changes::list(link, None)).await?;
    let is_meant = |change: &ChangeView| {
        queue.is_none_or(|name| change.queue.as_deref() == Some(name))
            && plugin.is_none_or(|name| change.plugin.as_deref() == Some(name))
    };
    Ok(found.iter().filter_map(ChangeView::read).filter(is_meant).take(limit).collect())
}

/// The changes after an entry, the oldest first, each with the id of its entry. There are no more than the
/// log keeps. The caller asks again soon, so that a failure is not repeated here.
pub(crate) async fn after(link: &Link, entry: &str) -> OperationResult<Vec<(String, ChangeView)>> {
    let found = changes::list(link, Some(entry)).await?;
    let read = |entry: ChangeEntry| Some((entry.id.clone(), ChangeView::read(&entry)?));
    Ok(found.into_iter().rev().filter_map(read).collect())
}
