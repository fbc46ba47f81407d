//! The fields that a completed task keeps, in a field of its status.
//!
//! In: the fields of a task. Out: JSON, a list of pairs; or the fields again. Text stands as a string, other
//! bytes as `{"base64": …}`. Not here: which queues keep fields (`keep_fields` of the configuration), the
//! status (`status`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::codec::RawFields;
use crate::task::Field;

/// The most bytes of names and values that are kept.
pub(crate) const MOST_KEPT: usize = 16 << 10;

/// The fields of a completed task, if its queue keeps them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeptFields {
    Kept(RawFields),
    /// The fields have more than [`MOST_KEPT`] bytes. The number is their size in bytes.
    TooLarge(u64),
}

/// Returns the fields as JSON.
pub(super) fn write(fields: &[Field]) -> String {
    let text = |bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(text) => Value::from(text),
        Err(_) => json!({ "base64": STANDARD.encode(bytes) }),
    };
    fields.iter().map(|field| json!([field.name, text(&field.value)])).collect::<Value>().to_string()
}

/// Reads the JSON. None: another version of tqhost wrote another form.
pub(super) fn read(json: &[u8]) -> Option<RawFields> {
    let bytes = |value: &Value| match value {
        Value::String(text) => Some(text.clone().into_bytes()),
        value => STANDARD.decode(value.get("base64")?.as_str()?).ok(),
    };
    let pairs: Vec<[Value; 2]> = serde_json::from_slice(json).ok()?;
    pairs.iter().map(|[name, value]| Some((bytes(name)?, bytes(value)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_they_were_written() {
        let field = |name: &str, value: &[u8]| Field { name: name.into(), value: value.to_vec() };
        let fields = [field("a", b"1"), field("a", "ü\n\"".as_bytes()), field("b", &[0, 0xff])];
        let read = read(write(&fields).as_bytes()).expect("fields");
        let expected = fields.map(|field| (field.name.into_bytes(), field.value));
        assert_eq!(read, expected);
        assert_eq!(super::read(b"{}"), None);
        assert_eq!(super::read(br#"[["a",5]]"#), None);
    }
}
