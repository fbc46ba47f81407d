//! Reads values of tasks that the configuration names by their place: idempotency keys and aliases.
//!
//! In: the fields of a task, and places in it. Out: text as it stands there, or a hash of it if it is long,
//! because it becomes part of a key in Redis. Producers, commands and hosts read a value by these functions
//! alone, so that they agree about it.
//!
//! Not here: which places there are (`config::value`).

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::config::{Pointer, ValueAt};
use crate::field::without_bom;
use crate::task::Field;

/// The most bytes of a value. A longer value is replaced by its hash.
const MAX_BYTES: usize = 512;
/// The beginning of a hash. A value with this beginning is hashed, too, so that no value looks like the hash
/// of another one.
const HASHED: &str = "sha256:";

/// The idempotency key of a task: its own key, or else the values at these places. None: its own key is
/// empty, or a value is missing.
pub(super) fn idempotency_key<'t>(
    own: Option<&'t (impl AsRef<[u8]> + ?Sized)>,
    fields: &'t [Field],
    places: &[ValueAt],
) -> Option<Cow<'t, [u8]>> {
    let key = match own {
        Some(own) => Cow::Borrowed(own.as_ref()),
        None => joined(fields, places)?,
    };
    (!key.is_empty()).then(|| short(key))
}

/// The alias of a task. None: its value is missing or empty, or neither text nor a number.
pub(super) fn alias<'t>(fields: &'t [Field], place: &ValueAt) -> Option<Cow<'t, [u8]>> {
    value_at(fields, place).map(short)
}

/// The form in which a value is part of a key in Redis.
pub(super) fn short(value: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    if value.len() <= MAX_BYTES && !value.starts_with(HASHED.as_bytes()) {
        return value;
    }
    Cow::Owned(format!("{HASHED}{:x}", Sha256::digest(&value)).into_bytes())
}

/// The values at these places: one value as it is, or several, each behind its length, so that no two lists
/// of values look alike.
fn joined<'t>(fields: &'t [Field], places: &[ValueAt]) -> Option<Cow<'t, [u8]>> {
    if let [place] = places {
        return value_at(fields, place);
    }
    let mut all = Vec::new();
    for place in places {
        let value = value_at(fields, place)?;
        all.extend(format!("{}:", value.len()).into_bytes());
        all.extend_from_slice(&value);
    }
    Some(Cow::Owned(all))
}

/// The value of a task at this place, if it is there and not empty.
pub(super) fn value_at<'t>(fields: &'t [Field], place: &ValueAt) -> Option<Cow<'t, [u8]>> {
    let field = fields.iter().find(|field| field.name == place.field)?;
    let value = match &place.pointer {
        None => Cow::Borrowed(field.value.as_slice()),
        Some(pointer) => Cow::Owned(in_json(&field.value, pointer)?),
    };
    (!value.is_empty()).then_some(value)
}

/// The string or the number to which a pointer leads. A number keeps its digits: parsed numbers with many
/// digits would look alike.
fn in_json(json: &[u8], pointer: &Pointer) -> Option<Vec<u8>> {
    let found = json_at(json, pointer)?.get();
    match found.as_bytes().first()? {
        b'"' => serde_json::from_str::<String>(found).ok().map(String::into_bytes),
        b'-' | b'0'..=b'9' => Some(found.as_bytes().to_vec()),
        _ => None,
    }
}

/// The part of a JSON text to which a pointer leads. None: there is no such part, or the text is no JSON.
pub(super) fn json_at<'j>(json: &'j [u8], Pointer(tokens): &Pointer) -> Option<&'j RawValue> {
    let text = std::str::from_utf8(without_bom(json)).ok()?;
    let Some((first, rest)) = tokens.split_first() else { return serde_json::from_str(text).ok() };
    let mut found = part_of(text, first)?;
    for token in rest {
        found = part_of(found.get(), token)?;
    }
    Some(found)
}

/// The member of a JSON object with this name, or the element of an array with this index.
fn part_of<'j>(json: &'j str, token: &str) -> Option<&'j RawValue> {
    let mut reader = serde_json::Deserializer::from_str(json);
    // An error also means that the value is neither an object nor an array.
    let found = reader.deserialize_any(PartReader(token)).ok()?;
    reader.end().ok()?;
    found
}

/// Keeps one part of an object or an array, and skips the others.
struct PartReader<'t>(&'t str);

impl<'de> Visitor<'de> for PartReader<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or an array")
    }

    /// If an object has a name twice, the last value counts, as in most parsers.
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(is_it) = map.next_key_seed(NameIs(self.0))? {
            if is_it {
                found = Some(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        // RFC 6901 has no leading zeros.
        let wanted = self.0.parse::<usize>().ok().filter(|index| index.to_string() == self.0);
        let mut found = None;
        for index in 0.. {
            if wanted == Some(index) {
                match list.next_element()? {
                    Some(value) => found = Some(value),
                    None => break,
                }
            } else if list.next_element::<IgnoredAny>()?.is_none() {
                break;
            }
        }
        Ok(found)
    }
}

/// Tells whether the name of a member of an object is this name.
struct NameIs<'p>(&'p str);

impl<'de> DeserializeSeed<'de> for NameIs<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, name: D) -> Result<bool, D::Error> {
        name.deserialize_str(self)
    }
}

impl Visitor<'_> for NameIs<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<bool, E> {
        Ok(name == self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn field(name: &str, value: &str) -> Field {
        Field { name: name.into(), value: value.into() }
    }

    fn whole(name: &str) -> ValueAt {
        ValueAt { field: name.into(), pointer: None }
    }

    fn at(json: &str, tokens: &[&str]) -> Option<String> {
        let pointer = Pointer(tokens.iter().map(|token| (*token).to_owned()).collect());
        in_json(json.as_bytes(), &pointer).map(|value| String::from_utf8(value).unwrap())
    }

    #[test]
    fn values_in_json() {
        let json =
            r#" {"a": {"b/c": [7, "x\u00e9", -1.50, 12345678901234567890123]}, "n": null, "a~": "y"} "#;
        let table: [(&[&str], Option<&str>); 13] = [
            (&["a", "b/c", "0"], Some("7")),
            (&["a", "b/c", "1"], Some("xé")),
            (&["a", "b/c", "2"], Some("-1.50")),
            (&["a", "b/c", "3"], Some("12345678901234567890123")),
            (&["a~"], Some("y")),
            (&["a", "b/c", "4"], None),
            (&["a", "b/c", "00"], None),
            (&["a", "b/c", "-"], None),
            (&["a", "b/c", "0", "x"], None),
            (&["a", "b/c"], None),
            (&["a"], None),
            (&["n"], None),
            (&["missing"], None),
        ];
        for (tokens, value) in table {
            assert_eq!(at(json, tokens).as_deref(), value, "{tokens:?}");
        }
        assert_eq!(at("\"whole\"", &[]).as_deref(), Some("whole"));
        assert_eq!(at("{\"a\": 1, \"a\": 2}", &["a"]).as_deref(), Some("2"));
        for broken in ["", "{\"a\": 1", "{\"a\": 1} x", "{a: 1}", "{\"a\": \"\\ud800\"}"] {
            assert_eq!(at(broken, &["a"]), None, "{broken}");
        }
        let deep = format!("{{\"x\": {}{}, \"a\": 1}}", "[".repeat(1 << 20), "]".repeat(1 << 20));
        assert_eq!(at(&deep, &["a"]).as_deref(), Some("1"), "depth costs no stack");
    }

    #[test]
    fn a_key_of_its_own_comes_first() {
        let fields = [field("a", "1"), field("b", ""), field("c", "22")];
        let key = |own: Option<&str>, names: &[&str]| {
            let places: Vec<ValueAt> = names.iter().map(|name| whole(name)).collect();
            let key = idempotency_key(own, &fields, &places);
            key.map(|key| String::from_utf8(key.into_owned()).unwrap())
        };
        assert_eq!(key(Some("own"), &["a"]).as_deref(), Some("own"));
        assert_eq!(key(Some(""), &["a"]), None);
        assert_eq!(key(None, &[]), None);
        assert_eq!(key(None, &["a"]).as_deref(), Some("1"));
        assert_eq!(key(None, &["c", "a"]).as_deref(), Some("2:221:1"));
        assert_eq!((key(None, &["b"]), key(None, &["a", "b"]), key(None, &["a", "x"])), (None, None, None));
    }

    #[test]
    fn long_values_are_hashed() {
        let short = |text: &str| String::from_utf8(short(text.as_bytes().into()).into_owned()).unwrap();
        let most = "k".repeat(MAX_BYTES);
        assert_eq!(short(&most), most);
        let hashed = short(&format!("{most}k"));
        assert!(hashed.starts_with("sha256:") && hashed.len() == 71, "{hashed}");
        assert_ne!(short(&hashed), hashed, "a value cannot pretend to be the hash of another one");
        // The vector of FIPS 180-2, with a value that begins like a hash.
        assert_eq!(
            short("sha256:"),
            format!("sha256:{:x}", Sha256::digest(b"sha256:")),
            "the hash is that of the whole value"
        );
    }

    proptest! {
        #[test]
        fn two_lists_of_values_have_one_key_only_if_they_are_equal(
            a in prop::collection::vec("[0-9:]{1,4}", 2..4), b in prop::collection::vec("[0-9:]{1,4}", 2..4),
        ) {
            let key = |values: &[String]| {
                let fields: Vec<Field> =
                    values.iter().enumerate().map(|(n, value)| field(&n.to_string(), value)).collect();
                let places: Vec<ValueAt> = (0..values.len()).map(|n| whole(&n.to_string())).collect();
                joined(&fields, &places).map(Cow::into_owned)
            };
            prop_assert_eq!(a == b, key(&a) == key(&b));
        }

        #[test]
        fn a_pointer_finds_what_a_parser_finds(
            value in prop_oneof![any::<i64>().prop_map(|n| n.to_string()), "[a-z\\\\\"é]{1,6}"],
            before in "[a-z]{1,3}", name in "[A-Z/~]{1,3}",
        ) {
            let json = serde_json::json!({ before: [1, null], name.clone(): [{ "x": value }] }).to_string();
            prop_assert_eq!(at(&json, &[&name, "0", "x"]), Some(value));
        }
    }
}
