//! The effects of a trial, which a host would commit with the task's end.
//!
//! In: the effects of a task that has completed, the children of its flows. Out: lines, and JSON.
//!
//! Not here: the commit (`queue::settle`), the rest of a trial's end (`view`).

use std::time::Duration;

use serde_json::{Value, json};

use super::super::text;
use super::super::value;
use crate::clock::ms;
use crate::effects::{Effects, FlowName, OutboxTask, RecordChange, StateChange};
use crate::field::Field;
use crate::operations::{FieldView, result_json};

/// The most lines of each kind for people.
const MOST_LINES: usize = 20;
/// The most columns of a line for people.
const MOST_WIDTH: usize = 200;

/// The effects of one task.
pub(super) struct TrialEffects<'t> {
    pub effects: &'t Effects,
    /// The children of the flows of all tasks.
    pub staged: &'t [(FlowName, Vec<OutboxTask>)],
}

impl TrialEffects<'_> {
    /// The names are stable.
    pub(super) fn json(&self) -> Value {
        let effects = self.effects;
        let flow = |then: &OutboxTask| {
            let children: Vec<Value> = self.children(then).iter().map(task).collect();
            json!({ "then": task(then), "children": children })
        };
        let state = |(key, change): (&String, &StateChange)| match change {
            StateChange::Set { value, ttl } => {
                json!({ "key": key, "value": result_json(value), "ttl_ms": ttl.map(ms) })
            }
            StateChange::Delete => json!({ "key": key, "deleted": true }),
            StateChange::Add(add) => json!({ "key": key, "add": add }),
        };
        let record = |(key, change): (&String, &RecordChange)| {
            json!({
                "key": key, "deleted": change.is_deleted, "fields": fields(&record_fields(change)),
                "ttl_ms": change.ttl.map(ms),
            })
        };
        json!({
            "tasks": effects.tasks().iter().map(task).collect::<Vec<_>>(),
            "flows": effects.flows().iter().map(|one| flow(&one.then)).collect::<Vec<_>>(),
            "records": effects.records().iter().map(record).collect::<Vec<_>>(),
            "state": effects.state().iter().map(state).collect::<Vec<_>>(),
        })
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let effects = self.effects;
        let tasks = effects.tasks().iter().map(|task| task_line("task for", task));
        let flows = effects.flows().iter().flat_map(|flow| {
            let children = self.children(&flow.then);
            let then =
                format!("{}, when {} have completed", task_line("task for", &flow.then), children.len());
            let line = |child| format!("  {}", task_line("child for", child));
            [then].into_iter().chain(first_lines(children.iter().map(line), children.len()))
        });
        let records = effects.records().iter().map(|(key, change)| {
            let how = if change.is_deleted { ", deleted before" } else { "" };
            let ttl = change.ttl.filter(|ttl| !ttl.is_zero()).map(lives).unwrap_or_default();
            format!("record {}{}{ttl}{how}", text::escape(key), words(&record_fields(change)))
        });
        let state = effects.state().iter().map(|(key, change)| {
            let change = match change {
                StateChange::Set { value, ttl } => {
                    format!("= {}{}", shown(value), ttl.map(lives).unwrap_or_default())
                }
                StateChange::Delete => "is deleted".to_owned(),
                StateChange::Add(add) => format!("{add:+}"),
            };
            format!("state {} {change}", text::escape(key))
        });
        let lines = first_lines(tasks, effects.tasks().len())
            .chain(flows)
            .chain(first_lines(records, effects.records().len()))
            .chain(first_lines(state, effects.state().len()));
        lines.map(|line| text::cut(&line, MOST_WIDTH)).collect()
    }

    fn children(&self, then: &OutboxTask) -> &[OutboxTask] {
        let own = self.staged.iter().find(|(flow, _)| flow.id == then.id && flow.queue == then.queue);
        own.map(|(_, children)| &children[..]).unwrap_or_default()
    }
}

/// The first lines, and a last one with the number of the others.
fn first_lines(lines: impl Iterator<Item = String>, all: usize) -> impl Iterator<Item = String> {
    let rest = all.saturating_sub(MOST_LINES);
    let more = (rest > 0).then(|| format!("  and {rest} more; --json shows them"));
    lines.take(MOST_LINES).chain(more)
}

fn task(task: &OutboxTask) -> Value {
    json!({
        "queue": task.queue, "id": task.id, "fields": fields(&task.fields), "delay_ms": ms(task.delay),
        "key": task.key,
    })
}

fn fields(fields: &[Field]) -> Vec<FieldView> {
    fields.iter().map(FieldView::of).collect()
}

fn record_fields(change: &RecordChange) -> Vec<Field> {
    change.fields.iter().map(|(name, value)| Field { name: name.clone(), value: value.clone() }).collect()
}

fn task_line(what: &str, task: &OutboxTask) -> String {
    let delay = match task.delay {
        Duration::ZERO => String::new(),
        delay => format!(", in {}", text::took(delay)),
    };
    let key = task.key.as_ref().map(|key| format!(", key {}", text::escape(key))).unwrap_or_default();
    format!("{what} {}{}{delay}{key}", text::escape(&task.queue), words(&task.fields))
}

fn words(fields: &[Field]) -> String {
    let one = |field: &Field| format!(" {}={}", text::escape(&field.name), shown(&field.value));
    let all: String = fields.iter().map(one).collect();
    if all.is_empty() { String::new() } else { format!(":{all}") }
}

fn shown(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text::escape(text),
        Err(_) => value::shown(bytes),
    }
}

fn lives(ttl: Duration) -> String {
    format!(", for {}", text::took(ttl))
}
