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
use super::inflight::Hold;
use super::pace::Pace;
use super::shared::SharedQueue;
use super::{gate, runner};
use crate::plugins::Version;
use crate::queue::Start;
use crate::task::Task;

/// After this many leases alone, a suspect continues beside others. With the default lease this is the
/// default of `timeout`.
const LONGEST: u32 = 2;

/// Runs the task once nothing else runs in this host. This happens on the host's threads; only the call of
/// the handler runs on the guests' threads.
pub(crate) fn start(shared: &Arc<SharedQueue>, version: &Arc<Version>, task: Task, hold: Hold) {
    drop(shared.runners.spawn(run(shared.clone(), version.clone(), task, hold)));
}

async fn run(shared: Arc<SharedQueue>, version: Arc<Version>, task: Task, mut hold: Hold) {
    let queue = shared.name.as_ref();
    tracing::info!(
        queue,
        task = task.id,
        crashes = task.crashes,
        "the task runs alone, because hosts died while they ran it"
    );
    let stop = hold.stop().clone();
    let guard = tokio::select! {
        guard = shared.capacity.alone().enter_alone() => Some(guard),
        () = stop.cancelled() => None,
    };
    let version = shared.versions.borrow().clone().unwrap_or(version);
    let label = version.label();
    let mut begun = None;
    let mut members = Vec::new();
    if let Some(guard) = guard {
        let settled = CancellationToken::new();
        let keeper = Keeper::new(&shared, &label, &task, &hold, guard);
        drop(shared.runners.spawn(settled.clone().run_until_cancelled_owned(keeper.run())));
        hold.runs_alone(settled.drop_guard());
        members.push((task, hold));
        begun = gate::begin(&shared, &label, &members, Instant::now(), true).await;
    } else {
        members.push((task, hold));
    }
    // Without an answer of the gate, the host stops, and `carry` gives the task back.
    let Some(begun) = begun else { return runner::run_attempt(shared.clone(), version, members).await };
    for ((task, hold), begun) in members.into_iter().zip(begun) {
        if let Some((task, hold)) = gate::go_on(&shared, &version, task, hold, begun).await {
            runner::record_wait(&shared, &task);
            runner::run_attempt(shared.clone(), version.clone(), vec![(task, hold)]).await;
        }
    }
}

/// Keeps other attempts from running until the suspect is settled or has run for [`LONGEST`] leases.
struct Keeper {
    shared: Arc<SharedQueue>,
    plugin: Arc<str>,
    /// The suspect, without its fields.
    task: Task,
    key: Option<Vec<u8>>,
    _guard: AloneGuard,
}

impl Keeper {
    fn new(
        shared: &Arc<SharedQueue>,
        plugin: &Arc<str>,
        task: &Task,
        hold: &Hold,
        guard: AloneGuard,
    ) -> Keeper {
        Keeper {
            shared: shared.clone(),
            plugin: plugin.clone(),
            task: Task { fields: Vec::new(), ..task.clone() },
            key: hold.key().map(<[u8]>::to_vec),
            _guard: guard,
        }
    }

    /// Waits for [`LONGEST`] leases, removes the note that the suspect runs alone, and then lets others run.
    /// This future is dropped when the suspect is settled before that.
    async fn run(self) {
        let began = Instant::now();
        let mut pace = Pace::new(&self.shared.name, "begin");
        sleep(self.shared.queue.rules.lease * LONGEST).await;
        let Keeper { shared, plugin, task, key, .. } = &self;
        loop {
            let start = Start::of(task, key.as_deref(), began.elapsed());
            match shared.queue.begin(&shared.consumer, plugin, &[start]).await {
                // If this host has lost the task, the next heartbeat finds that out.
                Ok(_) => break,
                Err(error) => sleep(pace.failed(&error)).await,
            }
        }
    }
}
