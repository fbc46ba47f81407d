//! Keeps the tasks that a job (work of an operator on many tasks) takes away, exports or is to bring back.
//! Each job has a stream for them, whose entries have the form of dead letters.
//!
//! ```text
//! the queue ──purge.lua, cancel.lua──▶ stream of the job ──requeue.lua, import.lua──▶ the queue
//! the queue ──copies of purge.lua, for an export──▶ stream of the job
//! ```
//!
//! In: the id of a job. Out: two views of the queue, one whose scripts keep what they take away, and one in
//! which the kept tasks are the dead letters; and how much the job keeps. The script that
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
/// A dead letter with more fields than this, those of the host included, cannot come back, because a script
/// can pass at most about 7,000 names and values to one command. Only the dead letter of a malformed entry
/// can have so many.
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
    /// A view of this queue for a job: what its scripts take away goes to the stream of the job.
    pub(crate) fn keeping(&self, job: &str) -> Queue {
        Queue { keys: Arc::new(self.keys.keeping(job)), ..self.clone() }
    }

    /// A view of this queue in which the tasks that a job keeps stand where the dead letters are. So all that
    /// works on dead letters works on them.
    pub(crate) fn kept_by(&self, job: &str) -> Queue {
        Queue { keys: Arc::new(self.keys.of_kept(job)), ..self.clone() }
    }

    /// Whether this is a view of [`Queue::keeping`]. In any other queue `kept` is the queue's own stream.
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
        let (key, now_ms) = (self.keys.kept_stream(job), self.now_ms().await?);
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

    /// Adds dead letters to the stream of the job. This queue is a view of [`Queue::keeping`].
    pub(crate) async fn keep(&self, letters: &[RawFields]) -> QueueResult {
        let call = |fields| {
            let call = ScriptCall::new(&script::KEEP).key("kept", &self.keys.kept);
            call.arg("lives", millis(KEPT_FOR)).fields(fields)
        };
        let replies = self.link.scripts("keep", &letters.iter().map(call).collect::<Vec<_>>()).await?;
        replies.into_iter().try_for_each(|reply| reply.map(drop))
    }

    /// The call that puts a letter from the stream of a job back among the queue's dead letters. This queue
    /// is a view of [`Queue::kept_by`], so `keys.dead` is the stream of the job.
    pub(super) fn restore_call(&self, letter: &DeadLetter) -> ScriptCall {
        let own_dead = QueueKeys::new(&self.rules.stream, self.rules.dead_letter.as_deref()).dead;
        let call = self.call(&script::IMPORT).key("status", self.keys.task(&letter.id));
        call.key("dead", own_dead).key("kept", &self.keys.dead).arg("letter", &letter.entry)
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
