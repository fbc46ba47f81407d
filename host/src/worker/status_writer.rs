//! Writes PROCESSING on the statuses of plain tasks that run for long.
//!
//! A plain task begins without a script, since its delivery proves that this host owns it. During a short run
//! its status stays PENDING. If it still runs after [`AFTER`], the script writes PROCESSING. The script also
//! finds out whether the task was cancelled, or its entry deleted.
//!
//! Not here: tasks that are not plain (`intake` has begun them by the script).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::inflight::Unreported;
use super::pace::Pace;
use super::shared::SharedQueue;
use crate::queue::{Begun, Start};
use crate::task::SettledAs;

/// A task that runs for this long gets PROCESSING. People and polling clients do not notice this delay. Short
/// handlers, which may run ten thousands of times per second, end earlier and cost Redis nothing.
const AFTER: Duration = Duration::from_millis(20);
/// Tasks in one call of the script.
const MAX_BATCH: usize = 100;

pub(crate) struct StatusWriter {
    pub shared: Arc<SharedQueue>,
}

impl StatusWriter {
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut pace = Pace::new(&self.shared.name, "begin");
        loop {
            tokio::select! {
                () = self.shared.begun.notified() => {}
                () = stop.cancelled() => return,
            }
            loop {
                let (tasks, next) = self.shared.inflight.take_unreported(AFTER, Instant::now());
                for some in tasks.chunks(MAX_BATCH) {
                    tokio::select! {
                        () = self.tell(some, &mut pace) => {}
                        () = stop.cancelled() => return,
                    }
                }
                let Some(next) = next else { break };
                tokio::select! {
                    () = tokio::time::sleep(next) => {}
                    () = stop.cancelled() => return,
                }
            }
        }
    }

    /// Tells Redis about some tasks. Tries again until Redis answers.
    async fn tell(&self, tasks: &[Unreported], pace: &mut Pace) {
        let shared = &self.shared;
        // There may be no version any more: the attempts run on the version that was active at their start.
        let plugin = shared.versions.borrow().as_ref().map(|version| version.label()).unwrap_or_default();
        loop {
            let starts: Vec<Start<'_>> = tasks.iter().map(start).collect();
            let error = match shared.queue.begin(&shared.consumer, &plugin, &starts).await {
                Ok(begun) => {
                    pace.succeeded();
                    tasks.iter().zip(begun).for_each(|(task, begun)| self.told(task, begun));
                    return;
                }
                Err(error) => error,
            };
            tokio::time::sleep(pace.failed(&error)).await;
        }
    }

    fn told(&self, task: &Unreported, begun: Begun) {
        let shared = &self.shared;
        let queue = shared.name.as_ref();
        // An attempt that has ended meanwhile is not in the table any more, and its own settlement counts.
        match begun {
            Begun::Owned => {}
            Begun::Cancelled if shared.inflight.mark_lost(&task.entry) => {
                tracing::info!(queue, task = task.task_id, "cancelled while it ran");
                shared.metrics.settled(SettledAs::Cancelled);
            }
            Begun::Duplicate if shared.inflight.mark_lost(&task.entry) => {
                tracing::info!(queue, task = task.task_id, "stopped: another task has its id");
                shared.metrics.settled(SettledAs::Duplicate);
            }
            Begun::Gone if shared.inflight.mark_deleted(&task.entry) => {
                shared.count_deleted(std::slice::from_ref(&task.entry));
                shared.inflight.mark_lost(&task.entry);
            }
            // If the attempt still runs, the next heartbeat finds out who owns the task.
            Begun::Lost | Begun::Cancelled | Begun::Duplicate | Begun::Gone | Begun::Crashed => {}
        }
    }
}

fn start(task: &Unreported) -> Start<'_> {
    let Unreported { entry, task_id, attempt, enqueued_at_ms, since } = task;
    let (attempt, enqueued_at_ms) = (*attempt, *enqueued_at_ms);
    Start {
        entry,
        id: task_id,
        attempt,
        enqueued_at_ms,
        key: None,
        held: since.elapsed(),
        crashes: 0,
        alone: false,
    }
}
