//! Aliases: names from the team's own data under which clients find tasks.
//!
//! An alias is a sorted set of the ids of its newest tasks. It is noted when `tqhost enqueue` or a handler
//! enqueues a task, and at each delivery. The end of a task does not change it, so an alias lives for the
//! longest time that the task can take from then on, and for the queue's retention.
//!
//! In: tasks; or a name that somebody asks for. Out: the id of the task that is meant. A task that no host
//! has seen is looked for among the newest undelivered entries, and a dead one by the fields of its dead
//! letter.
//!
//! Not here: which value of a task is its alias (`value`).

use std::time::Duration;

use super::codec::{self, RawFields, StreamEntry};
use super::error::QueueResult;
use super::handle::{Queue, millis};
use super::keys::QueueKeys;
use super::reply;
use super::script::{self, ScriptCall};
use super::search::Search;
use super::status::Status;
use super::turns::HeldTask;
use super::value;
use crate::config::ValueAt;
use crate::effects::{Effects, OutboxTask};
use crate::mask::{FieldMask, MASKED};
use crate::task::{Field, Task};

/// The most tasks that an alias keeps, the newest ones.
const MOST: usize = 100;
/// The most tasks in one call of the script.
const NOTED: usize = 200;
/// How long a task may wait in its stream before its first delivery without losing its alias.
const WAIT: Duration = Duration::from_secs(24 * 3600);
/// How much longer than its timeout an attempt may take to be settled.
const SPARE: Duration = Duration::from_secs(3600);

/// How many entries of one millisecond a double can tell apart (`order`).
const ONE_MS: u32 = 4096;

const LOOK: &str = "look for an alias";

/// Chooses one of the tasks with an alias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meant {
    Newest,
    /// The newest one that has not ended; if all have ended, the newest one.
    NewestLiving,
}

/// A task and its alias.
#[derive(Debug)]
pub(super) struct NamedTask {
    alias: Vec<u8>,
    id: String,
    /// Its place by `order`. None: it is enqueued now.
    enqueued_at: Option<f64>,
    /// How long the alias lives from now on, at least.
    lives: Duration,
}

/// The configuration of a queue whose tasks have aliases.
struct Naming<'q> {
    keys: &'q QueueKeys,
    /// The place of the alias in a task's fields.
    place: &'q ValueAt,
    retention: Duration,
}

impl Naming<'_> {
    /// A task that is enqueued now, and its alias. None: it has none.
    fn new_task(&self, id: &str, fields: &[Field], delay: Duration) -> Option<NamedTask> {
        let alias = self.keys.alias(&value::alias(fields, self.place)?);
        Some(NamedTask { alias, id: id.to_owned(), enqueued_at: None, lives: delay + WAIT + self.retention })
    }
}

impl Queue {
    /// Notes the aliases of tasks that were delivered.
    pub(crate) async fn note_aliases(&self, tasks: &[&Task]) -> QueueResult {
        let named = tasks.iter().filter_map(|task| self.delivered(task, task.delay.unwrap_or_default()));
        self.note(&self.keys, &named.collect::<Vec<_>>()).await
    }

    /// Notes the aliases of tasks that were held.
    pub(crate) async fn note_held_aliases(&self, held: &[HeldTask]) -> QueueResult {
        let Some(place) = &self.rules.id else { return Ok(()) };
        let named = |HeldTask { id, enqueued_at_ms, alias_field }: &HeldTask| {
            self.waiting(id, &vec![(place.field.clone().into_bytes(), alias_field.clone())], *enqueued_at_ms)
        };
        self.note(&self.keys, &held.iter().filter_map(named).collect::<Vec<_>>()).await
    }

    /// Whether [`Queue::keep_alias`] has to be called before a task is delayed: the delay is so long that the
    /// alias could expire before the next delivery.
    pub(crate) fn needs_its_alias_kept(&self, delay: Duration) -> bool {
        self.rules.id.is_some() && delay > SPARE / 2
    }

    /// Lets the alias of a task live on while the task is delayed.
    pub(crate) async fn keep_alias(&self, task: &Task, delay: Duration) -> QueueResult {
        self.note(&self.keys, self.delivered(task, delay).as_slice()).await
    }

    /// Notes the alias of a task that waits in the stream and that no host has seen, so that the task has its
    /// alias even if it ends there.
    pub(super) async fn note_queued_alias(&self, id: &str) -> QueueResult {
        if self.rules.id.is_none() || self.status_of(id).await?.is_some() {
            return Ok(());
        }
        let Some(entry) = self.find_queued(id).await? else { return Ok(()) };
        let enqueued_at_ms = codec::entry_time_ms(&entry.id);
        self.note(&self.keys, self.waiting(id, &entry.fields, enqueued_at_ms).as_slice()).await
    }

    /// The tasks of these effects whose queues have aliases.
    pub(crate) fn aliased(&self, effects: &Effects) -> Vec<OutboxTask> {
        let tasks = effects.tasks().iter().chain(effects.flows().iter().map(|flow| &flow.then));
        let targets = &self.rules.enqueue_to;
        let has_alias = |task: &&OutboxTask| {
            // For a task that a relay takes to its queue, the alias is noted at the delivery.
            !task.is_relayed && targets.iter().any(|target| target.id.is_some() && target.name == task.queue)
        };
        tasks.filter(has_alias).cloned().collect()
    }

    /// Notes the aliases of tasks that a handler enqueued.
    pub(crate) async fn note_outbox_aliases(&self, tasks: &[OutboxTask]) -> QueueResult {
        for target in self.rules.enqueue_to.iter() {
            let Some(place) = &target.id else { continue };
            let keys = QueueKeys::new(&target.stream, target.dead_letter.as_deref());
            let naming = Naming { keys: &keys, place, retention: target.retention };
            let named: Vec<NamedTask> = tasks
                .iter()
                .filter(|task| task.queue == target.name)
                .filter_map(|task| naming.new_task(&task.id, &task.fields, task.delay))
                .collect();
            self.note(&keys, &named).await?;
        }
        Ok(())
    }

    /// A task that is enqueued here just now, and its alias. None: it has none.
    pub(super) fn new_named(&self, id: &str, fields: &[Field], delay: Duration) -> Option<NamedTask> {
        let place = self.rules.id.as_ref()?;
        Naming { keys: &self.keys, place, retention: self.rules.retention }.new_task(id, fields, delay)
    }

    /// A task that waits in the stream or for its turn, and its alias. None: it has none.
    pub(super) fn waiting(&self, id: &str, fields: &RawFields, enqueued_at_ms: u64) -> Option<NamedTask> {
        Some(NamedTask {
            alias: self.alias_of(fields)?,
            id: id.to_owned(),
            enqueued_at: Some(order(id, enqueued_at_ms)),
            lives: WAIT + self.rules.retention,
        })
    }

    /// A task that was delivered, and its alias. The alias lives until an attempt that begins after `delay`
    /// must have ended, and then as long as the status. None: it has none.
    fn delivered(&self, task: &Task, delay: Duration) -> Option<NamedTask> {
        let place = self.rules.id.as_ref()?;
        Some(NamedTask {
            alias: self.keys.alias(&value::alias(&task.fields, place)?),
            id: task.id.clone(),
            enqueued_at: Some(order(&task.id, task.enqueued_at_ms)),
            lives: delay + self.rules.timeout + SPARE + self.rules.retention,
        })
    }

    /// Notes the aliases of tasks of the queue with these keys.
    pub(super) async fn note(&self, keys: &QueueKeys, named: &[NamedTask]) -> QueueResult {
        for some in named.chunks(NOTED) {
            let mut call = ScriptCall::new(&script::ALIAS).key("stream", &keys.stream).arg("most", MOST);
            for NamedTask { alias, id, enqueued_at, lives } in some {
                let enqueued_at = enqueued_at.map_or_else(String::new, |at| at.to_string());
                call = call.key("alias", alias).arg("id", id);
                call = call.arg("enqueued_at", enqueued_at).arg("lives", millis(*lives));
            }
            self.link.script(&call).await?;
        }
        Ok(())
    }

    /// The id of the task that `name` means: a task's own id comes before an alias. None: neither is known.
    ///
    /// If the queue has no aliases, the name is an id, and Redis is not asked.
    pub(crate) async fn find(&self, name: &str, meant: Meant) -> QueueResult<Option<String>> {
        if self.rules.id.is_none()
            || self.status_of(name).await?.is_some()
            || self.find_queued(name).await?.is_some()
        {
            return Ok(Some(name.to_owned()));
        }
        let mut newest = None;
        let (ids, undelivered) = self.with_alias(name).await?;
        for id in ids {
            let mut status = self.status_of(&id).await?;
            if status.is_none() && (undelivered.as_ref() == Some(&id) || self.is_entry(&id).await?) {
                status = Some(Status::Pending);
            }
            let Some(status) = status else { continue };
            if meant == Meant::Newest || !status.is_end() {
                return Ok(Some(id));
            }
            newest.get_or_insert(id);
        }
        if newest.is_some() {
            return Ok(newest);
        }
        Ok(self.dead_named(name).await?.map(|letter| letter.id))
    }

    /// The id of the task that `name` means, as far as a status, an entry or a noted alias says. It is quick,
    /// because it does not search the fields of tasks as [`Queue::find`] does.
    pub(crate) async fn find_noted(&self, name: &str) -> QueueResult<Option<String>> {
        if self.status_of(name).await?.is_some() || self.is_entry(name).await? {
            return Ok(Some(name.to_owned()));
        }
        if self.rules.id.is_none() {
            return Ok(None);
        }
        for id in self.noted_with(&self.alias_key(name)).await?.unwrap_or_default() {
            if self.status_of(&id).await?.is_some() {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// Whether `name` is the alias of a task with these fields.
    pub(super) fn is_alias(&self, name: &str, fields: &RawFields) -> bool {
        self.alias_of(fields).is_some_and(|alias| alias == self.alias_key(name))
    }

    /// The key of the alias `name`.
    pub(super) fn alias_key(&self, name: &str) -> Vec<u8> {
        self.keys.alias(&value::short(name.as_bytes().into()))
    }

    /// The key of the alias of a task with these fields.
    pub(super) fn alias_of(&self, fields: &RawFields) -> Option<Vec<u8>> {
        let alias = self.alias_in(fields, &FieldMask::default())?;
        Some(self.keys.alias(&value::short(alias.into())))
    }

    /// The alias of a task with these fields. None: it has none, or its value is hidden.
    pub(crate) fn alias_in(&self, fields: &RawFields, mask: &FieldMask) -> Option<Vec<u8>> {
        let place = self.rules.id.as_ref()?;
        // Other fields may be large, so they are not copied.
        let (name, value) = fields.iter().find(|(name, _)| name == place.field.as_bytes())?;
        let value = mask.shown_bytes(name, value)?.into_owned();
        let field = [Field { name: place.field.clone(), value }];
        let alias = value::value_at(&field, place)?.into_owned();
        Some(alias).filter(|alias| mask.is_empty() || alias != MASKED.as_bytes())
    }

    /// The ids of the tasks with this alias, the newest first; and the newest one that was not delivered yet.
    async fn with_alias(&self, name: &str) -> QueueResult<(Vec<String>, Option<String>)> {
        let alias = self.alias_key(name);
        let Some(mut ids) = self.noted_with(&alias).await? else { return Ok((Vec::new(), None)) };
        let undelivered = self.undelivered(&alias).await?;
        let undelivered_id = undelivered.as_ref().map(codec::id_of);
        if let (Some(entry), Some(id)) = (undelivered, undelivered_id.clone())
            && !ids.contains(&id)
        {
            let at = order(&entry.id, codec::entry_time_ms(&entry.id));
            let mut newer = redis::cmd("ZCOUNT");
            newer.arg(&alias).arg(format!("({at}")).arg("+inf");
            let newer = self.shaped(LOOK, reply::count(&self.link.command(LOOK, &newer).await?))?;
            ids.insert(ids.len().min(usize::try_from(newer).unwrap_or(usize::MAX)), id);
        }
        Ok((ids, undelivered_id))
    }

    /// The ids that are noted under this alias, the newest first. None: the key holds something else, which
    /// the next task with this alias replaces.
    async fn noted_with(&self, alias: &[u8]) -> QueueResult<Option<Vec<String>>> {
        let mut range = redis::cmd("ZREVRANGE");
        range.arg(alias).arg(0).arg(-1);
        let ids = match self.link.command(LOOK, &range).await {
            Err(error) if error.is_wrong_type() => return Ok(None),
            ids => reply::each(ids?, reply::text),
        };
        self.shaped(LOOK, ids).map(Some)
    }

    /// The newest entry with this alias that was not delivered yet.
    async fn undelivered(&self, alias: &[u8]) -> QueueResult<Option<StreamEntry>> {
        let first = format!("({}", self.last_delivered().await?);
        let has_alias = |entry: &StreamEntry| self.alias_of(&entry.fields).is_some_and(|of| of == alias);
        let (mut last, mut search) = ("+".to_owned(), Search::default());
        while let Some(count) = search.page() {
            let mut range = redis::cmd("XREVRANGE");
            range.arg(&self.keys.stream).arg(&last).arg(&first).arg("COUNT").arg(count);
            let page = self.shaped(LOOK, reply::stream_entries(self.link.command(LOOK, &range).await?))?;
            let next = search.looked_at(&page);
            if let Some(entry) = page.into_iter().find(has_alias) {
                return Ok(Some(entry));
            }
            let Some(next) = next else { break };
            last = next;
        }
        Ok(None)
    }

    async fn status_of(&self, id: &str) -> QueueResult<Option<Status>> {
        let reply = self.link.command(LOOK, redis::cmd("HGET").arg(self.keys.task(id)).arg("status")).await?;
        Ok(self.shaped(LOOK, reply::optional(reply))?.and_then(|status| Status::parse(status.as_bytes())))
    }

    /// Whether the task has the id of its entry, and the entry exists.
    async fn is_entry(&self, id: &str) -> QueueResult<bool> {
        Ok(codec::is_entry_id(id) && !self.range(&self.keys.stream, id, id, 1).await?.is_empty())
    }
}

/// The score of a task among those of its alias: the time of its enqueueing (ms), and as the fraction its
/// number among the entries of that millisecond, if its id is that of an entry.
fn order(id: &str, enqueued_at_ms: u64) -> f64 {
    let number =
        id.split_once('-').filter(|_| codec::is_entry_id(id)).and_then(|(_, number)| number.parse().ok());
    enqueued_at_ms as f64 + f64::from(number.unwrap_or(0u32).min(ONE_MS - 1)) / f64::from(ONE_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_of_one_moment_keep_their_order() {
        let ms = 1_795_242_534_558;
        let at = |id: &str| order(id, ms);
        let ids = ["1795242534558-0", "1795242534558-9", "1795242534558-10", "1795242534558-4095"];
        assert!(ids.is_sorted_by(|a, b| at(a) < at(b)), "{:?}", ids.map(at));
        assert!(at("1795242534558-99999") < order("1795242534559-0", ms + 1));
        assert_eq!(at("0190b8e4-61a9-76b6-8505-cad2c3ca81d9").to_string(), "1795242534558");
    }
}
