//! A task and what can become of one attempt at it: the words that `queue`, `sandbox` and `worker` share.
//!
//! Not here: how a task is stored (`queue::codec`), what follows from an outcome (`worker::settle`).

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One field of a task, as its producer wrote it. The value is any bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    pub name: String,
    pub value: Vec<u8>,
}

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
    /// When the task was first enqueued, by Redis's clock, in milliseconds since the Unix epoch.
    pub enqueued_at_ms: u64,
    /// W3C trace context of the producer, when it sent one.
    pub traceparent: Option<String>,
    /// The producer's `tq-delay-ms`: counted from when it enqueued the task. Gone once the task has been
    /// delayed.
    pub delay: Option<Duration>,
    pub origin: Origin,
    /// The other reserved fields that have to survive a re-enqueueing, such as `tq-key`.
    pub reserved: Vec<Field>,
}

/// Where a delivery comes from, as far as its fields tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A producer's XADD without an id of its own: the task's id is its entry's, which no other task can
    /// have.
    Producer,
    /// A host or a command enqueued it, under a new id; its status says where it is.
    Host,
    /// It was delivered before and came back, or its producer gave it an id, which it may have given before.
    Other,
}

/// How an attempt ended. A failed handler is a value, never an `Err`.
#[derive(Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The handler returned ok, perhaps with a result of at most the plugin's `max_output` bytes.
    Completed { result: Option<Vec<u8>> },
    /// The handler asked to be tried again. `after` overrides the queue's backoff.
    Retry { message: String, after: Option<Duration> },
    /// The handler said that trying again is useless.
    Reject { message: String },
    /// The handler is not ready yet; no attempt is used.
    Defer { message: String, after: Duration },
    /// The sandbox ended the attempt. Treated as a retry.
    Failed { kind: FailureKind, message: String },
}

/// Without the result: it may be large, and what is in it is the client's, not the log's.
impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Completed { result } => {
                f.debug_struct("Completed").field("result_bytes", &result.as_ref().map(Vec::len)).finish()
            }
            Outcome::Retry { message, after } => {
                f.debug_struct("Retry").field("message", message).field("after", after).finish()
            }
            Outcome::Reject { message } => f.debug_struct("Reject").field("message", message).finish(),
            Outcome::Defer { message, after } => {
                f.debug_struct("Defer").field("message", message).field("after", after).finish()
            }
            Outcome::Failed { kind, message } => {
                f.debug_struct("Failed").field("kind", kind).field("message", message).finish()
            }
        }
    }
}

/// Why the sandbox ended an attempt. The names are part of `tq-error` and of the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    Trap,
    /// The handler did not come back in time, and waited for most of it.
    Timeout,
    /// The same, and it had nothing to wait for. Named like the other timeout.
    BusyTimeout,
    /// There was no instance in time, so no handler was called. Named like the other timeout.
    StartTimeout,
    OutOfMemory,
    Instantiate,
    OutputTooLarge,
}

impl FailureKind {
    /// The kind as it stands in front of `tq-error`.
    pub fn as_str(self) -> &'static str {
        match self {
            FailureKind::Trap => "trap",
            FailureKind::Timeout | FailureKind::BusyTimeout | FailureKind::StartTimeout => "timeout",
            FailureKind::OutOfMemory => "out-of-memory",
            FailureKind::Instantiate => "instantiate",
            FailureKind::OutputTooLarge => "output-too-large",
        }
    }
}

/// What was done with a task after an attempt, or instead of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    Completed,
    Retried,
    Deferred,
    Rejected,
    RetriesExhausted,
    DeferralsExhausted,
    Crashed,
    Malformed,
    Released,
    /// Given back after an attempt that its plugin's new version spoiled.
    GivenBack,
    /// Put aside because its producer asked for a delay.
    Delayed,
    /// Found to be cancelled, before it ran or while it did.
    Cancelled,
    /// Not run, because another task has its idempotency key.
    Duplicate,
}

impl Disposition {
    /// In the order of the variants, so that `ALL[s as usize] == s`.
    pub const ALL: [Disposition; 13] = [
        Disposition::Completed,
        Disposition::Retried,
        Disposition::Deferred,
        Disposition::Rejected,
        Disposition::RetriesExhausted,
        Disposition::DeferralsExhausted,
        Disposition::Crashed,
        Disposition::Malformed,
        Disposition::Released,
        Disposition::GivenBack,
        Disposition::Delayed,
        Disposition::Cancelled,
        Disposition::Duplicate,
    ];
}

/// What a running handler last said of its progress. Written by the sandbox, read by the heartbeat; only the
/// latest value is kept, so a guest that reports in a loop costs nothing.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<Mutex<Option<(u8, String)>>>);

impl Progress {
    /// Notes bytes longer than this are cut, on a character boundary.
    pub const MAX_NOTE_BYTES: usize = 200;

    /// Sets the latest progress. `percent` is clamped to 100, `note` to [`Self::MAX_NOTE_BYTES`].
    pub fn set(&self, percent: u8, note: &str) {
        let note = &note[..note.floor_char_boundary(Self::MAX_NOTE_BYTES)];
        let mut slot = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *slot = Some((percent.min(100), note.to_owned()));
    }

    /// Puts back a value that was taken, unless another one was set since.
    pub fn put_back(&self, value: (u8, String)) {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(value);
    }

    /// Takes the value that was set since the last call, if any.
    pub fn take(&self) -> Option<(u8, String)> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take()
    }
}
