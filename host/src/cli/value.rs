//! Shows bytes that may be JSON, text or neither, to people.
//!
//! In: the bytes of results and fields. Out: text. Not here: results and fields as JSON (`operations`), the
//! escapes (`text`).

use serde_json::Value;

use super::text;

/// For people: indented JSON, else text, else the number of bytes.
pub(super) fn shown(bytes: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(bytes) else { return format!("{} bytes (binary)", bytes.len()) };
    let pretty = |value: Value| {
        (value.is_object() || value.is_array()).then(|| serde_json::to_string_pretty(&value).ok()).flatten()
    };
    let pretty = serde_json::from_str(text).ok().and_then(pretty);
    text::escape_block(pretty.as_deref().unwrap_or(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_shown_as_what_they_can_be() {
        assert_eq!(shown(br#"{"a":1}"#), "{\n  \"a\": 1\n}");
        assert_eq!(shown(b"12.50"), "12.50");
        assert_eq!(shown(b"\x1b[2J\n"), "\\u{1b}[2J\n");
        assert_eq!(shown(&[0xff; 7]), "7 bytes (binary)");
    }
}
