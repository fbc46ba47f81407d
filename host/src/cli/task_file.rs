//! A task as a file, with what its queue knew of it: `dead export` writes it, `try` reads it.
//!
//! In: a dead letter, or the bytes of a file. Out: the file's JSON, or the task with the limits that it had.
//! Values are text, or base64 where they are not; names may be repeated. Not here: files with fields alone
//! (`input`).

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::exit::CommandResult;
use super::input;
use crate::config::{self, Config};
use crate::field::without_bom;
use crate::operations::FieldView;
use crate::queue::DeadLetter;
use crate::task::{Field, Task};

/// The whole file. No producer's field can be called `tq-task`, so no file with fields alone looks like it.
#[derive(Debug, Serialize, Deserialize)]
struct TaskFile {
    #[serde(rename = "tq-task")]
    task: ExportedTask,
}

/// Reads from any file that has this form, however wrong its task is.
#[derive(Deserialize)]
struct Probe {
    #[serde(rename = "tq-task")]
    _task: IgnoredAny,
}

/// A task as its last attempt saw it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExportedTask {
    pub id: String,
    pub queue: String,
    /// From 1.
    pub attempt: u32,
    pub fence: u64,
    /// In milliseconds since the Unix epoch.
    pub enqueued_at: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// Why it is dead, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    error: String,
    pub limits: TaskLimits,
    fields: Vec<FieldView>,
}

/// The limits of the queue and of its plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TaskLimits {
    timeout_ms: u64,
    attempts: u32,
    /// In bytes.
    memory: u64,
}

impl ExportedTask {
    /// The task of a dead letter of this queue.
    pub(super) fn of(
        letter: &DeadLetter,
        rules: &config::QueueRules,
        config: &Config,
    ) -> CommandResult<ExportedTask> {
        let id = &letter.id;
        let task = letter
            .task(&Arc::from(rules.name.as_str()))
            .map_err(|why| anyhow!("the dead letter {id:?} is not a task that a handler could get: {why}"))?;
        let default = config::Plugin::default();
        let grants = config.plugins.get(&rules.plugin).unwrap_or(&default);
        let Task { id, queue, attempt, fence, enqueued_at_ms, traceparent, fields, .. } = task;
        Ok(ExportedTask {
            id,
            queue: queue.to_string(),
            attempt,
            fence,
            enqueued_at: enqueued_at_ms,
            traceparent,
            error: letter.error.clone(),
            limits: TaskLimits {
                timeout_ms: rules.timeout.as_millis().try_into().unwrap_or(u64::MAX),
                attempts: rules.max_retries.saturating_add(1),
                memory: grants.memory,
            },
            fields: fields.iter().map(FieldView::of).collect(),
        })
    }

    /// The file's text.
    pub(super) fn write(self) -> String {
        // Texts and numbers can always be written.
        serde_json::to_string_pretty(&TaskFile { task: self }).unwrap_or_default()
    }

    /// Reads a file. None: the file has another form. `name` is the file's name, for errors.
    pub(super) fn read(bytes: &[u8], name: &str) -> CommandResult<Option<ExportedTask>> {
        let bytes = without_bom(bytes);
        // serde takes a list for a struct, too.
        let is_object = bytes.trim_ascii_start().starts_with(b"{");
        if !is_object || serde_json::from_slice::<Probe>(bytes).is_err() {
            return Ok(None);
        }
        let file: TaskFile = serde_json::from_slice(bytes)
            .map_err(|error| anyhow!("{name}: this is no file of `tqhost dead export`: {error}"))?;
        Ok(Some(file.task))
    }

    pub(super) fn fields(&self) -> CommandResult<Vec<Field>> {
        let fields: Result<_, String> = self.fields.iter().map(FieldView::read).collect();
        Ok(fields.map_err(|why| anyhow!("the task {:?}: {why}", self.id))?)
    }
}

impl TaskLimits {
    /// Replaces the defaults with the limits of the task.
    pub(super) fn apply(self, rules: &mut config::QueueRules, grants: &mut config::Plugin) {
        rules.timeout = Duration::from_millis(self.timeout_ms);
        rules.max_retries = self.attempts.saturating_sub(1);
        grants.memory = self.memory;
    }
}

/// A task that is to be tried.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct GivenTask {
    pub fields: Vec<Field>,
    /// The facts that its queue knew.
    pub known: Option<ExportedTask>,
}

/// The tasks of a file.
pub(super) fn given(bytes: &[u8], name: &str) -> CommandResult<Vec<GivenTask>> {
    if let Some(task) = ExportedTask::read(bytes, name)? {
        return Ok(vec![GivenTask { fields: task.fields()?, known: Some(task) }]);
    }
    let plain = |fields| GivenTask { fields, known: None };
    Ok(input::whole_objects(bytes, name)?.into_iter().map(plain).collect())
}

/// The limits in a task's file, or in stdin if the task is there. None: the file has none, or it is wrong,
/// which is told when the task is read.
pub(super) fn limits(file: Option<&Path>, stdin: Option<&[u8]>) -> Option<TaskLimits> {
    let read = |bytes: &[u8]| Some(ExportedTask::read(bytes, "").ok()??.limits);
    match (stdin, file) {
        (Some(bytes), _) => read(bytes),
        (None, Some(path)) if path.is_file() => read(&input::read_value(path).ok()?),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let field = |name: &str, value: &[u8]| Field { name: name.to_owned(), value: value.to_vec() };
        let fields = [field("a", b"1"), field("b", &[0xff, 0]), field("a", "é\n".as_bytes()), field("", b"")];
        let task = ExportedTask {
            id: "7".into(),
            queue: "q".into(),
            attempt: 4,
            fence: 9,
            enqueued_at: 1_700_000_000_000,
            traceparent: None,
            error: "trap: x".into(),
            limits: TaskLimits { timeout_ms: 5000, attempts: 4, memory: 1 << 20 },
            fields: fields.iter().map(FieldView::of).collect(),
        };
        let text = task.clone().write();
        // Editors may put a mark before it.
        for text in [text.clone(), format!("\u{feff}{text}")] {
            let read = ExportedTask::read(text.as_bytes(), "f").expect("good").expect("a task");
            assert_eq!((read.fields().expect("fields"), &read), (fields.to_vec(), &task), "{text}");
        }
    }

    #[test]
    fn other_files_are_told_from_bad_ones() {
        for other in ["{\"a\": 1}", "\u{feff}{\"a\": 1}", "[{}]", "nothing", "{\"tq-id\": \"1\"}"] {
            assert!(ExportedTask::read(other.as_bytes(), "f").expect(other).is_none());
        }
        let bad = ExportedTask::read(b"{\"tq-task\": {\"id\": 5}}", "f.json").expect_err("bad");
        insta::assert_snapshot!(bad.words(), @"
        tqhost: f.json: this is no file of `tqhost dead export`: invalid type: integer `5`, expected a \
        string at line 1 column 20
        ");
    }
}
