//! Looks at what another consumer left of a queue: its stream and group, its list, its dead letters. Writes
//! nothing, and goes through everything in pages.
//!
//! In: a queue. Out: a [`Remains`]. Not here: what it means, and what is done about it (`adopt`).

use std::collections::{BTreeMap, BTreeSet};

use super::adopt_outside::Outside;
use super::walk::{FIRST, PendingRow};
use crate::queue::census::Consumer;
use crate::queue::codec::{self, RawFields};
use crate::queue::dead::Pages;
use crate::queue::hosts::is_host;
use crate::queue::reply;
use crate::queue::stand::{EntryNumber, StreamStand, entry_number};
use crate::queue::{Queue, QueueResult, census, wait};

/// Entries and items whose fields are looked at.
const SAMPLE: usize = 100;
/// A sample ends once it has this many bytes.
const SAMPLE_BYTES: usize = 1 << 20;
/// Names of fields that are remembered.
const MAX_NAMES: usize = 50;
/// Pending entries in one step.
const PENDING: usize = 500;

/// The keys and entries that another consumer left.
#[derive(Debug, Default)]
pub(super) struct Remains {
    pub wrong: Vec<WrongKey>,
    pub stand: Option<StreamStand>,
    pub paused: bool,
    pub consumers: Vec<Consumer>,
    /// Entries that the group has not read, or that nobody has where there is no group.
    pub waiting: u64,
    /// Entries that were acknowledged and not deleted: before tqhost came, and since then.
    pub acked: u64,
    pub acked_since: u64,
    pub foreign: ForeignPending,
    /// Pending at hosts of tqhost.
    pub running: u64,
    pub items: u64,
    pub outside: Outside,
    pub dead: DeadFound,
    /// Names of the fields of tasks that wait.
    pub task_fields: Vec<String>,
    pub retry_counts: Vec<RetryCount>,
}

/// A key that has another type than the host expects.
#[derive(Debug)]
pub(super) struct WrongKey {
    pub key: String,
    pub holds: String,
    pub expected: &'static str,
}

/// The entries that are pending at consumers that are no hosts.
#[derive(Debug, Default)]
pub(super) struct ForeignPending {
    pub count: u64,
    pub consumers: BTreeSet<String>,
    /// How long ago (ms) each consumer was given the newest entry that it holds.
    pub given_ms: BTreeMap<String, u64>,
    pub most_deliveries: u64,
    pub oldest_idle_ms: u64,
    /// Entries, of hosts too, that are pending but were trimmed or deleted: their fields are gone.
    pub gone: u64,
}

/// The key of the dead letters.
#[derive(Debug, Default)]
pub(super) struct DeadFound {
    /// Items, if it is a list, with those that an interrupted conversion left.
    pub items: u64,
    pub own: u64,
    pub foreign: u64,
    /// The names of the fields of foreign ones.
    pub names: BTreeSet<String>,
}

/// A field of payloads that seems to count retries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RetryCount {
    pub name: String,
    /// How many of the payloads that were looked at have one above 0, and the highest.
    pub above_zero: usize,
    pub highest: u64,
}

impl Remains {
    /// Whether one of these keys has a wrong type.
    fn has_wrong<'k>(&self, keys: impl IntoIterator<Item = &'k String>) -> bool {
        keys.into_iter().any(|key| self.wrong.iter().any(|wrong| wrong.key == *key))
    }
}

impl Queue {
    /// Looks at everything. `from` is where a group that does not exist would begin.
    pub(super) async fn look_around(&self, from: Option<EntryNumber>) -> QueueResult<Remains> {
        let keys = &self.keys;
        let own = [
            (&keys.stream, "stream"),
            (&keys.delayed, "zset"),
            (&keys.parked, "hash"),
            (&keys.dead, "stream"),
            (&keys.history, "hash"),
            (&keys.adopted, "hash"),
        ];
        let mut found = Remains { wrong: self.wrong_types(&own).await?, ..Remains::default() };
        let dead_is_list =
            found.wrong.iter().any(|wrong| wrong.key == self.keys.dead && wrong.holds == "list");
        if !found.has_wrong([&keys.stream, &keys.history, &keys.adopted]) {
            found.stand = self.stand().await?;
            for stops in wait::stops(&self.link, &[self]).await? {
                found.paused |= stops?.pause.is_some();
            }
            self.look_at_stream(from, &mut found).await?;
        }
        if dead_is_list {
            found.wrong.retain(|wrong| wrong.key != self.keys.dead);
        }
        if !found.has_wrong([&keys.dead]) {
            found.dead = self.look_at_dead(dead_is_list).await?;
        }
        if !found.has_wrong(self.keys_outside().iter().map(|(key, _)| key)) {
            found.outside = self.look_outside().await?;
        }
        let payloads = self.sample(&mut found).await?;
        // The fields of these are known, and none of them counts for tqhost.
        let is_known = self.rules.list.as_ref().is_some_and(|list| list.items.is_of_others());
        found.retry_counts = if is_known { Vec::new() } else { retry_counts(&payloads) };
        Ok(found)
    }

    /// Looks at the types of the keys `own`, each with the type that it should have, and of the queue's
    /// lists.
    pub(super) async fn wrong_types(&self, own: &[(&String, &'static str)]) -> QueueResult<Vec<WrongKey>> {
        const WHAT: &str = "look at the types of keys";
        let lists = self.rules.list.iter().flat_map(|list| list.keys()).map(|list| (list, "list"));
        let mut expected: Vec<(String, &'static str)> =
            own.iter().map(|(key, kind)| ((*key).clone(), *kind)).collect();
        expected.extend(lists.chain(self.keys_outside()));
        let ask: Vec<_> = expected.iter().map(|(key, _)| redis::cmd("TYPE").arg(key).to_owned()).collect();
        let mut wrong = Vec::new();
        for ((key, expected), reply) in expected.into_iter().zip(self.link.pipeline(WHAT, &ask).await?) {
            let holds = self.shaped(WHAT, reply::text(reply?))?;
            if holds != "none" && holds != expected {
                wrong.push(WrongKey { key, holds, expected });
            }
        }
        Ok(wrong)
    }

    async fn look_at_stream(&self, from: Option<EntryNumber>, found: &mut Remains) -> QueueResult {
        let Some(stand) = &found.stand else { return Ok(()) };
        let delivered = stand.group.as_ref().map(|group| group.delivered).or(from).unwrap_or_default();
        let has_group = stand.group.is_some();
        let mut next = Some(FIRST.to_owned());
        while let Some(from) = next {
            let page = self.survey(&self.keys.stream, &from).await?;
            for seen in &page.items {
                let is_read = entry_number(&seen.entry).is_some_and(|id| id <= delivered);
                match (seen.skipped, seen.is_history) {
                    (true, _) => found.acked_since += 1,
                    (_, true) => found.acked += 1,
                    // A group that is created after these entries never gets them.
                    _ if is_read && !has_group => found.acked += 1,
                    _ if is_read => {}
                    _ => found.waiting += 1,
                }
            }
            next = page.next;
        }
        if has_group {
            const WHAT: &str = "look at consumers";
            let reply = self.link.command(WHAT, &self.ask_consumers()).await?;
            found.consumers = self.shaped(WHAT, census::read_consumers(reply))?;
            self.look_at_pending(found).await?;
            let mut next = Some(FIRST.to_owned());
            while let Some(from) = next.filter(|_| found.foreign.count > 0) {
                let page = self.claimed(&from).await?;
                found.foreign.gone += page.items.iter().filter(|claim| !claim.is_there).count() as u64;
                next = page.next;
            }
        }
        Ok(())
    }

    async fn look_at_pending(&self, found: &mut Remains) -> QueueResult {
        let mut from = FIRST.to_owned();
        loop {
            let rows = self.pending_rows(&from, PENDING, None).await?;
            let Some(last) = rows.last() else { return Ok(()) };
            from = format!("({}", last.entry);
            let foreign = &mut found.foreign;
            for PendingRow { consumer, idle_ms, deliveries, .. } in rows {
                if is_host(&consumer) {
                    found.running += 1;
                    continue;
                }
                foreign.count += 1;
                foreign.most_deliveries = foreign.most_deliveries.max(deliveries);
                foreign.oldest_idle_ms = foreign.oldest_idle_ms.max(idle_ms);
                if foreign.consumers.len() < MAX_NAMES {
                    foreign.consumers.insert(consumer.clone());
                }
                let given = foreign.given_ms.entry(consumer).or_insert(idle_ms);
                *given = idle_ms.min(*given);
            }
        }
    }

    async fn look_at_dead(&self, is_list: bool) -> QueueResult<DeadFound> {
        const WHAT: &str = "look at the dead letters";
        let mut found = DeadFound::default();
        for key in [Some(&self.keys.dead_list), is_list.then_some(&self.keys.dead)].into_iter().flatten() {
            let reply = self.link.command(WHAT, redis::cmd("LLEN").arg(key)).await?;
            found.items += self.shaped(WHAT, reply::count(&reply))?;
        }
        if is_list {
            return Ok(found);
        }
        let mut pages = Pages::new(None);
        while let Some(page) = pages.next(self).await? {
            for letter in page {
                if !letter.is_foreign() {
                    found.own += 1;
                    continue;
                }
                found.foreign += 1;
                let names = letter.raw.iter().map(|(name, _)| String::from_utf8_lossy(name).into_owned());
                let room = MAX_NAMES - found.names.len();
                found.names.extend(names.take(room));
            }
        }
        Ok(found)
    }

    /// The payloads of some tasks that wait: fields of entries, and items of the list.
    async fn sample(&self, found: &mut Remains) -> QueueResult<Vec<RawFields>> {
        const WHAT: &str = "look at the list";
        let mut payloads = Vec::new();
        if found.stand.is_some() {
            let (mut from, mut count, mut bytes) = ("+".to_owned(), 1, 0);
            while payloads.len() < SAMPLE && bytes < SAMPLE_BYTES {
                let page = self.last_entries(&from, count).await?;
                let Some(last) = page.last() else { break };
                from = format!("({}", last.id);
                bytes += page.iter().map(codec::StreamEntry::bytes).sum::<usize>();
                payloads.extend(page.into_iter().map(|entry| entry.fields));
                let each = bytes / payloads.len() + 1;
                count = (SAMPLE_BYTES.saturating_sub(bytes) / each)
                    .clamp(1, SAMPLE - payloads.len().min(SAMPLE - 1));
            }
        }
        let mut names = BTreeSet::new();
        for (name, _) in payloads.iter().flatten() {
            let name = String::from_utf8_lossy(name);
            if !codec::is_of_host(&name) && names.len() < MAX_NAMES {
                names.insert(name.into_owned());
            }
        }
        if let Some(list) = self.rules.list.as_ref()
            && !found.has_wrong(&list.keys())
        {
            for list in list.keys() {
                let length = self.link.command(WHAT, redis::cmd("LLEN").arg(&list)).await?;
                found.items += self.shaped(WHAT, reply::count(&length))?;
            }
            let last = redis::cmd("LRANGE").arg(&list.key).arg(-10).arg(-1).to_owned();
            for item in self.shaped(WHAT, reply::array(self.link.command(WHAT, &last).await?))? {
                payloads.push(vec![(b"data".to_vec(), self.shaped(WHAT, reply::bytes(item))?)]);
                names.insert("data".to_owned());
            }
        }
        found.task_fields = names.into_iter().collect();
        Ok(payloads)
    }

    /// Up to `count` entries of the stream before `from`, the last one first.
    async fn last_entries(&self, from: &str, count: usize) -> QueueResult<Vec<codec::StreamEntry>> {
        const WHAT: &str = "read a stream";
        let mut range = redis::cmd("XREVRANGE");
        range.arg(&self.keys.stream).arg(from).arg("-").arg("COUNT").arg(count);
        self.shaped(WHAT, reply::stream_entries(self.link.command(WHAT, &range).await?))
    }
}

/// The fields that seem to count retries, as fields or in an object that a field holds.
fn retry_counts(payloads: &[RawFields]) -> Vec<RetryCount> {
    let mut counts: BTreeMap<String, RetryCount> = BTreeMap::new();
    let mut note = |name: &str, value: u64| {
        let is_one = ["retrycount", "retries", "retry", "attempt", "attempts", "retrytimes", "tries"];
        let plain: String =
            name.chars().filter(|c| !matches!(c, '_' | '-')).flat_map(char::to_lowercase).collect();
        if is_one.contains(&plain.as_str()) && (counts.len() < MAX_NAMES || counts.contains_key(name)) {
            let count = counts.entry(name.to_owned()).or_insert_with(|| RetryCount {
                name: name.to_owned(),
                above_zero: 0,
                highest: 0,
            });
            count.above_zero += usize::from(value > 0);
            count.highest = count.highest.max(value);
        }
    };
    for (name, value) in payloads.iter().flatten() {
        let Ok(text) = std::str::from_utf8(value) else { continue };
        if let Ok(number) = text.trim().parse() {
            note(&String::from_utf8_lossy(name), number);
        } else if let Ok(serde_json::Value::Object(object)) = serde_json::from_str(text) {
            let numbers = object.iter().filter_map(|(name, value)| Some((name, value.as_u64()?)));
            numbers.for_each(|(name, number)| note(name, number));
        }
    }
    counts.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_counts_are_found_in_fields_and_in_objects() {
        let payload = |name: &str, value: &str| vec![codec::raw(name, value)];
        let payloads = [
            payload("retryCount", "2"),
            payload("retryCount", "0"),
            payload("data", r#"{"RecordId":9,"RetryCount":1}"#),
            payload("data", "[1]"),
            payload("count", "7"),
        ];
        let count = |name: &str, above_zero, highest| RetryCount { name: name.into(), above_zero, highest };
        assert_eq!(retry_counts(&payloads), [count("RetryCount", 1, 1), count("retryCount", 1, 2)]);
    }
}
