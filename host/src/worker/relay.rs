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
use crate::queue::QueueError;

/// For how long a host that stops takes its own tasks to their queues. Other hosts take what is left.
const LAST: Duration = Duration::from_secs(2);
/// The least time between two walks while a queue is away.
const GAP: Duration = Duration::from_millis(200);
/// How often tasks are told of that their queues do not take.
const REMIND: Duration = Duration::from_secs(60);

pub(crate) struct Relay {
    pub shared: Arc<SharedQueue>,
}

impl Relay {
    /// Runs until the last task of this host is settled.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut pace = Pace::new(&self.shared.name, "relay");
        let mut told = None;
        loop {
            let Some(step) = stop.run_until_cancelled(self.relay(&mut told)).await else { break };
            let has_failed = step.is_err();
            let wait = pace.after(step);
            let left = async {
                // Tasks for other queues do not wait until the one that is away comes back.
                tokio::time::sleep(if has_failed { GAP } else { Duration::ZERO }).await;
                self.shared.left.notified().await;
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = left => {}
                () = stop.cancelled() => break,
            }
        }
        let _ = tokio::time::timeout(LAST, self.relay(&mut told)).await;
    }

    /// `told`: when a task was told of last that its queue does not take.
    async fn relay(&self, told: &mut Option<Instant>) -> Result<Duration, QueueError> {
        let shared = &self.shared;
        let all = shared.sweeps.swap(false, Ordering::AcqRel);
        let by = (!all).then_some(&*shared.consumer);
        let relayed = shared.queue.relay(by).await?;
        if !relayed.refused.is_empty() && told.is_none_or(|told| told.elapsed() >= REMIND) {
            *told = Some(Instant::now());
            for (task, why) in &relayed.refused {
                shared.tell_refused(NoticeKind::RelayRefused, task, why);
            }
        }
        relayed.lost.map_or(Ok(Duration::MAX), Err)
    }
}
