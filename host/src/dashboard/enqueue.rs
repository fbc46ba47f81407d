//! A form for a new task, which may begin as a copy of another one, and what it enqueues.
//!
//! In: lines `name=value`, and `name:=JSON` for what a line cannot hold: a JSON text is the value, and
//! `{"base64": …}` its bytes. Out: a task. A copy leaves out what the visitor may not see, and says so.

use std::time::Duration;

use axum::extract::Path;
use maud::{Markup, html};
use serde_json::Value;
use serde_json::value::RawValue;

use super::layout::{field, form_token};
use super::problem::{PageAnswer, changed, done_at};
use super::session::Visitor;
use super::state::PageCall;
use super::text::data;
use super::values::{queue_path, task_path};
use crate::admin::audit::AuditNote;
use crate::admin::problem::{ApiProblem, ProblemCode, invalid};
use crate::config::QueueRules;
use crate::mask::FieldMask;
use crate::operations::{self, FieldView, fields_of_json};
use crate::queue::Enqueued;
use crate::task::Field;
use crate::telemetry::TRACEPARENT;

/// A copy with more text than this is no task for a form.
const MOST_COPIED: usize = 64 << 10;

/// The section of a queue's page.
pub(super) fn section(visitor: &Visitor, path: &str) -> Markup {
    html! {
        section aria-labelledby="enqueue" {
            details { summary { h2 id="enqueue" { "Enqueue a task" } } (form(visitor, path, "")) }
        }
    }
}

fn form(visitor: &Visitor, path: &str, lines: &str) -> Markup {
    let rows = lines.lines().count().clamp(3, 20) + 1;
    html! {
        form.stacked method="post" action={ (path) "/tasks" } {
            (form_token(visitor))
            label for="fields" { "Fields" }
            // A browser takes away the first line break of a text.
            textarea id="fields" name="fields" rows=(rows) required aria-describedby="fields-note" {
                "\n" (lines)
            }
            p.note id="fields-note" {
                "One for each line, as name=value; or as name:=\"text\" with \\n for line breaks."
            }
            (field("delay", "Delay", "10s", "Empty: at once."))
            (field("key", "Idempotency key", "", "Empty: none. With the key of another one it does not run."))
            button.primary { "Enqueue" }
        }
    }
}

/// The section of a task's page: a form that has its fields. `seen` are the fields as the visitor sees them.
pub(super) fn copy_section(
    visitor: &Visitor,
    rules: &QueueRules,
    fields: &[FieldView],
    mask: &FieldMask,
) -> Markup {
    let copy = Copied::of(fields, mask);
    html! {
        section aria-labelledby="copy" {
            @match copy {
                None => {
                    h2 id="copy" { "Enqueue a copy with changes" }
                    p.quiet { "Its fields are too large for a form: use " code { "tqhost enqueue" } "." }
                }
                Some(Copied { lines, left_out }) => {
                    details {
                        summary { h2 id="copy" { "Enqueue a copy with changes" } }
                        @if !left_out.is_empty() {
                            p.note {
                                "Left out, because they are hidden from this page or have no place in a line:"
                                @for name in &left_out { " " (data(name)) } "."
                            }
                        }
                        @if !rules.idempotency.key.is_empty() {
                            p.note {
                                "The queue takes the idempotency key from fields: a copy with the same ones \
                                 does not run while that key is held."
                            }
                        }
                        (form(visitor, &queue_path(&rules.name), &lines))
                    }
                }
            }
        }
    }
}

/// The fields of a task as lines of the form.
struct Copied {
    lines: String,
    /// The names of fields that are not among them.
    left_out: Vec<String>,
}

impl Copied {
    /// None: they are too large.
    fn of(fields: &[FieldView], mask: &FieldMask) -> Option<Copied> {
        let mut copied = Copied { lines: String::new(), left_out: Vec::new() };
        for field in fields.iter().filter(|field| field.name != TRACEPARENT) {
            let mut shown = field.value.clone();
            mask.hide_field(&field.name, &mut shown);
            let line = if shown == field.value { line(field) } else { None };
            match line {
                Some(line) => copied.lines += &(line + "\n"),
                None => {
                    let name = field.name.as_str().map_or_else(|| field.name.to_string(), str::to_owned);
                    copied.left_out.push(name);
                }
            }
            if copied.lines.len() > MOST_COPIED {
                return None;
            }
        }
        Some(copied)
    }
}

/// None: the name cannot stand in front of a line.
fn line(FieldView { name, value }: &FieldView) -> Option<String> {
    let name = name.as_str()?;
    let is_plain = !name.is_empty() && name.trim() == name && !name.contains(['=', '\n', '\r']);
    if !is_plain || name.ends_with(':') {
        return None;
    }
    Some(match value {
        Value::String(text) if !text.contains(['\n', '\r']) => format!("{name}={text}"),
        value => format!("{name}:={value}"),
    })
}

fn fields(lines: &str) -> Result<Vec<Field>, ApiProblem> {
    let mut fields = Vec::new();
    for (at, line) in lines.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |why: &str| invalid(format!("fields: line {} is not {why}", at + 1));
        let (name, value) = line.split_once('=').ok_or_else(|| wrong("name=value"))?;
        let Some(name) = name.trim_end().strip_suffix(':') else {
            fields.push(Field { name: name.trim().to_owned(), value: value.as_bytes().to_vec() });
            continue;
        };
        let json: Box<RawValue> = serde_json::from_str(value).map_err(|_| wrong("name:=JSON"))?;
        let read = fields_of_json(&[(name.trim().to_owned(), json)]);
        fields.extend(read.map_err(|error| invalid(format!("fields: line {}: {error}", at + 1)))?);
    }
    Ok(fields)
}

pub(super) async fn enqueue(call: PageCall, Path(name): Path<String>) -> PageAnswer {
    let PageCall { dashboard, values, .. } = call;
    let delay = values.duration("delay")?.unwrap_or(Duration::ZERO);
    let fields = fields(values.get("fields").unwrap_or_default())?;
    let task = operations::new_task(fields, delay, values.get("key").map(str::to_owned))?;
    let trace = dashboard.api.parts().traces.enqueueing(task.traceparent());
    let task = task.with_traceparent(trace.traceparent.clone());
    let queue = dashboard.api.queue(&name).await?;
    operations::check_delay(&queue.rules, delay)?;
    let (id, word) = match operations::enqueue(&queue, &task).await? {
        Enqueued::Accepted => {
            trace.accepted(&name, task.id());
            (task.id().to_owned(), "enqueued")
        }
        Enqueued::Duplicate(first) => (first, "duplicate"),
        Enqueued::Full => {
            let problem = ApiProblem::new(ProblemCode::QueueFull, operations::full(&queue.rules));
            return changed(AuditNote::queue(&name), Err(problem));
        }
    };
    done_at(AuditNote::task(&name, &id), &task_path(&name, &id), word)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::testing::table;

    fn field(name: &str, value: Value) -> FieldView {
        FieldView { name: name.into(), value }
    }

    #[test]
    fn a_copy_has_the_fields_byte_for_byte() {
        let all = [
            field("to", json!("ada = \"a\" ")),
            field("body", json!("one\r\ntwo\n")),
            field("photo", json!({ "base64": "AP8=" })),
            field("traceparent", json!("00-1-1-00")),
            field("empty", json!("")),
        ];
        let copied = Copied::of(&all, &FieldMask::default()).expect("a copy");
        assert!(copied.left_out.is_empty(), "{:?}", copied.left_out);
        // A browser sends line breaks as CR LF.
        let read =
            fields(&copied.lines.replace('\n', "\r\n")).map_err(|problem| problem.detail).expect("fields");
        let read: Vec<(&str, &[u8])> =
            read.iter().map(|field| (field.name.as_str(), field.value.as_slice())).collect();
        assert_eq!(
            read,
            [("to", &b"ada = \"a\" "[..]), ("body", b"one\r\ntwo\n"), ("photo", &[0, 0xff]), ("empty", b""),]
        );
    }

    #[test]
    fn hidden_fields_and_those_that_fit_no_line_are_left_out() {
        let mask = FieldMask::new(&["email".to_owned()]);
        let all = [
            field("email", json!("ada@example.com")),
            field("data", json!("{\"email\":\"x\",\"n\":1}")),
            field("a=b", json!("1")),
            field("c:", json!("1")),
            field("n", json!("7")),
        ];
        let copied = Copied::of(&all, &mask).expect("a copy");
        assert_eq!(
            (copied.lines.as_str(), copied.left_out.join(" ")),
            ("n=7\n", "email data a=b c:".to_owned())
        );
        let large = [field("x", "y".repeat(MOST_COPIED + 1).into())];
        assert!(Copied::of(&large, &mask).is_none());
    }

    #[test]
    fn a_line_that_is_none_is_told() {
        let texts = ["a=1\n\nb", "a:=nothing", "a:={\"base64\": \"/w=\"}"];
        insta::assert_snapshot!(table(&texts, |lines| fields(lines).map(drop).expect_err(lines).detail), @r#"
        a=1

        b
            fields: line 3 is not name=value
        a:=nothing
            fields: line 1 is not name:=JSON
        a:={"base64": "/w="}
            fields: line 1: field "a": base64 cannot be read: Invalid padding
        "#);
    }
}
