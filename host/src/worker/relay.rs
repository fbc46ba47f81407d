//! Takes tasks of one queue to queues in other slots of a cluster.
//!
//! In: this host has settled attempts that left such tasks; or the [`Lookout`](super::lookout) of the host
//! with the queue's duties finds such tasks of any host. Out: the tasks are in their queues.
//!
//! Not here: how a task is enqueued once, however often it is taken there (`queue::relay`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::notices::NoticeKind;
use super::pace::Pace;
use super::shared::SharedQueue;
use crate::queue::{OwnTasks, QueueResult};

/// How long a host that stops goes on taking its own tasks to their queues. Other hosts take the rest.
const LAST: Duration = Duration::from_secs(2);
/// After a walk over the tasks of all hosts that leaves some tasks there, the next one waits for this many
/// times the time of the walk. So tasks that no queue takes cost a fifth of a loop, however many they are.
const PAUSE: u32 = 4;
const SHORTEST_PAUSE: Duration = Duration::from_millis(200);
/// If a task is in its queue already, the next walk must come before the status expires that says so.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How often the log has the tasks that their queues do not take.
const REMIND: Duration = Duration::from_secs(60);

pub(crate) struct Relay {
    shared: Arc<SharedQueue>,
    own: OwnTasks,
    /// When the log had tasks last that their queues do not take.
    logged_at: Option<Instant>,
    /// The earliest time of the next walk over the tasks of all hosts.
    pauses_until: Instant,
    /// Whether the last such walk could not reach a queue.
    is_queue_away: bool,
}

impl Relay {
    pub(crate) fn new(shared: Arc<SharedQueue>) -> Relay {
        let own = OwnTasks::of(&shared.consumer);
        Relay { shared, own, logged_at: None, pauses_until: Instant::now(), is_queue_away: false }
    }

    /// Runs until the last task of this host is settled.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut pace = Pace::new(&self.shared.name, "relay");
        loop {
            let Some(step) = stop.run_until_cancelled(self.relay()).await else { break };
            let mut wait = match step {
                // Only the next walk over the tasks of all hosts shows whether that queue is back.
                Ok(()) if self.is_queue_away && self.shared.idle.has_duty() => Duration::MAX,
                Ok(()) => pace.after(Ok(Duration::MAX)),
                Err(error) => pace.failed(&error),
            };
            if self.shared.relays_all.load(Ordering::Acquire) {
                wait = wait.min(self.pauses_until.saturating_duration_since(Instant::now()));
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.shared.relay_wanted.notified() => {}
                () = stop.cancelled() => break,
            }
        }
        let _ = tokio::time::timeout(LAST, self.relay()).await;
    }

    /// Takes this host's tasks to their queues, or those of all hosts if that is wanted and the pause is
    /// over.
    async fn relay(&mut self) -> QueueResult {
        let shared = &self.shared;
        let began = Instant::now();
        let all = began >= self.pauses_until && shared.relays_all.swap(false, Ordering::AcqRel);
        let relayed = shared.queue.relay((!all).then_some(&mut self.own)).await?;
        if !relayed.refused.is_empty() && self.logged_at.is_none_or(|at| at.elapsed() >= REMIND) {
            self.logged_at = Some(Instant::now());
            for (task, why) in &relayed.refused {
                shared.log_refused(NoticeKind::RelayRefused, task, why);
            }
        }
        if relayed.has_more {
            shared.relay_wanted.notify_one();
        }
        if relayed.is_behind {
            shared.relays_all.store(true, Ordering::Release);
        }
        if !all {
            return Ok(());
        }
        self.is_queue_away = relayed.lost.is_some();
        if relayed.is_behind || !relayed.refused.is_empty() {
            let pause = PAUSE * began.elapsed();
            self.pauses_until = Instant::now() + pause.clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        }
        relayed.lost.map_or(Ok(()), Err)
    }
}
