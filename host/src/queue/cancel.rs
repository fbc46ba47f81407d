//! Cancels tasks: queued, delayed or running.
//!
//! In: a task's id. Out: the status that the task had before.
//!
//! Not here: stopping the handler of a running task (`worker::heartbeat` learns of the cancellation).

use super::codec::{self, RawFields};
use super::dead::DRAINED;
use super::error::QueueResult;
use super::handle::Queue;
use super::listing::FoundTask;
use super::reply;
use super::script;
use super::status::Status;
use super::undo::MOST_FIELDS;

/// Where a list found a task.
#[derive(Default)]
struct FoundAt<'f> {
    /// Its entry; empty: the list did not find it in the stream.
    entry: &'f str,
    /// Its member of the delayed tasks; empty: the list did not find it there.
    member: &'f str,
    /// The dead letter that the job keeps of it; empty: it keeps none.
    letter: RawFields,
    /// Whether it was not found, and may be an item of a list.
    may_be_listed: bool,
}

impl Queue {
    /// Cancels a task that has not ended. Returns the status that it had before; none for an unknown task. A
    /// task that has ended stays as it is, but no further child of the flow that it joins is released. A call
    /// may be repeated: the second one returns CANCELLED.
    ///
    /// A task of Celery or Sidekiq may still be an item of a list, which cannot be searched. While items wait
    /// there, an unknown id is cancelled in advance: for a day, or for the queue's retention if that is
    /// longer, a task with this id does not run.
    pub async fn cancel(&self, id: &str) -> QueueResult<Option<Status>> {
        self.note_queued_alias(id).await?;
        let before = self.cancel_in(id, &FoundAt::default(), false).await?;
        // Where no statuses are kept, a note says for a while that a task with this id was cancelled.
        let is_only_noted = before == Some(Status::Cancelled) && self.rules.retention.is_zero();
        if before.is_some() && !is_only_noted {
            return Ok(before);
        }
        let may_be_listed = self.may_be_listed(id).await?;
        // If no entry is found, the task has ended meanwhile and has a status now, or was never there.
        let entry = self.find_queued(id).await?.map(|entry| entry.id).unwrap_or_default();
        self.cancel_in(id, &FoundAt { entry: &entry, may_be_listed, ..FoundAt::default() }, false).await
    }

    /// Whether a task of Celery or Sidekiq with this id may be an item of a list: items wait there, and no
    /// dead letter has the id.
    pub(crate) async fn may_be_listed(&self, id: &str) -> QueueResult<bool> {
        let has_items = self.rules.has_ids_in_lists() && self.count_items().await? > 0;
        Ok(has_items && self.dead_named(id).await?.is_none())
    }

    /// Like [`Queue::cancel`], for a task that a list has just found. With `only_waiting`, a task that a host
    /// has taken since then stays as it is, and the result is PROCESSING.
    ///
    /// If this queue has a job that keeps the tasks that it takes away, a task that cannot be kept stays,
    /// too: one whose fields are in the flow for which it waits, one with too many fields to run, and a
    /// delayed one whose fields cannot be read.
    pub(crate) async fn cancel_found(
        &self,
        task: &FoundTask,
        only_waiting: bool,
    ) -> QueueResult<Option<Status>> {
        let (id, entry) = (&task.summary.id, task.entry.as_deref().unwrap_or_default());
        let letter = if self.is_keeping() { self.drained(task) } else { RawFields::new() };
        let is_unread = task.delayed_member().is_some() && task.fields.is_empty() && task.reserved.is_empty();
        if self.is_keeping() && (task.waits_for_flow() || letter.len() > MOST_FIELDS || is_unread) {
            return Ok(Some(Status::Processing));
        }
        // The alias of a task is noted once a host has seen, parked or held it.
        let unseen = Some(entry).filter(|entry| !entry.is_empty() && !task.has_status);
        let named = unseen.and_then(|entry| self.waiting(id, &task.fields, codec::entry_time_ms(entry)));
        self.note(&self.keys, named.as_slice()).await?;
        let member = task.delayed_member().unwrap_or_default();
        self.cancel_in(id, &FoundAt { entry, member, letter, may_be_listed: false }, only_waiting).await
    }

    /// A task that waits, in the form of a dead letter with the reason `drained`, but without its time.
    fn drained(&self, task: &FoundTask) -> RawFields {
        let status = &task.summary;
        let mut noted = vec![
            codec::raw("tq-id", &status.id),
            codec::raw("tq-queue", &self.rules.name),
            codec::raw("tq-reason", DRAINED),
            codec::raw("tq-error", ""),
            codec::raw("tq-attempts", &status.attempt),
        ];
        noted.extend(status.enqueued_at.map(|at| codec::raw("tq-enqueued-at", &at)));
        let is_kept = |(name, _): &&(Vec<u8>, Vec<u8>)| !noted.iter().any(|(known, _)| known == name);
        let kept = task.reserved.iter().filter(is_kept).cloned();
        task.fields.iter().cloned().chain(kept).chain(noted.clone()).collect()
    }

    async fn cancel_in(
        &self,
        id: &str,
        found: &FoundAt<'_>,
        only_waiting: bool,
    ) -> QueueResult<Option<Status>> {
        let keys = &self.keys;
        // The status names the marker. A client that may write statuses could name any key there, so only a
        // marker of this queue counts.
        let marker = self.link.command("cancel", redis::cmd("HGET").arg(keys.task(id)).arg("marker")).await?;
        let marker = keys.known_marker(self.shaped("cancel", reply::optional_bytes(marker))?);
        let flow = keys.flow(id);
        let script = if found.letter.is_empty() { &script::CANCEL } else { &script::CANCEL_KEPT };
        let call = self.call(script).key("status", keys.task(id)).key("marker", &marker);
        let call = call.key("flow", &flow.about).key("children", &flow.children).key("kept", &keys.kept);
        let flag = |is_set| if is_set { "1" } else { "" };
        let call = call.arg("id", id).arg("listed_entry", found.entry);
        let call = call.arg("only_waiting", flag(only_waiting)).arg("listed_member", found.member);
        let call = call.arg("in_advance", flag(found.may_be_listed));
        let lives = self.kept_ms().filter(|_| !found.letter.is_empty());
        let call =
            call.arg("lives", lives.map_or_else(String::new, |ms| ms.to_string())).fields(&found.letter);
        let before = self.link.script(&call).await?;
        Ok(Status::parse(&self.shaped("cancel", reply::bytes(before))?))
    }
}
