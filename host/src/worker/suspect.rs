//! Runs a task that may have brought hosts down: alone in this host, and Redis knows that it does.
//!
//! In: a task with two crashes, or as many as it may have, that has passed the gate. Out: as of every other
//! task, one settlement.
//!
//!     passed the gate ─▶ waits until nothing else runs ─▶ the gate once more: it runs alone ─▶ runner
//!
//! Who dies while it runs with others says little of any of them. Who dies while it runs alone does: the gate
//! of the next host finds the note, and the crash that came after it (`scripts/begin.lua`). While it waits
//! here, a crash is one of those that it did not run in.

use std::sync::Arc;

use tokio::time::{Duration, Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::alone::Turn;
use super::inflight::Hold;
use super::pace::Pace;
use super::shared::Shared;
use super::{intake, runner};
use crate::plugins::Version;
use crate::queue::Start;
use crate::task::Task;

/// One that has run alone for so long goes on beside others: as long as the default of `timeout`.
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
        begun = intake::begin(&shared, &label, &members, Instant::now(), true).await;
    } else {
        members.push((task, hold));
    }
    // A host that stops gives it back.
    let Some(begun) = begun else { return runner::carry(shared.clone(), version, members).await };
    for ((task, hold), begun) in members.into_iter().zip(begun) {
        if let Some((task, hold)) = intake::go_on(&shared, &version, task, hold, begun).await {
            runner::waited(&shared, &task);
            runner::carry(shared.clone(), version.clone(), vec![(task, hold)]).await;
        }
    }
}

/// Keeps the host to one task, until that is settled or has run for long.
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
