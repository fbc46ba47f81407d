//! Reads the fields of a new task from a JSON object.
//!
//! In: the members of the object, each with its source. Out: fields. A string becomes its text, and
//! `{"base64": …}` the bytes. Any other value becomes its JSON source, so that a number keeps all its digits.

use std::fmt::{self, Formatter};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::error::{OperationError, OperationResult};
use crate::task::Field;

/// The members of an object, in their order, each with its source.
pub(crate) struct JsonMembers(pub Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for JsonMembers {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<JsonMembers, D::Error> {
        struct MembersReader;
        impl<'de> Visitor<'de> for MembersReader {
            type Value = JsonMembers;

            fn expecting(&self, to: &mut Formatter) -> fmt::Result {
                to.write_str("an object with the task's fields")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<JsonMembers, M::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(JsonMembers(members))
            }
        }
        from.deserialize_map(MembersReader)
    }
}

/// An object with one member, as bytes are written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Base64Bytes {
    base64: String,
}

/// The fields of a task.
pub(crate) fn fields_of_json(members: &[(String, Box<RawValue>)]) -> OperationResult<Vec<Field>> {
    members
        .iter()
        .map(|(name, value)| Ok(Field { name: name.clone(), value: bytes(name, value.get())? }))
        .collect()
}

/// The text of a value that is a string: an error where half of a surrogate pair is missing, which only
/// reading it finds. None: it is another value.
pub(crate) fn text_in(source: &str) -> Option<Result<String, String>> {
    let read = || serde_json::from_str(source).map_err(|error| error.to_string());
    source.starts_with('"').then(read)
}

fn bytes(name: &str, source: &str) -> OperationResult<Vec<u8>> {
    if let Some(text) = text_in(source) {
        let wrong = |why| OperationError::Invalid(format!("field {name:?}: {why}"));
        return text.map(String::into_bytes).map_err(wrong);
    }
    match serde_json::from_str::<Base64Bytes>(source) {
        Ok(bytes) => STANDARD.decode(&bytes.base64).map_err(|error| {
            OperationError::Invalid(format!("field {name:?}: base64 cannot be read: {error}"))
        }),
        Err(_) => Ok(source.as_bytes().to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::testing::table;

    #[test]
    fn values_become_bytes() {
        let read = |source: &str| bytes("f", source).map_err(|error| error.to_string());
        assert_eq!(read("\"a\\nb\""), Ok(b"a\nb".to_vec()));
        assert_eq!(read("{\"base64\": \"/w==\"}"), Ok(vec![0xff]));
        assert_eq!(read("12345678901234567890.10"), Ok(b"12345678901234567890.10".to_vec()));
        assert_eq!(read("{\"base64\": 1}"), Ok(b"{\"base64\": 1}".to_vec()));
        assert_eq!(read("[1,  2]"), Ok(b"[1,  2]".to_vec()));
        let texts = ["\"\\ud800\"", "{\"base64\": \"/w=\"}"];
        insta::assert_snapshot!(table(&texts, |text| read(text).expect_err(text)), @r#"
        "\ud800"
            field "f": unexpected end of hex escape at line 1 column 8
        {"base64": "/w="}
            field "f": base64 cannot be read: Invalid padding
        "#);
    }
}
