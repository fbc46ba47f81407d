//! Shows bytes that may be JSON, text or neither.
//!
//! In: the bytes of results and fields. Out: a JSON value for `--json`, or text for people. Not here: the
//! escapes (`text`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::text;

/// For `--json`: the JSON value that the bytes are, else their text, else `{"base64": …}`.
pub(super) fn result_json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or_else(|_| text_json(bytes))
}

/// For `--json`, without parsing the bytes as JSON: their text, else `{"base64": …}`.
pub(super) fn text_json(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => Value::from(text),
        Err(_) => json!({ "base64": STANDARD.encode(bytes) }),
    }
}

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
    fn results_are_what_they_can_be() {
        assert_eq!(result_json(br#"{"b": 1, "a": [2]}"#).to_string(), r#"{"b":1,"a":[2]}"#);
        assert_eq!(result_json(b"done"), json!("done"));
        assert_eq!(text_json(b"1"), json!("1"));
        assert_eq!(result_json(&[0xff]), json!({ "base64": "/w==" }));
        assert_eq!(shown(br#"{"a":1}"#), "{\n  \"a\": 1\n}");
        assert_eq!(shown(b"12.50"), "12.50");
        assert_eq!(shown(b"\x1b[2J\n"), "\\u{1b}[2J\n");
        assert_eq!(shown(&[0xff; 7]), "7 bytes (binary)");
    }
}
