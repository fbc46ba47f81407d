//! Moves delayed tasks back to the stream when they are due.
//!
//! The loop sleeps until the next known task is due. It is woken when this host parks a task, and when the
//! [`Lookout`](super::lookout) finds delayed tasks of others.
//!
//! Not here: delaying a task (`settler`, `intake`).

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::notices::NoticeKind;
use super::pace::Pace;
use super::shared::SharedQueue;
use crate::queue::QueueResult;

/// The most tasks that one call of the script moves. Such a call takes Redis well under a millisecond.
const MAX_BATCH: usize = 100;

pub(crate) struct Promoter {
    pub shared: Arc<SharedQueue>,
}

impl Promoter {
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut pace = Pace::new(&self.shared.name, "promote");
        loop {
            let wait = pace.after(self.promote().await);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.shared.parked.notified() => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Moves tasks that are due. Returns the time until the next task is due.
    async fn promote(&self) -> QueueResult<Duration> {
        let shared = &self.shared;
        let promoted = shared.queue.promote(MAX_BATCH).await?;
        if promoted.lost > 0 {
            shared.metrics.lost_entries.inc_by(promoted.lost);
            tracing::error!(
                queue = shared.name.as_ref(),
                tasks = promoted.lost,
                "delayed tasks were deleted by somebody else"
            );
        }
        for (delayed, why) in promoted.broken {
            shared.log_refused(NoticeKind::PromoteRefused, &delayed, &why);
        }
        shared.idle.note_delayed(promoted.next_due.is_some());
        Ok(promoted.next_due.unwrap_or(Duration::MAX))
    }
}
