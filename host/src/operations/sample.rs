//! The first fields of a few tasks, for the question before an operation; and the columns of lists.
//!
//! In: tasks that match a filter. Out: text, without the values that are hidden. Not here: the operations,
//! which count the tasks (`cancel_all`, `queue::redrive`), and the lists (`list`, `dead`).

use std::borrow::Cow;

use serde::Serialize;
use utoipa::ToSchema;

use super::error::OperationResult;
use super::json::FieldView;
use crate::config::FieldPlace;
use crate::mask::{FieldMask, MASKED};
use crate::queue::codec::RawFields;
use crate::queue::listing::FoundTask;
use crate::queue::redrive::SAMPLE;
use crate::queue::repeat::patiently;
use crate::queue::{DeadLetter, Queue};

/// The most fields of a task, and characters of a name or value.
const FIELDS: usize = 10;
const CHARS: usize = 80;

/// The beginning of a task.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct TaskSample {
    pub id: String,
    /// The name that the queue's `id` gives to it.
    pub alias: Option<String>,
    /// Its first 10 fields, as text that ends with `…` behind 80 characters.
    pub fields: Vec<FieldView>,
}

impl TaskSample {
    fn new(queue: &Queue, id: &str, fields: &RawFields, mask: &FieldMask) -> TaskSample {
        let alias = queue.alias_in(fields, mask).map(|alias| cut(&String::from_utf8_lossy(&alias)));
        let shown = |(name, value): &(Vec<u8>, Vec<u8>)| {
            let value = mask.shown(name, value).unwrap_or(Cow::Borrowed(MASKED));
            let name = String::from_utf8_lossy(name);
            FieldView { name: cut(&name).into(), value: cut(&value).into() }
        };
        TaskSample { id: id.to_owned(), alias, fields: fields.iter().take(FIELDS).map(shown).collect() }
    }

    pub(crate) fn of_letters(queue: &Queue, letters: &[DeadLetter], mask: &FieldMask) -> Vec<TaskSample> {
        letters.iter().map(|letter| TaskSample::new(queue, &letter.id, &letter.fields, mask)).collect()
    }

    pub(super) fn of_task(queue: &Queue, task: &FoundTask, mask: &FieldMask) -> TaskSample {
        TaskSample::new(queue, &task.summary.id, &task.fields, mask)
    }

    /// The first of these tasks, wherever they are.
    pub(crate) async fn of_ids(
        queue: &Queue,
        ids: &[String],
        mask: &FieldMask,
    ) -> OperationResult<Vec<TaskSample>> {
        let mut sample = Vec::new();
        for id in ids.iter().take(SAMPLE) {
            if let Some((_, task)) = patiently(|| queue.located(id)).await? {
                sample.push(TaskSample::of_task(queue, &task, mask));
            } else if let Some(letter) = patiently(|| queue.dead_named(id)).await? {
                sample.push(TaskSample::new(queue, &letter.id, &letter.fields, mask));
            }
        }
        Ok(sample)
    }

    /// Its fields in words.
    pub(crate) fn words(&self) -> impl Iterator<Item = String> {
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        self.fields.iter().map(move |field| format!("{}={}", text(&field.name), text(&field.value)))
    }
}

/// The values of the fields that the queue's `show` names. None: the task does not have it.
pub(super) fn columns(queue: &Queue, fields: &RawFields, mask: &FieldMask) -> Vec<Option<String>> {
    let shown = |place: &FieldPlace| match place.values(fields, mask) {
        Some(values) => values.first().map(|value| cut(&String::from_utf8_lossy(value))),
        None => Some(MASKED.to_owned()),
    };
    queue.rules.show.iter().map(shown).collect()
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
