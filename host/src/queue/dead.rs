//! Dead letters: list, show, find by id. Everything is read in bounded pages, oldest first.
//!
//! In: filters and ids. Out: [`DeadLetter`]s. Not here: the burial of a task (`settle`), requeue and purge
//! (`redrive`).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::Serialize;
use utoipa::ToSchema;

use super::codec::{self, RawFields, StreamEntry};
use super::error::QueueResult;
use super::filter::{TaskFilter, Traits};
use super::handle::Queue;
use super::reply;
use super::search::Search;
use crate::task::Task;

/// Dead letters read, requeued or purged in one step.
pub(super) const PAGE: usize = 200;

/// A task that will not be tried again. Times are milliseconds since the Unix epoch, by Redis's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct DeadLetter {
    /// The task's id.
    pub id: String,
    /// Its own entry in the stream of dead letters.
    pub entry: String,
    pub queue: String,
    pub reason: String,
    pub error: String,
    pub attempts: u32,
    pub enqueued_at: u64,
    pub failed_at: u64,
    pub consumer: String,
    pub plugin: String,
    /// The producer's fields.
    #[serde(skip)]
    pub fields: RawFields,
    /// All fields of the entry.
    #[serde(skip)]
    pub(crate) raw: RawFields,
}

/// The reason of a dead letter that another program wrote.
pub(crate) const FOREIGN: &str = "foreign";
/// The reason of a dead letter that a drain has made of a task that waited.
pub(crate) const DRAINED: &str = "drained";

/// A field of a dead letter as text; empty if there is none. The last field of this name counts, because the
/// host's own fields come last, and a malformed task may have fields of these names before them.
fn text_in(entry: &StreamEntry, name: &str) -> String {
    let found = entry.fields.iter().rev().find(|(known, _)| known == name.as_bytes());
    found.map(|(_, value)| String::from_utf8_lossy(value).into_owned()).unwrap_or_default()
}

/// Whether another program wrote a dead letter with these fields.
fn is_foreign(fields: &RawFields) -> bool {
    !fields.iter().any(|(name, _)| name == b"tq-reason")
}

impl DeadLetter {
    /// The id of the task that a dead letter is about.
    fn id_in(entry: &StreamEntry) -> String {
        let id = text_in(entry, "tq-id");
        match id.is_empty() {
            false => id,
            // A task of the queue may have the id of this entry, so a foreign letter does not get it.
            true if is_foreign(&entry.fields) => format!("{FOREIGN}-{}", entry.id),
            true => entry.id.clone(),
        }
    }

    pub(crate) fn read(entry: StreamEntry) -> DeadLetter {
        let text = |name: &str| text_in(&entry, name);
        let is_foreign = is_foreign(&entry.fields);
        let id = DeadLetter::id_in(&entry);
        let number = |name: &str| text(name).parse().ok();
        let failed_at =
            number("tq-failed-at").unwrap_or(if is_foreign { codec::entry_time_ms(&entry.id) } else { 0 });
        let is_producers =
            |(name, _): &&(Vec<u8>, Vec<u8>)| !std::str::from_utf8(name).is_ok_and(codec::is_of_host);
        DeadLetter {
            id,
            queue: text("tq-queue"),
            reason: if is_foreign { FOREIGN.to_owned() } else { text("tq-reason") },
            error: text("tq-error"),
            attempts: text("tq-attempts").parse().unwrap_or_default(),
            enqueued_at: number("tq-enqueued-at").unwrap_or(0),
            failed_at,
            consumer: text("tq-consumer"),
            plugin: text("tq-plugin"),
            fields: entry.fields.iter().filter(is_producers).cloned().collect(),
            entry: entry.id,
            raw: entry.fields,
        }
    }

    /// The task, as its last attempt had it.
    pub(crate) fn task(&self, queue: &Arc<str>) -> Result<Task, codec::Malformed> {
        if self.is_packed() {
            return Err(codec::Malformed::TooManyFields(self.raw.len()));
        }
        let entry = StreamEntry { id: self.entry.clone(), fields: self.raw.clone(), deliveries: 1 };
        let task = codec::decode(queue, entry).map_err(|(why, _)| why)?;
        // `decode` counts a further delivery, which there is not: the fence is that of the last one.
        Ok(Task { attempt: self.attempts.max(1), fence: task.fence.saturating_sub(1).max(1), ..task })
    }

    /// Its approximate size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        codec::bytes_in(&self.raw)
    }

    /// The properties that filters look at.
    pub(crate) fn traits(&self) -> Traits<'_> {
        // 0: another program wrote this dead letter, without a time.
        let failed_at = Some(self.failed_at).filter(|ms| *ms > 0);
        Traits {
            id: &self.id,
            reason: &self.reason,
            error: &self.error,
            plugin: &self.plugin,
            consumer: &self.consumer,
            at_ms: failed_at,
            since_ms: failed_at,
            fields: &self.fields,
        }
    }

    /// Whether another program wrote it.
    pub(crate) fn is_foreign(&self) -> bool {
        is_foreign(&self.raw)
    }

    /// Whether its task had too many fields to keep them one by one: such a task can never run.
    pub(super) fn is_packed(&self) -> bool {
        self.raw.iter().any(|(name, _)| name == b"tq-packed")
    }
}

impl Queue {
    /// Up to `limit` dead letters that pass the filter, oldest first.
    pub async fn dead_letters(&self, filter: &TaskFilter, limit: usize) -> QueueResult<Vec<DeadLetter>> {
        let now_ms = self.now_ms().await?;
        let mut out = Vec::new();
        let mut pages = Pages::new(None);
        while let Some(page) = pages.next(self).await? {
            let is_wanted = |letter: &DeadLetter| filter.takes(&letter.traits(), now_ms);
            out.extend(page.into_iter().filter(is_wanted).take(limit - out.len()));
            if out.len() >= limit {
                break;
            }
        }
        Ok(out)
    }

    /// The dead letter of the task with this name, as [`Queue::dead_entries`] finds it.
    pub(crate) async fn dead_letter(&self, name: &str) -> QueueResult<Option<DeadLetter>> {
        let entries = self.dead_entries(&[name.to_owned()], "+").await?;
        Ok(self.dead_at(&entries).await?.pop())
    }

    /// The dead letters that the statuses of these tasks name.
    async fn dead_by_status<'n>(&self, ids: &[&'n str]) -> QueueResult<HashMap<&'n str, DeadLetter>> {
        const WHAT: &str = "find dead letters";
        let ask = |id: &&str| redis::cmd("HGET").arg(self.keys.task(id)).arg("dead").to_owned();
        let replies = self.link.pipeline(WHAT, &ids.iter().map(ask).collect::<Vec<_>>()).await?;
        let mut noted = HashMap::new();
        for (id, reply) in ids.iter().zip(replies) {
            // A key of another type in the place of the status tells nothing.
            let Ok(reply) = reply else { continue };
            if let Some(entry) = self.shaped(WHAT, reply::optional(reply))? {
                noted.insert(*id, entry);
            }
        }
        let letters = self.dead_at(&noted.values().cloned().collect::<Vec<String>>()).await?;
        let named = |letter: DeadLetter| {
            let (id, entry) = noted.get_key_value(letter.id.as_str())?;
            (*entry == letter.entry).then_some((*id, letter))
        };
        Ok(letters.into_iter().filter_map(named).collect())
    }

    /// The entries of the dead letters that are meant by these names, sorted. A name means the dead letter
    /// that the status of the task with this id names; else the oldest one of a task with this id; else the
    /// newest one of a task with this alias. If a status does not tell, the call reads all dead letters up to
    /// the entry `last`.
    pub(super) async fn dead_entries(&self, names: &[String], last: &str) -> QueueResult<Vec<String>> {
        let mut open: HashSet<&str> = names.iter().map(String::as_str).collect();
        let mut entries = HashSet::new();
        let asked: Vec<&str> = open.iter().copied().collect();
        for some in asked.chunks(PAGE) {
            for (id, letter) in self.dead_by_status(some).await? {
                open.remove(id);
                entries.insert(letter.entry);
            }
        }
        let aliases: HashMap<Vec<u8>, &str> = open.iter().map(|name| (self.alias_key(name), *name)).collect();
        let (mut by_id, mut by_alias): (HashMap<&str, String>, HashMap<&str, String>) = Default::default();
        let mut pages = Pages::new(Some(last.to_owned()));
        // As long as a name may be an alias, all letters are read: the newest one of an alias comes last.
        while by_id.len() < open.len()
            && let Some(page) = pages.next(self).await?
        {
            for letter in page {
                let alias = self.alias_of(&letter.fields).and_then(|alias| aliases.get(&alias));
                if let Some(name) = alias {
                    by_alias.insert(*name, letter.entry.clone());
                }
                if let Some(name) = open.get(letter.id.as_str()) {
                    by_id.entry(*name).or_insert(letter.entry);
                }
            }
        }
        entries.extend(open.iter().filter_map(|name| by_id.remove(name).or_else(|| by_alias.remove(name))));
        let mut entries: Vec<String> = entries.into_iter().collect();
        entries.sort_unstable();
        Ok(entries)
    }

    /// The dead letters that are meant by these names, as [`Queue::dead_entries`] finds them.
    pub(crate) async fn dead_of(&self, names: &[String]) -> QueueResult<Vec<DeadLetter>> {
        let mut letters = Vec::new();
        for entries in self.dead_entries(names, "+").await?.chunks(PAGE) {
            letters.extend(self.dead_at(entries).await?);
        }
        Ok(letters)
    }

    /// The dead letters of these entries that are still there.
    pub(super) async fn dead_at(&self, entries: &[String]) -> QueueResult<Vec<DeadLetter>> {
        const WHAT: &str = "read dead letters";
        let ask = |entry: &String| redis::cmd("XRANGE").arg(&self.keys.dead).arg(entry).arg(entry).to_owned();
        let replies = self.link.pipeline(WHAT, &entries.iter().map(ask).collect::<Vec<_>>()).await?;
        let mut letters = Vec::with_capacity(entries.len());
        for reply in replies {
            let found = self.shaped(WHAT, reply::stream_entries(reply?))?;
            letters.extend(found.into_iter().map(DeadLetter::read));
        }
        Ok(letters)
    }

    /// The dead letter of the task with this name, as [`Queue::dead_by_name`] finds it.
    pub(crate) async fn dead_named(&self, name: &str) -> QueueResult<Option<DeadLetter>> {
        Ok(self.dead_by_name(&[name.to_owned()]).await?.remove(name))
    }

    /// The dead letters of the tasks with these names, each an id or an alias. They are found by the status
    /// of each task, or else among the 5,000 newest dead letters, or the newest 64 MiB of them.
    pub(super) async fn dead_by_name<'n>(
        &self,
        names: &'n [String],
    ) -> QueueResult<HashMap<&'n str, DeadLetter>> {
        let mut open: HashSet<&'n str> = names.iter().map(String::as_str).collect();
        let asked: Vec<&'n str> = open.iter().copied().collect();
        let mut found = self.dead_by_status(&asked).await?;
        open.retain(|name| !found.contains_key(name));
        let (mut to, mut search) = ("+".to_owned(), Search::default());
        while let Some(count) = search.page().filter(|_| !open.is_empty()) {
            let page = self.range_back(&self.keys.dead, &to, count).await?;
            let next = search.looked_at(&page);
            for entry in page {
                // Most letters are of other tasks, and need not be read whole.
                if self.rules.id.is_none() && !open.contains(DeadLetter::id_in(&entry).as_str()) {
                    continue;
                }
                let letter = DeadLetter::read(entry);
                let is_named = |name: &&str| self.is_alias(name, &letter.fields);
                let name =
                    open.get(letter.id.as_str()).copied().or_else(|| open.iter().copied().find(is_named));
                if let Some(name) = name {
                    open.remove(name);
                    found.insert(name, letter);
                }
            }
            let Some(next) = next else { break };
            to = next;
        }
        Ok(found)
    }

    /// A page of the dead letters from the entry `from` on, as XRANGE takes it, up to the entry `last`,
    /// oldest first; and where the next page begins (none: this was the last one).
    pub(crate) async fn dead_page(
        &self,
        from: &str,
        last: &str,
    ) -> QueueResult<(Vec<DeadLetter>, Option<String>)> {
        let mut pages = Pages::between(from.to_owned(), last.to_owned());
        let page = pages.next(self).await?.unwrap_or_default();
        Ok((page, pages.from))
    }

    /// The newest dead letter's entry id; `0-0` when there is none.
    pub(crate) async fn last_dead(&self) -> QueueResult<String> {
        self.last_entry(&self.keys.dead).await
    }
}

/// Reads the dead letters page by page. Deleting entries that were read does not disturb it.
pub(crate) struct Pages {
    /// Where the next page begins, as XRANGE takes it. None: the last page was read.
    from: Option<String>,
    to: String,
}

impl Pages {
    /// The last entry to read; none: the end of the stream.
    pub(crate) fn new(to: Option<String>) -> Pages {
        Pages { from: Some("-".to_owned()), to: to.unwrap_or_else(|| "+".to_owned()) }
    }

    /// From an entry, as XRANGE takes it, to the entry `to`.
    pub(super) fn between(from: String, to: String) -> Pages {
        Pages { from: Some(from), to }
    }

    /// Whether there may be a further page.
    pub(super) fn has_more(&self) -> bool {
        self.from.is_some()
    }

    pub(crate) async fn next(&mut self, queue: &Queue) -> QueueResult<Option<Vec<DeadLetter>>> {
        let Some(from) = &self.from else { return Ok(None) };
        let page = queue.range(&queue.keys.dead, from, &self.to, PAGE).await?;
        self.from = page.last().filter(|_| page.len() == PAGE).map(|last| format!("({}", last.id));
        Ok(Some(page.into_iter().map(DeadLetter::read).collect()).filter(|page: &Vec<_>| !page.is_empty()))
    }
}
