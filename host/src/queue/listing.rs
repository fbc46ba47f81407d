//! Lists the tasks of a queue by state, a page at a time, from the structures that hold them.
//!
//! | state | read from | in the order of |
//! |---|---|---|
//! | queued | the stream behind the last delivered entry | entries |
//! | running | the group's pending entries | entries |
//! | delayed, held | the delayed tasks | due times |
//! | dead | the dead letters | entries, the newest first |
//! | ended | the events, if the queue keeps some | events, the newest first |
//!
//! In: a state, and the position behind which the page begins. Out: tasks, each with its position. One call
//! reads one page. Not here: filters over many pages (`operations`).

use redis::{Cmd, Value};
use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantNames};
use utoipa::ToSchema;

use super::codec::{self, RawFields, StreamEntry};
use super::dead::DeadLetter;
use super::error::QueueResult;
use super::events::{EventPlace, TaskEvent};
use super::filter::Traits;
use super::handle::Queue;
use super::reply::{self, UnexpectedShape};
use super::script;
use super::status::{Status, TaskSummary};
use super::turns::HELD;

/// The state of the tasks in a list.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    EnumString,
    IntoStaticStr,
    VariantNames,
    Serialize,
    Deserialize,
    ToSchema,
)]
#[strum(serialize_all = "lowercase", const_into_str)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ListedState {
    Queued,
    Running,
    Delayed,
    /// Waiting for the turn of their key.
    Held,
    Dead,
    /// Completed, failed or cancelled lately.
    Ended,
}

/// A task in a list. Times are milliseconds since the Unix epoch, by Redis's clock.
#[derive(Debug, Clone)]
pub(crate) struct FoundTask {
    /// The position behind this task: a list that continues there does not show it again.
    pub position: String,
    /// Its entry in the stream or among the dead letters.
    pub entry: Option<String>,
    pub summary: TaskSummary,
    /// Why it is dead.
    pub reason: Option<String>,
    /// The time that belongs to the state: when the task was queued, was delivered to a host, is due, died or
    /// ended. For a held task, when it was enqueued. None: not known.
    pub at_ms: Option<u64>,
    /// The time from which its age counts: `at_ms`, but for a delayed task, when it was enqueued.
    pub since_ms: Option<u64>,
    /// Milliseconds since the host that runs it last claimed it or renewed its lease.
    pub idle_ms: Option<u64>,
    /// Whether Redis keeps a status of it.
    pub has_status: bool,
    /// The producer's fields.
    pub fields: RawFields,
    /// The host's own fields, of a task that waits or runs.
    pub reserved: RawFields,
}

/// The beginning of the member of a task that waits for its flow; its id follows (`scripts/settle.lua`).
const OF_FLOW: &str = "flow/";

impl FoundTask {
    /// A task whose times are all `at_ms`, without fields.
    fn new(position: String, summary: TaskSummary, at_ms: Option<u64>) -> FoundTask {
        FoundTask {
            position,
            entry: None,
            summary,
            reason: None,
            at_ms,
            since_ms: at_ms,
            idle_ms: None,
            has_status: false,
            fields: Vec::new(),
            reserved: Vec::new(),
        }
    }

    /// The member under which the task is among the delayed tasks. Empty if it is neither delayed nor held.
    pub(crate) fn member(&self) -> &str {
        self.position.split_once(' ').map_or("", |(_, member)| member)
    }

    /// The member under which its fields are parked. None: it is no delayed task, or a flow has its fields.
    pub(super) fn delayed_member(&self) -> Option<&str> {
        Some(self.member()).filter(|member| !member.is_empty() && !member.starts_with(OF_FLOW))
    }

    /// Whether it waits for its flow, which has its fields.
    pub(crate) fn waits_for_flow(&self) -> bool {
        self.member().starts_with(OF_FLOW)
    }

    /// The properties that filters look at.
    pub(crate) fn traits(&self) -> Traits<'_> {
        fn text(text: &Option<String>) -> &str {
            text.as_deref().unwrap_or_default()
        }
        Traits {
            id: &self.summary.id,
            reason: text(&self.reason),
            error: text(&self.summary.error),
            plugin: text(&self.summary.plugin),
            consumer: text(&self.summary.consumer),
            at_ms: self.at_ms,
            since_ms: self.since_ms,
            fields: &self.fields,
        }
    }

    /// When it last came back from the dead letters, if it did and has not ended since then.
    pub(crate) fn requeued_at(&self) -> Option<u64> {
        reply::number_of(&self.reserved, codec::REQUEUED_AT)
    }

    /// The approximate size of all its fields in bytes.
    pub(crate) fn bytes(&self) -> usize {
        codec::bytes_in(&self.fields) + codec::bytes_in(&self.reserved)
    }
}

/// A page of a list.
#[derive(Debug, Default)]
pub(crate) struct ListedPage {
    pub tasks: Vec<FoundTask>,
    /// How many entries or members were read. Some of them may be no task of this state.
    pub examined: usize,
    /// Where the next page begins. None: this was the last one.
    pub next: Option<String>,
}

impl Queue {
    /// Up to `count` tasks of a state, behind this position.
    pub(crate) async fn listed(
        &self,
        state: ListedState,
        after: Option<&str>,
        count: usize,
    ) -> QueueResult<ListedPage> {
        match state {
            ListedState::Queued => self.listed_queued(after, count).await,
            ListedState::Running => self.listed_running(after, count).await,
            ListedState::Delayed => self.listed_delayed(false, after, count).await,
            ListedState::Held => self.listed_delayed(true, after, count).await,
            ListedState::Dead => self.listed_dead(after, count).await,
            ListedState::Ended => self.listed_ended(after, count).await,
        }
    }

    async fn listed_queued(&self, after: Option<&str>, count: usize) -> QueueResult<ListedPage> {
        let delivered = self.last_delivered().await?;
        let after = after.map_or(delivered.as_str(), |after| codec::later(after, &delivered));
        let entries = self.range(&self.keys.stream, &format!("({after}"), "+", count).await?;
        let examined = entries.len();
        let next = entries.last().filter(|_| examined == count).map(|last| last.id.clone());
        let queued = |entry: StreamEntry| {
            let at_ms = codec::entry_time_ms(&entry.id);
            found(entry, Status::Pending, Some(at_ms))
        };
        let tasks = self.with_statuses(entries.into_iter().map(queued).collect()).await?;
        Ok(ListedPage { tasks, examined, next })
    }

    /// The entry at the end of the stream; `0-0` when it is empty.
    pub(crate) async fn last_queued(&self) -> QueueResult<String> {
        self.last_entry(&self.keys.stream).await
    }

    async fn listed_running(&self, after: Option<&str>, count: usize) -> QueueResult<ListedPage> {
        const WHAT: &str = "list running tasks";
        let from = after.map_or_else(|| "-".to_owned(), |after| format!("({after}"));
        let keys = &self.keys;
        let asked = [
            redis::cmd("TIME"),
            redis::cmd("XPENDING")
                .arg(&keys.stream)
                .arg(&self.rules.group)
                .arg(from)
                .arg("+")
                .arg(count)
                .to_owned(),
        ];
        let replies = self.link.pipeline(WHAT, &asked).await?;
        let [time, pending] = self.shaped(WHAT, replies.try_into().map_err(|_| UnexpectedShape))?;
        let now_ms = self.shaped(WHAT, reply::time_ms(time?))?;
        let pending = self.pending(WHAT, pending)?;
        let ask = |pending: &PendingEntry| {
            redis::cmd("XRANGE").arg(&keys.stream).arg(&pending.entry).arg(&pending.entry).to_owned()
        };
        let replies = self.link.pipeline(WHAT, &pending.iter().map(ask).collect::<Vec<Cmd>>()).await?;
        let examined = pending.len();
        let next = pending.last().filter(|_| examined == count).map(|last| last.entry.clone());
        let mut tasks = Vec::new();
        for (PendingEntry { entry, consumer, idle_ms }, reply) in pending.into_iter().zip(replies) {
            // The stream may have no entry for it any more.
            let found_entry = self.shaped(WHAT, reply::stream_entries(reply?))?.pop();
            let fields = found_entry.map(|entry| entry.fields).unwrap_or_default();
            let entry = StreamEntry { id: entry, fields, deliveries: 1 };
            let mut task = found(entry, Status::Processing, Some(now_ms.saturating_sub(idle_ms)));
            task.idle_ms = Some(idle_ms);
            task.summary.consumer = Some(consumer);
            tasks.push(task);
        }
        let mut tasks = self.with_statuses(tasks).await?;
        for task in &mut tasks {
            task.at_ms = task.summary.started_at.or(task.at_ms);
            task.since_ms = task.at_ms;
        }
        Ok(ListedPage { tasks, examined, next })
    }

    async fn listed_delayed(&self, held: bool, after: Option<&str>, count: usize) -> QueueResult<ListedPage> {
        let (due, member) = after.and_then(|after| after.split_once(' ')).unwrap_or_default();
        let call = self.call(&script::LISTED).arg("is_held", u8::from(held));
        let call = call.arg("due", due).arg("member", member).arg("count", count);
        let parked = reply::each(self.link.script(&call).await?, |item| {
            let [member, due, fields] = reply::tuple(item)?;
            Ok((reply::text(member)?, reply::text(due)?, reply::pairs(fields)?))
        });
        let items = self.shaped("list delayed tasks", parked)?;
        let examined = items.len();
        let position = |member: &str, due: &str| format!("{due} {member}");
        let next = items.last().filter(|_| examined == count).map(|(member, due, _)| position(member, due));
        let delayed = |(member, due, fields): (String, String, RawFields)| {
            let due_at = due.parse::<f64>().map_or(0, |ms| ms as u64);
            // A parked task has its id among its fields. If they cannot be read, the member stands for the
            // id.
            let enqueued_at = reply::number_of(&fields, "tq-enqueued-at");
            let id = member.strip_prefix(OF_FLOW).unwrap_or(&member).to_owned();
            let entry = StreamEntry { id, fields, deliveries: 1 };
            let mut task = found(entry, Status::Pending, (!held).then_some(due_at));
            (task.entry, task.position) = (None, position(&member, &due));
            (task.summary.enqueued_at, task.since_ms) = (enqueued_at, enqueued_at);
            task
        };
        let mut tasks = self.with_statuses(items.into_iter().map(delayed).collect()).await?;
        for task in &mut tasks {
            task.summary.due_at = task.at_ms;
            task.since_ms = task.since_ms.or(task.summary.enqueued_at);
            if held {
                task.at_ms = task.since_ms;
            }
        }
        Ok(ListedPage { tasks, examined, next })
    }

    async fn listed_dead(&self, after: Option<&str>, count: usize) -> QueueResult<ListedPage> {
        let letters = self.newest_dead(after, count).await?;
        let next = letters.last().filter(|_| letters.len() == count).map(|last| last.entry.clone());
        let examined = letters.len();
        Ok(ListedPage { tasks: letters.into_iter().map(dead).collect(), examined, next })
    }

    /// Up to `count` dead letters, the newest first, behind this entry.
    pub(crate) async fn newest_dead(
        &self,
        after: Option<&str>,
        count: usize,
    ) -> QueueResult<Vec<DeadLetter>> {
        let from = after.map_or_else(|| "+".to_owned(), |after| format!("({after}"));
        let page = self.range_back(&self.keys.dead, &from, count).await?;
        Ok(page.into_iter().map(DeadLetter::read).collect())
    }

    async fn listed_ended(&self, after: Option<&str>, count: usize) -> QueueResult<ListedPage> {
        let after = after.and_then(EventPlace::parse);
        let (events, examined, next) = self.events_before(after.as_ref(), count).await?;
        let ended = |event: TaskEvent| {
            let TaskEvent { place, id, status, attempt, .. } = event;
            let at_ms = codec::entry_time_ms(&place.entry);
            let summary = TaskSummary { attempt, finished_at: Some(at_ms), ..TaskSummary::new(&id, status) };
            status.is_end().then(|| FoundTask::new(place.to_string(), summary, Some(at_ms)))
        };
        let tasks = self.with_statuses(events.into_iter().filter_map(ended).collect()).await?;
        Ok(ListedPage { tasks, examined, next: next.map(|place| place.to_string()) })
    }

    /// Finds a task that has not ended. Its status names the place where it is. A task without a status is
    /// looked for among the first entries of the stream. None: it is not found there.
    pub(crate) async fn located(&self, id: &str) -> QueueResult<Option<(ListedState, FoundTask)>> {
        const WHAT: &str = "look for a task";
        let ask = redis::cmd("HMGET").arg(self.keys.task(id)).arg(&["entry", "parked_as"]).to_owned();
        let [entry, member] = self
            .link
            .read(WHAT, &ask, reply::tuple)
            .await?
            .map(|place| reply::optional(place).ok().flatten());
        let entry = match entry {
            Some(entry) => self.range(&self.keys.stream, &entry, &entry, 1).await?.pop(),
            None => None,
        };
        let entry = entry.filter(|entry| codec::id_of(entry) == id);
        if entry.is_none()
            && let Some(member) = member
            && let Some(found) = self.located_delayed(&member).await?
        {
            return Ok(Some(found));
        }
        let entry = match entry {
            Some(entry) => entry,
            None => match self.find_queued(id).await? {
                Some(entry) => entry,
                None => return Ok(None),
            },
        };
        let mut ask = redis::cmd("XPENDING");
        ask.arg(&self.keys.stream).arg(&self.rules.group).arg(&entry.id).arg(&entry.id).arg(1);
        let pending = self.pending(WHAT, self.link.command(WHAT, &ask).await)?;
        let state = if pending.is_empty() { ListedState::Queued } else { ListedState::Running };
        let at_ms = codec::entry_time_ms(&entry.id);
        let task = found(entry, Status::Pending, Some(at_ms));
        Ok(self.with_statuses(vec![task]).await?.pop().map(|task| (state, task)))
    }

    /// The delayed or held task with this member.
    async fn located_delayed(&self, member: &str) -> QueueResult<Option<(ListedState, FoundTask)>> {
        const WHAT: &str = "look for a task";
        let delayed = &self.keys.delayed;
        let rank = self.link.command(WHAT, redis::cmd("ZRANK").arg(delayed).arg(member)).await?;
        if rank == Value::Nil {
            return Ok(None);
        }
        let rank = self.shaped(WHAT, reply::count(&rank))?;
        // The list begins behind the member before this one.
        let mut ask = redis::cmd("ZRANGE");
        ask.arg(delayed).arg(rank.saturating_sub(1)).arg(rank).arg("WITHSCORES");
        let around = self.link.read(WHAT, &ask, reply::pairs).await?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let Some((_, due)) = around.iter().find(|(known, _)| known == member.as_bytes()) else {
            return Ok(None);
        };
        let before = around.first().filter(|(known, _)| known != member.as_bytes());
        let after = before.map(|(member, due)| format!("{} {}", text(due), text(member)));
        let held = text(due) == HELD;
        let page = self.listed_delayed(held, after.as_deref(), 1).await?;
        let state = if held { ListedState::Held } else { ListedState::Delayed };
        let found = page.tasks.into_iter().next().filter(|task| task.member() == member);
        Ok(found.map(|task| (state, task)))
    }

    /// Adds what the statuses of these tasks tell, except the state: a task may have moved on since the list
    /// was read.
    async fn with_statuses(&self, mut tasks: Vec<FoundTask>) -> QueueResult<Vec<FoundTask>> {
        const WHAT: &str = "read tasks' statuses";
        let ask = |task: &FoundTask| {
            redis::cmd("HMGET").arg(self.keys.task(&task.summary.id)).arg(&TaskSummary::FIELDS).to_owned()
        };
        let replies = self.link.pipeline(WHAT, &tasks.iter().map(ask).collect::<Vec<Cmd>>()).await?;
        for (task, reply) in tasks.iter_mut().zip(replies) {
            // There may be a key of another type in the place of a status.
            let Ok(reply) = reply else { continue };
            let values = reply::each(reply, |value| match value {
                Value::Nil => Ok(None),
                value => reply::bytes(value).map(Some),
            });
            let known = TaskSummary::FIELDS.iter().zip(self.shaped(WHAT, values)?);
            let field = |(name, value): (&&str, Option<Vec<u8>>)| Some((name.as_bytes().to_vec(), value?));
            let fields: RawFields = known.filter_map(field).collect();
            let Some(known) = TaskSummary::read(&task.summary.id, &fields) else { continue };
            let TaskSummary { status, consumer, finished_at, attempt, .. } = task.summary.clone();
            let runs = status == Status::Processing;
            task.has_status = true;
            task.summary = TaskSummary {
                status,
                consumer: if runs { consumer } else { known.consumer },
                finished_at,
                attempt: if status.is_end() { attempt } else { known.attempt },
                ..known
            };
        }
        Ok(tasks)
    }

    /// Reads a reply of XPENDING. Without the group no entry is pending.
    fn pending(&self, what: &'static str, reply: QueueResult<Value>) -> QueueResult<Vec<PendingEntry>> {
        let reply = match reply {
            Err(error) if error.is_no_group() => return Ok(Vec::new()),
            reply => reply?,
        };
        let pending = reply::each(reply, |item| {
            let [entry, consumer, idle, _] = reply::tuple(item)?;
            let (entry, consumer) = (reply::text(entry)?, reply::text(consumer)?);
            Ok(PendingEntry { entry, consumer, idle_ms: reply::count(&idle)? })
        });
        self.shaped(what, pending)
    }
}

/// An entry that was delivered to a consumer and is not settled.
struct PendingEntry {
    entry: String,
    consumer: String,
    idle_ms: u64,
}

/// The task of an entry.
fn found(entry: StreamEntry, status: Status, at_ms: Option<u64>) -> FoundTask {
    let mut summary = TaskSummary::new(&codec::id_of(&entry), status);
    summary.attempt = reply::number_of(&entry.fields, "tq-attempt").unwrap_or(1);
    let enqueued_at = reply::number_of(&entry.fields, "tq-enqueued-at");
    summary.enqueued_at = enqueued_at.or_else(|| Some(codec::entry_time_ms(&entry.id)));
    let is_reserved = |(name, _): &(Vec<u8>, _)| std::str::from_utf8(name).is_ok_and(codec::is_of_host);
    let (reserved, fields) = entry.fields.into_iter().partition(is_reserved);
    let position = entry.id.clone();
    FoundTask { entry: Some(entry.id), fields, reserved, ..FoundTask::new(position, summary, at_ms) }
}

fn dead(letter: DeadLetter) -> FoundTask {
    let some = |text: String| Some(text).filter(|text| !text.is_empty());
    let time = |ms: u64| Some(ms).filter(|ms| *ms > 0);
    let summary = TaskSummary {
        attempt: letter.attempts,
        error: some(letter.error),
        plugin: some(letter.plugin),
        consumer: some(letter.consumer),
        enqueued_at: time(letter.enqueued_at),
        finished_at: time(letter.failed_at),
        ..TaskSummary::new(&letter.id, Status::Failed)
    };
    FoundTask {
        reason: some(letter.reason),
        fields: letter.fields,
        entry: Some(letter.entry.clone()),
        ..FoundTask::new(letter.entry, summary, time(letter.failed_at))
    }
}
