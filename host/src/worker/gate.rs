//! The gate: asks Redis once more who owns claimed tasks and whether they may run (`scripts/begin.lua`).
//!
//! In: tasks that this host holds. Out: the tasks that may run, marked as PROCESSING. Any other task is
//! counted, and a task that crashed its host while it ran alone is dead-lettered.
//!
//! Not here: which tasks need the gate (`intake`), running alone (`suspect`).

use std::sync::Arc;

use tokio::time::Instant;

use super::inflight::OwnedTask;
use super::notices::NoticeKind;
use super::pace::Pace;
use super::settle;
use super::shared::SharedQueue;
use crate::queue::{Begun, Start};
use crate::task::SettledAs;

/// The most tasks of one call, so that it keeps Redis busy for a short time only.
pub(crate) const MAX_BATCH: usize = 100;

/// How the tasks of a call come to the gate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way {
    /// Nothing else runs in this host.
    pub alone: bool,
    /// Another host may have run the tasks under the same entries.
    pub again: bool,
}

/// Returns the tasks that pass the gate, with their fences. They were claimed at `since`. If the host stops
/// before Redis answers, all tasks are given back.
pub(crate) async fn pass(
    shared: &SharedQueue,
    plugin: &Arc<str>,
    tasks: Vec<OwnedTask>,
    since: Instant,
    Way { alone, again }: Way,
) -> Vec<OwnedTask> {
    let asked = async {
        let mut answers = Vec::with_capacity(tasks.len());
        for some in tasks.chunks(MAX_BATCH) {
            let starts = || {
                let held = since.elapsed();
                some.iter()
                    .map(|(task, owned)| Start { alone, again, ..Start::of(task, owned.key(), held) })
                    .collect()
            };
            answers.extend(begin(shared, plugin, starts).await);
        }
        answers
    };
    let Some(answers) = shared.stop.running.run_until_cancelled(asked).await else {
        release(shared, plugin, tasks).await;
        return Vec::new();
    };
    let (mut passed, mut late) = (Vec::with_capacity(tasks.len()), Vec::new());
    for ((mut task, owned), begun) in tasks.into_iter().zip(answers) {
        match begun {
            // While this host asked, it gave the task up, since it could not renew the lease. The answer of
            // Redis has renewed the lease.
            Begun::Owned { .. } if owned.is_lost() => late.push((task, owned)),
            Begun::Owned { fence } => {
                task.fence = fence;
                passed.push((task, owned));
            }
            Begun::Crashed => {
                let decision = settle::crashed(&task);
                shared.settle_unrun((task, owned), plugin, decision).await;
            }
            Begun::Cancelled => shared.metrics.settled(SettledAs::Cancelled),
            Begun::Duplicate => shared.count_duplicate(&task.id),
            Begun::Gone => shared.count_deleted(&[task.entry]),
            Begun::PutOff => shared.parked.notify_one(),
            Begun::Refused(why) => {
                shared.log_refused(NoticeKind::BeginRefused, &task.id, &why);
                let decision = settle::cannot_begin(&why, &task);
                shared.settle_unrun((task, owned), plugin, decision).await;
            }
            Begun::Lost => {
                shared.metrics.lease_lost.inc();
                if let Some(more) = shared.notices.admit(NoticeKind::Lost) {
                    let (queue, task) = (shared.name.as_ref(), &task.id);
                    tracing::warn!(queue, task, more, "not run: another host owns this task by now");
                }
            }
        }
    }
    release(shared, plugin, late).await;
    passed
}

/// Asks Redis until it answers, and returns an answer for each task. `starts` returns the tasks, each with
/// the time since its claim.
pub(crate) async fn begin<'t>(
    shared: &SharedQueue,
    plugin: &str,
    starts: impl Fn() -> Vec<Start<'t>>,
) -> Vec<Begun> {
    let begin = || async { shared.queue.begin(&shared.consumer, plugin, &starts()).await };
    Pace::until_done(&shared.name, "begin", begin).await
}

/// Gives tasks back that did not run.
pub(crate) async fn release(shared: &SharedQueue, plugin: &Arc<str>, tasks: Vec<OwnedTask>) {
    for task in tasks {
        let decision = settle::release(&task.0);
        shared.settle_unrun(task, plugin, decision).await;
    }
}
