//! The gate: asks Redis once more who owns claimed tasks and whether they may run (`scripts/begin.lua`).
//!
//! In: tasks that this host holds. Out: the tasks that may run, marked as PROCESSING. What becomes of the
//! others is counted, and a task that crashed its host while it ran alone is dead-lettered.
//!
//! Not here: which tasks need the gate (`intake`), running alone (`suspect`).

use tokio::time::Instant;

use super::inflight::Hold;
use super::pace::Pace;
use super::settle;
use super::shared::SharedQueue;
use crate::plugins::Version;
use crate::queue::{Begun, EndingSubject, Start};
use crate::task::{SettledAs, Task};

/// Returns a task that has passed the gate. Otherwise counts the reason, and dead-letters a task that crashed
/// its host.
pub(crate) async fn go_on(
    shared: &SharedQueue,
    version: &Version,
    task: Task,
    hold: Hold,
    begun: Begun,
) -> Option<(Task, Hold)> {
    let queue = shared.name.as_ref();
    match begun {
        Begun::Owned => return Some((task, hold)),
        Begun::Crashed => {
            let decision = settle::crashed(&task);
            shared.settle(EndingSubject::Task(Box::new(task)), version.label(), None, decision, hold).await;
        }
        Begun::Cancelled => shared.metrics.settled(SettledAs::Cancelled),
        Begun::Duplicate => {
            shared.metrics.settled(SettledAs::Duplicate);
            tracing::info!(queue, task = task.id, "not run: another task has its idempotency key or its id");
        }
        Begun::Gone => shared.count_deleted(std::slice::from_ref(&task.entry)),
        Begun::Lost => {
            shared.metrics.lease_lost.inc();
            tracing::warn!(queue, task = task.id, "not run: another host owns this task by now");
        }
    }
    None
}

/// Marks tasks as PROCESSING, and whether they run `alone`. Tries until Redis answers. `None`: the host
/// stops.
pub(crate) async fn begin(
    shared: &SharedQueue,
    plugin: &str,
    tasks: &[(Task, Hold)],
    since: Instant,
    alone: bool,
) -> Option<Vec<Begun>> {
    let mut pace = Pace::new(&shared.name, "begin");
    loop {
        let starts =
            tasks.iter().map(|(task, hold)| Start { alone, ..Start::of(task, hold.key(), since.elapsed()) });
        let starts: Vec<Start<'_>> = starts.collect();
        let wait = match shared.queue.begin(&shared.consumer, plugin, &starts).await {
            Ok(begun) => {
                pace.succeeded();
                return Some(begun);
            }
            Err(error) => pace.failed(&error),
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = shared.stop.running.cancelled() => return None,
        }
    }
}
