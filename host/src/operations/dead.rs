//! Dead letters: lists of them, the newest first; requeue and purge in steps.
//!
//! In: filters or ids, what becomes of the dead letters, a cursor. Out: views, or counts and the cursor where
//! the operation goes on. Not here: how Redis carries a step out (`queue::redrive`).

use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;
use utoipa::ToSchema;

use super::cursor::{self, BadCursor};
use super::error::OperationError;
use super::json::FieldView;
use super::list::FIELD_BYTES;
use super::paging;
use super::patience::patiently;
use super::sample::{TaskSample, columns};
use crate::mask::FieldMask;
use crate::queue::redrive::{DeadWalk, NamedWalk, Redrive, Redrove, StepBudget};
use crate::queue::{DeadLetter, Queue, TaskFilter};

/// The most dead letters that one list looks at, and for how long.
const LOOKS: usize = 5_000;
const LIST_TIME: Duration = Duration::from_secs(3);
/// The most dead letters that one step of an operation looks at, and for how long.
const STEP: u64 = 10_000;
const STEP_TIME: Duration = Duration::from_secs(10);
const LIST_KIND: &str = "dead-letters";
const STEP_KIND: &str = "redrive";
const NAMED_KIND: &str = "redrive-named";

/// A dead letter. The names are stable. Times are milliseconds since the Unix epoch.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeadView {
    pub id: String,
    /// The id of the dead letter's own entry.
    pub entry: String,
    pub queue: String,
    pub reason: String,
    pub error: String,
    pub attempts: u32,
    pub enqueued_at: u64,
    pub failed_at: u64,
    pub consumer: String,
    pub plugin: String,
    /// Only where it was asked for: fields may be large.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fields: Option<Vec<FieldView>>,
    /// The values of the fields that the queue's `show` names, for tables.
    #[serde(skip)]
    pub columns: Vec<Option<String>>,
}

impl DeadView {
    pub(crate) fn new(letter: &DeadLetter, with_fields: bool) -> DeadView {
        DeadView {
            id: letter.id.clone(),
            entry: letter.entry.clone(),
            queue: letter.queue.clone(),
            reason: letter.reason.clone(),
            error: letter.error.clone(),
            attempts: letter.attempts,
            enqueued_at: letter.enqueued_at,
            failed_at: letter.failed_at,
            consumer: letter.consumer.clone(),
            plugin: letter.plugin.clone(),
            fields: with_fields.then(|| FieldView::all(&letter.fields)),
            columns: Vec::new(),
        }
    }
}

/// Dead letters, the newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeadList {
    pub dead: Vec<DeadView>,
    /// How many dead letters were looked at.
    pub examined: usize,
    /// The cursor with which the list goes on; null at its end.
    pub next: Option<String>,
}

impl DeadList {
    pub(crate) fn masked(mut self, mask: &FieldMask) -> DeadList {
        FieldView::mask(self.dead.iter_mut().flat_map(|dead| dead.fields.iter_mut().flatten()), mask);
        self
    }
}

/// Lists dead letters that match, the newest first.
pub(crate) async fn dead_list(
    queue: &Queue,
    filter: &TaskFilter,
    cursor: Option<&str>,
    limit: usize,
    with_fields: bool,
) -> Result<DeadList, OperationError> {
    let mut after = cursor.map(|cursor| cursor::read_entry(LIST_KIND, cursor)).transpose()?;
    let now_ms = patiently(|| queue.now_ms()).await?;
    let mut list = DeadList { dead: Vec::new(), examined: 0, next: None };
    let (mut count, end) = (limit.clamp(1, paging::FIRST), Instant::now() + LIST_TIME);
    let write = |entry: &str| Some(cursor::write(LIST_KIND, &[entry]));
    let mut field_bytes = 0;
    loop {
        let page = patiently(|| queue.newest_dead(after.as_deref(), count)).await?;
        let Some(last) = page.last().map(|last| last.entry.clone()) else { return Ok(list) };
        let is_over = page.len() < count;
        let bytes: usize = page.iter().map(DeadLetter::bytes).sum();
        for letter in &page {
            list.examined += 1;
            if filter.takes(&letter.traits(), now_ms) {
                field_bytes += if with_fields { letter.bytes() } else { 0 };
                let columns = columns(queue, &letter.fields, &filter.mask);
                list.dead.push(DeadView { columns, ..DeadView::new(letter, with_fields) });
                if list.dead.len() >= limit || field_bytes >= FIELD_BYTES {
                    list.next = write(&letter.entry);
                    return Ok(list);
                }
            }
        }
        if is_over {
            return Ok(list);
        }
        if list.examined >= LOOKS || Instant::now() >= end {
            list.next = write(&last);
            return Ok(list);
        }
        count = paging::next(count, bytes);
        after = Some(last);
    }
}

/// The result of one step of a requeue or purge.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RedrivenPart {
    /// Requeued or deleted; with `dry_run`: would be.
    pub succeeded: u64,
    /// Asked for, and not dead (any more), or can never run.
    pub skipped: u64,
    /// So many of the succeeded ones belong to a flow that is not known any more.
    pub without_flow: u64,
    /// How many dead letters were looked at; of those that were named, how many names are done.
    pub examined: u64,
    /// The cursor with which the operation goes on; null when nothing is left.
    pub next: Option<String>,
    /// So many milliseconds pass at this rate before the next request can do anything; null: none. A request
    /// that comes earlier waits, or does nothing and says it again.
    pub wait_ms: Option<u64>,
    /// With `dry_run` and `all`: up to 5 of those that the step counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<Vec<TaskSample>>,
}

impl RedrivenPart {
    fn new<W>(step: Redrove<W>, write: impl FnOnce(W) -> String) -> RedrivenPart {
        let next = step.next.map(write);
        let wait_ms = step.wait.as_micros().div_ceil(1_000) as u64;
        RedrivenPart {
            succeeded: step.done.succeeded,
            skipped: step.done.skipped,
            without_flow: step.done.without_flow,
            examined: step.examined,
            wait_ms: (next.is_some() && wait_ms > 0).then_some(wait_ms),
            next,
            sample: None,
        }
    }
}

/// One step of an operation on all dead letters that match.
#[derive(Debug)]
pub(crate) struct DeadPart<'p> {
    pub filter: &'p TaskFilter,
    pub what: Redrive,
    pub cursor: Option<&'p str>,
}

/// Takes one step: 10,000 dead letters are looked at, or 10 seconds pass.
pub(crate) async fn redrive_part(queue: &Queue, part: DeadPart<'_>) -> Result<RedrivenPart, OperationError> {
    let walk = part.cursor.map(read_walk).transpose()?;
    let step = queue.redrive_step(part.filter, part.what, walk, step_budget()).await;
    let step = step.map_err(OperationError::Interrupted)?;
    let is_count = matches!(part.what, Redrive::Count(_));
    let sample = is_count.then(|| TaskSample::of_letters(queue, &step.sample, &part.filter.mask));
    Ok(RedrivenPart { sample, ..RedrivenPart::new(step, |walk| write_walk(&walk)) })
}

fn step_budget() -> StepBudget {
    StepBudget { entries: STEP, until: Instant::now() + STEP_TIME }
}

/// The cursor of an operation that has not begun: on those that are dead now, and on none that die later.
pub(crate) async fn redrive_walk(queue: &Queue) -> Result<String, OperationError> {
    Ok(write_walk(&patiently(|| queue.begin_walk()).await?))
}

/// Takes one step: requeues, purges or counts the dead letters of these tasks, those of which a status is
/// kept, and those among the 5,000 newest dead letters. It ends after 10 seconds.
pub(crate) async fn redrive_ids(
    queue: &Queue,
    ids: &[String],
    what: Redrive,
    cursor: Option<&str>,
) -> Result<RedrivenPart, OperationError> {
    let walk = match cursor {
        None => NamedWalk::default(),
        Some(cursor) => {
            let [done, not_before] = cursor::read(NAMED_KIND, cursor)?;
            let done = done.parse().ok().filter(|done| *done < ids.len()).ok_or(BadCursor)?;
            NamedWalk { done, not_before_ms: not_before.parse().map_err(|_| BadCursor)? }
        }
    };
    let step = queue.redrive_named(ids, what, walk, step_budget()).await;
    let step = step.map_err(OperationError::Interrupted)?;
    Ok(RedrivenPart::new(step, |walk| {
        cursor::write(NAMED_KIND, &[&walk.done.to_string(), &walk.not_before_ms.to_string()])
    }))
}

pub(crate) fn write_walk(walk: &DeadWalk) -> String {
    cursor::write(STEP_KIND, &[&walk.from, &walk.last, &walk.not_before_ms.to_string()])
}

pub(super) fn read_walk(cursor: &str) -> Result<DeadWalk, OperationError> {
    let [from, last, not_before] = cursor::read(STEP_KIND, cursor)?;
    let not_before_ms = not_before.parse().map_err(|_| BadCursor)?;
    if cursor::is_place(&from) && crate::queue::codec::is_entry_id(&last) {
        Ok(DeadWalk { from, last, not_before_ms })
    } else {
        Err(BadCursor.into())
    }
}
