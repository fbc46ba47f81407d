//! Hides the values of fields that an operator named (`[admin] mask`) in what the API and the dashboard show,
//! and from filters by text: a visitor could guess a value by trying filters.
//!
//! In: fields and results, as JSON. Out: this JSON with [`MASKED`] in place of the values of these fields,
//! and of these keys in JSON, at any depth, also where JSON lists them by name (`{"name": …, "value": …}`,
//! `["email", …]`). JSON and form-encoded pairs in a text are looked into, too, also behind what guards JSON
//! from scripts. JSON in base64, in UTF-16, in a value of a form, or in bytes that are no text
//! (`{"base64": …}`) is hidden as a whole if it has one of them. Errors, notes, logs and ids are not.
//!
//! Not here: the secrets of plugins, which never leave the sandbox (`sandbox::mask`).

use std::borrow::Cow;
use std::sync::Arc;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};

/// The text in place of a value.
pub(crate) const MASKED: &str = "[masked]";
/// The keys under which lists of pairs have a name, and those of its value.
const NAMES: [&str; 4] = ["name", "key", "field", "id"];
const VALUES: [&str; 3] = ["value", "values", "val"];
/// Texts that stand before JSON, so that no page can run it as a script.
const GUARDS: [&str; 3] = [")]}'", "while(1);", "for(;;);"];

/// How many forms are looked into, each within the one before. A text such as `a=a=a=…` could be one form for
/// each of its signs.
const MAX_FORMS: usize = 2;

const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const BASE64: [GeneralPurpose; 2] =
    [GeneralPurpose::new(&alphabet::STANDARD, LENIENT), GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT)];

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

    /// Hides the value of a field with this name, or the parts of it that are hidden.
    pub(crate) fn hide_field(&self, name: &Value, value: &mut Value) {
        match name.as_str().is_some_and(|name| self.hides(name)) {
            true => *value = MASKED.into(),
            false => self.hide_in(value),
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
        match self.masked(&text, MAX_FORMS) {
            Some(shown) => Some(Cow::Owned(shown)).filter(|shown| shown != MASKED),
            None => Some(text),
        }
    }

    /// As [`FieldMask::shown`], byte for byte where nothing at all is hidden.
    pub(crate) fn shown_bytes<'v>(&self, name: &[u8], value: &'v [u8]) -> Option<Cow<'v, [u8]>> {
        if self.is_empty() {
            return Some(Cow::Borrowed(value));
        }
        Some(match self.shown(name, value)? {
            Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
            Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        })
    }

    /// Hides the parts of a field's value, or of a result, that are hidden.
    pub(crate) fn hide_in(&self, value: &mut Value) {
        if !self.is_empty() {
            self.hide_within(value, MAX_FORMS);
        }
    }

    /// Hides what [`FieldMask::hide_in`] hides. `forms` is how many nested forms may be looked into.
    fn hide_within(&self, value: &mut Value, forms: usize) {
        match value {
            Value::Object(members) if self.hides_bytes(members, forms) => *value = MASKED.into(),
            Value::Object(members) => {
                let is_named = NAMES.iter().any(|key| self.is_hidden_name(members.get(*key)));
                for (name, value) in members {
                    match self.hides(name) || is_named && VALUES.contains(&name.as_str()) {
                        true => *value = MASKED.into(),
                        false => self.hide_within(value, forms),
                    }
                }
            }
            Value::Array(items) => {
                if let [name, value] = items.as_mut_slice()
                    && self.is_hidden_name(Some(name))
                {
                    *value = MASKED.into();
                }
                items.iter_mut().for_each(|item| self.hide_within(item, forms));
            }
            Value::String(text) => {
                if let Some(shown) = self.masked(text, forms) {
                    *text = shown;
                }
            }
            _ => {}
        }
    }

    /// Whether this is the JSON of bytes (`{"base64": …}`) in whose text something would be hidden.
    fn hides_bytes(&self, members: &Map<String, Value>, forms: usize) -> bool {
        let text = members.get("base64").filter(|_| members.len() == 1).and_then(Value::as_str);
        let bytes = text.and_then(|text| STANDARD.decode(text).ok());
        bytes.is_some_and(|bytes| self.masked(&String::from_utf8_lossy(&bytes), forms).is_some())
    }

    fn is_hidden_name(&self, name: Option<&Value>) -> bool {
        name.and_then(Value::as_str).is_some_and(|name| self.hides(name))
    }

    /// The text in place of one that may hold a hidden value. None: nothing in it is hidden, and it stays as
    /// it is. `forms` is how many forms may still be looked into, here and below.
    fn masked(&self, text: &str, forms: usize) -> Option<String> {
        if text.contains('\0') {
            // UTF-16, if it is text at all.
            return self.masked(&text.replace('\0', ""), forms).map(|_| MASKED.to_owned());
        }
        let json = behind_guard(text);
        match json.starts_with(['{', '[', '"']) {
            true => self.in_json(json, forms).map(|shown| match shown == MASKED {
                true => shown,
                false => format!("{}{shown}", &text[..text.len() - json.len()]),
            }),
            false => self.in_form(text, forms).or_else(|| self.in_base64(text, forms)),
        }
    }

    fn in_json(&self, json: &str, forms: usize) -> Option<String> {
        if !self.may_hide(json) {
            return None;
        }
        let Ok(before) = serde_json::from_str::<Value>(json) else {
            // It may be JSON that is cut, or that is too deep to be read.
            return self.occurs_in(json).then(|| MASKED.to_owned());
        };
        let mut after = before.clone();
        self.hide_within(&mut after, forms);
        (after != before).then(|| after.to_string())
    }

    /// Hides values of `name=value&…`, as forms and queries of URLs have them. A value in which something
    /// would be hidden is hidden as a whole, and so is one that stands alone.
    fn in_form(&self, text: &str, forms: usize) -> Option<String> {
        if !(text.contains('=') || is_encoded(text)) || text.contains(char::is_whitespace) {
            return None;
        }
        let Some(deeper) = forms.checked_sub(1) else {
            return self.occurs_in(text).then(|| MASKED.to_owned());
        };
        let mut is_hidden = false;
        let pairs = text.split('&').map(|pair| {
            let (name, value) = pair.split_at(pair.find('=').map_or(0, |at| at + 1));
            let plain = name.replace('+', " ");
            let plain = percent_decode_str(&plain).decode_utf8_lossy();
            // A path may stand before the first name, and `user[email]` is a part of a list.
            let is_named = plain.split(['[', ']', '.', '?', '=']).any(|part| self.hides(part));
            if !is_named && !self.hides_encoded(value, deeper) {
                return Cow::Borrowed(pair);
            }
            is_hidden = true;
            Cow::Owned(format!("{name}{MASKED}"))
        });
        let shown = pairs.collect::<Vec<_>>().join("&");
        is_hidden.then_some(shown)
    }

    /// Whether something would be hidden in this value of a form.
    fn hides_encoded(&self, value: &str, forms: usize) -> bool {
        if !value.contains('%') && !self.may_hide(value) {
            return false;
        }
        let plain = percent_decode_str(value).decode_utf8_lossy();
        // In forms a plus stands for a space. But some programs do not encode the plus signs of base64, so
        // only JSON is read with spaces in their place.
        let spaced = value.replace('+', " ");
        let spaced = percent_decode_str(&spaced).decode_utf8_lossy();
        let is_json = behind_guard(&spaced).starts_with(['{', '[', '"']);
        self.masked(if is_json { &spaced } else { &plain }, forms).is_some()
    }

    /// Hides base64 as a whole if something would be hidden in its text.
    fn in_base64(&self, text: &str, forms: usize) -> Option<String> {
        let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || b"+/-_=".contains(&byte);
        if text.is_empty() || !text.bytes().all(is_digit) {
            return None;
        }
        let bytes = BASE64.iter().find_map(|base64| base64.decode(text).ok())?;
        self.masked(&String::from_utf8_lossy(&bytes), forms).map(|_| MASKED.to_owned())
    }

    /// Whether a text that is JSON may hold one of the names. This costs much less than to read the JSON. A
    /// letter may be written by its number, and a text in it may be base64.
    fn may_hide(&self, text: &str) -> bool {
        text.contains("\\u") || self.occurs_in(text) || has_long_word(text)
    }

    /// Whether one of the names occurs in a text.
    fn occurs_in(&self, text: &str) -> bool {
        let text = text.to_ascii_lowercase();
        self.0.iter().any(|name| text.contains(name))
    }

    /// Whether values of this name are hidden. The names are in small letters.
    pub(crate) fn hides(&self, name: &str) -> bool {
        self.0.iter().any(|hidden| hidden.eq_ignore_ascii_case(name))
    }
}

/// The text without a byte order mark, spaces and a guard at its beginning.
fn behind_guard(text: &str) -> &str {
    // Bytes that are no text begin with the mark of a replacement.
    let is_mark = |c: char| c.is_whitespace() || matches!(c, '\u{feff}' | '\u{fffd}');
    let text = text.trim_start_matches(is_mark);
    let guarded = GUARDS.iter().find_map(|guard| text.strip_prefix(guard));
    guarded.map_or(text, |text| text.trim_start_matches(',').trim_start())
}

/// Whether the text has at least one byte in the form `%7B`.
fn is_encoded(text: &str) -> bool {
    matches!(Cow::from(percent_decode_str(text)), Cow::Owned(_))
}

/// Whether there are as many digits of base64 in a row as the shortest JSON with a name takes.
fn has_long_word(text: &str) -> bool {
    const SHORTEST: usize = 12;
    text.split(|c: char| !(c.is_ascii_alphanumeric() || "+/-_=".contains(c)))
        .any(|word| word.len() >= SHORTEST)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn masked(value: Value) -> Value {
        let mut value = value;
        FieldMask::new(&["email".into(), "phone".into()]).hide_in(&mut value);
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
    fn json_is_found_behind_marks_and_in_other_encodings() {
        let json = json!({ "email": "a@b", "n": 1 }).to_string();
        for (before, after) in [("\u{feff}", 1), (" \n", 1), (")]}'\n", 1), (")]}',\n", 1), ("for(;;);", 1)] {
            let found = masked(Value::from(format!("{before}{json}")));
            let shown = json!({ "email": MASKED, "n": after }).to_string();
            assert_eq!(found, format!("{before}{shown}"));
        }
        let utf16 = |order: fn(u16) -> [u8; 2], mark: &str| -> Vec<u8> {
            format!("{mark}{json}").encode_utf16().flat_map(order).collect()
        };
        for bytes in [utf16(u16::to_le_bytes, "\u{feff}"), utf16(u16::to_be_bytes, "\u{feff}")] {
            assert_eq!(masked(json!({ "base64": STANDARD.encode(bytes) })), MASKED);
        }
        let plain = String::from_utf8(utf16(u16::to_le_bytes, "")).expect("ASCII with zeros");
        assert_eq!(masked(Value::from(plain)), MASKED);
        for text in [STANDARD.encode(&json), STANDARD.encode(&json).replace('=', ""), BASE64[1].encode(&json)]
        {
            assert_eq!(masked(Value::from(text.as_str())), MASKED);
            let inner = json!({ "data": text }).to_string();
            assert_eq!(masked(json!({ "message": inner })), json!({ "message": "{\"data\":\"[masked]\"}" }));
        }
        for text in ["TWFu", "not-base64-of-anything", "=", "bm90aGluZw=="] {
            assert_eq!(masked(Value::from(text)), *text);
        }
    }

    #[test]
    fn pairs_of_forms_and_of_lists_are_hidden() {
        for (text, shown) in [
            ("email=a%40b&n=1", "email=[masked]&n=1"),
            ("n=1&Email=a", "n=1&Email=[masked]"),
            ("user%5Bemail%5D=a&user[phone]=1&x", "user%5Bemail%5D=[masked]&user[phone]=[masked]&x"),
            ("https://a.example/?email=a", "https://a.example/?email=[masked]"),
            ("n=1&x=email", "n=1&x=email"),
            ("a=b=email&50%email", "a=b=email&50%email"),
        ] {
            assert_eq!(masked(Value::from(text)), shown);
        }
        let list = |email: &str, phone: Value| {
            let named = [("name", "Email", json!(email)), ("key", "phone", phone), ("name", "x", json!(1))];
            let named = named.map(|(key, name, value)| json!({ key: name, "value": value }));
            json!([named, ["email", email], ["x", "email"]])
        };
        assert_eq!(masked(list("a@b", json!([1]))), list(MASKED, json!(MASKED)));
    }

    #[test]
    fn values_of_forms_are_looked_into() {
        for (text, shown) in [
            ("payload=%7B%22email%22%3A%22a%40b%22%7D", "payload=[masked]"),
            ("n=1&payload=%7b+%22Email%22%3a+%22a%22%7d&x=2", "n=1&payload=[masked]&x=2"),
            ("payload={\"email\":\"a@b\"}&n=1", "payload=[masked]&n=1"),
            ("list=%5B%22phone%22%2C1%5D", "list=[masked]"),
            ("cut=%7B%22email%22%3A%22a%40", "cut=[masked]"),
            ("https://a.example/?q=%7B%22email%22%3A1%7D", "https://a.example/?q=[masked]"),
            ("next=%2Flogin%3Femail%3Da%2540b&n=1", "next=[masked]&n=1"),
            ("data=eyJlbWFpbCI6ImFAYiJ9", "data=[masked]"),
            ("data=eyJlbWFpbCI6Ij4%2BPiJ9", "data=[masked]"),
            ("data=eyJlbWFpbCI6Ij4+PiJ9", "data=[masked]"),
            ("text=%7B%00%22%00e%00m%00a%00i%00l%00%22%00%3A%001%00%7D%00", "text=[masked]"),
            ("%7B%22email%22%3A%22a%40b%22%7D", MASKED),
            ("payload=%7B%22n%22%3A1%7D&x=%GG", "payload=%7B%22n%22%3A1%7D&x=%GG"),
            ("x=100%25&y=a%20b", "x=100%25&y=a%20b"),
        ] {
            assert_eq!(masked(Value::from(text)), shown, "{text}");
        }
    }

    #[test]
    fn forms_in_forms_have_a_bound() {
        let plain = "a=".repeat(1 << 16);
        assert_eq!(masked(Value::from(plain.as_str())), plain);
        assert_eq!(masked(Value::from(format!("{plain}email=a"))), "a=[masked]");
        let mut nested = "email=a".to_owned();
        for _ in 0..6 {
            nested = format!("a={}", nested.replace('%', "%25").replace('=', "%3D"));
        }
        assert_eq!(masked(Value::from(nested)), "a=[masked]");
        // JSON in a form in JSON, and so on, which grows little with each of them.
        let mut nested = "{\"email\":1}".to_owned();
        for _ in 0..500 {
            let encoded = nested.replace('%', "%25").replace('"', "%22");
            nested = format!("[\"a={encoded}\"]");
        }
        assert_eq!(masked(Value::from(nested)), "[\"a=[masked]\"]");
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
            mask.hide_field(&name.into(), &mut value);
            assert_eq!(value, after.unwrap_or(MASKED), "{name}");
            assert_eq!(mask.shown(name.as_bytes(), before.as_bytes()).as_deref(), after, "{name}");
        }
        assert_eq!(mask.shown(b"text", b"{\"phone\": 1\xff").as_deref(), None, "no text, but readable");
        assert_eq!(FieldMask::default().shown(b"phone", b"1").as_deref(), Some("1"));
    }
}
