//! Moves delayed tasks back to the stream when they are due.
//!
//! The loop sleeps until the next known task is due. It is woken when this host parks a task, and when the
//! [`Lookout`](super::lookout) finds delayed tasks of others.
//!
//! Not here: delaying a task (`settler`, `intake`).

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::pace::Pace;
use super::shared::SharedQueue;

/// Tasks moved by one call of the script. Such a call takes Redis well under a millisecond.
const MAX_BATCH: usize = 100;

pub(crate) struct Promoter {
    pub shared: Arc<SharedQueue>,
}

impl Promoter {
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut pace = Pace::new(&self.shared.name, "promote");
        loop {
            let next_due = match self.shared.queue.promote(MAX_BATCH).await {
                Ok(promoted) => {
                    pace.succeeded();
                    if promoted.lost > 0 {
                        self.shared.metrics.lost_entries.inc_by(promoted.lost);
                        tracing::error!(
                            queue = self.shared.name.as_ref(),
                            tasks = promoted.lost,
                            "delayed tasks were deleted by somebody else"
                        );
                    }
                    self.shared.idle.note_delayed(promoted.next_due.is_some());
                    promoted.next_due
                }
                Err(error) => Some(pace.failed(&error)),
            };
            let due = async {
                match next_due {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => {}
                () = self.shared.parked.notified() => {}
                () = stop.cancelled() => return,
            }
        }
    }
}
