//! Bytes that somebody else wrote (results, fields) as JSON, as text, or as what they are.

use serde_json::{Value, json};

use super::text;

/// For `--json`: the JSON value that the bytes are, else their text, else `{"base64": …}`.
pub fn result_json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or_else(|_| text_json(bytes))
}

/// For `--json`, where JSON within is not looked for: text, else `{"base64": …}`.
pub fn text_json(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => Value::from(text),
        Err(_) => json!({ "base64": base64(bytes) }),
    }
}

/// For people: JSON with its own indentation, else text, else how much it is.
pub fn shown(bytes: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(bytes) else { return format!("{} bytes (binary)", bytes.len()) };
    let pretty = |value: Value| (value.is_object() || value.is_array()).then(|| serde_json::to_string_pretty(&value).ok()).flatten();
    let pretty = serde_json::from_str(text).ok().and_then(pretty);
    text::escape_block(pretty.as_deref().unwrap_or(text))
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = [chunk[0], *chunk.get(1).unwrap_or(&0), *chunk.get(2).unwrap_or(&0)];
        let group = u32::from_be_bytes([0, group[0], group[1], group[2]]);
        for digit in 0..4 {
            let index = group >> (18 - 6 * digit) & 63;
            out.push(if digit <= chunk.len() { char::from(DIGITS[index as usize]) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_the_rfc() {
        for (bytes, encoded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(base64(bytes.as_bytes()), encoded);
        }
        assert_eq!(base64(&[0xff, 0xfe]), "//4=");
    }

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
