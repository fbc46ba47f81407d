//! Bytes of tasks as JSON.
//!
//! In: the bytes of results and fields, which may be JSON, text or neither. Out: JSON values. Not here: the
//! fields of a new task (`fields`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::mask::FieldMask;
use crate::queue::codec::RawFields;
use crate::task::Field;

/// One field. Fields are a list, since two may have the same name. Text stands as a string, other bytes as
/// `{"base64": …}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FieldView {
    pub name: Value,
    pub value: Value,
}

impl FieldView {
    pub(crate) fn of(field: &Field) -> FieldView {
        FieldView { name: field.name.as_str().into(), value: text_json(&field.value) }
    }

    /// The field, whose name has to be text.
    pub(crate) fn read(&self) -> Result<Field, String> {
        let name = self.name.as_str().ok_or_else(|| format!("the name {} is no text", self.name))?.to_owned();
        let value = bytes_of(&self.value).map_err(|why| format!("the value of the field {name:?}: {why}"))?;
        Ok(Field { name, value })
    }

    pub(crate) fn all(fields: &RawFields) -> Vec<FieldView> {
        let view =
            |(name, value): &(Vec<u8>, Vec<u8>)| FieldView { name: text_json(name), value: text_json(value) };
        fields.iter().map(view).collect()
    }

    /// The fields as they stand in Redis.
    pub(crate) fn raw(fields: &[FieldView]) -> RawFields {
        let bytes = |value| bytes_of(value).unwrap_or_default();
        fields.iter().map(|field| (bytes(&field.name), bytes(&field.value))).collect()
    }

    /// Hides the values that the mask names.
    pub(crate) fn mask<'f>(fields: impl IntoIterator<Item = &'f mut FieldView>, mask: &FieldMask) {
        fields.into_iter().for_each(|field| mask.hide_field(&field.name, &mut field.value));
    }
}

/// The JSON value that the bytes are, else their text, else `{"base64": …}`.
pub(crate) fn result_json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or_else(|_| text_json(bytes))
}

/// The bytes that [`FieldView`] shows like this.
pub(super) fn bytes_of(value: &Value) -> Result<Vec<u8>, String> {
    const FORM: &str = "it is neither a text nor {\"base64\": \"…\"}";
    match value {
        Value::String(text) => Ok(text.clone().into_bytes()),
        Value::Object(object) if object.len() == 1 => {
            let text = object.get("base64").and_then(Value::as_str).ok_or(FORM)?;
            STANDARD.decode(text).map_err(|why| format!("base64 cannot be read: {why}"))
        }
        _ => Err(FORM.to_owned()),
    }
}

/// Without parsing the bytes as JSON: their text, else `{"base64": …}`.
fn text_json(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => Value::from(text),
        Err(_) => json!({ "base64": STANDARD.encode(bytes) }),
    }
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
    }
}
