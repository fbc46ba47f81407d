//! Walks through a queue's places in bounded pages. Each page is one script or command, so it is a picture of
//! one moment.
//!
//! Out: the contents, and what looks wrong. Not here: whether it is wrong (`mend`), the report (`doctor`).

use std::collections::HashSet;
use std::time::Duration;

use redis::Value;

use crate::queue::reply::{self, Shaped, optional};
use crate::queue::script::{CLAIMED, PARKED, SURVEY, ScriptCall};
use crate::queue::{Link, Queue, QueueError, QueueResult, Status, census, keys, millis};

/// Entries, members and keys looked at in one step.
const PAGE: usize = 200;
/// Keys of the whole Redis in one step.
pub(super) const SCAN: usize = 1000;
/// Parked fields may be large: the first look takes this many, the next as many as fit at the size of those.
pub(super) const FEW: usize = 4;
/// Large entries would make a page block Redis, so a page of them has fewer.
const BYTES: usize = 1 << 20;

/// One page, and where the next one begins.
#[derive(Debug)]
pub(super) struct Page<T> {
    /// None when this was the last one.
    pub next: Option<String>,
    pub items: Vec<T>,
}

/// An entry of a stream.
#[derive(Debug)]
pub(super) struct SurveyedEntry {
    pub entry: String,
    /// The task's id.
    pub id: String,
    /// The group has read it and it is not pending, so it will never be delivered. False for history.
    pub skipped: bool,
    /// The group had read it, and it was not pending, before the first host came.
    pub is_history: bool,
}

/// A pending entry.
#[derive(Debug)]
pub(super) struct PendingEntry {
    pub entry: String,
    pub idle_ms: u64,
    /// Its entry exists in the stream.
    pub is_there: bool,
}

/// A row of XPENDING.
pub(super) struct PendingRow {
    pub entry: String,
    pub consumer: String,
    pub idle_ms: u64,
    pub deliveries: u64,
}

/// The fields of a delayed task.
#[derive(Debug)]
pub(super) struct Parked {
    pub member: String,
    pub id: Option<String>,
    /// It is not among the delayed ones.
    pub forgotten: bool,
    pub unreadable: bool,
}

/// The start of a walk through a stream.
pub(super) const FIRST: &str = "-";
/// The start of a scan, and the sign of its end.
pub(super) const START: &str = "0";

impl Queue {
    /// A page of `stream`, which is the queue's stream or its dead letters.
    pub(super) async fn survey(&self, stream: &str, from: &str) -> QueueResult<Page<SurveyedEntry>> {
        let call = ScriptCall::new(&SURVEY)
            .key("stream", stream)
            .key("history", &self.keys.history)
            .arg("group", &self.rules.group)
            .arg("from", from)
            .arg("limit", PAGE)
            .arg("bytes", BYTES);
        let reply = self.link.script(&call).await?;
        let seen = |item| {
            let [entry, id, skipped] = reply::tuple(item)?;
            let entry = reply::text(entry)?;
            let id = optional(id)?.unwrap_or_else(|| entry.clone());
            let skipped = reply::int(&skipped)?;
            Ok(SurveyedEntry { entry, id, skipped: skipped == 1, is_history: skipped == 2 })
        };
        self.shaped("survey", page(reply, "", seen))
    }

    /// A page of the pending entries.
    pub(super) async fn claimed(&self, from: &str) -> QueueResult<Page<PendingEntry>> {
        let call = self.call(&CLAIMED).arg("from", from).arg("limit", PAGE).arg("bytes", BYTES);
        let reply = self.link.script(&call).await?;
        let claimed = |item| {
            let [entry, idle, there] = reply::tuple(item)?;
            Ok(PendingEntry {
                entry: reply::text(entry)?,
                idle_ms: reply::count(&idle)?,
                is_there: reply::int(&there)? == 1,
            })
        };
        self.shaped("claimed", page(reply, "", claimed))
    }

    /// Up to `count` pending entries from `from` on: those of one consumer, or of all.
    pub(super) async fn pending_rows(
        &self,
        from: &str,
        count: usize,
        consumer: Option<&str>,
    ) -> QueueResult<Vec<PendingRow>> {
        const WHAT: &str = "look at pending entries";
        let mut ask = redis::cmd("XPENDING");
        ask.arg(&self.keys.stream).arg(&self.rules.group).arg(from).arg("+").arg(count).arg(consumer);
        let row = |row| {
            let [entry, consumer, idle, deliveries] = reply::tuple(row)?;
            Ok(PendingRow {
                entry: reply::text(entry)?,
                consumer: reply::text(consumer)?,
                idle_ms: reply::count(&idle)?,
                deliveries: reply::count(&deliveries)?,
            })
        };
        self.shaped(WHAT, reply::each(self.link.command(WHAT, &ask).await?, row))
    }

    /// A page of the delayed tasks' fields, of about `count` of them, and how many the next one should have.
    pub(super) async fn parked(&self, cursor: &str, count: usize) -> QueueResult<(Page<Parked>, usize)> {
        let call = self.call(&PARKED).arg("cursor", cursor).arg("count", count);
        let reply = self.link.script(&call).await?;
        let parked = |item| {
            let [member, id, forgotten, unreadable] = reply::tuple(item)?;
            let (forgotten, unreadable) = (reply::int(&forgotten)? == 1, reply::int(&unreadable)? == 1);
            Ok(Parked { member: reply::text(member)?, id: optional(id)?, forgotten, unreadable })
        };
        let read = |reply| {
            let [next, size, items] = reply::tuple(reply)?;
            let page = page(Value::Array(vec![next, items]), START, parked)?;
            let each = usize::try_from(reply::count(&size)?).unwrap_or(usize::MAX) / page.items.len().max(1);
            Ok((page, (BYTES / (each + 1)).clamp(1, PAGE)))
        };
        self.shaped("parked", read(reply))
    }

    /// The delayed tasks without fields in a page of all delayed tasks.
    pub(super) async fn delayed_without_fields(&self, cursor: &str) -> QueueResult<Page<String>> {
        const WHAT: &str = "look through the delayed tasks";
        let scan = redis::cmd("ZSCAN").arg(&self.keys.delayed).arg(cursor).arg("COUNT").arg(PAGE).to_owned();
        let reply = self.link.command(WHAT, &scan).await?;
        let [cursor, found] = self.shaped(WHAT, reply::tuple(reply))?;
        let members: Vec<Vec<u8>> =
            self.shaped(WHAT, reply::pairs(found))?.into_iter().map(|(member, _)| member).collect();
        let known = |member: &Vec<u8>| redis::cmd("HEXISTS").arg(&self.keys.parked).arg(member).to_owned();
        let replies = self.link.pipeline(WHAT, &members.iter().map(known).collect::<Vec<_>>()).await?;
        let mut items = Vec::new();
        for (member, reply) in members.into_iter().zip(replies) {
            if self.shaped(WHAT, reply::int(&reply?))? == 0 {
                items.push(String::from_utf8_lossy(&member).into_owned());
            }
        }
        let next = self.shaped(WHAT, reply::text(cursor))?;
        Ok(Page { next: Some(next).filter(|next| next != START), items })
    }

    /// The queue's statuses and markers among about `count` of the next keys of the whole Redis.
    pub(super) async fn keys(&self, cursor: &str, count: usize) -> QueueResult<Page<Vec<u8>>> {
        const WHAT: &str = "look through the keys";
        let scan = redis::cmd("SCAN")
            .arg(cursor)
            .arg("MATCH")
            .arg(&self.keys.all)
            .arg("COUNT")
            .arg(count)
            .to_owned();
        let reply = self.link.command(WHAT, &scan).await?;
        self.shaped(WHAT, page(reply, START, reply::bytes))
    }

    /// Whether the stream exists without the queue's group.
    pub(super) async fn lacks_group(&self) -> QueueResult<bool> {
        const WHAT: &str = "look for the group";
        match self.link.command(WHAT, redis::cmd("XINFO").arg("GROUPS").arg(&self.keys.stream)).await {
            Ok(reply) => {
                let names = self.shaped(WHAT, reply::each(reply, census::group_name))?;
                Ok(!names.contains(&self.rules.group))
            }
            Err(error) if error.is_no_group() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether the status of each task is that of a living or completed one.
    pub(super) async fn not_dead(&self, ids: &[&str]) -> QueueResult<Vec<bool>> {
        const WHAT: &str = "look at the tasks of dead letters";
        let ask = |id: &&str| redis::cmd("HGET").arg(self.keys.task(id)).arg("status").to_owned();
        let replies = self.link.pipeline(WHAT, &ids.iter().map(ask).collect::<Vec<_>>()).await?;
        let is_not_dead = |status: Status| !status.is_end() || status == Status::Completed;
        let known = |reply: QueueResult<Value>| match reply {
            Err(error) if error.is_wrong_type() => Ok(false),
            reply => Ok(self
                .shaped(WHAT, optional(reply?))?
                .and_then(|text| text.parse().ok())
                .is_some_and(is_not_dead)),
        };
        replies.into_iter().map(known).collect()
    }

    /// The next delayed task, if it has been due for this long.
    pub(super) async fn first_overdue(&self, late: Duration) -> QueueResult<Option<String>> {
        const WHAT: &str = "look for overdue tasks";
        let before = self.now_ms().await?.saturating_sub(millis(late));
        let mut range = redis::cmd("ZRANGEBYSCORE");
        range.arg(&self.keys.delayed).arg("-inf").arg(before).arg("LIMIT").arg(0).arg(1);
        let reply = self.link.command(WHAT, &range).await?;
        Ok(self.shaped(WHAT, reply::each(reply, reply::text))?.into_iter().next())
    }

    /// Searches the stream, from the entry `from` on, and the delayed tasks, and removes the tasks that it
    /// finds from `ids`. It stops after about `limit` tasks. Returns whether it has looked at all of them.
    pub(super) async fn find_all(
        &self,
        ids: &mut HashSet<String>,
        from: &str,
        limit: usize,
    ) -> QueueResult<bool> {
        let mut looked = 0;
        let mut next = Some(from.to_owned());
        while let Some(from) = next.filter(|_| !ids.is_empty()) {
            if looked >= limit {
                return Ok(false);
            }
            let page = self.survey(&self.keys.stream, &from).await?;
            looked += page.items.len();
            for seen in &page.items {
                ids.remove(&seen.id);
            }
            next = page.next;
        }
        let mut next = Some(START.to_owned());
        let mut count = FEW;
        while let Some(cursor) = next.filter(|_| !ids.is_empty()) {
            if looked >= limit {
                return Ok(false);
            }
            let (page, more) = self.parked(&cursor, count).await?;
            count = more;
            looked += page.items.len();
            for id in page.items.iter().filter_map(|parked| parked.id.as_ref()) {
                ids.remove(id);
            }
            next = page.next;
        }
        Ok(true)
    }
}

/// The keys that tqhost built among about `count` of the next keys of the whole Redis. The nodes of a cluster
/// come one after the other, so a cursor names its node there.
pub(super) async fn all_keys(link: &Link, cursor: &str, count: usize) -> QueueResult<Page<Vec<u8>>> {
    const WHAT: &str = "look through the keys";
    let mut nodes = link.at_each_node().await?;
    nodes.sort_by(|a, b| a.address().cmp(b.address()));
    let (of, cursor) = cursor.rsplit_once(' ').unwrap_or(("", cursor));
    let Some(at) = nodes.iter().position(|node| node.address() >= of) else {
        return Ok(Page { next: None, items: Vec::new() });
    };
    // The cursor of a node that is gone means nothing to the next one.
    let cursor = if of.is_empty() || nodes[at].address() == of { cursor } else { START };
    let scan =
        redis::cmd("SCAN").arg(cursor).arg("MATCH").arg(keys::EVERYTHING).arg("COUNT").arg(count).to_owned();
    let reply = nodes[at].command(WHAT, &scan).await?;
    let found = page(reply, START, reply::bytes)
        .map_err(|reply::UnexpectedShape| QueueError::unexpected(WHAT, link.address()))?;
    let next = match (found.next, nodes.get(at + 1)) {
        (Some(next), _) if link.is_cluster() => Some(format!("{} {next}", nodes[at].address())),
        (None, Some(node)) => Some(format!("{} {START}", node.address())),
        (next, _) => next,
    };
    Ok(Page { next, ..found })
}

/// Reads `{ next, items }`, where `end` means that there is no next page.
pub(super) fn page<T>(reply: Value, end: &str, item: impl Fn(Value) -> Shaped<T>) -> Shaped<Page<T>> {
    let [next, items] = reply::tuple(reply)?;
    let next = Some(reply::text(next)?).filter(|next| next != end);
    Ok(Page { next, items: reply::each(items, item)? })
}
