//! The state that the loops of one queue share.
//!
//! Not here: the loops, and how they are started (`lifecycle`).

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::{Mutex, Notify, mpsc, watch};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::capacity::QueueCapacity;
use super::ended::{EndedAttempt, Room};
use super::holding::Holding;
use super::idle::IdleState;
use super::inflight::{Inflight, OwnedTask, Ownership};
use super::limits::KnownLimits;
use super::metrics::QueueMetrics;
use super::notices::{NoticeKind, Notices, first_few};
use super::settle::Decision;
use super::starts::{OpenBatch, Starts};
use crate::chain::chain;
use crate::effects::EffectSource;
use crate::guarded::Guarded;
use crate::plugins::Version;
use crate::queue::attempts::AttemptRecord;
use crate::queue::{Ending, EndingSubject, Queue, Settlement};
use crate::shutdown::Stop;
use crate::task::SettledAs;
use crate::telemetry::Traces;

/// How many calls that settle tasks may be on their way at once.
pub(crate) const LANES: usize = 2;

/// The duration and the record of an attempt that ran to its end.
pub(crate) struct Ran {
    pub duration: Duration,
    /// The record that is kept of the attempt if it does not complete its task.
    pub record: Option<Box<AttemptRecord>>,
}

pub(crate) struct SharedQueue {
    /// The queue's name.
    pub name: Arc<str>,
    pub queue: Queue,
    /// Answers what attempts ask about data in Redis.
    pub effects: Arc<dyn EffectSource>,
    /// This host's name in the group, unique for each start.
    pub consumer: Arc<str>,
    pub inflight: Arc<Inflight>,
    pub open_batch: Guarded<Option<OpenBatch>>,
    pub starts: Starts,
    /// The queue's place among the queues of this host.
    pub capacity: Arc<QueueCapacity>,
    /// The plugin's working version, if there is one.
    pub versions: watch::Receiver<Option<Arc<Version>>>,
    /// Ended attempts for the settler. `room` bounds how many there are.
    pub ended: mpsc::UnboundedSender<EndedAttempt>,
    pub room: Room,
    /// The settlements of each lane, while they fail.
    pub unsettled: Guarded<[Option<Unsettled>; LANES]>,
    /// Notified when this host parks a task, and when the lookout finds delayed tasks.
    pub parked: Notify,
    /// Notified when attempts of this host have left tasks for queues in other slots, and when the lookout
    /// finds such tasks of any host.
    pub relay_wanted: Notify,
    /// Whether the tasks that other hosts have left are to be relayed, too.
    pub relays_all: AtomicBool,
    /// Notified when Redis has answered a call that settles tasks of this host.
    pub settled: Notify,
    /// Notified when entries of another program have to be taken over before new ones are read.
    pub takeover_wanted: Notify,
    pub idle: IdleState,
    /// Whether something outside is down.
    pub holding: Arc<Holding>,
    /// The limits that an operator has set.
    pub limits: KnownLimits,
    /// Notified when tasks begin without PROCESSING as their status in Redis.
    pub begun: Notify,
    /// A claim failed, so Redis may have delivered entries that this host never received.
    pub unseen: AtomicBool,
    /// Locked from a claim until all claimed entries are in `inflight`.
    pub claiming: Mutex<()>,
    pub metrics: Arc<QueueMetrics>,
    pub traces: Traces,
    /// Bounds the lines about single tasks.
    pub notices: Notices,
    pub stop: Stop,
    pub runners: TaskTracker,
}

/// The settlements of one lane, while they fail.
#[derive(Debug)]
pub(crate) struct Unsettled {
    pub since: Instant,
    pub last_error: String,
    /// Redis answers, and refuses to settle.
    pub is_refused: bool,
    /// The log has an error about these settlements.
    pub is_logged: bool,
}

impl Unsettled {
    pub(crate) fn now() -> Unsettled {
        Unsettled { since: Instant::now(), last_error: String::new(), is_refused: false, is_logged: false }
    }

    /// Whether Redis has refused to settle for longer than a lease.
    pub(crate) fn is_overdue(&self, lease: Duration) -> bool {
        self.is_refused && self.since.elapsed() > lease
    }
}

impl SharedQueue {
    /// Settles a task whose attempt did not run to its end.
    pub(crate) async fn settle_unrun(&self, (task, owned): OwnedTask, plugin: &Arc<str>, decision: Decision) {
        self.settle(EndingSubject::Task(Box::new(task)), plugin.clone(), None, decision, owned).await;
    }

    /// Hands an ended attempt to the settler, and waits while `room` is full. `ran` is `None` if the attempt
    /// did not run to its end.
    pub(crate) async fn settle(
        &self,
        subject: EndingSubject,
        plugin: Arc<str>,
        ran: Option<Ran>,
        decision: Decision,
        owned: Ownership,
    ) {
        let (ran, record) = ran.map_or((None, None), |Ran { duration, record }| (Some(duration), record));
        // The short form of a settlement, for tasks without a status, has no place for the span, which the
        // task of `on_end.completed` names.
        let tells_span =
            self.traces.are_sent() && self.queue.rules.on_end.completed.is_some() && ran.is_some();
        // Where turns are limited, no task is plain, and only the owner of a task completes it.
        let is_known = owned.settling() || self.queue.rules.turns.are_limited() || tells_span;
        if let (EndingSubject::Task(task), Settlement::Park { delay, .. }) = (&subject, &decision.settlement)
            && self.queue.needs_its_alias_kept(*delay)
            // In a box, so that the futures of all other tasks stay small.
            && let Err(error) = Box::pin(self.queue.keep_alias(task, *delay)).await
        {
            let (queue, error) = (self.name.as_ref(), chain(&error));
            tracing::debug!(queue, error, "the alias of a delayed task may expire before the task is due");
        }
        let key = owned.key().map(<[u8]>::to_vec);
        let ending = Ending::new(subject, decision.settlement, plugin, ran, is_known, key);
        let ending = ending.without_spare_fields(&self.queue.rules).with_record(record);
        if let Some(ended) = self.room.ended(ending, decision.label, owned).await {
            // The settler outlives the runners. If it has given up, the task stays pending and is reclaimed.
            let _ = self.ended.send(ended);
        }
    }

    /// The last error of settlements that fail.
    pub(crate) fn settle_error(&self) -> Option<String> {
        self.unsettled.lock().iter().flatten().map(|lane| lane.last_error.clone()).next()
    }

    /// Whether a read may wait for entries in Redis. A queue that shares the host's capacity must hold no
    /// permit while its stream is empty, and one with limits of its own reads by a script, which cannot wait.
    pub(crate) fn may_block_in_read(&self) -> bool {
        !self.capacity.is_shared() && !self.queue.rules.turns.are_limited()
    }

    /// Where turns are limited, stops the attempts whose leases end soon and could not be renewed, before
    /// another host can take over their tasks. The rest of the lease is for the handler to stop.
    pub(crate) fn give_up_late_attempts(&self) {
        if !self.queue.rules.turns.are_limited() {
            return;
        }
        let longest = self.queue.rules.lease.mul_f64(0.9);
        let late = self.inflight.expire(longest, Instant::now());
        if late > 0 {
            self.metrics.lease_lost.inc_by(late as u64);
            tracing::warn!(
                queue = self.name.as_ref(),
                attempts = late,
                "stopped: their leases could not be renewed, and another host may run their tasks soon"
            );
        }
    }

    /// Counts and logs entries that another client deleted while they were pending.
    pub(crate) fn count_deleted(&self, entries: &[String]) {
        if !entries.is_empty() {
            self.metrics.lost_entries.inc_by(entries.len() as u64);
            let Some(more) = self.notices.admit_of(NoticeKind::Deleted, entries.len() as u64) else { return };
            tracing::error!(
                queue = self.name.as_ref(),
                entries = entries.len(),
                first = first_few(entries),
                more,
                "entries were deleted by somebody else while they were pending; \
                 tasks that do not run are lost"
            );
        }
    }

    /// Logs that Redis refused one step of a task. It may have carried out the step for other tasks.
    pub(crate) fn log_refused(&self, kind: NoticeKind, task: &str, why: &str) {
        if let Some(more) = self.notices.admit(kind) {
            let (queue, step) = (self.name.as_ref(), kind.step());
            tracing::warn!(queue, task, step, why, more, "Redis refused a step of a task; trying again");
        }
    }

    /// Counts a task that was cancelled while it ran.
    pub(crate) fn count_cancelled(&self, task: &str) {
        self.metrics.settled(SettledAs::Cancelled);
        if let Some(more) = self.notices.admit(NoticeKind::Cancelled) {
            tracing::info!(queue = self.name.as_ref(), task, more, "cancelled while it ran");
        }
    }

    /// Counts a task that Redis has dropped without a run, because it is a duplicate.
    pub(crate) fn count_duplicate(&self, task: &str) {
        self.metrics.settled(SettledAs::Duplicate);
        if let Some(more) = self.notices.admit(NoticeKind::Duplicate) {
            let queue = self.name.as_ref();
            tracing::info!(queue, task, more, "not run: another task has its idempotency key or its id");
        }
    }

    /// Counts entries whose tasks can no longer be run or settled, and ends these tasks as lost.
    pub(crate) async fn end_lost(&self, entries: &[String]) {
        let new: Vec<String> =
            entries.iter().filter(|entry| !self.inflight.is_deleted(entry)).cloned().collect();
        self.count_deleted(&new);
        if !entries.is_empty()
            && let Err(error) = self.queue.end_deleted(entries).await
        {
            tracing::debug!(
                queue = self.name.as_ref(),
                error = chain(&error),
                "could not note on their statuses that tasks are lost"
            );
        }
    }
}
