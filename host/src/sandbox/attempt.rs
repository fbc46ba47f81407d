//! The input of an attempt, and its outcome.
//!
//! Not here: running it (`handler`).

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio_util::sync::CancellationToken;

use crate::effects::EffectSource;
use crate::task::{FailureKind, Outcome, Progress, Task};
use crate::telemetry::AttemptTrace;

/// One run of a handler.
#[derive(Debug)]
pub struct Attempt {
    /// One task, for `handle`; or several of one queue, for `handle-batch` if the handler exports it
    /// ([`super::Handler::takes_batches`]).
    pub tasks: Arc<Vec<Task>>,
    pub plugin: Arc<str>,
    /// Attempts allowed in all: 1 + max_retries.
    pub max_attempts: u32,
    /// The limit for instantiation and call together. It does not include the wait for a free place.
    pub timeout: Duration,
    /// The progress of each task, in the order of `tasks`.
    pub progress: Vec<Progress>,
    /// Reads committed state and records, and checks new tasks.
    pub effects: Arc<dyn EffectSource>,
    /// The spans of the tasks, and the trace context of what they make.
    pub trace: AttemptTrace,
    /// Ends the attempt without a report.
    pub stop: CancellationToken,
    /// How often the tasks were disturbed by others ([`Ended::Disturbed`]).
    pub disturbed: u32,
}

/// How an attempt went.
#[derive(Debug, Clone)]
pub struct AttemptReport {
    pub ended: Ended,
    /// The calls of the guest in which it failed, the innermost first, a line or two for each. Empty if the
    /// sandbox keeps no backtraces, or the guest waited for the host.
    pub backtrace: Vec<String>,
    /// The last lines that the guest has logged: a few KiB.
    pub last_lines: String,
    /// The largest size of all memories of the instance together, in bytes. It includes what earlier attempts
    /// left.
    pub peak_memory: u64,
    /// The time of instantiation and call together.
    pub duration: Duration,
}

/// The result of a call of the handler.
#[derive(Debug, Clone)]
pub enum Ended {
    /// The handler returned. There is one outcome for each task, in the order of the tasks.
    Each(Vec<Outcome>),
    /// The handler did not return, or the number of results was wrong. With several tasks, this does not show
    /// which task is to blame.
    Failed { kind: FailureKind, message: String },
    /// Another task made the instance fail. This one is not to blame, and is to run again.
    Disturbed { kind: FailureKind, message: String },
}

impl AttemptReport {
    /// One outcome per task, for display. A failed call gives every task the same outcome.
    pub fn outcomes(&self, tasks: usize) -> Vec<Outcome> {
        match &self.ended {
            Ended::Each(outcomes) => outcomes.clone(),
            Ended::Failed { kind, message } | Ended::Disturbed { kind, message } => {
                vec![Outcome::Failed { kind: *kind, message: message.clone() }; tasks]
            }
        }
    }
}

/// A deadline by the clock that the handler may see, in milliseconds since the Unix epoch.
pub(super) fn deadline_ms(deadline: Instant) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from((now + deadline.saturating_duration_since(Instant::now())).as_millis()).unwrap_or(u64::MAX)
}
