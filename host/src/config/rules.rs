//! The rules of queues as the rest of the host reads them: checked values with units.
//!
//! Not here: reading and checking the file (`queue` and the files beside it), the rest of the configuration
//! (`model`).

use std::time::Duration;

use sha2::{Digest, Sha256};
use strum::{EnumString, IntoStaticStr};

use super::place::{FieldPlace, ValueAt};
use super::times::ScheduleTimes;

/// One queue and its rules.
#[derive(Debug, Clone, PartialEq)]
pub struct QueueRules {
    pub name: String,
    pub stream: String,
    pub group: String,
    pub plugin: String,
    /// Attempts running at once, in this host; at least 1.
    pub concurrency: u32,
    /// How many tasks a handler that exports `batch-handler` gets in one call.
    pub batch: Batch,
    /// Weight among the queues that compete for the host's concurrency; at least 1.
    pub priority: u32,
    pub lease: Duration,
    pub timeout: Duration,
    pub max_retries: u32,
    pub backoff: Backoff,
    pub max_deferrals: u32,
    pub max_crashes: u32,
    /// Enqueueing is refused at this many queued, delayed and running tasks.
    pub max_backlog: u32,
    /// How many tasks may be claimed, in all hosts together.
    pub rate_limit: Option<Rate>,
    /// When the queue waits because something outside is down.
    pub hold: Option<HoldRules>,
    /// Which tasks may run beside each other, in all hosts together.
    pub turns: RunLimits,
    /// The rule by which tasks count as one task, and how long it holds after its end.
    pub idempotency: Idempotency,
    /// The place of the name under which clients find a task, beside its own id.
    pub id: Option<ValueAt>,
    /// How long a task may wait for its first attempt. One that waited longer is dead.
    pub expire_after: Option<Duration>,
    /// How long status and result are kept after the end; zero keeps none.
    pub retention: Duration,
    /// A Redis list whose items become tasks, with the item as the field `data`.
    pub list: Option<List>,
    /// When the host itself enqueues tasks.
    pub schedule: Option<Schedule>,
    /// The key of the dead-letter stream, if it is not the default one.
    pub dead_letter: Option<String>,
    /// The queues that the outbox of its handler may name.
    pub enqueue_to: Vec<TargetQueue>,
    /// The queues, this one among them, whose tasks may be in a flow with its own: those that a queue which
    /// enqueues here may name. None if no queue does.
    pub flow_partners: Vec<TargetQueue>,
    /// The queues that are told of the ends of its tasks.
    pub on_end: OnEnd,
    /// How many entries of events about its tasks are kept, approximately. 0: none.
    pub events: u32,
    /// How many failed attempts of each task are kept. 0: none.
    pub failed_attempts: u32,
    /// The fields that lists of its tasks show as columns.
    pub show: Vec<FieldPlace>,
    /// Whether a task that has completed keeps its fields for as long as its status is kept.
    pub keep_fields: bool,
}

impl QueueRules {
    /// Whether completed tasks keep their fields: they do so in their statuses.
    pub(crate) fn keeps_fields(&self) -> bool {
        self.keep_fields && !self.retention.is_zero()
    }

    /// A short text that is the same in hosts that treat the tasks alike. What each host may choose for
    /// itself does not count.
    pub(crate) fn mark(&self) -> String {
        let shared = QueueRules { concurrency: 1, priority: 1, show: Vec::new(), ..self.clone() };
        let digest = Sha256::digest(format!("{shared:?}"));
        digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect()
    }

    /// Whether failed attempts are kept. They go with the status of their task.
    pub fn keeps_failed_attempts(&self) -> bool {
        self.failed_attempts > 0 && self.retention > Duration::ZERO
    }

    /// The most tasks in one call, which is never more than may run at once.
    pub fn largest_batch(&self) -> usize {
        self.batch.max_tasks.map_or(self.concurrency, |most| most.min(self.concurrency)) as usize
    }
}

/// The queues that are told of ends, by outcome, and what they are told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OnEnd {
    pub completed: Option<TargetQueue>,
    pub dead: Option<TargetQueue>,
    pub cancelled: Option<TargetQueue>,
    /// The fields of an ended task that the task for its end has, too; none: all of them.
    pub fields: Option<Vec<String>>,
}

impl OnEnd {
    pub(crate) fn targets(&self) -> impl Iterator<Item = &TargetQueue> {
        [&self.completed, &self.dead, &self.cancelled].into_iter().flatten()
    }

    /// Whether the tasks for ends go by a relay, because a queue for one of them lies in another slot.
    pub(crate) fn is_relayed(&self) -> bool {
        self.targets().any(|target| target.is_relayed)
    }
}

/// Which tasks of a queue may run beside each other, in all hosts together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunLimits {
    /// The most tasks that run; none: only the hosts' own limits count.
    pub max_running: Option<u32>,
    pub tracks: Option<Tracks>,
}

impl RunLimits {
    /// Whether hosts must ask before they claim a task, and must still own it when they complete it.
    pub fn are_limited(&self) -> bool {
        self.max_running.is_some() || self.tracks.is_some()
    }

    /// Whether each task begins when the one before it has ended.
    pub fn are_strict(&self) -> bool {
        self.tracks.as_ref().is_some_and(|tracks| tracks.field.is_none())
    }
}

/// The tracks of a queue: tasks of one track begin in their order, and at most `limit` of them have begun and
/// not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tracks {
    /// The field whose value names a task's track; none: all tasks are in one track.
    pub field: Option<String>,
    pub limit: u32,
}

/// The rules of a queue that another queue needs to send tasks there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetQueue {
    pub name: String,
    pub stream: String,
    pub group: String,
    pub dead_letter: Option<String>,
    pub max_backlog: u32,
    /// The places of the idempotency key of a task without one of its own.
    pub key: Vec<ValueAt>,
    /// The place of the name under which clients find a task.
    pub id: Option<ValueAt>,
    pub retention: Duration,
    /// Its tasks run in a strict order, so it takes none with a delay.
    pub is_strict: bool,
    /// Whether its own tasks may lead back to the queue that sends tasks to it. Then neither waits until the
    /// other one has room: both could wait for ever.
    pub leads_back: bool,
    /// It may lie in another slot of a cluster than the queue that sends tasks to it, so a relay takes them
    /// there.
    pub is_relayed: bool,
}

/// When a queue waits because something outside is down, and how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldRules {
    /// Failures for an outside cause in a row, in all hosts together; at least 1.
    pub after: u32,
    pub pause: Duration,
}

/// How tasks are gathered for one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// At least 1, which means no batches. None: as many as the queue's concurrency.
    pub max_tasks: Option<u32>,
    /// How long the first of them waits for the others.
    pub max_wait: Duration,
}

/// Tasks that the host enqueues at given times.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    pub times: ScheduleTimes,
    pub missed: Missed,
    /// The fields of each of its tasks, beside [`Schedule::TIME_FIELD`].
    pub fields: Vec<(String, String)>,
}

impl Schedule {
    /// The field with the time that the task was enqueued for, in milliseconds since the Unix epoch.
    pub const TIME_FIELD: &str = "scheduled_at";
}

/// How times are handled at which no task could be enqueued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum Missed {
    /// One task for all missed times.
    Once,
    /// No task.
    Skip,
}

/// A Redis list that feeds a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List {
    pub key: String,
    pub items: Items,
}

/// The form of a list's items. A task of the queue whose `data` has another form is malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString, IntoStaticStr)]
#[strum(serialize_all = "lowercase", const_into_str)]
pub enum Items {
    /// Any bytes.
    Bytes,
    /// Each item is one JSON value.
    Json,
    /// The messages of Celery, as kombu writes them.
    Celery,
    /// The jobs of Sidekiq.
    Sidekiq,
}

/// At most `count` in each time of length `per`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// At least 1.
    pub count: u32,
    pub per: Duration,
}

/// Tasks with the same key count as one task. The producer gives the key, as `tq-key` or in another field.
#[derive(Debug, Clone, PartialEq)]
pub struct Idempotency {
    /// The places of the key of a task without `tq-key`. Several values make one key; empty: there is none.
    pub key: Vec<ValueAt>,
    /// How long after the end of a task its key is still held.
    pub window: Duration,
    /// Whether the key of a task that is dead or cancelled is free at once.
    pub releases_on_failure: bool,
}

/// How long a failed task waits for its next attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum Backoff {
    /// `base · 2^(attempt-1)`, at most `max`, spread by ± `jitter` (0 to 1) of itself.
    Exponential {
        base: Duration,
        max: Duration,
        jitter: f64,
    },
    /// The n-th retry waits for the n-th delay, and all further retries for the last one. Never empty.
    Delays(Vec<Duration>),
    None,
}
