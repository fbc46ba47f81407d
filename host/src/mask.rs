//! Hides the values of fields that an operator named (`[admin] mask`) in what the API and the dashboard show,
//! and from filters by text, which would tell them to whoever tries.
//!
//! In: fields and results, as JSON. Out: the same, with [`MASKED`] in place of the values of these fields,
//! and of these keys in JSON, at any depth. JSON in a text is looked into, too; JSON in bytes that are no
//! text (`{"base64": …}`) is hidden as a whole if it has one of them. Errors, notes, logs and ids are not.
//!
//! Not here: the secrets of plugins, which never leave the sandbox (`sandbox::mask`).

use std::borrow::Cow;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

/// The text in place of a value.
const MASKED: &str = "[masked]";

/// The names whose values are hidden. Clones share them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldMask(Arc<[String]>);

impl FieldMask {
    pub(crate) fn new(names: &[String]) -> FieldMask {
        FieldMask(names.into())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value of a field with this name.
    pub(crate) fn field(&self, name: &Value, value: &mut Value) {
        match name.as_str().is_some_and(|name| self.hides(name)) {
            true => *value = MASKED.into(),
            false => self.value(value),
        }
    }

    /// The part of a field's value that is shown, as text. None: the whole value is hidden.
    pub(crate) fn shown<'v>(&self, name: &[u8], value: &'v [u8]) -> Option<Cow<'v, str>> {
        let text = String::from_utf8_lossy(value);
        if self.is_empty() {
            return Some(text);
        }
        if std::str::from_utf8(name).is_ok_and(|name| self.hides(name)) {
            return None;
        }
        match self.masked(&text) {
            Some(shown) => Some(Cow::Owned(shown)).filter(|shown| shown != MASKED),
            None => Some(text),
        }
    }

    /// A value of a field or of a result.
    pub(crate) fn value(&self, value: &mut Value) {
        if self.is_empty() {
            return;
        }
        match value {
            Value::Object(members) if self.hides_bytes(members) => *value = MASKED.into(),
            Value::Object(members) => {
                for (name, value) in members {
                    match self.hides(name) {
                        true => *value = MASKED.into(),
                        false => self.value(value),
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.value(item)),
            Value::String(text) => {
                if let Some(shown) = self.masked(text) {
                    *text = shown;
                }
            }
            _ => {}
        }
    }

    /// Whether these are bytes, as JSON, in which something would be hidden if they were text.
    fn hides_bytes(&self, members: &Map<String, Value>) -> bool {
        let text = members.get("base64").filter(|_| members.len() == 1).and_then(Value::as_str);
        let bytes = text.and_then(|text| STANDARD.decode(text).ok());
        bytes.is_some_and(|bytes| self.masked(&String::from_utf8_lossy(&bytes)).is_some())
    }

    /// The text in place of one that may be JSON. None: nothing in it is hidden, and it stays as it is.
    fn masked(&self, text: &str) -> Option<String> {
        if !text.trim_start().starts_with(['{', '[', '"']) || !self.may_hide(text) {
            return None;
        }
        let Ok(before) = serde_json::from_str::<Value>(text) else {
            // It may be JSON that is cut, or that is too deep to be read.
            return self.names(text).then(|| MASKED.to_owned());
        };
        let mut after = before.clone();
        self.value(&mut after);
        (after != before).then(|| after.to_string())
    }

    /// Whether a text that is JSON may hold one of the names. This costs much less than to read the JSON. A
    /// letter may be written by its number.
    fn may_hide(&self, text: &str) -> bool {
        text.contains("\\u") || self.names(text)
    }

    /// Whether one of the names occurs in a text.
    fn names(&self, text: &str) -> bool {
        let text = text.to_ascii_lowercase();
        self.0.iter().any(|name| text.contains(name))
    }

    /// Whether values of this name are hidden. The names are in small letters.
    fn hides(&self, name: &str) -> bool {
        self.0.iter().any(|hidden| hidden.eq_ignore_ascii_case(name))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn masked(value: Value) -> Value {
        let mut value = value;
        FieldMask::new(&["email".into(), "phone".into()]).value(&mut value);
        value
    }

    #[test]
    fn named_members_are_hidden_at_any_depth() {
        let found = masked(json!({ "id": 7, "E-Mail": 1, "to": [{ "Email": { "a": 1 }, "phone": null }] }));
        let hidden = json!({ "id": 7, "E-Mail": 1, "to": [{ "Email": MASKED, "phone": MASKED }] });
        assert_eq!(found, hidden);
    }

    #[test]
    fn json_in_a_text_is_looked_into() {
        let inner = json!({ "email": "a@b" }).to_string();
        let found = masked(json!({ "body": json!({ "inner": inner, "n": 1 }).to_string() }));
        let found = found["body"].as_str().expect("a text");
        assert!(!found.contains("a@b") && found.contains(MASKED) && found.contains("\"n\":1"), "{found}");
        // A name in another spelling of JSON.
        let found = masked(Value::from("{\"em\\u0061il\": \"a@b\"}"));
        assert_eq!(found, "{\"email\":\"[masked]\"}");
    }

    #[test]
    fn text_without_hidden_values_stays_as_it_is() {
        let texts = ["{ \"n\": 12345678901234567890.10 }", "email: a@b", "{\"cut", ""];
        for text in texts {
            assert_eq!(masked(Value::from(text)), *text);
        }
    }

    #[test]
    fn json_that_cannot_be_read_is_hidden_as_a_whole() {
        let deep = format!("{}{{\"email\":1}}{}", "[".repeat(200), "]".repeat(200));
        for text in ["{\"email\": \"a@", &deep] {
            assert_eq!(masked(Value::from(text)), MASKED);
        }
    }

    #[test]
    fn json_in_bytes_that_are_no_text_is_hidden_as_a_whole() {
        let bytes = |bytes: &[u8]| json!({ "base64": STANDARD.encode(bytes) });
        for json in
            [&b"{\"email\": \"a@b\", \"x\": \"\xff\"}"[..], b"[{\"phone\": \"\xc3\"}]", b"{\"email\": \xff"]
        {
            assert_eq!(masked(bytes(json)), MASKED);
            assert_eq!(masked(json!({ "in": [bytes(json)] })), json!({ "in": [MASKED] }));
        }
        let others = [
            bytes(b"\xff\xfe"),
            bytes(b"{\"x\": \"\xff\"}"),
            json!({ "base64": "?" }),
            json!({ "base64": 7 }),
        ];
        for other in others {
            assert_eq!(masked(other.clone()), other);
        }
    }

    #[test]
    fn fields_are_hidden_by_their_name() {
        let mask = FieldMask::new(&["phone".into()]);
        for (name, before, after) in [
            ("PHONE", "1", None),
            ("text", "phone 1", Some("phone 1")),
            ("end.result", "{\"phone\": 1}", Some("{\"phone\":\"[masked]\"}")),
            ("cut", "{\"phone\": 1", None),
        ] {
            let mut value = Value::from(before);
            mask.field(&name.into(), &mut value);
            assert_eq!(value, after.unwrap_or(MASKED), "{name}");
            assert_eq!(mask.shown(name.as_bytes(), before.as_bytes()).as_deref(), after, "{name}");
        }
        assert_eq!(mask.shown(b"text", b"{\"phone\": 1\xff").as_deref(), None, "no text, but readable");
        assert_eq!(FieldMask::default().shown(b"phone", b"1").as_deref(), Some("1"));
    }
}
