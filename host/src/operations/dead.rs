//! Dead letters: lists of them, the newest first, and the walk of a job through them.
//!
//! In: filters, a cursor. Out: views, and where the list goes on. Not here: requeue and purge (`jobs`).

use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;
use utoipa::ToSchema;

use super::cursor::{self, BadCursor};
use super::error::OperationResult;
use super::json::FieldView;
use super::list::FIELD_BYTES;
use super::paging;
use super::sample::columns;
use crate::mask::FieldMask;
use crate::queue::redrive::DeadWalk;
use crate::queue::repeat::patiently;
use crate::queue::{DeadLetter, Queue, TaskFilter};

/// The most dead letters that one list looks at, and for how long.
const LOOKS: usize = 5_000;
const LIST_TIME: Duration = Duration::from_secs(3);
const LIST_KIND: &str = "dead-letters";
const STEP_KIND: &str = "redrive";

/// A dead letter in a list. The names are stable.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeadView {
    #[serde(flatten)]
    pub letter: DeadLetter,
    /// Only where it was asked for: fields may be large.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fields: Option<Vec<FieldView>>,
    /// The values of the fields that the queue's `show` names, for tables.
    #[serde(skip)]
    pub columns: Vec<Option<String>>,
}

impl DeadView {
    pub(crate) fn new(mut letter: DeadLetter, with_fields: bool) -> DeadView {
        let fields = with_fields.then(|| FieldView::all(&letter.fields));
        // A list has many letters, and their fields may be large.
        (letter.fields, letter.raw) = (Vec::new(), Vec::new());
        DeadView { letter, fields, columns: Vec::new() }
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
) -> OperationResult<DeadList> {
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
        for letter in page {
            list.examined += 1;
            if filter.takes(&letter.traits(), now_ms) {
                field_bytes += if with_fields { letter.bytes() } else { 0 };
                let (columns, entry) = (columns(queue, &letter.fields, &filter.mask), letter.entry.clone());
                list.dead.push(DeadView { columns, ..DeadView::new(letter, with_fields) });
                if list.dead.len() >= limit || field_bytes >= FIELD_BYTES {
                    list.next = write(&entry);
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

/// The cursor of an operation that has not begun: on the present dead letters, and on no later ones. Its
/// `last` is the newest of them, and at a rate `not_before_ms` says when the next one may be requeued.
pub(crate) async fn redrive_walk(queue: &Queue) -> OperationResult<String> {
    Ok(write_walk(&patiently(|| queue.begin_walk()).await?))
}

pub(super) fn write_walk(walk: &DeadWalk) -> String {
    cursor::write(STEP_KIND, &[&walk.from, &walk.last, &walk.not_before_ms.to_string()])
}

pub(crate) fn read_walk(cursor: &str) -> OperationResult<DeadWalk> {
    let [from, last, not_before] = cursor::read(STEP_KIND, cursor)?;
    let not_before_ms = not_before.parse().map_err(|_| BadCursor)?;
    if cursor::is_place(&from) && crate::queue::codec::is_entry_id(&last) {
        Ok(DeadWalk { from, last, not_before_ms })
    } else {
        Err(BadCursor.into())
    }
}
