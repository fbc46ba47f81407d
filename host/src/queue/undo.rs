//! The tasks that a job takes away, exports or brings back: a stream of the job, in the form of dead letters.
//!
//! ```text
//! purge.lua, cancel.lua: from the queue ─▶ kept by the job ─▶ back: requeue.lua, import.lua
//! purge.lua: copies for an export      ─▶ kept by the job
//! ```
//!
//! In: the id of a job. Out: the queue as this job sees it, and the tasks that the job keeps. The script that
//! takes a task away also keeps it, and the script that brings it back also deletes it here. So a task is in
//! one place at any time, and comes back once, even if calls are repeated. The stream of an export has
//! copies, and nothing comes back from it.
//!
//! Not here: the jobs (`operations::jobs`), the lines of files (`operations::letters`).

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::codec::RawFields;
use super::dead::DeadLetter;
use super::error::QueueResult;
use super::handle::{Queue, millis};
use super::keys::QueueKeys;
use super::reply;
use super::script::{self, ScriptCall};

/// How long a job keeps tasks after the last step that kept some.
const KEPT_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// The most bytes in Redis that a job keeps. The first step that passes this limit is the last one.
pub(crate) const MOST_BYTES: u64 = 256 << 20;
/// The most fields of a dead letter that can come back, with the fields of the host: a script can pass about
/// 7,000 names and values to one command. The dead letter of a malformed entry may have more fields than a
/// task.
pub(crate) const MOST_FIELDS: usize = 3400;

/// The tasks that a job keeps. The names are stable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct KeptTasks {
    pub tasks: u64,
    /// The memory that they take in Redis.
    pub bytes: u64,
    /// When they expire, in milliseconds since the Unix epoch, by Redis's clock.
    pub until: u64,
}

impl Queue {
    /// This queue for a job that keeps what it takes away.
    pub(crate) fn keeping(&self, job: &str) -> Queue {
        Queue { keys: Arc::new(self.keys.keeping(job)), ..self.clone() }
    }

    /// This queue with what a job keeps in the place of the dead letters.
    pub(crate) fn kept_by(&self, job: &str) -> Queue {
        Queue { keys: Arc::new(self.keys.of_kept(job)), ..self.clone() }
    }

    /// Whether this is the queue for a job that keeps what it takes away.
    pub(crate) fn is_keeping(&self) -> bool {
        self.keys.kept != self.keys.stream
    }

    /// How long a job keeps tasks, in milliseconds. None: nothing is kept.
    pub(super) fn kept_ms(&self) -> Option<u64> {
        self.is_keeping().then(|| millis(KEPT_FOR))
    }

    /// The tasks that this job keeps. None: it keeps no task (any more).
    pub(crate) async fn kept_tasks(&self, job: &str) -> QueueResult<Option<KeptTasks>> {
        const WHAT: &str = "look at what a job keeps";
        let (key, now_ms) = (self.keys.kept_by(job), self.now_ms().await?);
        let commands = [
            redis::cmd("XLEN").arg(&key).to_owned(),
            redis::cmd("PTTL").arg(&key).to_owned(),
            // By default Redis takes the first five parts for the average, and dead letters differ in size.
            redis::cmd("MEMORY").arg("USAGE").arg(&key).arg("SAMPLES").arg(0).to_owned(),
        ];
        let mut numbers = [0; 3];
        for (number, reply) in numbers.iter_mut().zip(self.link.pipeline(WHAT, &commands).await?) {
            // MEMORY USAGE has no number for a key that does not exist.
            *number = reply::count(&reply?).unwrap_or_default();
        }
        let [tasks, lives_ms, bytes] = numbers;
        let kept = KeptTasks { tasks, bytes, until: now_ms + lives_ms };
        Ok(Some(kept).filter(|kept| kept.tasks > 0))
    }

    /// Adds dead letters to what the job of this queue keeps.
    pub(crate) async fn keep(&self, letters: &[RawFields]) -> QueueResult {
        let call = |fields| {
            let call = ScriptCall::new(&script::KEEP).key("kept", &self.keys.kept);
            call.arg("lives", millis(KEPT_FOR)).fields(fields)
        };
        let replies = self.link.scripts("keep", &letters.iter().map(call).collect::<Vec<_>>()).await?;
        replies.into_iter().try_for_each(|reply| reply.map(drop))
    }

    /// The call that makes a letter that a job has kept a dead letter of the queue again. This queue is one
    /// of [`Queue::kept_by`].
    pub(super) fn restore_call(&self, letter: &DeadLetter) -> ScriptCall {
        let dead = QueueKeys::new(&self.rules.stream, self.rules.dead_letter.as_deref()).dead;
        let call = self.call(&script::IMPORT).key("status", self.keys.task(&letter.id));
        call.key("dead", dead).key("kept", &self.keys.dead).arg("letter", &letter.entry)
    }

    /// Deletes these dead letters. Returns how many were there.
    pub(crate) async fn delete_dead(&self, entries: &[&str]) -> QueueResult<u64> {
        if entries.is_empty() {
            return Ok(0);
        }
        let delete = redis::cmd("XDEL").arg(&self.keys.dead).arg(entries).to_owned();
        self.link.read("purge", &delete, |deleted| reply::count(&deleted)).await
    }
}
