//! Writes PROCESSING on the statuses of plain tasks that run for long.
//!
//! A plain task begins without a script (`intake`), and its status stays PENDING during a short run. If it
//! still runs after [`AFTER`], the script of the `gate` writes PROCESSING. The script also finds out whether
//! the task was cancelled, or its entry deleted.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::gate;
use super::inflight::OwnedEntry;
use super::notices::NoticeKind;
use super::shared::SharedQueue;
use crate::queue::{Begun, Start};
use crate::task::SettledAs;

/// People and polling clients do not notice this delay. Short handlers, which may run ten thousands of times
/// per second, end earlier and cost Redis nothing.
const AFTER: Duration = Duration::from_millis(20);

pub(crate) struct StatusWriter {
    pub shared: Arc<SharedQueue>,
}

impl StatusWriter {
    pub(crate) async fn run(self, stop: CancellationToken) {
        let steps = async {
            loop {
                self.shared.begun.notified().await;
                loop {
                    let (tasks, next) = self.shared.inflight.take_unreported(AFTER, Instant::now());
                    for some in tasks.chunks(gate::MAX_BATCH) {
                        self.write(some).await;
                    }
                    let Some(next) = next else { break };
                    tokio::time::sleep(next).await;
                }
            }
        };
        stop.run_until_cancelled(steps).await;
    }

    async fn write(&self, tasks: &[Arc<OwnedEntry>]) {
        let shared = &self.shared;
        // There may be no version any more: the attempts run on the version that was active at their start.
        let plugin = shared.versions.borrow().as_ref().map(|version| version.label()).unwrap_or_default();
        let starts = || tasks.iter().map(|task| start(task)).collect();
        let begun = gate::begin(shared, &plugin, starts).await;
        tasks.iter().zip(begun).for_each(|(task, begun)| self.written(task, begun));
    }

    fn written(&self, task: &OwnedEntry, begun: Begun) {
        let shared = &self.shared;
        // An attempt that has ended meanwhile is not in the table any more, and its own settlement counts.
        match begun {
            Begun::Owned { .. } => {}
            Begun::Cancelled if shared.inflight.mark_cancelled(&task.id) => {
                shared.count_cancelled(&task.task_id);
            }
            Begun::Duplicate if shared.inflight.mark_lost(&task.id) => {
                let queue = shared.name.as_ref();
                tracing::info!(queue, task = task.task_id, "stopped: another task has its id");
                shared.metrics.settled(SettledAs::Duplicate);
            }
            Begun::Gone if shared.inflight.mark_deleted(&task.id) => {
                shared.count_deleted(&[task.id.to_string()]);
                shared.inflight.mark_lost(&task.id);
            }
            // If the attempt still runs, the next heartbeat finds out who owns the task.
            Begun::Lost
            | Begun::Cancelled
            | Begun::Duplicate
            | Begun::Gone
            | Begun::Crashed
            | Begun::PutOff => {}
            Begun::Refused(why) => shared.log_refused(NoticeKind::BeginRefused, &task.task_id, &why),
        }
    }
}

fn start(task: &OwnedEntry) -> Start<'_> {
    Start {
        entry: &task.id,
        id: &task.task_id,
        attempt: task.attempt,
        enqueued_at_ms: task.enqueued_at_ms,
        key: None,
        held: task.since.elapsed(),
        crashes: 0,
        alone: false,
        // A task that is not plain has its fence in the status already.
        fence: 1,
        again: false,
    }
}
