//! Reads the state of a task.
//!
//! In: a task's id. Out: a [`TaskStatus`], from the task's status key, or else from the place where the task
//! is found: the stream or the dead letters.
//!
//! Not here: writing a status (the scripts do).

use std::borrow::Cow;

use serde::Serialize;
use strum::{EnumString, IntoStaticStr};
use utoipa::ToSchema;

use super::codec;
use super::error::QueueResult;
use super::handle::Queue;
use super::kept::{self, KeptFields};
use super::reply;
use super::search::Search;
use crate::effects::{Flow, OutboxTask};

/// The tasks of an outbox that a status names.
const MOST_SENT: usize = 20;

/// A task's status, as clients see it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, EnumString, IntoStaticStr, Serialize)]
#[strum(serialize_all = "UPPERCASE", const_into_str)]
#[serde(into = "&'static str")]
pub enum Status {
    /// Queued or delayed.
    #[default]
    Pending,
    Processing,
    Completed,
    Failed,
    Cancelled,
}

impl Status {
    /// Whether the task has ended.
    pub fn is_end(self) -> bool {
        matches!(self, Status::Completed | Status::Failed | Status::Cancelled)
    }

    /// Reads the name of a status. None: there is no such status.
    pub(crate) fn parse(text: &[u8]) -> Option<Status> {
        std::str::from_utf8(text).ok()?.parse().ok()
    }
}

/// A task, and its queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = RelatedTask)]
pub struct TaskName {
    /// The name of its queue.
    pub queue: String,
    pub id: String,
}

impl TaskName {
    /// Reads `QUEUE ID`.
    pub(super) fn read(text: &str) -> Option<TaskName> {
        let (queue, id) = text.split_once(' ')?;
        Some(TaskName { queue: queue.to_owned(), id: id.to_owned() })
    }

    /// The tasks that a handler enqueued, as a field of the status of its task: their number, and a line for
    /// each of the first ones. None without tasks.
    pub(super) fn sent(tasks: &[OutboxTask]) -> Option<String> {
        let mut text = tasks.len().to_string();
        for task in tasks.iter().take(MOST_SENT) {
            text += &format!("\n{} {}", task.queue, task.id);
        }
        Some(text).filter(|_| !tasks.is_empty())
    }

    /// Reads what [`TaskName::list`] wrote.
    pub(super) fn read_list(text: &str) -> Vec<TaskName> {
        text.lines().filter_map(TaskName::read).collect()
    }

    /// The tasks that join these flows, as a field of the status of the task that starts the flows: a line
    /// for each. None without flows.
    pub(super) fn list(flows: &[Flow]) -> Option<String> {
        let line = |flow: &Flow| format!("{} {}", flow.then.queue, flow.then.id);
        (!flows.is_empty()).then(|| flows.iter().map(line).collect::<Vec<_>>().join("\n"))
    }
}

/// How far a flow is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowProgress {
    /// Children that have completed.
    pub completed: u64,
    /// All children.
    pub children: u64,
}

/// The part of a task's status that lists show, too. Times are milliseconds since the Unix epoch, by Redis's
/// clock.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct TaskSummary {
    pub id: String,
    /// PENDING, PROCESSING, COMPLETED, FAILED or CANCELLED.
    #[schema(value_type = String)]
    pub status: Status,
    /// The attempt that runs now or, if none does, the last or next one.
    pub attempt: u32,
    /// The latest error.
    pub error: Option<String>,
    /// Percent, as the handler last reported.
    pub progress: Option<u8>,
    pub note: Option<String>,
    /// `name@digest` of the version that ran last.
    pub plugin: Option<String>,
    /// The host that runs it, or ran it last.
    pub consumer: Option<String>,
    pub enqueued_at: Option<u64>,
    pub started_at: Option<u64>,
    pub finished_at: Option<u64>,
    /// When a delayed task goes back to the stream.
    pub due_at: Option<u64>,
}

impl TaskSummary {
    /// The fields of a status key that [`TaskSummary::read`] takes.
    pub(super) const FIELDS: [&str; 11] = [
        "status",
        "attempt",
        "error",
        "progress",
        "note",
        "plugin",
        "consumer",
        "enqueued_at",
        "started_at",
        "finished_at",
        "due_at",
    ];

    pub(crate) fn new(id: &str, status: Status) -> TaskSummary {
        TaskSummary { id: id.to_owned(), status, attempt: 1, ..TaskSummary::default() }
    }

    /// Reads the fields of a status key. None: the field `status` is missing, or has an unknown word.
    pub(super) fn read(id: &str, fields: &codec::RawFields) -> Option<TaskSummary> {
        let status = reply::value_of(fields, "status").and_then(Status::parse)?;
        let text = |name| reply::value_of(fields, name).map(String::from_utf8_lossy).map(Cow::into_owned);
        Some(TaskSummary {
            id: id.to_owned(),
            status,
            attempt: reply::number_of(fields, "attempt").unwrap_or(1),
            error: text("error"),
            progress: reply::number_of(fields, "progress"),
            note: text("note").filter(|note| !note.is_empty()),
            plugin: text("plugin"),
            consumer: text("consumer"),
            enqueued_at: reply::number_of(fields, "enqueued_at"),
            started_at: reply::number_of(fields, "started_at"),
            finished_at: reply::number_of(fields, "finished_at"),
            due_at: reply::number_of(fields, "due_at"),
        })
    }
}

/// All information about a task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskStatus {
    pub summary: TaskSummary,
    pub result: Option<Vec<u8>>,
    /// The task with the same idempotency key, because of which this one did not run.
    pub duplicate_of: Option<String>,
    /// Why its flow, or the next task of its key, was not told of its end.
    pub unfinished: Option<String>,
    /// How far the flow is that the task joins.
    pub flow: Option<FlowProgress>,
    /// The key of the flow of which the task is a child.
    pub child_of: Option<String>,
    /// The tasks that join the flows which this task started.
    pub flows: Vec<TaskName>,
    /// How many tasks its handler enqueued, without those of flows.
    pub sent: u64,
    /// The first tasks that its handler enqueued.
    pub first_sent: Vec<TaskName>,
    /// Its fields, if its queue keeps those of tasks that have completed.
    pub fields: Option<KeptFields>,
}

impl TaskStatus {
    /// Reads the fields of a status key. None: the field `status` is missing, or has an unknown word.
    pub(super) fn read(id: &str, fields: codec::RawFields) -> Option<TaskStatus> {
        let mut task = TaskStatus::from(TaskSummary::read(id, &fields)?);
        for (name, value) in fields {
            let text = || String::from_utf8_lossy(&value).into_owned();
            match name.as_slice() {
                b"duplicate_of" => task.duplicate_of = Some(text()),
                b"unfinished" => task.unfinished = Some(text()),
                b"result" => task.result = Some(value),
                b"fields" => task.fields = kept::read(&value).map(KeptFields::Kept),
                b"fields_bytes" => task.fields = text().parse().ok().map(KeptFields::TooLarge),
                b"sent" => {
                    let text = text();
                    let (count, names) = text.split_once('\n').unwrap_or_default();
                    task.sent = count.parse().unwrap_or(0);
                    task.first_sent = TaskName::read_list(names);
                }
                b"flows" => task.flows = TaskName::read_list(&text()),
                b"flow" => task.child_of = text().split_once(' ').map(|(_, flow)| flow.to_owned()),
                _ => {}
            }
        }
        Some(task)
    }
}

impl From<TaskSummary> for TaskStatus {
    fn from(summary: TaskSummary) -> TaskStatus {
        TaskStatus { summary, ..TaskStatus::default() }
    }
}

impl Queue {
    /// The state of the task `id`. None: it never existed, or its status has expired.
    ///
    /// A task from a plain producer has no status key before its first attempt. This call then looks in the
    /// stream (the first 5,000 entries, if the task has an id of its own) and among the dead letters (the
    /// last 5,000), but not further than 64 MiB in each.
    pub async fn status(&self, id: &str) -> QueueResult<Option<TaskStatus>> {
        if let Some(kept) = self.kept_status(id).await? {
            return Ok(Some(kept));
        }
        if self.find_queued(id).await?.is_some() {
            return Ok(Some(TaskSummary::new(id, Status::Pending).into()));
        }
        let dead = self.dead_named(id).await?;
        if let Some(letter) = dead.filter(|letter| letter.id == id) {
            let summary = TaskSummary {
                attempt: letter.attempts,
                error: Some(letter.error),
                plugin: Some(letter.plugin),
                consumer: Some(letter.consumer),
                enqueued_at: Some(letter.enqueued_at),
                finished_at: Some(letter.failed_at),
                ..TaskSummary::new(id, Status::Failed)
            };
            return Ok(Some(summary.into()));
        }
        // It may have begun or ended between these reads.
        self.kept_status(id).await
    }

    /// The fields of a task's status key.
    async fn kept_status(&self, id: &str) -> QueueResult<Option<TaskStatus>> {
        let ask = redis::cmd("HGETALL").arg(self.keys.task(id)).to_owned();
        let fields = self.link.read("read a task's status", &ask, reply::pairs).await?;
        let joins = fields.iter().any(|(name, _)| name == b"joins");
        let Some(status) = TaskStatus::read(id, fields) else { return Ok(None) };
        let flow = if joins { self.flow_progress(id).await? } else { None };
        Ok(Some(TaskStatus { flow, ..status }))
    }

    /// The entry of a task that waits in the stream or runs. None: it is not found within the bounds of a
    /// search.
    pub(super) async fn find_queued(&self, id: &str) -> QueueResult<Option<codec::StreamEntry>> {
        if codec::is_entry_id(id)
            && let Some(entry) = self.range(&self.keys.stream, id, id, 1).await?.pop()
            && codec::id_of(&entry) == id
        {
            return Ok(Some(entry));
        }
        let (mut from, mut search) = ("-".to_owned(), Search::default());
        while let Some(count) = search.page() {
            let page = self.range(&self.keys.stream, &from, "+", count).await?;
            let next = search.looked_at(&page);
            if let Some(entry) = page.into_iter().find(|entry| codec::id_of(entry) == id) {
                return Ok(Some(entry));
            }
            let Some(next) = next else { break };
            from = next;
        }
        Ok(None)
    }

    /// Up to `count` entries of a stream, from `first` to `last`.
    pub(crate) async fn range(
        &self,
        stream: &str,
        first: &str,
        last: &str,
        count: usize,
    ) -> QueueResult<Vec<codec::StreamEntry>> {
        let mut range = redis::cmd("XRANGE");
        range.arg(stream).arg(first).arg(last).arg("COUNT").arg(count);
        self.link.read("read a stream", &range, reply::stream_entries).await
    }
}
