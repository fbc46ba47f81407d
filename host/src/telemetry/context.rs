//! The place of a span in its trace, and its text: the header and field `traceparent` of W3C Trace Context.
//!
//! In: texts of producers, of any content. Out: a [`TraceContext`], or none.

use std::fmt;

use crate::field::{Field, MAX_FIELDS};

/// The name of the header, and of the field of a task.
pub(crate) const TRACEPARENT: &str = "traceparent";
/// The length of the text in version 00. A later version may append to it.
const LENGTH: usize = 55;
/// The longest text that is passed on.
const MAX_LENGTH: usize = 256;

/// The identity of a span, by which later spans refer to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TraceContext {
    pub(crate) trace: u128,
    pub(crate) span: u64,
    /// Whether the spans of the trace are sent to somebody.
    pub(crate) sampled: bool,
}

impl TraceContext {
    /// Reads a text. None if it is not a trace context.
    pub(crate) fn parse(text: &str) -> Option<TraceContext> {
        let is_known = text.len() == LENGTH && text.starts_with("00-");
        let is_later = text.len() <= MAX_LENGTH && text.as_bytes().get(LENGTH) == Some(&b'-');
        // Visible characters only, so that each byte is one character, and a header can carry them.
        let is_text = text.bytes().all(|byte| byte.is_ascii_graphic() && !byte.is_ascii_uppercase());
        if !is_text || !(is_known || is_later && !text.starts_with("00-")) {
            return None;
        }
        let mut parts = text[..LENGTH].split('-');
        let mut part = |digits: usize| {
            let part = parts.next().filter(|part| part.len() == digits)?;
            let is_hex = part.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_hex.then(|| u128::from_str_radix(part, 16).ok()).flatten()
        };
        let (version, trace, span, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
        let span = u64::try_from(span).ok()?;
        let is_valid = version != 0xff && trace != 0 && span != 0;
        is_valid.then_some(TraceContext { trace, span, sampled: flags & 1 == 1 })
    }

    /// The first span of a new trace.
    pub(crate) fn root(sampled: bool) -> TraceContext {
        TraceContext { trace: fastrand::u128(1..), span: fastrand::u64(1..), sampled }
    }

    /// A new span below this one.
    pub(crate) fn child(self) -> TraceContext {
        TraceContext { span: fastrand::u64(1..), ..self }
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TraceContext { trace, span, sampled } = self;
        write!(f, "00-{trace:032x}-{span:016x}-{:02x}", u8::from(*sampled))
    }
}

/// Adds a trace context to the fields of a new task, unless its author has written one.
pub(crate) fn add_to(fields: &mut Vec<Field>, context: impl FnOnce() -> Option<String>) {
    let has_own = fields.iter().any(|field| field.name == TRACEPARENT);
    // A task without fields has to be refused, and a further field must not make it too many.
    if !has_own
        && (1..MAX_FIELDS).contains(&fields.len())
        && let Some(context) = context()
    {
        fields.push(Field { name: TRACEPARENT.to_owned(), value: context.into_bytes() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_text_is_read_and_written() {
        let context = TraceContext::parse(TEXT).expect("a context");
        assert_eq!(context.trace, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!((context.span, context.sampled), (0x00f0_67aa_0ba9_02b7, true));
        assert_eq!(context.to_string(), TEXT);
        let child = context.child();
        assert!(child.trace == context.trace && child.span != context.span && child.sampled);
        let not_sampled = TraceContext::parse(&TEXT.replace("-01", "-02")).expect("a context");
        assert!(!not_sampled.sampled && !TraceContext::root(false).sampled);
    }

    #[test]
    fn a_later_version_may_say_more() {
        for later in [TEXT.replace("00-4", "01-4"), TEXT.replace("00-4", "01-4") + "-more"] {
            let context = TraceContext::parse(&later);
            assert_eq!(context.is_some(), later.ends_with("more"), "{later}");
        }
    }

    #[test]
    fn other_texts_are_no_context() {
        let wrong = [
            "",
            "00-abc-def-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-600f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0é",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-+0f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\n",
        ];
        for text in
            wrong.map(str::to_owned).into_iter().chain([format!("01{}-{}", &TEXT[2..], "x".repeat(300))])
        {
            assert_eq!(TraceContext::parse(&text), None, "{text}");
        }
    }
}
