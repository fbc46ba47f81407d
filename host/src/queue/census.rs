//! Counts a queue: how many tasks are in each place, the age of the oldest queued one, the consumers.
//!
//! Not here: when to count (`worker::census`, the command `queues`).

use std::time::Duration;

use redis::{Cmd, Value};
use serde::Serialize;

use super::codec;
use super::error::QueueResult;
use super::handle::Queue;
use super::hold::QueueHold;
use super::limits::QueueLimits;
use super::pause::QueuePause;
use super::reply::{self, Shaped, UnexpectedShape};
use crate::config::List;

/// The number of tasks in each place of a queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Census {
    /// Undelivered in the stream.
    pub queued: u64,
    /// Items in the queue's lists that are not tasks yet.
    pub listed: u64,
    /// Pending in the group.
    pub running: u64,
    /// Waiting for their time.
    pub delayed: u64,
    /// Waiting for the turn of their track.
    pub held_tasks: u64,
    pub dead: u64,
    pub pause: Option<QueuePause>,
    /// The hold of the queue. None: it is not on hold.
    pub held: Option<QueueHold>,
    /// The limits that an operator has set.
    pub limits: Option<QueueLimits>,
    /// Age of the first undelivered entry.
    pub oldest: Option<Duration>,
    pub consumers: Vec<Consumer>,
    /// The address of the node that has the queue. None: there is no cluster.
    pub node: Option<String>,
    /// Tasks that wait to be taken from this queue to other slots of a cluster. None: there is no cluster.
    pub outgoing: Option<u64>,
}

/// A member of the group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Consumer {
    pub name: String,
    pub pending: u64,
    /// Milliseconds since its last request.
    pub idle_ms: u64,
}

impl Census {
    /// Tasks that wait for a host, also in lists.
    pub(crate) fn waiting(&self) -> u64 {
        self.queued + self.listed
    }
}

impl Queue {
    /// Counts everything. A stream or group that does not exist yet counts as empty.
    pub async fn census(&self) -> QueueResult<Census> {
        const WHAT: &str = "count tasks";
        let keys = &self.keys;
        let mut asked = vec![
            redis::cmd("TIME"),
            redis::cmd("XLEN").arg(&keys.stream).to_owned(),
            redis::cmd("ZCARD").arg(&keys.delayed).to_owned(),
            redis::cmd("XLEN").arg(&keys.dead).to_owned(),
            redis::cmd("XINFO").arg("GROUPS").arg(&keys.stream).to_owned(),
            self.ask_consumers(),
            redis::cmd("HGET").arg(&keys.history).arg(&self.rules.group).to_owned(),
        ];
        // Not every queue has the following. Their replies are taken off the end, the last one first.
        // One GET for each key: while the slot of the keys moves to another node, an MGET of them would fail.
        asked.extend(self.stop_keys().map(|key| redis::cmd("GET").arg(key).to_owned()));
        asked.extend(self.ask_held());
        asked.extend(self.link.is_cluster().then(|| redis::cmd("XLEN").arg(&keys.out).to_owned()));
        let lists = self.ask_lists();
        let mut replies = self.link.pipeline(WHAT, &[&asked[..], &lists].concat()).await?;
        let listed = items_in(replies.split_off(replies.len().saturating_sub(lists.len())));
        let outgoing = match replies.pop_if(|_| self.link.is_cluster()) {
            Some(tasks) => Some(self.shaped(WHAT, reply::count(&tasks?))?),
            None => None,
        };
        let held_tasks = match self.ask_held().and_then(|_| replies.pop()) {
            Some(tasks) => self.shaped(WHAT, reply::count(&tasks?))?,
            None => 0,
        };
        let stops = replies.split_off(replies.len().saturating_sub(self.stop_keys().count()));
        let [time, length, delayed, dead, groups, consumers, noted] =
            self.shaped(WHAT, replies.try_into().map_err(|_| UnexpectedShape))?;
        let now_ms = self.shaped(WHAT, reply::time_ms(time?))?;
        let length = self.shaped(WHAT, reply::count(&length?))?;
        let group = match groups {
            Ok(groups) => self.shaped(WHAT, find_group(groups, &self.rules.group))?,
            Err(error) if error.is_no_group() => None,
            Err(error) => return Err(error),
        };
        let consumers = match consumers {
            Ok(consumers) => self.shaped(WHAT, read_consumers(consumers))?,
            Err(error) if error.is_no_group() => Vec::new(),
            Err(error) => return Err(error),
        };
        // A key of another type counts as if it were not there: it neither pauses nor limits the queue.
        let stop = |reply: QueueResult<Value>| match reply {
            Err(error) if error.is_wrong_type() => Ok(Value::Nil),
            reply => reply,
        };
        let mut stops = stops.into_iter().map(stop).collect::<Result<Vec<_>, _>>()?.into_iter();
        let stops = self.shaped(WHAT, self.stops(&mut stops, now_ms))?;
        let noted = self.shaped(WHAT, noted.map_or(Ok(None), reply::optional))?;
        let GroupCount { pending: running, last_delivered, lag } = group.unwrap_or_default();
        let first = self.range(&keys.stream, &format!("({last_delivered}"), "+", 1).await?;
        let age_ms = |entry: &codec::StreamEntry| now_ms.saturating_sub(codec::entry_time_ms(&entry.id));
        Ok(Census {
            queued: queued(length, running, lag, first.is_empty(), noted.as_deref()),
            listed,
            running,
            delayed: self.shaped(WHAT, reply::count(&delayed?))?.saturating_sub(held_tasks),
            held_tasks,
            dead: self.shaped(WHAT, reply::count(&dead?))?,
            pause: stops.pause,
            held: stops.held.hold,
            limits: stops.limits,
            oldest: first.first().map(age_ms).map(Duration::from_millis),
            consumers,
            node: self.link.node(),
            outgoing,
        })
    }

    /// How many items are in the queue's lists.
    pub(super) async fn count_items(&self) -> QueueResult<u64> {
        Ok(items_in(self.link.pipeline("count items", &self.ask_lists()).await?))
    }

    fn ask_lists(&self) -> Vec<Cmd> {
        let lists = self.rules.list.as_ref().map_or_else(Vec::new, List::keys);
        lists.iter().map(|list| redis::cmd("LLEN").arg(list).to_owned()).collect()
    }

    /// The command whose reply [`read_consumers`] reads.
    pub(crate) fn ask_consumers(&self) -> Cmd {
        redis::cmd("XINFO").arg("CONSUMERS").arg(&self.keys.stream).arg(&self.rules.group).to_owned()
    }
}

/// Adds up the lengths of lists. A key of another type, or one that this user may not read, counts as empty.
fn items_in(lengths: Vec<QueueResult<Value>>) -> u64 {
    lengths.into_iter().filter_map(|length| reply::count(&length.ok()?).ok()).sum()
}

pub(crate) fn read_consumers(reply: Value) -> Shaped<Vec<Consumer>> {
    let consumer = |item| {
        let fields = Info::read(item)?;
        let (name, pending, idle_ms) =
            (fields.text("name")?, fields.count("pending")?, fields.count("idle")?);
        Ok(Consumer { name, pending, idle_ms })
    };
    reply::each(reply, consumer)
}

/// The name in one item of XINFO GROUPS.
pub(crate) fn group_name(item: Value) -> Shaped<String> {
    Info::read(item)?.text("name")
}

/// Redis's counts of a group.
#[derive(Debug)]
pub(crate) struct GroupCount {
    /// Entries that are delivered and not settled.
    pub pending: u64,
    /// The last entry that was delivered.
    pub last_delivered: String,
    /// Entries that it has not read. None: Redis cannot tell.
    pub lag: Option<u64>,
}

impl Default for GroupCount {
    fn default() -> GroupCount {
        GroupCount { pending: 0, last_delivered: "0-0".to_owned(), lag: None }
    }
}

/// Looks for a group in a reply of XINFO GROUPS.
pub(super) fn find_group(reply: Value, name: &str) -> Shaped<Option<GroupCount>> {
    for group in reply::array(reply)? {
        let fields = Info::read(group)?;
        if fields.text("name")? == name {
            return Ok(Some(GroupCount {
                pending: fields.count("pending")?,
                last_delivered: fields.text("last-delivered-id")?,
                lag: fields.get("lag").ok().and_then(|lag| reply::int(lag).ok()?.try_into().ok()),
            }));
        }
    }
    Ok(None)
}

/// How many tasks are queued: the entries of the stream that are not pending. But if another program used
/// the group before tqhost, the stream may still have entries that it acknowledged, so only entries that the
/// group has not read are counted (`lag`). Then `noted` is the last entry that the program was given, and not
/// `0-0`.
fn queued(length: u64, running: u64, lag: Option<u64>, all_read: bool, noted: Option<&str>) -> u64 {
    let most = length.saturating_sub(running);
    match noted {
        None | Some("0-0") => most,
        Some(_) if all_read => 0,
        Some(_) => lag.unwrap_or(most).min(most),
    }
}

/// One item of an XINFO reply: names with values of different kinds.
pub(super) struct Info(Vec<(String, Value)>);

impl Info {
    pub(super) fn read(item: Value) -> Shaped<Info> {
        let mut parts = reply::array(item)?.into_iter();
        let mut fields = Vec::new();
        while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
            fields.push((reply::text(name)?, value));
        }
        Ok(Info(fields))
    }

    fn get(&self, name: &str) -> Shaped<&Value> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value).ok_or(UnexpectedShape)
    }

    pub(super) fn text(&self, name: &str) -> Shaped<String> {
        reply::text(self.get(name)?.clone())
    }

    pub(super) fn count(&self, name: &str) -> Shaped<u64> {
        reply::count(self.get(name)?)
    }
}
