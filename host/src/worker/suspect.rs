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

use tokio::time::{Duration, Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::alone::Turn;
use super::inflight::Hold;
use super::pace::Pace;
use super::shared::Shared;
use super::{gate, runner};
use crate::plugins::Version;
use crate::queue::Start;
use crate::task::Task;

/// After this long alone, a suspect continues beside others. It equals the default of `timeout`.
const LONGEST: Duration = Duration::from_secs(60);

/// Runs it, once nothing else runs in this host. On the host's threads, which speak to Redis: the call hops
/// to the guests'.
pub fn start(shared: &Arc<Shared>, version: &Arc<Version>, task: Task, hold: Hold) {
    drop(shared.runners.spawn(run(shared.clone(), version.clone(), task, hold)));
}

async fn run(shared: Arc<Shared>, version: Arc<Version>, task: Task, mut hold: Hold) {
    let queue = shared.name.as_ref();
    tracing::info!(
        queue,
        task = task.id,
        crashes = task.crashes,
        "it runs alone, as hosts died while they ran it"
    );
    let stop = hold.stop().clone();
    let turn = tokio::select! {
        turn = shared.line.alone().alone() => Some(turn),
        () = stop.cancelled() => None,
    };
    let version = shared.versions.borrow().clone().unwrap_or(version);
    let label = version.label();
    let mut begun = None;
    let mut members = Vec::new();
    if let Some(turn) = turn {
        let settled = CancellationToken::new();
        let keeper = Keeper::new(&shared, &label, &task, &hold, turn);
        drop(shared.runners.spawn(settled.clone().run_until_cancelled_owned(keeper.run())));
        hold.runs_alone(settled.drop_guard());
        members.push((task, hold));
        begun = gate::begin(&shared, &label, &members, Instant::now(), true).await;
    } else {
        members.push((task, hold));
    }
    // A host that stops gives it back.
    let Some(begun) = begun else { return runner::carry(shared.clone(), version, members).await };
    for ((task, hold), begun) in members.into_iter().zip(begun) {
        if let Some((task, hold)) = gate::go_on(&shared, &version, task, hold, begun).await {
            runner::waited(&shared, &task);
            runner::carry(shared.clone(), version.clone(), vec![(task, hold)]).await;
        }
    }
}

/// Keeps other attempts from running until the suspect is settled or has run for [`LONGEST`].
struct Keeper {
    shared: Arc<Shared>,
    plugin: Arc<str>,
    /// Without its fields.
    task: Task,
    key: Option<Vec<u8>>,
    _turn: Turn,
}

impl Keeper {
    fn new(shared: &Arc<Shared>, plugin: &Arc<str>, task: &Task, hold: &Hold, turn: Turn) -> Keeper {
        Keeper {
            shared: shared.clone(),
            plugin: plugin.clone(),
            task: Task { fields: Vec::new(), ..task.clone() },
            key: hold.key().map(<[u8]>::to_vec),
            _turn: turn,
        }
    }

    /// Lets others run beside it after a while, and takes the note back before. It is dropped when the task
    /// is settled.
    async fn run(self) {
        let began = Instant::now();
        let mut pace = Pace::new(&self.shared.name, "begin");
        sleep(LONGEST).await;
        let Keeper { shared, plugin, task, key, .. } = &self;
        loop {
            let start = Start::of(task, key.as_deref(), began.elapsed());
            match shared.queue.begin(&shared.consumer, plugin, &[start]).await {
                // Whoever is not its owner any more finds that out by a heartbeat.
                Ok(_) => break,
                Err(error) => sleep(pace.failed(&error)).await,
            }
        }
    }
}
