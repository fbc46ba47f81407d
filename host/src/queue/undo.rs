//! The tasks that a job takes away, exports or brings back: a stream of the job, in the form of dead letters.
//!
//! ```text
//! purge.lua, cancel.lua: from the queue ─▶ kept by the job ─▶ back: requeue.lua, import.lua
//! purge.lua: copies for an export      ─▶ kept by the job
//! ```
//!
//! In: the id of a job. Out: the queue as this job sees it, and what it keeps. The step that takes a task
//! away keeps it, and the step that brings it back takes it from here. So a task is in one place at any time,
//! and comes back once, whatever is repeated. An export's stream has copies, and nothing comes back from it.
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
/// The most bytes in Redis that a job keeps; the step that passes this is its last one.
pub(crate) const MOST_BYTES: u64 = 256 << 20;
/// The most fields of a dead letter, those of the host included: a script of Redis takes 7,000 names and
/// values, and adds some. The dead letter of a malformed entry may have more than a task.
pub(crate) const MOST_FIELDS: usize = 3400;

/// The tasks that a job keeps. The names are stable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct KeptTasks {
    pub tasks: u64,
    /// Memory in Redis.
    pub bytes: u64,
    /// Until when they are kept, in milliseconds since the Unix epoch, by Redis's clock.
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

    pub(crate) fn is_keeping(&self) -> bool {
        self.keys.kept != self.keys.stream
    }

    /// How long what is kept lives, as the scripts take it; none: nothing is kept.
    pub(super) fn kept_ms(&self) -> Option<u64> {
        self.is_keeping().then(|| millis(KEPT_FOR))
    }

    /// The tasks that this job keeps. None: none, or not any more.
    pub(crate) async fn kept_tasks(&self, job: &str) -> QueueResult<Option<KeptTasks>> {
        const WHAT: &str = "look at what a job keeps";
        let (key, now_ms) = (self.keys.kept_by(job), self.now_ms().await?);
        let commands = [
            redis::cmd("XLEN").arg(&key).to_owned(),
            redis::cmd("PTTL").arg(&key).to_owned(),
            // By default Redis takes the first five parts for the average, and dead letters differ in size.
            redis::cmd("MEMORY").arg("USAGE").arg(&key).arg("SAMPLES").arg(0).to_owned(),
        ];
        let mut numbers = Vec::with_capacity(commands.len());
        for reply in self.link.pipeline(WHAT, &commands).await? {
            // There are no bytes of a key that does not exist.
            numbers.push(self.shaped(WHAT, reply::int(&reply?)).unwrap_or_default());
        }
        let number = |at: usize| u64::try_from(numbers[at]).unwrap_or_default();
        let kept = KeptTasks { tasks: number(0), until: now_ms + number(1), bytes: number(2) };
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

    /// The call that brings back a dead letter that a job keeps, as one. This queue has it in the place of
    /// its dead letters.
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
        let reply = self.link.command("purge", &delete).await?;
        self.shaped("purge", reply::count(&reply))
    }
}
