//! Takes tasks of one queue to queues in other slots of a cluster.
//!
//! In: this host has settled attempts that left such tasks; or the [`Lookout`](super::lookout) of the host
//! with the queue's duties finds some, whoever left them. Out: they are in their queues.
//!
//! Not here: how a task is enqueued once, however often it is taken there (`queue::relay`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::notices::NoticeKind;
use super::pace::Pace;
use super::shared::SharedQueue;
use crate::queue::QueueError;

/// For how long a host that stops takes its own tasks to their queues. Other hosts take what is left.
const LAST: Duration = Duration::from_secs(2);

pub(crate) struct Relay {
    pub shared: Arc<SharedQueue>,
}

impl Relay {
    /// Runs until the last task of this host is settled.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut pace = Pace::new(&self.shared.name, "relay");
        loop {
            let step = self.relay().await;
            let has_failed = step.is_err();
            let wait = pace.after(step);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.shared.left.notified(), if !has_failed => {}
                () = stop.cancelled() => break,
            }
        }
        let _ = tokio::time::timeout(LAST, self.relay()).await;
    }

    async fn relay(&self) -> Result<Duration, QueueError> {
        let shared = &self.shared;
        let all = shared.sweeps.swap(false, Ordering::AcqRel);
        let by = (!all).then_some(&*shared.consumer);
        let relayed = shared.queue.relay(by).await.inspect_err(|_| {
            // The other tasks of a failed sweep wait for the next one.
            shared.sweeps.fetch_or(all, Ordering::AcqRel);
        })?;
        for (task, why) in relayed.refused {
            shared.tell_refused(NoticeKind::RelayRefused, &task, &why);
        }
        Ok(Duration::MAX)
    }
}
