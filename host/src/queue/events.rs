//! Reads the events of a queue, if it keeps any: each change of the status of its tasks.
//!
//! In: the place of an event. Out: the events before it, or after it. Not here: adding events (the scripts do
//! that), and streams of events for clients (`api`).

use std::fmt;

use super::census::Info;
use super::codec::{self, StreamEntry};
use super::error::QueueResult;
use super::handle::Queue;
use super::reply;
use super::status::Status;

/// An event of a task, as the scripts note it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TaskEvent {
    pub place: EventPlace,
    pub id: String,
    pub status: Status,
    pub attempt: u32,
    pub due_at: Option<u64>,
}

/// The place of an event: its entry in the stream, and its number there, from 1 on, if the entry tells of
/// several tasks. As text: the entry, or `ENTRY/NUMBER`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EventPlace {
    pub entry: String,
    number: Option<usize>,
}

impl EventPlace {
    /// The place of the only event of this entry, or of the whole entry if it has several events: reading on
    /// from there, forwards or backwards, passes over all of them.
    fn of(entry: String) -> EventPlace {
        EventPlace { entry, number: None }
    }

    /// The place before all events of this millisecond.
    pub(crate) fn before_ms(ms: u64) -> EventPlace {
        EventPlace::of(format!("{}-{}", ms.saturating_sub(1), u64::MAX))
    }

    pub(crate) fn parse(text: &str) -> Option<EventPlace> {
        let (entry, number) = match text.split_once('/') {
            Some((entry, number)) => (entry, Some(number.parse().ok()?)),
            None => (text, None),
        };
        codec::is_entry_id(entry).then(|| EventPlace { entry: entry.to_owned(), number })
    }

    /// Where XREVRANGE begins to read the events before this place: at its entry, if that may have earlier
    /// events, else at the entry before.
    fn bound(&self) -> String {
        if self.number.is_some() { self.entry.clone() } else { format!("({}", self.entry) }
    }
}

impl fmt::Display for EventPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            Some(number) => write!(f, "{}/{number}", self.entry),
            None => f.write_str(&self.entry),
        }
    }
}

impl TaskEvent {
    /// The events of an entry. An entry of another form, which another version may have written, has none.
    pub(super) fn read(entry: StreamEntry) -> Vec<TaskEvent> {
        let text = |name: &str| {
            let value = entry.fields.iter().find(|(known, _)| known == name.as_bytes());
            value.map(|(_, value)| String::from_utf8_lossy(value).into_owned())
        };
        let Some(status) = text("status").and_then(|status| Status::parse(status.as_bytes())) else {
            return Vec::new();
        };
        let event = |number, id: &str| TaskEvent {
            place: EventPlace { entry: entry.id.clone(), number },
            id: id.to_owned(),
            status,
            attempt: text("attempt").and_then(|attempt| attempt.parse().ok()).unwrap_or(1),
            due_at: text("due_at").and_then(|due| due.parse().ok()),
        };
        match text("ids") {
            Some(ids) => {
                let ids = (1..).zip(ids.split(' ')).filter(|(_, id)| !id.is_empty());
                ids.map(|(number, id)| event(Some(number), id)).collect()
            }
            None => text("id").map(|id| event(None, &id)).into_iter().collect(),
        }
    }
}

/// Events of a queue, the oldest first.
#[derive(Debug)]
pub(crate) struct EventsAfter {
    pub events: Vec<TaskEvent>,
    /// The place from which to go on.
    pub last: EventPlace,
    /// There were no further ones at that moment.
    pub is_all: bool,
    /// Redis has deleted old events, perhaps some between the place that was asked for and these.
    pub is_behind_gap: bool,
}

impl Queue {
    /// The events after this place: at most `most`, of about `entries` entries.
    pub(crate) async fn events_after(
        &self,
        after: &EventPlace,
        entries: usize,
        most: usize,
    ) -> QueueResult<EventsAfter> {
        // The entry of the place itself is read, too: as long as Redis keeps it, no later one is lost.
        let found = self.range(&self.keys.events, &after.entry, "+", entries + 1).await?;
        let has_own_entry = found.first().is_some_and(|first| first.id == after.entry);
        let mut is_all = found.len() <= entries;
        let mut last = found.last().map(|last| EventPlace::of(last.id.clone()));
        let mut events: Vec<TaskEvent> = found.into_iter().flat_map(TaskEvent::read).collect();
        // A place without a number has passed the whole entry.
        let is_later = |number: Option<usize>| match (number, after.number) {
            (Some(number), Some(passed)) => number > passed,
            _ => false,
        };
        events.retain(|event| event.place.entry != after.entry || is_later(event.place.number));
        if events.len() > most {
            events.truncate(most);
            is_all = false;
            last = events.last().map(|last| last.place.clone());
        }
        let is_behind_gap = !has_own_entry && !events.is_empty() && self.has_gap(after).await?;
        Ok(EventsAfter { events, last: last.unwrap_or_else(|| after.clone()), is_all, is_behind_gap })
    }

    /// Up to `count` events before this place, the newest first; what the call cost, for limits: the number
    /// of entries that were read, or of events if there are more; and the place from which to go on (none:
    /// these were all).
    pub(super) async fn events_before(
        &self,
        before: Option<&EventPlace>,
        count: usize,
    ) -> QueueResult<(Vec<TaskEvent>, usize, Option<EventPlace>)> {
        let from = before.map_or_else(|| "+".to_owned(), EventPlace::bound);
        let entries = self.range_back(&self.keys.events, &from, count).await?;
        let entries_looked_at = entries.len();
        let last = entries.last().filter(|_| entries_looked_at == count);
        let mut next = last.map(|last| EventPlace::of(last.id.clone()));
        // The entry of the place is read again only if the place has a number (`bound`).
        let is_before = |TaskEvent { place, .. }: &TaskEvent| {
            before.is_none_or(|before| place.entry != before.entry || place.number < before.number)
        };
        let events = entries.into_iter().flat_map(|entry| TaskEvent::read(entry).into_iter().rev());
        let mut events: Vec<TaskEvent> = events.filter(is_before).collect();
        if events.len() > count {
            events.truncate(count);
            next = events.last().map(|last| last.place.clone());
        }
        let cost = events.len().max(entries_looked_at);
        Ok((events, cost, next))
    }

    /// The place of the last event; `0-0` when there is none.
    pub(crate) async fn last_event(&self) -> QueueResult<EventPlace> {
        Ok(EventPlace::of(self.last_entry(&self.keys.events).await?))
    }

    /// Whether Redis has deleted events, and the oldest remaining one comes after this place.
    async fn has_gap(&self, after: &EventPlace) -> QueueResult<bool> {
        const WHAT: &str = "look for lost events";
        let asked = redis::cmd("XINFO").arg("STREAM").arg(&self.keys.events).to_owned();
        let counts = Info::read(self.link.command(WHAT, &asked).await?).and_then(|stream| {
            let first = stream.text("recorded-first-entry-id")?;
            Ok((first, stream.count("entries-added")?, stream.count("length")?))
        });
        let (first, added, length) = self.shaped(WHAT, counts)?;
        Ok(added > length && codec::comes_after(&first, &after.entry))
    }

    /// Whether the entry of this place is still kept. If not, some after it may be gone, too.
    pub(crate) async fn has_event(&self, place: &EventPlace) -> QueueResult<bool> {
        Ok(!self.range(&self.keys.events, &place.entry, &place.entry, 1).await?.is_empty())
    }

    /// The id of a stream's last entry; `0-0` when there is none.
    pub(super) async fn last_entry(&self, stream: &str) -> QueueResult<String> {
        let last = self.range_back(stream, "+", 1).await?.pop();
        Ok(last.map_or_else(|| "0-0".to_owned(), |last| last.id))
    }

    /// Up to `count` entries of a stream, from `from` back to its beginning.
    pub(super) async fn range_back(
        &self,
        stream: &str,
        from: &str,
        count: usize,
    ) -> QueueResult<Vec<StreamEntry>> {
        const WHAT: &str = "read a stream";
        let command =
            redis::cmd("XREVRANGE").arg(stream).arg(from).arg("-").arg("COUNT").arg(count).to_owned();
        let reply = self.link.command(WHAT, &command).await?;
        self.shaped(WHAT, reply::stream_entries(reply))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_one_event_or_several_and_none_if_it_has_another_form() {
        let events = |fields: &[(&str, &str)]| {
            TaskEvent::read(StreamEntry {
                id: "7-1".into(),
                fields: fields.iter().map(|(name, value)| codec::raw(name, *value)).collect(),
                deliveries: 1,
            })
        };
        let event = |place: &str, id: &str, status, attempt| TaskEvent {
            place: EventPlace::parse(place).expect("a place"),
            id: id.into(),
            status,
            attempt,
            due_at: None,
        };
        assert_eq!(
            events(&[("id", "a b"), ("status", "FAILED"), ("attempt", "3")]),
            [event("7-1", "a b", Status::Failed, 3)]
        );
        assert_eq!(
            events(&[("ids", "5-0 5-1"), ("status", "COMPLETED"), ("attempt", "1")]),
            [event("7-1/1", "5-0", Status::Completed, 1), event("7-1/2", "5-1", Status::Completed, 1)]
        );
        assert_eq!(events(&[("id", "a"), ("status", "RESTING")]), []);
        assert_eq!(events(&[("status", "FAILED")]), []);
    }

    #[test]
    fn a_place_is_read_as_it_is_written() {
        for text in ["7-1", "7-1/2"] {
            assert_eq!(EventPlace::parse(text).map(|place| place.to_string()).as_deref(), Some(text));
        }
        for text in ["", "7", "(7-1", "7-1/", "7-1/x", "7-1/2/3"] {
            assert_eq!(EventPlace::parse(text), None, "{text}");
        }
    }
}
