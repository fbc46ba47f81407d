//! Reads the events of a queue: the last ends and moves of its tasks, where the queue keeps some.
//!
//! In: the entry of an event. Out: the events behind it. Not here: noting events (the scripts do), streams of
//! them for clients (`api`).

use super::codec::StreamEntry;
use super::error::QueueError;
use super::handle::Queue;
use super::reply;
use super::status::Status;

/// An event of a task, as the scripts note it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TaskEvent {
    /// The event's own entry.
    pub entry: String,
    pub id: String,
    pub status: Status,
    pub attempt: u32,
    pub due_at: Option<u64>,
}

impl TaskEvent {
    /// None for an event of another form, which another version may have written.
    pub(super) fn read(entry: StreamEntry) -> Option<TaskEvent> {
        let text = |name: &str| {
            let value = entry.fields.iter().find(|(known, _)| known == name.as_bytes());
            value.map(|(_, value)| String::from_utf8_lossy(value).into_owned())
        };
        Some(TaskEvent {
            id: text("id")?,
            status: Status::parse(text("status")?.as_bytes())?,
            attempt: text("attempt").and_then(|attempt| attempt.parse().ok()).unwrap_or(1),
            due_at: text("due_at").and_then(|due| due.parse().ok()),
            entry: entry.id,
        })
    }
}

impl Queue {
    /// Up to `count` events behind this entry, and the entry behind which the next ones are.
    pub(crate) async fn events_after(
        &self,
        after: &str,
        count: usize,
    ) -> Result<(Vec<TaskEvent>, String), QueueError> {
        let entries = self.range(&self.keys.events, &format!("({after}"), "+", count).await?;
        let last = entries.last().map_or_else(|| after.to_owned(), |last| last.id.clone());
        Ok((entries.into_iter().filter_map(TaskEvent::read).collect(), last))
    }

    /// The entry of the last event; `0-0` when there is none.
    pub(crate) async fn last_event(&self) -> Result<String, QueueError> {
        let last = self.range_back(&self.keys.events, "+", 1).await?.pop();
        Ok(last.map_or_else(|| "0-0".to_owned(), |last| last.id))
    }

    /// Whether the event with this entry is still kept. If not, others behind it may be gone too.
    pub(crate) async fn has_event(&self, entry: &str) -> Result<bool, QueueError> {
        Ok(!self.range(&self.keys.events, entry, entry, 1).await?.is_empty())
    }

    /// Up to `count` entries of a stream, from `from` back to its beginning.
    pub(super) async fn range_back(
        &self,
        stream: &str,
        from: &str,
        count: usize,
    ) -> Result<Vec<StreamEntry>, QueueError> {
        const WHAT: &str = "read a stream";
        let command =
            redis::cmd("XREVRANGE").arg(stream).arg(from).arg("-").arg("COUNT").arg(count).to_owned();
        let reply = self.link.command(WHAT, &command).await?;
        self.shaped(WHAT, reply::stream_entries(reply))
    }
}

#[cfg(test)]
mod tests {
    use super::super::codec;
    use super::*;

    #[test]
    fn an_event_of_another_form_is_left_out() {
        let entry = |fields: &[(&str, &str)]| StreamEntry {
            id: "7-1".into(),
            fields: fields.iter().map(|(name, value)| codec::raw(name, *value)).collect(),
            deliveries: 1,
        };
        let event = TaskEvent::read(entry(&[("id", "a"), ("status", "FAILED"), ("attempt", "3")]));
        let expected = TaskEvent {
            entry: "7-1".into(),
            id: "a".into(),
            status: Status::Failed,
            attempt: 3,
            due_at: None,
        };
        assert_eq!(event, Some(expected));
        assert_eq!(TaskEvent::read(entry(&[("id", "a"), ("status", "RESTING")])), None);
    }
}
