//! Adds dead letters that were exported.
//!
//! In: the fields of dead letters. Out: for each whether it was added. A call may be repeated: a task that is
//! dead already gets no second dead letter, as long as its status is kept, which is at least a day.
//!
//! Not here: the files (`operations::letters`), deleting dead letters (`redrive`).

use super::codec::RawFields;
use super::error::QueueError;
use super::handle::Queue;
use super::reply;
use super::script;

/// The result of adding a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Imported {
    Added,
    /// The task is a dead letter already.
    IsDead,
    /// The task waits, runs, or has completed.
    IsElsewhere,
}

impl Queue {
    /// Adds dead letters, each by the id of its task and its fields.
    pub(crate) async fn import_dead(
        &self,
        letters: &[(&str, &RawFields)],
    ) -> Result<Vec<Imported>, QueueError> {
        let call = |(id, fields): &(&str, &RawFields)| {
            self.call(&script::IMPORT).key("status", self.keys.task(id)).fields(fields)
        };
        let replies = self.link.scripts("import", &letters.iter().map(call).collect::<Vec<_>>()).await?;
        let imported = |reply: Result<redis::Value, QueueError>| {
            Ok(match self.shaped("import", reply::count(&reply?))? {
                1 => Imported::Added,
                0 => Imported::IsDead,
                _ => Imported::IsElsewhere,
            })
        };
        replies.into_iter().map(imported).collect()
    }

    /// Deletes these dead letters, and gives how many were there.
    pub(crate) async fn delete_dead(&self, entries: &[&str]) -> Result<u64, QueueError> {
        if entries.is_empty() {
            return Ok(0);
        }
        let delete = redis::cmd("XDEL").arg(&self.keys.dead).arg(entries).to_owned();
        let reply = self.link.command("purge", &delete).await?;
        self.shaped("purge", reply::count(&reply))
    }
}
