//! A task, and what can become of one attempt: the types that `queue`, `sandbox` and `worker` share.
//!
//! Not here: how a task is stored (`queue::codec`), what follows from an outcome (`worker::settle`).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use strum::{EnumCount, IntoStaticStr, VariantArray};

use crate::effects::Effects;
pub use crate::field::Field;
use crate::guarded::Guarded;

/// One delivery of a task to this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Stable across retries and redeliveries: `tq-id`, or else the id of the first stream entry.
    pub id: String,
    /// The queue's name in the configuration.
    pub queue: Arc<str>,
    /// The stream entry that was delivered; a retried task comes back under another one.
    pub entry: String,
    /// The producer's fields in their order, without the reserved `tq-` fields.
    pub fields: Vec<Field>,
    /// 1 on the first attempt.
    pub attempt: u32,
    /// Deferrals so far.
    pub deferrals: u32,
    /// Hosts that died or lost their lease while they ran this task.
    pub crashes: u32,
    /// The number of this delivery among all deliveries of the task, from 1 on. Retries, releases, requeues
    /// and take-overs each make a further delivery.
    pub fence: u64,
    /// When the task was first enqueued, by Redis's clock, in milliseconds since the Unix epoch.
    pub enqueued_at_ms: u64,
    /// When the task began to wait for its first attempt (ms since the Unix epoch): at its enqueueing, or at
    /// the end of its delay. None for a task that was given back, retried or deferred.
    pub waits_since_ms: Option<u64>,
    /// W3C trace context of the producer, when it sent one.
    pub traceparent: Option<String>,
    /// The producer's `tq-delay-ms`, counted from when it enqueued the task. `None` once the task has been
    /// delayed.
    pub delay: Option<Duration>,
    pub origin: Origin,
    /// The flow whose results the task joins: the key in Redis.
    pub joins: Option<String>,
    /// The other reserved fields that have to survive a re-enqueueing, such as `tq-key`.
    pub reserved: Vec<Field>,
}

impl Task {
    /// The first delivery of a task whose id is that of its entry, without any fields.
    pub(crate) fn bare(queue: Arc<str>, id: &str) -> Task {
        Task {
            id: id.to_owned(),
            queue,
            entry: id.to_owned(),
            fields: Vec::new(),
            attempt: 1,
            deferrals: 0,
            crashes: 0,
            fence: 1,
            enqueued_at_ms: 0,
            waits_since_ms: None,
            traceparent: None,
            delay: None,
            origin: Origin::Producer,
            joins: None,
            reserved: Vec::new(),
        }
    }
}

/// Where a delivery comes from, as far as its fields tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A producer's XADD without `tq-id`: the task's id is the id of its entry, which no other task can have.
    Producer,
    /// A host or a command enqueued it, under a new id; its status says where it is.
    Host,
    /// The task was delivered before and came back; or its producer gave it an id, which another task may
    /// have too.
    Other,
}

/// How an attempt ended. A failed handler is a value, never an `Err`.
#[derive(Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The handler returned ok, perhaps with a result of at most the plugin's `max_output` bytes, and with
    /// effects that are still to be committed.
    Completed { result: Option<Vec<u8>>, effects: Option<Box<Effects>> },
    /// The handler asked to be tried again. `after` overrides the queue's backoff.
    Retry { message: String, after: Option<Duration> },
    /// The handler asked to be tried again, because a service that it needs is down. `after` is how long the
    /// service asks to wait, or else the handler.
    Unavailable { message: String, after: Option<Duration> },
    /// The handler said that trying again is useless.
    Reject { message: String },
    /// The handler is not ready yet; no attempt is used.
    Defer { message: String, after: Duration },
    /// The sandbox ended the attempt. Treated as a retry.
    Failed { kind: FailureKind, message: String },
}

impl Outcome {
    /// The outcome in a word, for the log.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Outcome::Completed { .. } => "completed",
            Outcome::Retry { .. } => "retry",
            Outcome::Unavailable { .. } => "unavailable",
            Outcome::Reject { .. } => "reject",
            Outcome::Defer { .. } => "defer",
            Outcome::Failed { kind, .. } => kind.into_str(),
        }
    }

    /// The message of the handler, or of the sandbox, about a failure.
    pub(crate) fn error(&self) -> Option<&str> {
        match self {
            Outcome::Completed { .. } => None,
            Outcome::Retry { message, .. }
            | Outcome::Unavailable { message, .. }
            | Outcome::Reject { message }
            | Outcome::Defer { message, .. }
            | Outcome::Failed { message, .. } => Some(message),
        }
    }
}

/// Leaves the result out: it may be large, and its content must not get into the output of a test.
impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct(self.word());
        match self {
            Outcome::Completed { result, effects } => {
                shown.field("result_bytes", &result.as_ref().map(Vec::len));
                shown.field("effects", &effects.as_ref().map_or(0, |effects| effects.len()));
            }
            _ => drop(shown.field("message", &self.error())),
        }
        shown.finish()
    }
}

/// Why the sandbox ended an attempt. The names stand in front of `tq-error`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case", const_into_str)]
pub enum FailureKind {
    Trap,
    /// The handler did not return in time, and waited for something for most of the time.
    Timeout,
    /// The handler did not return in time, and computed. Shown to users as `timeout`.
    #[strum(serialize = "timeout")]
    BusyTimeout,
    /// No instance was ready in time, so no handler was called. Shown to users as `timeout`.
    #[strum(serialize = "timeout")]
    StartTimeout,
    OutOfMemory,
    Instantiate,
    OutputTooLarge,
    /// Its effects do not fit what Redis holds, or Redis did not keep the children of its flow, or did not
    /// give their results.
    Effects,
}

/// The effect of a settlement on a task, after an attempt or instead of one. The names are those in the
/// metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumCount, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case", const_into_str)]
pub enum SettledAs {
    Completed,
    Retried,
    Deferred,
    Rejected,
    RetriesExhausted,
    DeferralsExhausted,
    Crashed,
    Malformed,
    /// Dead, because a child of the flow that it joins did not complete.
    FlowFailed,
    /// Dead, because it waited for its first attempt for too long.
    Expired,
    Released,
    /// Given back after a failure that is charged to the plugin's new version.
    GivenBack,
    /// Parked after a failure for a cause outside, which is not charged.
    Unavailable,
    /// Parked because its producer asked for a delay.
    Delayed,
    /// Cancelled before it ran or while it ran.
    Cancelled,
    /// Not run, because another task has its idempotency key.
    Duplicate,
}

/// How one attempt ended, for the figures of its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumCount, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case", const_into_str)]
pub(crate) enum AttemptEnd {
    Completed,
    Retried,
    Rejected,
    Deferred,
    Unavailable,
    Trapped,
    TimedOut,
    OutOfMemory,
    /// The sandbox ended it for another reason.
    Failed,
}

impl From<&Outcome> for AttemptEnd {
    fn from(outcome: &Outcome) -> AttemptEnd {
        match outcome {
            Outcome::Completed { .. } => AttemptEnd::Completed,
            Outcome::Retry { .. } => AttemptEnd::Retried,
            Outcome::Unavailable { .. } => AttemptEnd::Unavailable,
            Outcome::Reject { .. } => AttemptEnd::Rejected,
            Outcome::Defer { .. } => AttemptEnd::Deferred,
            Outcome::Failed { kind, .. } => match kind {
                FailureKind::Trap => AttemptEnd::Trapped,
                FailureKind::Timeout | FailureKind::BusyTimeout | FailureKind::StartTimeout => {
                    AttemptEnd::TimedOut
                }
                FailureKind::OutOfMemory => AttemptEnd::OutOfMemory,
                FailureKind::Instantiate | FailureKind::OutputTooLarge | FailureKind::Effects => {
                    AttemptEnd::Failed
                }
            },
        }
    }
}

/// The last progress that a running handler reported. The sandbox writes it, the heartbeat reads it. Only the
/// latest value is kept, so a guest that reports in a loop costs nothing.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<Guarded<Option<(u8, String)>>>);

impl Progress {
    /// A longer note is cut to this length, on a character boundary.
    pub const MAX_NOTE_BYTES: usize = 200;

    /// Sets the latest progress. `percent` is clamped to 100, `note` to [`Self::MAX_NOTE_BYTES`].
    pub fn set(&self, percent: u8, note: &str) {
        let note = &note[..note.floor_char_boundary(Self::MAX_NOTE_BYTES)];
        let mut slot = self.0.lock();
        *slot = Some((percent.min(100), note.to_owned()));
    }

    /// Puts back a value that was taken, unless another one was set since.
    pub fn put_back(&self, value: (u8, String)) {
        self.0.lock().get_or_insert(value);
    }

    /// Takes the value that was set since the last call.
    pub fn take(&self) -> Option<(u8, String)> {
        self.0.lock().take()
    }
}
