//! The last failed attempts of a task: how each failed, where, and the last lines that it has logged.
//!
//! In: the [`AttemptRecord`] of an attempt, which travels with its settlement. Out: [`FailedAttempt`]s. The
//! queue's configuration says how many records a task may have (`failed_attempts`), and their key expires
//! with the task's status; docs/decisions/0024-failed-attempts.md says why.
//!
//! An attempt that ended with its host has a record, too. The host that takes its task over writes it, here.
//!
//! Not here: writing all other records (`settle`), collecting the lines (`sandbox`).

use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::codec::{self, StreamEntry};
use super::error::QueueResult;
use super::handle::{Queue, millis};
use super::reply;
use super::script;

/// The outcome of an attempt that ended with its host.
pub(crate) const LOST: &str = "lost";
/// How long the key of records lives after a lost attempt, if the queue does not keep results for longer. The
/// record may be the only one of its task, and then no status names the key. `RECORDS_LIVE` of settle.lua is
/// the same time for the other records.
const LOST_LIVES: Duration = Duration::from_secs(30 * 86_400);

/// The part of a failed attempt's record that is not in its settlement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AttemptRecord {
    /// How it ended, in a word.
    pub outcome: &'static str,
    /// The last lines of its log.
    pub last_lines: String,
}

/// An attempt that failed. Times are milliseconds since the Unix epoch, by Redis's clock.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = AttemptView)]
pub(crate) struct FailedAttempt {
    pub attempt: u32,
    pub started_at: u64,
    pub finished_at: u64,
    pub duration_ms: u64,
    /// `retry`, `unavailable`, `reject`, `defer`, `trap`, `timeout`, `out-of-memory`, `instantiate`,
    /// `output-too-large`, `effects` or `lost`.
    pub outcome: String,
    pub error: String,
    /// `name@digest` of the version that ran it.
    pub plugin: String,
    /// The host that ran it.
    pub consumer: String,
    /// The last lines that it logged, at most 4 KiB. An attempt at a batch has those of the whole call.
    pub log: String,
}

/// A pending entry that had no heartbeat for a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AbandonedEntry {
    pub id: String,
    pub consumer: String,
    /// How long ago its lease was renewed last.
    pub idle: Duration,
    pub deliveries: u32,
}

/// An attempt that ended with its host, at a task that this host has taken over.
pub(crate) struct LostAttempt {
    /// The task's id.
    id: String,
    record: StoredAttempt,
}

impl LostAttempt {
    /// The consumer that had the task.
    pub(crate) fn consumer(&self) -> &str {
        &self.record.consumer
    }
}

/// A failed attempt as settle.lua writes it. A field that is missing is empty.
#[derive(Default, Serialize, Deserialize)]
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
        let duration_ms = stored.ran.parse().unwrap_or(0).min(finished_at);
        FailedAttempt {
            attempt: stored.attempt.parse().unwrap_or(1),
            started_at: finished_at - duration_ms,
            finished_at,
            duration_ms,
            outcome: stored.outcome,
            error: stored.error,
            plugin: stored.plugin,
            consumer: stored.consumer,
            log: stored.log,
        }
    }
}

impl Queue {
    /// The last failed attempts of the task `id`, the earliest one first. Empty once its status has expired.
    pub(crate) async fn failed_attempts(&self, id: &str) -> QueueResult<Vec<FailedAttempt>> {
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

    /// The attempts that ended with their hosts, among the entries `taken` that this host took over: an entry
    /// has more deliveries than `before` the takeover if its owner died. Call it before the tasks begin
    /// again, because it reads their statuses.
    pub(crate) async fn lost_attempts(
        &self,
        taken: &[StreamEntry],
        before: &[AbandonedEntry],
    ) -> QueueResult<Vec<LostAttempt>> {
        const WHAT: &str = "look for lost attempts";
        let (mut lost, mut commands) = (Vec::new(), Vec::new());
        for entry in taken {
            let owner = before.iter().find(|known| known.id == entry.id);
            let Some(owner) = owner.filter(|owner| entry.deliveries > owner.deliveries) else { continue };
            let id = codec::id_of(entry);
            let mut ask = redis::cmd("HMGET");
            ask.arg(self.keys.task(&id)).arg(&["consumer", "started_at", "plugin", "attempt"]);
            commands.push(ask);
            lost.push((id, entry, owner));
        }
        if lost.is_empty() {
            return Ok(Vec::new());
        }
        let now_ms = self.now_ms().await?;
        let known = self.link.pipeline(WHAT, &commands).await?;
        let attempts = lost.into_iter().zip(known).map(|((id, entry, owner), known)| LostAttempt {
            id,
            record: lost_attempt(entry, owner, known.ok(), now_ms),
        });
        Ok(attempts.collect())
    }

    /// Adds lost attempts to the records of their tasks.
    pub(crate) async fn note_lost(&self, lost: &[LostAttempt]) -> QueueResult {
        const WHAT: &str = "note lost attempts";
        let most = u64::from(self.rules.failed_attempts);
        if most == 0 || self.rules.retention == Duration::ZERO {
            return Ok(());
        }
        let lives = millis(self.rules.retention.max(LOST_LIVES));
        let mut calls = Vec::new();
        for one in lost {
            let key = self.keys.attempts(&one.id);
            calls.push(script::write(redis::cmd("HINCRBY").arg(&key).arg("last").arg(1)));
            // Sent with the command that creates the key, so that no key stays for ever.
            calls.push(script::write(redis::cmd("PEXPIRE").arg(&key).arg(lives)));
        }
        let numbers = self.link.scripts(WHAT, &calls).await?.into_iter().step_by(2);
        let mut calls = Vec::new();
        for (one, number) in lost.iter().zip(numbers) {
            let Some(number) = number.ok().and_then(|number| reply::count(&number).ok()) else { continue };
            let json = serde_json::to_string(&one.record).unwrap_or_default();
            let key = self.keys.attempts(&one.id);
            calls.push(script::write(redis::cmd("HSET").arg(&key).arg(number).arg(json)));
            calls.push(script::write(redis::cmd("HDEL").arg(&key).arg(number.saturating_sub(most))));
        }
        self.link.scripts(WHAT, &calls).await?.into_iter().try_for_each(|reply| reply.map(drop))
    }
}

/// The record of an attempt that ended with its host. `known` has fields of the task's status, which may be
/// those of an earlier attempt.
fn lost_attempt(
    entry: &StreamEntry,
    owner: &AbandonedEntry,
    known: Option<redis::Value>,
    now_ms: u64,
) -> StoredAttempt {
    let known = known.and_then(|known| reply::tuple::<4>(known).ok());
    let text = |value| reply::optional(value).ok().flatten().unwrap_or_default();
    let [consumer, started_at, plugin, attempt] = known.map(|known| known.map(text)).unwrap_or_default();
    let ended_at = now_ms.saturating_sub(millis(owner.idle));
    let (started_at, plugin, attempt) = if consumer == owner.consumer {
        (started_at.parse().unwrap_or(ended_at), plugin, attempt)
    } else {
        (ended_at, String::new(), codec::attempt_of(entry).to_string())
    };
    StoredAttempt {
        attempt,
        finished_at: ended_at.to_string(),
        ran: ended_at.saturating_sub(started_at).to_string(),
        outcome: LOST.to_owned(),
        plugin,
        consumer: owner.consumer.clone(),
        ..StoredAttempt::default()
    }
}
