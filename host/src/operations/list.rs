//! Lists tasks by state, with filters.
//!
//! In: a state, a filter, and where to begin. Out: the tasks that match, how many places were looked at, and
//! a cursor where the list goes on. A list looks at a bounded number of tasks for a bounded time, so a filter
//! that few tasks match may give an empty list with a cursor. With fields it ends after some MiB, too.
//!
//! Not here: reading a page (`queue::listing`).

use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;
use utoipa::ToSchema;

use super::cursor::{self, BadCursor};
use super::error::{OperationError, OperationResult};
use super::json::FieldView;
use super::paging;
use super::sample::columns;
use crate::mask::FieldMask;
use crate::queue::events::EventPlace;
use crate::queue::listing::{FoundTask, ListedPage, ListedState};
use crate::queue::repeat::patiently;
use crate::queue::{Queue, TaskFilter, TaskSummary};

/// The most tasks that one call looks at.
const LOOKS: usize = 5_000;
/// For how long it looks at most.
const TIME: Duration = Duration::from_secs(3);
/// A list with fields ends behind the task with which its fields reach this number of bytes.
pub(super) const FIELD_BYTES: usize = 8 << 20;

/// The order for a list.
#[derive(Debug, Clone)]
pub(crate) struct ListRequest {
    pub state: ListedState,
    pub filter: TaskFilter,
    pub cursor: Option<String>,
    pub limit: usize,
    /// Whether the producer's fields are shown. They may be large.
    pub with_fields: bool,
}

/// Tasks of one state.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TaskList {
    pub tasks: Vec<ListedTask>,
    /// How many places were looked at.
    pub examined: usize,
    /// The cursor with which the list goes on; null at its end.
    pub next: Option<String>,
}

/// A task in a list. An unknown value is null. Times are milliseconds since the Unix epoch, by Redis's clock.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ListedTask {
    #[serde(flatten)]
    pub summary: TaskSummary,
    /// Its entry in the stream or among the dead letters.
    pub entry: Option<String>,
    /// Why it is dead.
    pub reason: Option<String>,
    /// Milliseconds since the host that runs it was last heard of.
    pub idle_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fields: Option<Vec<FieldView>>,
    /// The values of the fields that the queue's `show` names, for tables.
    #[serde(skip)]
    pub columns: Vec<Option<String>>,
}

impl TaskList {
    pub(crate) fn masked(mut self, mask: &FieldMask) -> TaskList {
        FieldView::mask(self.tasks.iter_mut().flat_map(|task| task.fields.iter_mut().flatten()), mask);
        self
    }
}

impl ListedTask {
    fn new(queue: &Queue, task: FoundTask, with_fields: bool, mask: &FieldMask) -> ListedTask {
        let columns = columns(queue, &task.fields, mask);
        let FoundTask { entry, mut summary, reason, idle_ms, fields, .. } = task;
        summary.error = summary.error.filter(|error| !error.is_empty());
        let fields = with_fields.then(|| FieldView::all(&fields));
        ListedTask { summary, entry, reason, idle_ms, fields, columns }
    }
}

/// Lists the tasks of a queue.
pub(crate) async fn list(queue: &Queue, request: &ListRequest) -> OperationResult<TaskList> {
    let state = request.state;
    if state == ListedState::Ended && queue.rules.events == 0 {
        return Err(OperationError::NoEvents(queue.rules.name.clone()));
    }
    let kind: &str = state.into_str();
    let begin = request.cursor.as_deref().map(|cursor| position(state, cursor)).transpose()?;
    // Events are in the order of time: those up to a moment begin there, and end where earlier ones begin.
    let is_timed = state == ListedState::Ended;
    let latest = request.filter.to_ms.filter(|_| is_timed && begin.is_none());
    let begin = begin.or(latest.map(|to_ms| EventPlace::before_ms(to_ms.saturating_add(1)).to_string()));
    let mut walk = TaskWalk::new(state, begin, request.limit);
    let now_ms = patiently(|| queue.now_ms()).await?;
    let mut list = TaskList { tasks: Vec::new(), examined: 0, next: None };
    let (end, mut bytes) = (Instant::now() + TIME, 0);
    while let Some(page) = walk.page(queue).await? {
        list.examined += page.examined;
        for task in page.tasks {
            if is_timed && request.filter.from_ms.is_some_and(|from| task.at_ms < Some(from)) {
                return Ok(list);
            }
            if !request.filter.takes(&task.traits(), now_ms) {
                continue;
            }
            let position = task.position.clone();
            bytes += if request.with_fields { task.bytes() } else { 0 };
            let task = ListedTask::new(queue, task, request.with_fields, &request.filter.mask);
            list.tasks.push(task);
            if list.tasks.len() >= request.limit || bytes >= FIELD_BYTES {
                list.next = Some(cursor::write(kind, &[&position]));
                return Ok(list);
            }
        }
        if list.examined >= LOOKS || Instant::now() >= end {
            list.next = walk.position().map(|position| cursor::write(kind, &[position]));
            break;
        }
    }
    Ok(list)
}

/// The position in a cursor of a list of this state.
pub(super) fn position(state: ListedState, cursor: &str) -> OperationResult<String> {
    let [position] = cursor::read(state.into_str(), cursor)?;
    let is_good = match state {
        ListedState::Delayed | ListedState::Held => {
            position.split_once(' ').is_some_and(|(due, _)| due.parse::<f64>().is_ok_and(f64::is_finite))
        }
        ListedState::Ended => EventPlace::parse(&position).is_some(),
        _ => cursor::is_place(&position) && position.as_bytes().first().is_some_and(u8::is_ascii_digit),
    };
    if is_good { Ok(position) } else { Err(BadCursor.into()) }
}

/// Reads the tasks of one state page by page. A page is smaller where the tasks are large.
#[derive(Debug)]
pub(super) struct TaskWalk {
    state: ListedState,
    /// The position behind which the next page begins. None: at the beginning.
    after: Option<String>,
    is_over: bool,
    count: usize,
}

impl TaskWalk {
    /// `wanted` tasks are enough.
    pub(super) fn new(state: ListedState, after: Option<String>, wanted: usize) -> TaskWalk {
        TaskWalk { state, after, is_over: false, count: wanted.clamp(1, paging::FIRST) }
    }

    /// The next page; none when there is no other one.
    pub(super) async fn page(&mut self, queue: &Queue) -> OperationResult<Option<ListedPage>> {
        if self.is_over {
            return Ok(None);
        }
        let mut page = patiently(|| queue.listed(self.state, self.after.as_deref(), self.count)).await?;
        let bytes: usize = page.tasks.iter().map(FoundTask::bytes).sum();
        self.count = paging::next(self.count, bytes);
        self.is_over = page.next.is_none();
        self.after = page.next.take().or_else(|| self.after.take());
        Ok(Some(page))
    }

    /// Where the next page begins; none when there is no other one.
    pub(super) fn position(&self) -> Option<&str> {
        self.after.as_deref().filter(|_| !self.is_over)
    }
}
