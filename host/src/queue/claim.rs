//! Gives a consumer its entries, and keeps them for it: read, reclaim, recover, begin, heartbeat.
//!
//! In: a consumer's name, limits, leases. Out: entries, and the state of each task or lease.
//!
//! Not here: when to do this (`worker`), and the end of the ownership (`settle`).

use std::time::Duration;

use redis::Value;

use super::attempts::AbandonedEntry;
use super::codec::{self, StreamEntry};
use super::error::{QueueError, QueueResult};
use super::handle::{Queue, millis};
use super::link::Link;
use super::reply::{self, Shaped, UnexpectedShape};
use super::script::{self, ScriptCall};
use super::status::Status;
use super::turns::{HeldTask, held_reply};
use crate::task::Task;

/// One call stops claiming entries once those that it has claimed reach this many bytes.
const BYTES: usize = 4 << 20;

/// The result of a reclaim.
#[derive(Debug, Default)]
pub struct Reclaimed {
    /// The next reclaim begins here; empty when this one reached the end.
    pub cursor: String,
    pub entries: Vec<StreamEntry>,
    /// Ids of entries that were deleted while they were pending: their fields are gone.
    pub lost: Vec<String>,
    /// The tasks with aliases that the call put aside until their turn.
    pub held: Vec<HeldTask>,
}

/// The answer to [`Queue::begin`] for one claimed task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// It is marked as PROCESSING: run it, with this fence.
    Owned { fence: u64 },
    /// Another consumer owns it by now.
    Lost,
    /// It was cancelled while it waited, and is settled.
    Cancelled,
    /// Another task has its idempotency key or its id: it is settled without having run.
    Duplicate,
    /// Its entry was deleted: the task will not run.
    Gone,
    /// As many hosts as the queue allows have died while they ran it, the last one while nothing else ran
    /// there: bury it.
    Crashed,
    /// A cancelled run under its id is still being stopped. It is delayed for a second.
    PutOff,
    /// Redis refused this for the task, with an error.
    Refused(String),
}

/// A task to be marked as PROCESSING.
#[derive(Debug, Clone)]
pub struct Start<'t> {
    pub entry: &'t str,
    pub id: &'t str,
    pub attempt: u32,
    pub enqueued_at_ms: u64,
    /// Its idempotency key.
    pub key: Option<&'t [u8]>,
    /// How long ago it was claimed.
    pub held: Duration,
    /// How many hosts died while they ran it.
    pub crashes: u32,
    /// Nothing else runs in this host.
    pub alone: bool,
    /// The number of this delivery.
    pub fence: u64,
    /// Another host may have run the task under the same entry, so the fence must be higher than any before.
    pub again: bool,
}

impl<'t> Start<'t> {
    /// A task with this idempotency key that was claimed `held` ago.
    pub fn of(task: &'t Task, key: Option<&'t [u8]>, held: Duration) -> Start<'t> {
        let Task { entry, id, attempt, enqueued_at_ms, crashes, fence, .. } = task;
        Start {
            entry,
            id,
            attempt: *attempt,
            enqueued_at_ms: *enqueued_at_ms,
            key,
            held,
            crashes: *crashes,
            alone: false,
            fence: *fence,
            again: false,
        }
    }
}

/// The result of renewing one lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lease {
    Renewed,
    /// Another consumer owns the task by now.
    Lost,
    /// The task was cancelled.
    Cancelled,
    /// Somebody deleted the entry. The task stays with this consumer for a lease, and can be settled.
    Deleted,
    /// Somebody deleted the entry, and it is no longer pending: the task cannot be settled.
    Gone,
    /// Redis refused this for the task, with an error.
    Refused(String),
}

/// Entries that were delivered in a reply that was lost.
#[derive(Debug, Default)]
pub struct Recovered {
    pub entries: Vec<StreamEntry>,
    /// Ids of entries that were deleted.
    pub lost: Vec<String>,
    /// Whether there may be more.
    pub more: bool,
}

/// The report of one running task in a heartbeat.
#[derive(Debug)]
pub struct HeartbeatReport {
    pub entry: String,
    pub task_id: String,
    /// Its idempotency key.
    pub key: Option<Vec<u8>>,
    pub progress: Option<(u8, String)>,
}

impl Queue {
    /// Reads up to `count` new entries for `consumer`. With `block`, waits up to that long for the first one.
    /// Nothing else may use `link`.
    pub async fn read(
        &self,
        link: &Link,
        consumer: &str,
        count: usize,
        block: Option<Duration>,
    ) -> QueueResult<Vec<StreamEntry>> {
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg(&self.rules.group).arg(consumer).arg("COUNT").arg(count);
        if let Some(block) = block {
            read.arg("BLOCK").arg(millis(block).max(1));
        }
        read.arg("STREAMS").arg(&self.keys.stream).arg(">");
        let reply = link.command("read new tasks", &read).await?;
        self.shaped("read new tasks", read_reply(reply))
    }

    /// Removes from entries the reserved fields that only hosts write, unless a host wrote the entry. The
    /// status of its task tells that, as for `is_of_host` in lib.lua. Entries without such fields cost no
    /// call.
    pub(crate) async fn keep_trusted(&self, entries: &mut [StreamEntry]) -> QueueResult {
        const WHAT: &str = "look for the status of a task";
        let asked: Vec<&mut StreamEntry> =
            entries.iter_mut().filter(|entry| codec::needs_proof(entry)).collect();
        if asked.is_empty() {
            return Ok(());
        }
        // The flow that the task of an entry joins, if it joins one.
        let own_flow = |entry: &StreamEntry| self.keys.flow(&codec::id_of(entry)).about;
        let mut commands = Vec::new();
        for entry in &asked {
            let mut status = redis::cmd("HMGET");
            status.arg(self.keys.task(&codec::id_of(entry)));
            commands.push(status.arg(&["status", "entry", "parked_as", "produced"]).to_owned());
            commands.push(redis::cmd("HGET").arg(own_flow(entry)).arg("left").to_owned());
        }
        let mut replies = self.link.pipeline(WHAT, &commands).await?.into_iter();
        for entry in asked {
            let mut next = || match replies.next() {
                // A key of another type says nothing.
                Some(Err(error)) if !error.is_wrong_type() => Err(error),
                reply => Ok(reply.and_then(Result::ok)),
            };
            let (status, left) = (next()?, next()?);
            let has_flow = left.is_some_and(|left| left != Value::Nil);
            let is_of_host = status.map_or(Ok(false), |status| is_of_host(&entry.id, status, has_flow));
            if !self.shaped(WHAT, is_of_host)? {
                codec::keep_open(&mut entry.fields);
            }
            // A task joins no flow but its own.
            let own = own_flow(entry);
            entry.fields.retain(|(name, value)| !codec::is_joins(name) || value == own.as_bytes());
        }
        Ok(())
    }

    /// Takes over up to `count` entries, from `cursor` on, whose lease no consumer renewed; fewer if they are
    /// large. A takeover counts as a crash of the task, unless the owner gave a sign of life at least
    /// `outlived` after the entry's last heartbeat.
    ///
    /// A task of another program's consumer, which served the group before tqhost came, begins with its first
    /// attempt. As many of these are taken over as the queue's limits allow; the others stay where they are,
    /// or are held.
    pub async fn reclaim(
        &self,
        consumer: &str,
        cursor: &str,
        count: usize,
        outlived: Duration,
    ) -> QueueResult<Reclaimed> {
        let call = self.call(&script::RECLAIM).arg("consumer", consumer);
        let call = call.arg("lease", millis(self.rules.lease)).arg("from", cursor).arg("limit", count);
        let call = self.with_limits(call.arg("bytes", BYTES).arg("outlived", millis(outlived)));
        // `outlived` counts only now: before a call that comes late, hosts that live may be heard again.
        let reply = self.link.prompt().script(&call).await?;
        self.shaped("reclaim", reclaim_reply(reply))
    }

    /// The time `outlived` for [`Queue::reclaim`]: half a lease. Heartbeats are a third of a lease apart. So
    /// a host that lives gives a sign of life two thirds of a lease after the entry's last heartbeat, or
    /// later. A host that died gave its last sign at most a third of a lease after that heartbeat.
    ///
    /// It is zero in the first lease after an outage, so that no host counts as dead.
    pub fn outlived(&self) -> Duration {
        if self.is_back_for_less_than(self.rules.lease) { Duration::ZERO } else { self.rules.lease / 2 }
    }

    /// Up to `count` entries, from the id `from` on, without a heartbeat for `idle`. Claims nothing.
    pub(crate) async fn abandoned(
        &self,
        from: &str,
        idle: Duration,
        count: usize,
    ) -> QueueResult<Vec<AbandonedEntry>> {
        const WHAT: &str = "look for abandoned tasks";
        let mut pending = redis::cmd("XPENDING");
        pending.arg(&self.keys.stream).arg(&self.rules.group).arg("IDLE").arg(millis(idle));
        let reply = self.link.command(WHAT, pending.arg(from).arg("+").arg(count)).await?;
        let entry = |row| {
            let [id, consumer, idle, deliveries] = reply::tuple(row)?;
            Ok(AbandonedEntry {
                id: reply::text(id)?,
                consumer: reply::text(consumer)?,
                idle: Duration::from_millis(reply::count(&idle)?),
                deliveries: u32::try_from(reply::count(&deliveries)?).unwrap_or(u32::MAX),
            })
        };
        self.shaped(WHAT, reply::each(reply, entry))
    }

    /// The first entry, from the id `from` on, without a heartbeat for `idle`.
    pub async fn first_abandoned(&self, from: &str, idle: Duration) -> QueueResult<Option<String>> {
        Ok(self.abandoned(from, idle, 1).await?.into_iter().next().map(|first| first.id))
    }

    /// Up to `count` of the entries pending for `consumer` that are not `in_flight`: they were delivered in a
    /// reply that was lost. They are read over `link`, fewer of them if they are large.
    pub async fn recover(
        &self,
        link: &Link,
        consumer: &str,
        in_flight: &[String],
        count: usize,
    ) -> QueueResult<Recovered> {
        const LOOK: usize = 100;
        let mut found = Recovered::default();
        let mut from = "-".to_owned();
        while !from.is_empty() && found.entries.is_empty() {
            let call = self.call(&script::RECOVER).arg("consumer", consumer).arg("from", &from);
            let call = call.arg("look", LOOK).arg("give", count).arg("bytes", BYTES);
            let reply = link.script(&call.arg("in_flight", in_flight)).await?;
            from = self.shaped("recover", recover_reply(reply, &mut found.entries, &mut found.lost))?;
        }
        found.more = !from.is_empty();
        Ok(found)
    }

    /// Marks claimed tasks as PROCESSING by `plugin` (`name@digest`). Returns one answer for each task.
    pub async fn begin(&self, consumer: &str, plugin: &str, tasks: &[Start<'_>]) -> QueueResult<Vec<Begun>> {
        let no_holders = vec![None; tasks.len()];
        let mut answers = self.begin_beside(consumer, plugin, tasks, &no_holders).await?;
        // A second call is for tasks whose key another task has. By the status of that holder it checks
        // whether the holder can still run.
        let (mut places, mut again, mut holders) = (Vec::new(), Vec::new(), Vec::new());
        for (n, answer) in answers.iter().enumerate() {
            if let Err(holder) = answer {
                places.push(n);
                again.push(tasks[n].clone());
                holders.push(Some(holder.clone()));
            }
        }
        if !again.is_empty() {
            let second = self.begin_beside(consumer, plugin, &again, &holders).await?;
            for (n, answer) in places.into_iter().zip(second) {
                answers[n] = answer;
            }
        }
        let known =
            |answer: BeginAnswer| answer.map_err(|_| QueueError::unexpected("begin", self.link.address()));
        answers.into_iter().map(known).collect()
    }

    /// Calls the script once. `holders` has for each task the one that has its idempotency key, if known.
    async fn begin_beside(
        &self,
        consumer: &str,
        plugin: &str,
        tasks: &[Start<'_>],
        holders: &[Option<String>],
    ) -> QueueResult<Vec<BeginAnswer>> {
        debug_assert_eq!(tasks.len(), holders.len());
        let (keys, rules) = (&self.keys, &self.rules);
        let call = self
            .call(&script::BEGIN)
            .arg("consumer", consumer)
            .arg("plugin", plugin)
            .arg("lease", millis(rules.lease));
        let mut call = call.arg("max_crashes", rules.max_crashes);
        for (task, holder) in tasks.iter().zip(holders) {
            let holder = holder.as_ref().map_or_else(|| keys.stream.clone(), |holder| keys.task(holder));
            call = call
                .key("status", keys.task(task.id))
                .key("marker", keys.marker(task.key))
                .key("holder", holder)
                .arg("entry", task.entry)
                .arg("attempt", task.attempt)
                .arg("enqueued_at", task.enqueued_at_ms)
                .arg("id", task.id)
                .arg("held", millis(task.held))
                .arg("crashes", task.crashes)
                .arg("alone", u8::from(task.alone))
                .arg("fence", task.fence)
                .arg("again", u8::from(task.again));
        }
        let reply = self.link.script(&call).await?;
        self.shaped("begin", begin_reply(reply, tasks))
    }

    /// Renews leases. Returns one answer for each task.
    pub async fn heartbeat(&self, consumer: &str, beats: &[HeartbeatReport]) -> QueueResult<Vec<Lease>> {
        let call = self.call(&script::HEARTBEAT).arg("consumer", consumer);
        let mut call = call.arg("lease", millis(self.rules.lease));
        for beat in beats {
            let (percent, note) = beat
                .progress
                .as_ref()
                .map_or((String::new(), ""), |(percent, note)| (percent.to_string(), note));
            call = call
                .key("status", self.keys.task(&beat.task_id))
                .key("marker", self.keys.marker(beat.key.as_deref()))
                .arg("entry", &beat.entry)
                .arg("id", &beat.task_id)
                .arg("percent", percent)
                .arg("note", note);
        }
        let reply = self.link.script(&call).await?;
        self.shaped("heartbeat", heartbeat_reply(reply, beats.len()))
    }

    /// Removes `consumer`, which settled in `lanes` lanes, from the group, unless it has pending entries.
    pub async fn leave(&self, consumer: &str, lanes: usize) -> QueueResult {
        self.link.script(&self.leaving(consumer, lanes)).await.map(drop)
    }

    /// The call that removes a consumer, and the last replies to its settlements in each of its lanes.
    pub(crate) fn leaving(&self, consumer: &str, lanes: usize) -> ScriptCall {
        let call = self.call(&script::LEAVE);
        let settled = |lane| self.keys.settled(consumer, lane);
        let call = (0..lanes).fold(call, |call, lane| call.key("replies", settled(lane)));
        call.arg("consumer", consumer)
    }
}

/// The script's answer for one task that is to begin. An error is the id of the task that has its
/// idempotency key: the script has to be called again with the status of that task.
type BeginAnswer = Result<Begun, String>;

fn begin_reply(reply: Value, tasks: &[Start<'_>]) -> Shaped<Vec<BeginAnswer>> {
    let begun = |(item, start): (Value, &Start<'_>)| match item {
        Value::Int(0) => Ok(Ok(Begun::Lost)),
        Value::Int(1) => Ok(Ok(Begun::Owned { fence: start.fence })),
        Value::Int(2) => Ok(Ok(Begun::Cancelled)),
        Value::Int(3) => Ok(Ok(Begun::Duplicate)),
        Value::Int(4) => Ok(Ok(Begun::Gone)),
        Value::Int(5) => Ok(Ok(Begun::Crashed)),
        Value::Int(6) => Ok(Ok(Begun::PutOff)),
        Value::Int(_) => Err(UnexpectedShape),
        Value::Array(_) => {
            let [code, what] = reply::tuple(item)?;
            Ok(Ok(match reply::int(&code)? {
                0 => Begun::Refused(reply::text(what)?),
                _ => Begun::Owned { fence: reply::count(&what)? },
            }))
        }
        holder => reply::text(holder).map(Err),
    };
    let found = reply::array(reply)?;
    if found.len() != tasks.len() {
        return Err(UnexpectedShape);
    }
    found.into_iter().zip(tasks).map(begun).collect()
}

fn heartbeat_reply(reply: Value, beats: usize) -> Shaped<Vec<Lease>> {
    let lease = |item: Value| match item {
        Value::Int(0) => Ok(Lease::Lost),
        Value::Int(1) => Ok(Lease::Renewed),
        Value::Int(2) => Ok(Lease::Cancelled),
        Value::Int(3) => Ok(Lease::Deleted),
        Value::Int(4) => Ok(Lease::Gone),
        Value::Int(_) => Err(UnexpectedShape),
        why => reply::text(why).map(Lease::Refused),
    };
    let found = reply::array(reply)?;
    if found.len() == beats { found.into_iter().map(lease).collect() } else { Err(UnexpectedShape) }
}

/// Whether a host wrote this entry, by what the status of its task says. A task without a status counts if it
/// joins a flow (`has_flow`), because only hosts make those.
fn is_of_host(entry: &str, reply: Value, has_flow: bool) -> Shaped<bool> {
    let [status, known, member, produced] = reply::tuple::<4>(reply)?.map(reply::optional);
    let Some(status) = status? else { return Ok(has_flow) };
    let is_live = Status::parse(status.as_bytes()).is_some_and(|is| !is.is_end());
    let (known, member, produced) = (known?, member?, produced?);
    let is_named = known.as_deref().map_or(member.is_none(), |known| known == entry);
    Ok(is_live && is_named && produced.as_deref() != Some(entry))
}

fn read_reply(reply: Value) -> Shaped<Vec<StreamEntry>> {
    let mut entries = Vec::new();
    for stream in reply::array(reply)? {
        let [_, found] = reply::tuple(stream)?;
        entries.extend(reply::stream_entries(found)?);
    }
    Ok(entries)
}

fn reclaim_reply(reply: Value) -> Shaped<Reclaimed> {
    let [cursor, found, lost, held] = reply::tuple(reply)?;
    let entry = |item| delivered(item)?.map_err(|_| UnexpectedShape);
    Ok(Reclaimed {
        cursor: reply::text(cursor)?,
        entries: reply::each(found, entry)?,
        lost: reply::each(lost, reply::text)?,
        held: held_reply(held)?,
    })
}

/// Adds what one call found. Returns the id at which the next call begins; empty at the end.
fn recover_reply(reply: Value, entries: &mut Vec<StreamEntry>, lost: &mut Vec<String>) -> Shaped<String> {
    let [next, found] = reply::tuple(reply)?;
    for item in reply::array(found)? {
        match delivered(item)? {
            Ok(entry) => entries.push(entry),
            Err(id) => lost.push(id),
        }
    }
    reply::text(next)
}

/// Reads `{ id, fields, deliveries }`. The inner error is the id of an entry whose fields are gone.
fn delivered(item: Value) -> Shaped<Result<StreamEntry, String>> {
    let [id, fields, deliveries] = reply::tuple(item)?;
    let id = reply::text(id)?;
    if matches!(fields, Value::Nil) {
        return Ok(Err(id));
    }
    let deliveries = u32::try_from(reply::count(&deliveries)?).unwrap_or(u32::MAX);
    Ok(Ok(StreamEntry { id, fields: reply::pairs(fields)?, deliveries }))
}
