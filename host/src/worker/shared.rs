//! What the loops of one queue share.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex, Notify, mpsc, watch};
use tokio_util::task::TaskTracker;

use super::capacity::Line;
use super::crew::Crew;
use super::gather::Gathering;
use super::idle::Idle;
use super::inflight::{Hold, Inflight};
use super::job::{Job, Room};
use super::settle::Verdict;
use super::stop::Stop;
use crate::admin::QueueMetrics;
use crate::chain::chain;
use crate::plugins::Version;
use crate::queue::{Ending, Queue, Subject};

/// What the loops of one queue share.
pub struct Shared {
    /// The queue's name.
    pub name: Arc<str>,
    pub queue: Queue,
    /// This host's name in the group, unique for each start.
    pub consumer: Arc<str>,
    pub inflight: Arc<Inflight>,
    pub gathering: Gathering,
    pub crew: Crew,
    /// Its place among the queues of this host.
    pub line: Arc<Line>,
    /// The plugin's working version, if there is one.
    pub versions: watch::Receiver<Option<Arc<Version>>>,
    /// Ends on their way to the settler. There are never more than there is room for.
    pub jobs: mpsc::UnboundedSender<Job>,
    pub room: Room,
    /// Why Redis does not carry out settlements at present.
    pub unsettled: std::sync::Mutex<Option<String>>,
    /// Told whenever a task was parked, or somebody else's delayed task was found.
    pub parked: Notify,
    pub idle: Idle,
    /// Told whenever tasks began of which Redis has not heard yet.
    pub begun: Notify,
    /// After a claim that failed, entries may be ours that nobody saw.
    pub unseen: AtomicBool,
    /// Held from a claim to the moment at which all that was claimed is in `inflight`.
    pub claiming: Mutex<()>,
    pub metrics: QueueMetrics,
    pub stop: Stop,
    pub runners: TaskTracker,
}

impl Shared {
    pub fn unsettled(&self) -> MutexGuard<'_, Option<String>> {
        self.unsettled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands the end of an attempt to the settler; it waits while there is no room for more. `ran`: for how long, if it did.
    pub async fn settle(
        &self,
        subject: Subject,
        plugin: Arc<str>,
        ran: Option<Duration>,
        verdict: Verdict,
        hold: Hold,
    ) {
        let is_known = hold.settling();
        let ending =
            Ending::new(subject, verdict.settlement, plugin, ran, is_known, hold.key().map(<[u8]>::to_vec));
        if let Some(job) = self.room.job(ending, verdict.label, hold).await {
            // The settler outlives the runners; when it has given up all the same, the task stays pending and is reclaimed.
            let _ = self.jobs.send(job);
        }
    }

    /// Counts and names entries that somebody else deleted while they were pending.
    pub fn count_deleted(&self, entries: &[String]) {
        if !entries.is_empty() {
            self.metrics.lost_entries(entries.len() as u64);
            let queue = self.name.as_ref();
            tracing::error!(
                queue,
                ?entries,
                "entries were deleted by somebody else while they were pending; tasks that do not run are lost"
            );
        }
    }

    /// Counts entries of which nobody can run or settle the tasks any more, and ends these tasks.
    pub async fn lost(&self, entries: &[String]) {
        let new: Vec<String> =
            entries.iter().filter(|entry| !self.inflight.is_deleted(entry)).cloned().collect();
        self.count_deleted(&new);
        if !entries.is_empty()
            && let Err(error) = self.queue.lose(entries).await
        {
            tracing::debug!(
                queue = self.name.as_ref(),
                error = chain(&error),
                "could not note on their statuses that tasks are lost"
            );
        }
    }
}
