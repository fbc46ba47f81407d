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

/// For how long a host that stops takes its own tasks to their queues. Other hosts take what is left.
const LAST: Duration = Duration::from_secs(2);
/// A walk over the tasks of all hosts that leaves some there is followed by a pause of this many times the
/// walk. So tasks that no queue takes cost a fifth of a loop, however many they are. The pause has a bound,
/// since a task that its queue has already must be found there before its status goes.
const PAUSE: u32 = 4;
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// How often tasks are told of that their queues do not take.
const REMIND: Duration = Duration::from_secs(60);

pub(crate) struct Relay {
    shared: Arc<SharedQueue>,
    own: OwnTasks,
    /// When tasks were told of last that their queues do not take.
    told: Option<Instant>,
    /// The earliest time of the next walk over the tasks of all hosts.
    pauses_until: Instant,
    /// Whether the last such walk could not reach a queue.
    is_away: bool,
}

impl Relay {
    pub(crate) fn new(shared: Arc<SharedQueue>) -> Relay {
        let own = OwnTasks::of(&shared.consumer);
        Relay { shared, own, told: None, pauses_until: Instant::now(), is_away: false }
    }

    /// Runs until the last task of this host is settled.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut pace = Pace::new(&self.shared.name, "relay");
        loop {
            let Some(step) = stop.run_until_cancelled(self.relay()).await else { break };
            let mut wait = match step {
                // The walk over all tasks says when the queue is back.
                Ok(()) if self.is_away && self.shared.idle.has_duty() => Duration::MAX,
                Ok(()) => pace.after(Ok(Duration::MAX)),
                Err(error) => pace.failed(&error),
            };
            if self.shared.sweeps.load(Ordering::Acquire) {
                wait = wait.min(self.pauses_until.saturating_duration_since(Instant::now()));
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.shared.left.notified() => {}
                () = stop.cancelled() => break,
            }
        }
        let _ = tokio::time::timeout(LAST, self.relay()).await;
    }

    async fn relay(&mut self) -> QueueResult {
        let shared = &self.shared;
        let began = Instant::now();
        let all = began >= self.pauses_until && shared.sweeps.swap(false, Ordering::AcqRel);
        let relayed = shared.queue.relay((!all).then_some(&mut self.own)).await?;
        if !relayed.refused.is_empty() && self.told.is_none_or(|told| told.elapsed() >= REMIND) {
            self.told = Some(Instant::now());
            for (task, why) in &relayed.refused {
                shared.tell_refused(NoticeKind::RelayRefused, task, why);
            }
        }
        if relayed.has_more {
            shared.left.notify_one();
        }
        if relayed.is_behind {
            shared.sweeps.store(true, Ordering::Release);
        }
        if !all {
            return Ok(());
        }
        self.is_away = relayed.lost.is_some();
        if relayed.is_behind || !relayed.refused.is_empty() {
            let pause = PAUSE * began.elapsed();
            self.pauses_until = Instant::now() + pause.clamp(PAUSES.0, PAUSES.1);
        }
        relayed.lost.map_or(Ok(()), Err)
    }
}
