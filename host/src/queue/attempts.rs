//! The last failed attempts of a task: how each failed, where, and the last lines that it has logged.
//!
//! In: the [`AttemptRecord`] of an attempt, which travels with its settlement. Out: [`FailedAttempt`]s. A
//! queue says how many each task may have (`failed_attempts`), and their key expires with the task's status;
//! docs/decisions/0024-failed-attempts.md says why.
//!
//! Not here: writing them (`settle`), collecting the lines (`sandbox`).

use serde::Deserialize;

use super::error::QueueError;
use super::handle::Queue;
use super::reply;

/// The part of a failed attempt that its settlement does not say itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AttemptRecord {
    /// How it ended, in a word.
    pub outcome: &'static str,
    /// The last lines of its log.
    pub last_lines: String,
}

/// An attempt that failed. Times are milliseconds since the Unix epoch, by Redis's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FailedAttempt {
    pub attempt: u32,
    pub started_at: u64,
    pub finished_at: u64,
    /// `retry`, `reject`, `trap`, `timeout` and the like.
    pub outcome: String,
    pub error: String,
    /// `name@digest` of the version that ran it.
    pub plugin: String,
    pub consumer: String,
    /// The last lines of its log.
    pub log: String,
}

/// A failed attempt as settle.lua writes it. What is missing is empty.
#[derive(Default, Deserialize)]
#[serde(default)]
struct StoredAttempt {
    attempt: String,
    finished_at: String,
    ran: String,
    outcome: String,
    error: String,
    plugin: String,
    consumer: String,
    log: String,
}

impl From<StoredAttempt> for FailedAttempt {
    fn from(stored: StoredAttempt) -> FailedAttempt {
        let finished_at: u64 = stored.finished_at.parse().unwrap_or(0);
        FailedAttempt {
            attempt: stored.attempt.parse().unwrap_or(1),
            started_at: finished_at.saturating_sub(stored.ran.parse().unwrap_or(0)),
            finished_at,
            outcome: stored.outcome,
            error: stored.error,
            plugin: stored.plugin,
            consumer: stored.consumer,
            log: stored.log,
        }
    }
}

impl Queue {
    /// The last failed attempts of the task `id`, the first one first. None are known of a task whose status
    /// has expired.
    pub(crate) async fn failed_attempts(&self, id: &str) -> Result<Vec<FailedAttempt>, QueueError> {
        const WHAT: &str = "read a task's failed attempts";
        let reply = match self.link.command(WHAT, redis::cmd("HGETALL").arg(self.keys.attempts(id))).await {
            Err(error) if error.is_wrong_type() => return Ok(Vec::new()),
            reply => reply?,
        };
        let numbered = |(number, json): (Vec<u8>, Vec<u8>)| {
            let number: u64 = std::str::from_utf8(&number).ok()?.parse().ok()?;
            let stored: StoredAttempt = serde_json::from_slice(&json).ok()?;
            Some((number, stored.into()))
        };
        let mut found: Vec<(u64, FailedAttempt)> =
            self.shaped(WHAT, reply::pairs(reply))?.into_iter().filter_map(numbered).collect();
        found.sort_by_key(|(number, _)| *number);
        Ok(found.into_iter().map(|(_, attempt)| attempt).collect())
    }
}
