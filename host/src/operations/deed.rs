//! The kinds of work on many tasks, the words for them, and the work on tasks that are named.
//!
//! Not here: work on all tasks that match (`jobs`).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::cancel::cancel_ids;
use super::error::{OperationError, OperationResult};
use super::many::ManyDone;
use crate::config::QueueRules;
use crate::config::rules::Rate;
use crate::queue::Queue;
use crate::queue::redrive::{Counted, Redrive};

/// The work of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr, ToSchema)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub(crate) enum Deed {
    /// Tasks that wait or run.
    Cancel,
    /// Tasks that wait.
    Drain,
    /// Dead letters come back.
    Requeue,
    /// Dead letters are deleted.
    Purge,
    /// Dead letters are copied into the file of the job, and stay.
    Export,
    /// Dead letters that were deleted, or that a file has, are there again.
    Import,
}

impl Deed {
    /// Whether it is done to dead letters, and not to tasks that wait or run.
    pub(crate) fn is_of_dead(self) -> bool {
        match self {
            Deed::Cancel | Deed::Drain => false,
            Deed::Requeue | Deed::Purge | Deed::Export | Deed::Import => true,
        }
    }

    /// The name of one thing that it is done to.
    pub(crate) fn noun(self) -> &'static str {
        if self.is_of_dead() { "dead letter" } else { "task" }
    }

    /// Whether a job can keep what this takes away, so that it can be undone.
    pub(crate) fn can_undo(self) -> bool {
        matches!(self, Deed::Drain | Deed::Purge)
    }

    /// The way in which it is done to dead letters that are named, or in which they are counted. Only jobs
    /// export and import, and tasks that have not ended are cancelled in another way.
    pub(crate) fn on_named(self, dry_run: bool, rate: Option<Rate>) -> OperationResult<Redrive> {
        match (self, dry_run) {
            (Deed::Requeue, true) => Ok(Redrive::Count(Counted::Requeued)),
            (Deed::Requeue, false) => Ok(Redrive::Requeue(rate)),
            (Deed::Purge, true) => Ok(Redrive::Count(Counted::Purged)),
            (Deed::Purge, false) => Ok(Redrive::Purge),
            (Deed::Cancel | Deed::Drain | Deed::Export | Deed::Import, _) => {
                let name: &str = self.into();
                Err(OperationError::Invalid(format!(
                    "{name}: this is not done to dead letters by their names"
                )))
            }
        }
    }

    /// The word for its result.
    pub(crate) fn done(self) -> &'static str {
        match self {
            Deed::Cancel | Deed::Drain => "cancelled",
            Deed::Requeue => "requeued",
            Deed::Purge => "deleted",
            Deed::Export => "exported",
            Deed::Import => "brought back",
        }
    }

    /// The work as the label of a page or button.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Deed::Cancel => "Cancel",
            Deed::Drain => "Drain",
            Deed::Requeue => "Requeue",
            Deed::Purge => "Purge",
            Deed::Export => "Export",
            Deed::Import => "Import",
        }
    }

    /// Why it skips some.
    pub(crate) fn why_skipped(self) -> &'static str {
        match self {
            Deed::Cancel => "had ended meanwhile",
            Deed::Drain => "had ended or begun meanwhile, or wait for their flow",
            Deed::Requeue => "not dead, sent again, or they can never run",
            Deed::Purge => "not dead",
            Deed::Export => "purged or requeued meanwhile, or with more than 3,400 fields",
            Deed::Import => "dead already, or they wait, run or have completed",
        }
    }
}

/// Does `deed` to the tasks with these ids or aliases, or only counts them. Cancelling takes a limited time,
/// so it may leave the rest to a request with the cursor of its answer. `rate` is for a requeue.
pub(crate) async fn act_on_named(
    queues: &[QueueRules],
    queue: &Queue,
    ids: &[String],
    (deed, rate): (Deed, Option<Rate>),
    dry_run: bool,
    cursor: Option<&str>,
) -> OperationResult<ManyDone> {
    if !deed.is_of_dead() {
        return cancel_ids(queues, queue, ids, dry_run, cursor).await;
    }
    if cursor.is_some() {
        return Err(OperationError::Invalid("cursor: one request takes all ids".into()));
    }
    Ok(queue.redrive_named(ids, deed.on_named(dry_run, rate)?).await?.into())
}
