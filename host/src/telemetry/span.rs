//! One span, and its form in OTLP.
//!
//! In: a part of a task's way that has ended. Out: the message that a collector reads. Texts are cut, so that
//! the spans that wait have a largest size.

use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::{Span as Message, Status, span, status};

use super::context::TraceContext;

pub(super) use span::SpanKind;

/// The longest text of an attribute, in bytes: as long as the longest id of a task.
const MAX_TEXT: usize = 256;
/// The longest error, in bytes. It is as long as that of a dead letter, if its characters are ASCII.
const MAX_ERROR: usize = 500;

/// A span that has ended.
#[derive(Debug)]
pub(super) struct Span {
    pub(super) name: String,
    pub(super) kind: SpanKind,
    pub(super) context: TraceContext,
    /// The span above it.
    pub(super) parent: Option<u64>,
    pub(super) start: SystemTime,
    pub(super) end: SystemTime,
    pub(super) attributes: Vec<KeyValue>,
    /// Spans that caused this one, but do not stand above it.
    pub(super) links: Vec<TraceContext>,
    /// The error, if it failed.
    pub(super) error: Option<String>,
}

impl Span {
    pub(super) fn new(
        name: String,
        kind: SpanKind,
        context: TraceContext,
        parent: Option<u64>,
        start: SystemTime,
    ) -> Span {
        Span {
            name: cut(name, MAX_TEXT),
            kind,
            context,
            parent,
            start,
            end: SystemTime::now(),
            attributes: Vec::new(),
            links: Vec::new(),
            error: None,
        }
    }

    pub(super) fn text(mut self, key: &str, value: &str) -> Span {
        let value = cut(value.to_owned(), MAX_TEXT);
        self.attributes.push(attribute(key, any_value::Value::StringValue(value)));
        self
    }

    pub(super) fn number(mut self, key: &str, value: impl Into<i64>) -> Span {
        self.attributes.push(attribute(key, any_value::Value::IntValue(value.into())));
        self
    }

    /// Marks the span as failed: `kind` is the word for its `error.type`, and `error` says more.
    pub(super) fn failed(mut self, kind: &str, error: &str) -> Span {
        self.error = Some(cut(error.to_owned(), MAX_ERROR));
        self.text("error.type", kind)
    }

    /// The span in the form of OTLP.
    pub(super) fn message(self) -> Message {
        let Span { name, kind, context, parent, start, end, attributes, links, error } = self;
        let links = links.into_iter().map(|link| span::Link {
            trace_id: link.trace.to_be_bytes().to_vec(),
            span_id: link.span.to_be_bytes().to_vec(),
            flags: u32::from(link.sampled),
            ..span::Link::default()
        });
        let (start, end) = (nanoseconds(start), nanoseconds(end));
        Message {
            trace_id: context.trace.to_be_bytes().to_vec(),
            span_id: context.span.to_be_bytes().to_vec(),
            parent_span_id: parent.map(|parent| parent.to_be_bytes().to_vec()).unwrap_or_default(),
            flags: u32::from(context.sampled),
            name,
            kind: kind.into(),
            start_time_unix_nano: start,
            // A clock may have been set back meanwhile.
            end_time_unix_nano: end.max(start),
            attributes,
            links: links.collect(),
            status: error.map(|message| Status { message, code: status::StatusCode::Error.into() }),
            ..Message::default()
        }
    }
}

/// An attribute of a span, or of the process.
pub(super) fn attribute(key: &str, value: any_value::Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

fn cut(mut text: String, most: usize) -> String {
    text.truncate(text.floor_char_boundary(most));
    text
}

fn nanoseconds(time: SystemTime) -> u64 {
    u64::try_from(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_and_times_do_not_go_back() {
        let later = SystemTime::now() + std::time::Duration::from_secs(60);
        let span = Span::new("n".repeat(1000), SpanKind::Internal, TraceContext::root(true), None, later);
        let message = span.text("key", &"é".repeat(1000)).failed("trap", &"é".repeat(1000)).message();
        assert_eq!((message.name.len(), message.parent_span_id.len()), (MAX_TEXT, 0));
        let value = message.attributes[0].value.clone().and_then(|value| value.value);
        assert_eq!(value, Some(any_value::Value::StringValue("é".repeat(MAX_TEXT / 2))));
        assert_eq!(message.status.expect("a status").message, "é".repeat(MAX_ERROR / 2));
        assert_eq!(message.end_time_unix_nano, message.start_time_unix_nano);
    }
}
