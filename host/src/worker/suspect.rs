//! Runs a task that may have crashed hosts alone in this host, and notes this in Redis.
//!
//! In: a task that has passed the gate with two crashes, or with `max_crashes`. Out: one settlement, as for
//! every other task.
//!
//!     passed the gate ─▶ waits until nothing else runs ─▶ the gate once more: it runs alone ─▶ runner
//!
//! A crash during several attempts does not show which one caused it. A crash while the suspect runs alone
//! does: the gate of the next host finds the note and the later crash (`scripts/begin.lua`). A crash while
//! the suspect still waits here proves nothing.

use std::sync::Arc;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::alone::AloneGuard;
use super::inflight::OwnedTask;
use super::shared::SharedQueue;
use super::starts::PendingAttempt;
use super::{gate, runner};
use crate::plugins::Version;
use crate::queue::Start;
use crate::task::Task;

/// After this many leases alone, a suspect continues beside others. With the default lease, that is as long
/// as the default of `timeout`.
const LONGEST_LEASES: u32 = 2;

/// Runs the task once nothing else runs in this host. This happens on the host's threads; only the call of
/// the handler runs on the guests' threads.
pub(crate) fn start(shared: &Arc<SharedQueue>, version: &Arc<Version>, suspect: OwnedTask) {
    drop(shared.runners.spawn(run(shared.clone(), version.clone(), suspect)));
}

async fn run(shared: Arc<SharedQueue>, version: Arc<Version>, (task, mut owned): OwnedTask) {
    tracing::info!(
        queue = shared.name.as_ref(),
        task = task.id,
        crashes = task.crashes,
        "the task runs alone, because hosts died while they ran it"
    );
    let stop = owned.stop().clone();
    let guard = tokio::select! {
        guard = shared.capacity.alone().enter_alone() => Some(guard),
        () = stop.cancelled() => None,
    };
    let version = shared.versions.borrow().clone().unwrap_or(version);
    // A task that is to stop does not run: it is given back, or left to the host that owns it now.
    let Some(guard) = guard else {
        let attempt = PendingAttempt { version, tasks: vec![(task, owned)] };
        return runner::run_attempt(shared, attempt, 0).await;
    };
    let label = version.label();
    let settled = CancellationToken::new();
    let suspect = Task { fields: Vec::new(), ..task.clone() };
    let key = owned.key().map(<[u8]>::to_vec);
    let others = keep_others_out(shared.clone(), label.clone(), suspect, key, guard);
    drop(shared.runners.spawn(settled.clone().run_until_cancelled_owned(others)));
    owned.runs_alone(settled.drop_guard());
    let way = gate::Way { alone: true, again: false };
    let tasks = gate::pass(&shared, &label, vec![(task, owned)], Instant::now(), way).await;
    tasks.iter().for_each(|(task, _)| runner::record_wait(&shared, task));
    runner::run_attempt(shared, PendingAttempt { version, tasks }, 0).await;
}

/// Keeps other attempts from running until the suspect has run for [`LONGEST_LEASES`] leases. Then it removes
/// the note that the suspect runs alone, and lets others run. This future is dropped when the suspect is
/// settled before that.
async fn keep_others_out(
    shared: Arc<SharedQueue>,
    plugin: Arc<str>,
    suspect: Task,
    key: Option<Vec<u8>>,
    _guard: AloneGuard,
) {
    let began = Instant::now();
    sleep(shared.queue.rules.lease * LONGEST_LEASES).await;
    // If this host has lost the task, the next heartbeat finds that out.
    gate::begin(&shared, &plugin, || vec![Start::of(&suspect, key.as_deref(), began.elapsed())]).await;
}
