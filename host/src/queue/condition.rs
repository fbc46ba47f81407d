//! Conditions on the fields of tasks: `tenant=acme`, `tenant!=acme*`, `data/user/id=7`.
//!
//! In: a condition as an operator writes it, and the fields of a task. Out: whether the condition holds.
//! docs/commands-tasks.md describes how conditions are written. A condition on a hidden value is refused; if
//! a part of a value is hidden, the condition is about the part that is shown. Not here: the other filters
//! (`filter`).

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::codec::RawFields;
use super::value::json_at;
use crate::config::{FieldPlace, Pointer};
use crate::mask::{FieldMask, MASKED};

/// The most conditions of a filter.
const MAX_CONDITIONS: usize = 16;
/// The most bytes of a condition.
const MAX_BYTES: usize = 1 << 10;
/// How many characters of a condition that is too long are in the message about it.
const TOLD_CHARS: usize = 40;

impl FieldPlace {
    /// Reads the place that a filter names. A place whose values are hidden is refused.
    pub(crate) fn asked(name: &str, mask: &FieldMask) -> Result<FieldPlace, String> {
        let place = FieldPlace::parse(name)?;
        match place.hidden_by(mask) {
            Some(hidden) => {
                Err(format!("{hidden} is hidden by mask in [admin], and a filter would tell its values"))
            }
            None => Ok(place),
        }
    }

    /// The values at this place, as they are shown. There may be several, because fields may share a name.
    /// None: one of the values is hidden.
    pub(crate) fn values<'t>(&self, fields: &'t RawFields, mask: &FieldMask) -> Option<Vec<Cow<'t, [u8]>>> {
        let mut values = Vec::new();
        for (name, value) in fields {
            if name == self.name.as_bytes() {
                values.push(mask.shown_bytes(name, value)?);
            } else if let Some((field, pointer)) = &self.in_json
                && name == field.as_bytes()
            {
                values.extend(in_json(&mask.shown_bytes(name, value)?, pointer).map(Cow::Owned));
            }
        }
        let is_hidden = |value: &Cow<[u8]>| !mask.is_empty() && **value == *MASKED.as_bytes();
        (!values.iter().any(is_hidden)).then_some(values)
    }
}

/// The value at a place in JSON: the content of a string, and the JSON text of any other value.
fn in_json(json: &[u8], pointer: &Pointer) -> Option<Vec<u8>> {
    let found = json_at(json, pointer)?.get();
    if found.starts_with('"') {
        return serde_json::from_str::<String>(found).ok().map(String::into_bytes);
    }
    Some(found.as_bytes().to_vec())
}

/// A condition on the fields of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FieldCondition {
    /// The condition as an operator wrote it.
    text: String,
    place: FieldPlace,
    /// The condition is `!=`: no value at the place may be the wanted one.
    is_negated: bool,
    value: String,
    /// A value at the place need only begin with `value`.
    is_prefix: bool,
}

impl FieldCondition {
    /// Reads the conditions of a filter.
    pub(crate) fn all<T: AsRef<str>>(texts: &[T], mask: &FieldMask) -> Result<Vec<FieldCondition>, String> {
        if texts.len() > MAX_CONDITIONS {
            return Err(format!("{} conditions are more than {MAX_CONDITIONS}", texts.len()));
        }
        texts.iter().map(|text| FieldCondition::parse(text.as_ref(), mask)).collect()
    }

    fn parse(text: &str, mask: &FieldMask) -> Result<FieldCondition, String> {
        if text.len() > MAX_BYTES {
            let begin: String = text.chars().take(TOLD_CHARS).collect();
            return Err(format!("{begin:?}… has {} bytes, and {MAX_BYTES} are the most", text.len()));
        }
        let (name, value) = text.split_once('=').ok_or_else(|| {
            format!("{text:?} is no condition: write tenant=acme, tenant!=acme or tenant=acme*")
        })?;
        let (name, is_negated) = name.strip_suffix('!').map_or((name, false), |name| (name, true));
        let place = FieldPlace::asked(name, mask).map_err(|why| format!("{text:?}: {why}"))?;
        let (value, is_prefix) = match (value.strip_suffix("\\*"), value.strip_suffix('*')) {
            (Some(begin), _) => (format!("{begin}*"), false),
            (None, Some(begin)) => (begin.to_owned(), true),
            (None, None) => (value.to_owned(), false),
        };
        Ok(FieldCondition { text: text.to_owned(), place, is_negated, value, is_prefix })
    }

    /// Whether it holds for a task with these fields.
    pub(super) fn holds(&self, fields: &RawFields, mask: &FieldMask) -> bool {
        let wanted = self.value.as_bytes();
        let is_wanted = |value: &Cow<[u8]>| {
            if self.is_prefix { value.starts_with(wanted) } else { **value == *wanted }
        };
        let values = self.place.values(fields, mask);
        values.is_some_and(|values| values.iter().any(is_wanted) != self.is_negated)
    }
}

impl From<FieldCondition> for String {
    fn from(condition: FieldCondition) -> String {
        condition.text
    }
}

/// Reads a condition that was stored. Whether its values are hidden was checked when an operator wrote it.
impl TryFrom<String> for FieldCondition {
    type Error = String;

    fn try_from(text: String) -> Result<FieldCondition, String> {
        FieldCondition::parse(&text, &FieldMask::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::testing::table;

    fn condition(text: &str, mask: &FieldMask) -> Result<FieldCondition, String> {
        FieldCondition::all(&[text], mask).map(|mut all| all.remove(0))
    }

    /// A task with a field of each kind.
    fn fields() -> RawFields {
        let json =
            r#"{"user": {"id": 7, "name": "Ada", "a/b": "*"}, "ok": true, "no": null, "x": [1.50, {}]}"#;
        [
            ("tenant", "acme"),
            ("mail", "sales@acme.example"),
            ("empty", ""),
            ("sum", "a=b"),
            ("star", "5*"),
            ("tag", "new"),
            ("tag", "paid"),
            ("content/type", "text"),
            ("data", json),
            ("cut", "{\"a\": 1"),
        ]
        .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
        .into_iter()
        .chain([(b"bytes".to_vec(), b"ab\xff".to_vec()), (b"\xff".to_vec(), b"1".to_vec())])
        .collect()
    }

    #[test]
    fn conditions_are_exact() {
        let table = [
            ("tenant=acme", true),
            ("tenant=Acme", false),
            ("tenant=acm", false),
            ("tenant=acme-labs", false),
            ("tenant=acm*", true),
            ("tenant=acme*", true),
            ("mail=acme", false),
            ("tenant=*", true),
            // A field that is missing or empty.
            ("empty=", true),
            ("empty=*", true),
            ("tenant=", false),
            ("missing=", false),
            ("missing=*", false),
            // The first sign divides, and the rest is the value.
            ("sum=a=b", true),
            ("sum=a!=b", false),
            ("sum!=a!=b", true),
            // A star at the end that is one.
            ("star=5\\*", true),
            ("star=5\\\\*", false),
            ("tenant=acme\\*", false),
            ("star=*5*", false),
            // One of several values is enough.
            ("tag=new", true),
            ("tag=paid", true),
            ("tag=old", false),
            // Bytes that are no text.
            ("bytes=ab", false),
            ("bytes=ab\u{fffd}", false),
            ("bytes=ab*", true),
            ("\u{fffd}=1", false),
            // In JSON.
            ("data/user/id=7", true),
            ("data/user/id=7*", true),
            ("data/user/id=7.0", false),
            ("data/user/name=Ada", true),
            ("data/user/name=\"Ada\"", false),
            ("data/user/a~1b=\\*", true),
            ("data/ok=true", true),
            ("data/no=null", true),
            ("data/no=", false),
            ("data/x/0=1.50", true),
            ("data/x/0=1.5", false),
            ("data/x/1={}", true),
            ("data/x/2=*", false),
            ("data/user=*", true),
            ("data/user/id/x=*", false),
            ("tenant/a=*", false),
            ("cut/a=1", false),
            // A field whose own name has a slash.
            ("content/type=text", true),
        ];
        let fields = fields();
        for (text, is_so) in table {
            let holds = |text: &str| {
                condition(text, &FieldMask::default()).expect(text).holds(&fields, &FieldMask::default())
            };
            assert_eq!(holds(text), is_so, "{text}");
            if !text.contains("!=") {
                assert_eq!(holds(&text.replacen('=', "!=", 1)), !is_so, "not {text}");
            }
        }
    }

    #[test]
    fn a_condition_that_cannot_be_read_is_named() {
        let mask = FieldMask::new(&["email".into()]);
        let texts = [
            "tenant",
            "",
            "=acme",
            "!=acme",
            "/id=7",
            "tq-id=7",
            "data/a~b=7",
            "Email=a",
            "email!=a*",
            "data/user/email=a",
            "email/user=a",
        ];
        insta::assert_snapshot!(table(&texts, |text| condition(text, &mask).expect_err(text)));
        let long = format!("a={}", "é".repeat(MAX_BYTES / 2 - 1));
        assert!(condition(&long, &mask).is_ok(), "1 KiB");
        insta::assert_snapshot!(condition(&format!("{long}e"), &mask).expect_err("one more"), @r#"
        "a=éééééééééééééééééééééééééééééééééééééé"… has 1025 bytes, and 1024 are the most
        "#);
        let many = vec!["a=1"; MAX_CONDITIONS + 1];
        assert!(FieldCondition::all(&many[1..], &mask).is_ok());
        insta::assert_snapshot!(FieldCondition::all(&many, &mask).expect_err("one more"), @r"
        17 conditions are more than 16
        ");
    }

    #[test]
    fn a_hidden_value_is_not_told() {
        let mask = FieldMask::new(&["email".into()]);
        let field = |name: &str, value: &str| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
        let pairs = r#"{"list": [{"name": "email", "value": "a@b"}], "city": "London"}"#;
        let fields = vec![
            field("pairs", pairs),
            field("cut", "{\"email\": \"a@b"),
            field("form", "email=a&n=1"),
            field("plain", "x"),
        ];
        let table = [
            ("pairs/list/0/value=a*", false),
            ("pairs/list/0/value!=a*", false),
            ("pairs/list/0/value!=z", false),
            ("pairs/city=London", true),
            ("pairs={\"list\": [{\"name\": \"email\", \"value\": \"a*", false),
            ("cut={\"email\": \"a*", false),
            ("cut!={\"email\": \"z*", false),
            ("form=email=a*", false),
            ("form=email=[masked]&n=1", true),
            ("plain=x", true),
            ("plain!=y", true),
        ];
        for (text, is_so) in table {
            assert_eq!(condition(text, &mask).expect(text).holds(&fields, &mask), is_so, "{text}");
        }
    }
}
