//! Typed access to a task's fields.
//!
//! In: the host's [`Task`]. Out: a field as text, number, bytes or JSON, or a [`FieldError`]. `?` turns this
//! error into a rejection, because no retry changes a task's fields.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

use serde::de::DeserializeOwned;
use serde_json::error::Category;

use crate::{Failure, Field, Task};

impl Task {
    /// The field's bytes. If several fields have this name, the first one counts.
    pub fn bytes(&self, name: &str) -> Result<&[u8], FieldError> {
        bytes(&self.fields, name)
    }

    /// The field as UTF-8 text.
    pub fn text(&self, name: &str) -> Result<&str, FieldError> {
        text(&self.fields, name)
    }

    /// The field as UTF-8 text, or `None` if there is no such field. A field that is not UTF-8 text is an
    /// error.
    pub fn text_opt(&self, name: &str) -> Result<Option<&str>, FieldError> {
        if self.has(name) { self.text(name).map(Some) } else { Ok(None) }
    }

    /// The field as a decimal number. Blanks around it are ignored.
    pub fn number<N: FromStr<Err: fmt::Display>>(&self, name: &str) -> Result<N, FieldError> {
        self.text(name)?
            .trim()
            .parse()
            .map_err(|why| FieldError::invalid(name, format_args!("is not a number that fits: {why}")))
    }

    /// The field as JSON.
    pub fn json<T: DeserializeOwned>(&self, name: &str) -> Result<T, FieldError> {
        serde_json::from_slice(self.bytes(name)?).map_err(|error| {
            // The text of serde_json's error is left out, because it may quote the field.
            let what = match error.classify() {
                Category::Data => "is not the JSON expected: a value is missing or has another type",
                Category::Syntax => "is not JSON: the syntax is wrong",
                Category::Eof | Category::Io => "is not JSON: it ends too early",
            };
            let (line, column) = (error.line(), error.column());
            FieldError::invalid(name, format_args!("{what}, at line {line} column {column}"))
        })
    }

    pub fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|field| field.name == name)
    }

    /// Whether this is the last attempt. If it ends with a retry, the task becomes a dead letter.
    pub fn is_last_attempt(&self) -> bool {
        self.attempt >= self.max_attempts
    }

    /// A task for tests: the first of three attempts, with these fields.
    pub fn sample<V: AsRef<[u8]>>(fields: impl IntoIterator<Item = (&'static str, V)>) -> Task {
        Task {
            id: "1-0".into(),
            queue: "test".into(),
            fields: fields
                .into_iter()
                .map(|(name, value)| Field { name: name.into(), value: value.as_ref().to_vec() })
                .collect(),
            attempt: 1,
            max_attempts: 3,
            enqueued_at_ms: 1_767_225_600_000, // 2026-01-01
            deadline_ms: 1_767_225_660_000,
            traceparent: None,
        }
    }
}

fn bytes<'f>(fields: &'f [Field], name: &str) -> Result<&'f [u8], FieldError> {
    fields
        .iter()
        .find(|field| field.name == name)
        .map(|field| field.value.as_slice())
        .ok_or_else(|| FieldError::missing(name, fields))
}

pub(crate) fn text<'f>(fields: &'f [Field], name: &str) -> Result<&'f str, FieldError> {
    str::from_utf8(bytes(fields, name)?).map_err(|_| FieldError::invalid(name, "is not UTF-8 text"))
}

/// A field that is missing, or is not what the handler needs. The error's text names the field. It quotes
/// nothing of the field's content, unless the error of a type that [`Task::number`] parses does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError(String);

impl FieldError {
    /// One of the names that are there may be a typing error. At most ten are told.
    fn missing(name: &str, there: &[Field]) -> FieldError {
        let mut names: Vec<&str> = there.iter().take(10).map(|field| field.name.as_str()).collect();
        let more = format!("and {} more", there.len().saturating_sub(10));
        names.extend((there.len() > 10).then_some(more.as_str()));
        let names = if names.is_empty() { "no fields".to_owned() } else { names.join(", ") };
        FieldError(format!("field `{name}` is missing: it has {names}"))
    }

    /// The error of a handler's own check: `FieldError::invalid("content", "is empty")`.
    pub fn invalid(name: &str, why: impl fmt::Display) -> FieldError {
        FieldError(format!("field `{name}` {why}"))
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for FieldError {}

impl From<FieldError> for Failure {
    fn from(why: FieldError) -> Failure {
        Failure::Reject(why.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task() -> Task {
        Task::sample([
            ("text", b"hi".as_slice()),
            ("n", b" 42 "),
            ("json", b"[1,2]"),
            ("cut", b"[1,\n2,"),
            ("secret", b"[\"hunter2\"]"),
            ("binary", b"\xff\xfe"),
            ("text", b"second"),
        ])
    }

    #[test]
    fn fields_are_read_by_type() {
        let task = task();
        assert_eq!(task.text("text"), Ok("hi"));
        assert_eq!(task.number("n"), Ok(42u8));
        assert_eq!(task.json("json"), Ok(vec![1, 2]));
        assert_eq!(task.bytes("binary"), Ok(b"\xff\xfe".as_slice()));
        assert_eq!(task.text_opt("nothing"), Ok(None));
        assert!(task.text_opt("binary").is_err());
    }

    #[test]
    fn errors_name_the_field_and_reject() {
        let task = task();
        let table = [
            (
                task.text("nothing").unwrap_err(),
                "field `nothing` is missing: it has text, n, json, cut, secret, binary, text",
            ),
            (task.text("binary").unwrap_err(), "field `binary` is not UTF-8 text"),
            (
                task.number::<u8>("text").unwrap_err(),
                "field `text` is not a number that fits: invalid digit found in string",
            ),
            (
                task.json::<u8>("json").unwrap_err(),
                "field `json` is not the JSON expected: a value is missing or has another type, at line 1 \
                 column 0",
            ),
            (
                task.json::<u8>("text").unwrap_err(),
                "field `text` is not JSON: the syntax is wrong, at line 1 column 1",
            ),
            (
                task.json::<Vec<u8>>("cut").unwrap_err(),
                "field `cut` is not JSON: it ends too early, at line 2 column 2",
            ),
            (
                task.json::<Vec<u8>>("secret").unwrap_err(),
                "field `secret` is not the JSON expected: a value is missing or has another type, at line 1 \
                 column 10",
            ),
        ];
        for (error, text) in table {
            assert_eq!(error.to_string(), text);
            assert!(matches!(Failure::from(error), Failure::Reject(message) if message == text));
        }
    }

    #[test]
    fn the_last_attempt_is_known() {
        let mut task = task();
        assert!(!task.is_last_attempt());
        task.attempt = 3;
        assert!(task.is_last_attempt());
    }
}
