//! Tells clients of tasks that run for long: writes PROCESSING on their statuses.
//!
//! A task that was just read needs no script to begin, since its delivery proves that it is this host's; and while it runs for a moment only,
//! PENDING is as good an answer as any. One that is not done after [`AFTER`] is told. The same script finds out what the delivery could not say:
//! that the task was cancelled, or that its entry is gone.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::inflight::Unheard;
use super::pace::Pace;
use super::shared::Shared;
use crate::admin;
use crate::queue::{Begun, Start};

/// A task that has not ended after so long is told. Shorter than what a person or a polling client notices; and long enough that handlers that
/// only compute a little, which are those that come by the ten thousands per second, cost Redis nothing for it.
const AFTER: Duration = Duration::from_millis(20);
/// Tasks in one call of the script.
const MAX_BATCH: usize = 100;

pub struct Teller {
    pub shared: Arc<Shared>,
}

impl Teller {
    pub async fn run(self, stop: CancellationToken) {
        let mut pace = Pace::new(&self.shared.name, "begin");
        loop {
            tokio::select! {
                () = self.shared.begun.notified() => {}
                () = stop.cancelled() => return,
            }
            loop {
                let (tasks, next) = self.shared.inflight.unheard(AFTER, Instant::now());
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

    /// Tries until Redis answers: a heartbeat comes later, and finds what this one would have.
    async fn tell(&self, tasks: &[Unheard], pace: &mut Pace) {
        let shared = &self.shared;
        // Gone while it runs: the attempt is on a version that was active when it began.
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

    fn told(&self, task: &Unheard, begun: Begun) {
        let shared = &self.shared;
        let queue = shared.name.as_ref();
        // What has ended meanwhile is settled by itself.
        match begun {
            Begun::Owned => {}
            Begun::Cancelled if shared.inflight.lost(&task.entry) => {
                tracing::info!(queue, task = task.task_id, "cancelled while it ran");
                shared.metrics.settled(admin::Settled::Cancelled);
            }
            Begun::Duplicate if shared.inflight.lost(&task.entry) => {
                tracing::info!(queue, task = task.task_id, "stopped: another task has its id");
                shared.metrics.settled(admin::Settled::Duplicate);
            }
            Begun::Gone if shared.inflight.deleted(&task.entry) => {
                shared.count_deleted(std::slice::from_ref(&task.entry));
                shared.inflight.lost(&task.entry);
            }
            // Cancelled, or another host's: the next heartbeat finds out which.
            Begun::Lost | Begun::Cancelled | Begun::Duplicate | Begun::Gone | Begun::Crashed => {}
        }
    }
}

fn start(task: &Unheard) -> Start<'_> {
    let Unheard { entry, task_id, attempt, enqueued_at_ms, since } = task;
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
