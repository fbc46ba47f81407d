//! The state of a stream and its groups: the entries that were added, that are there, and that each group was
//! given.
//!
//! In: a queue. Out: a [`StreamStand`], and how many entries were trimmed before the group read them.
//!
//! Redis counts the entries that were ever added to a stream, and those that a group has read. If all unread
//! entries are still there, or none is unread, these numbers tell how many unread entries a producer's MAXLEN
//! or MINID has removed. Entries that were deleted by XDEL are no trimmed entries: Redis notes the highest id
//! of a deleted entry.
//!
//! Not here: when to look (`worker::census`, `doctor::adopt`).

use redis::Value;
use tokio::time::Instant;

use super::error::QueueResult;
use super::handle::Queue;
use super::reply::{self, Shaped, UnexpectedShape};
use super::script;

/// An entry's id as two numbers, which compare as Redis compares them.
pub(crate) type EntryNumber = (u64, u64);

/// The state of a stream at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StreamStand {
    pub length: u64,
    /// Entries added since the stream exists.
    pub added: u64,
    pub first: EntryNumber,
    /// The id that was given to an entry last.
    pub last: EntryNumber,
    /// The highest id that was deleted by XDEL.
    pub max_deleted: EntryNumber,
    /// The last entry that the queue's group was given before a host first used it, as a host or `adopt`
    /// noted.
    pub noted: Option<String>,
    /// The queue's group.
    pub group: Option<GroupStand>,
    /// The other groups.
    pub others: Vec<GroupStand>,
    /// The address of the server, as far as is known, and the time since which it has been in charge.
    pub server: Option<(String, Option<Instant>)>,
}

/// The state of a group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct GroupStand {
    pub name: String,
    pub delivered: EntryNumber,
    /// Entries given to it so far. None: Redis cannot tell.
    pub read: Option<u64>,
    pub pending: u64,
    /// Whether an operator confirmed that tqhost may delete the entries of this group.
    pub is_confirmed: bool,
}

impl StreamStand {
    /// How many entries were trimmed before the queue's group read them, as far as Redis can tell now.
    pub(crate) fn trimmed_unread(&self) -> Option<u64> {
        let group = self.group.as_ref()?;
        // Unread entries were deleted by XDEL.
        if self.max_deleted > group.delivered {
            return None;
        }
        let unread = if group.delivered >= self.last {
            0
        } else if self.length == 0 || self.first > group.delivered {
            self.length
        } else {
            return None;
        };
        Some(self.added.saturating_sub(group.read?).saturating_sub(unread))
    }

    /// Whether a producer trims the stream: entries are missing, and none was deleted by XDEL.
    pub(crate) fn is_trimmed(&self) -> bool {
        self.added > self.length && self.max_deleted == (0, 0)
    }
}

impl Queue {
    /// The state of the queue's stream. None: there is no stream, or its key has another type.
    pub(crate) async fn stand(&self) -> QueueResult<Option<StreamStand>> {
        let reply = self.link.script(&self.call(&script::STAND)).await?;
        let stand = self.shaped("look at a stream", self.read_stand(reply))?;
        Ok(stand.map(|stand| StreamStand { server: self.link.server(), ..stand }))
    }

    fn read_stand(&self, reply: Value) -> Shaped<Option<StreamStand>> {
        let mut parts = reply::array(reply)?.into_iter();
        let Some(about) = parts.next() else { return Ok(None) };
        let [length, added, first, last, max_deleted, noted] = reply::tuple(about)?;
        let id = |value| reply::text(value).map(|text| entry_number(&text).unwrap_or_default());
        let groups = reply::each(parts.next().ok_or(UnexpectedShape)?, |item| {
            let [name, delivered, read, pending, confirmed] = reply::tuple(item)?;
            Ok(GroupStand {
                name: reply::text(name)?,
                delivered: id(delivered)?,
                read: if read == Value::Nil { None } else { Some(reply::count(&read)?) },
                pending: reply::count(&pending)?,
                is_confirmed: reply::int(&confirmed)? == 1,
            })
        })?;
        let (own, others) = groups.into_iter().partition::<Vec<_>, _>(|one| one.name == self.rules.group);
        Ok(Some(StreamStand {
            length: reply::count(&length)?,
            added: reply::count(&added)?,
            first: id(first)?,
            last: id(last)?,
            max_deleted: id(max_deleted)?,
            noted: reply::optional(noted)?,
            group: own.into_iter().next(),
            others,
            server: None,
        }))
    }
}

/// The two numbers of an id. The second one is 0 if the id does not have it. None: the text is no id.
pub(crate) fn entry_number(id: &str) -> Option<EntryNumber> {
    let (ms, sequence) = id.split_once('-').unwrap_or((id, "0"));
    Some((ms.parse().ok()?, sequence.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stand(
        length: u64,
        added: u64,
        first: u64,
        max_deleted: u64,
        delivered: u64,
        read: u64,
    ) -> StreamStand {
        let group = GroupStand { delivered: (delivered, 0), read: Some(read), ..GroupStand::default() };
        StreamStand {
            length,
            added,
            first: (first, 0),
            last: (added, 0),
            max_deleted: (max_deleted, 0),
            group: Some(group),
            ..StreamStand::default()
        }
    }

    #[test]
    fn trimmed_unread_entries_are_known_where_they_can_be() {
        // length, added, first, highest deleted, delivered, read
        let table = [
            (stand(10, 10, 1, 0, 0, 0), Some(0), "nothing is missing"),
            (stand(4, 10, 7, 0, 0, 0), Some(6), "nothing was read, and six are gone"),
            (stand(4, 10, 7, 2, 2, 2), Some(4), "two had ended"),
            (stand(4, 10, 7, 0, 8, 8), None, "the first is delivered: what is unread is not counted"),
            (stand(2, 10, 9, 0, 10, 7), Some(3), "all that is left was read"),
            (stand(4, 10, 7, 9, 2, 2), None, "somebody deleted an unread one"),
            (stand(0, 10, 0, 10, 10, 10), Some(0), "all have ended"),
        ];
        for (stand, expected, why) in table {
            assert_eq!(stand.trimmed_unread(), expected, "{why}");
        }
        let unknown = StreamStand { group: None, ..stand(4, 10, 7, 0, 0, 0) };
        assert_eq!((unknown.trimmed_unread(), unknown.is_trimmed()), (None, true));
    }

    #[test]
    fn ids_compare_as_numbers() {
        assert!(entry_number("9-10") > entry_number("9-9") && entry_number("10") > entry_number("9-10"));
        assert_eq!(entry_number("x-1"), None);
    }
}
