//! The gate: asks Redis once more who owns claimed tasks and whether they may run (`scripts/begin.lua`).
//!
//! In: tasks that this host holds. Out: the tasks that may run, marked as PROCESSING. Any other task is
//! counted, and a task that crashed its host while it ran alone is dead-lettered.
//!
//! Not here: which tasks need the gate (`intake`), running alone (`suspect`).

use std::sync::Arc;

use tokio::time::Instant;

use super::inflight::Ownership;
use super::notices::NoticeKind;
use super::pace::Pace;
use super::settle;
use super::shared::SharedQueue;
use crate::queue::{Begun, EndingSubject, Start};
use crate::task::{SettledAs, Task};

/// The most tasks of one call, so that it keeps Redis busy for a short time only.
pub(crate) const MAX_BATCH: usize = 100;

/// How tasks come to the gate.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Way {
    /// Nothing else runs in this host.
    pub alone: bool,
    /// Another host may have run them under the same entries.
    pub again: bool,
}

/// Returns the tasks that pass the gate, with their fences. If the host stops before Redis answers, all tasks
/// are given back.
pub(crate) async fn pass(
    shared: &SharedQueue,
    plugin: &Arc<str>,
    tasks: Vec<(Task, Ownership)>,
    since: Instant,
    Way { alone, again }: Way,
) -> Vec<(Task, Ownership)> {
    let asked = async {
        let mut answer = Vec::with_capacity(tasks.len());
        for some in tasks.chunks(MAX_BATCH) {
            let starts = || {
                let since = since.elapsed();
                some.iter()
                    .map(|(task, owned)| Start { alone, again, ..Start::of(task, owned.key(), since) })
                    .collect()
            };
            answer.extend(begin(shared, plugin, starts).await);
        }
        answer
    };
    let Some(answer) = shared.stop.running.run_until_cancelled(asked).await else {
        release(shared, plugin, tasks).await;
        return Vec::new();
    };
    let queue = shared.name.as_ref();
    let (mut passed, mut late) = (Vec::with_capacity(tasks.len()), Vec::new());
    for ((mut task, owned), begun) in tasks.into_iter().zip(answer) {
        match begun {
            // This host gave it up while it asked, since it could not renew the lease. Redis has renewed it.
            Begun::Owned { .. } if owned.is_lost() => late.push((task, owned)),
            Begun::Owned { fence } => {
                task.fence = fence;
                passed.push((task, owned));
            }
            Begun::Crashed => {
                let decision = settle::crashed(&task);
                shared
                    .settle(EndingSubject::Task(Box::new(task)), plugin.clone(), None, decision, owned)
                    .await;
            }
            Begun::Cancelled => shared.metrics.settled(SettledAs::Cancelled),
            Begun::Duplicate => shared.dropped_duplicate(&task.id),
            Begun::Gone => shared.count_deleted(&[task.entry]),
            Begun::PutOff => shared.parked.notify_one(),
            Begun::Refused(why) => {
                shared.tell_refused(NoticeKind::BeginRefused, &task.id, &why);
                let decision = settle::cannot_begin(&why, &task);
                shared
                    .settle(EndingSubject::Task(Box::new(task)), plugin.clone(), None, decision, owned)
                    .await;
            }
            Begun::Lost => {
                shared.metrics.lease_lost.inc();
                if let Some(more) = shared.notices.admit(NoticeKind::Lost) {
                    tracing::warn!(
                        queue,
                        task = task.id,
                        more,
                        "not run: another host owns this task by now"
                    );
                }
            }
        }
    }
    release(shared, plugin, late).await;
    passed
}

/// Asks Redis until it answers. `starts` gives the tasks, each with the time since its claim.
pub(crate) async fn begin<'t>(
    shared: &SharedQueue,
    plugin: &str,
    starts: impl Fn() -> Vec<Start<'t>>,
) -> Vec<Begun> {
    let mut pace = Pace::new(&shared.name, "begin");
    loop {
        match shared.queue.begin(&shared.consumer, plugin, &starts()).await {
            Ok(begun) => {
                pace.succeeded();
                return begun;
            }
            Err(error) => tokio::time::sleep(pace.failed(&error)).await,
        }
    }
}

/// Gives tasks back that did not run.
pub(crate) async fn release(shared: &SharedQueue, plugin: &Arc<str>, tasks: Vec<(Task, Ownership)>) {
    for (task, owned) in tasks {
        let decision = settle::release(&task);
        shared.settle(EndingSubject::Task(Box::new(task)), plugin.clone(), None, decision, owned).await;
    }
}
