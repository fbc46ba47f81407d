//! The body of a request.
//!
//! In: a task. Out: `{"id", "queue", "attempt", "fence", "fields": {…}}`, or one field as it is.
//!
//! A reader of `fields` tells by JSON's own types what a value is: a string is text; an object
//! `{"base64": "…"}` has bytes that are not UTF-8; an array has the values of a name that came more than
//! once, in their order, each of them a string or such an object.
//!
//! Not here: the headers (the crate's root).

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::ser::{Serialize, SerializeMap, Serializer};
use tqhost_handler::{Failure, Field, OrFail, Task};

use crate::settings::Body;

pub fn of(task: &Task, fence: u64, body: &Body) -> Result<Vec<u8>, Failure> {
    match body {
        // The first value counts if the name comes more than once.
        Body::Field(name) => Ok(task.bytes(name)?.to_vec()),
        Body::Json => {
            let envelope = Envelope {
                id: &task.id,
                queue: &task.queue,
                attempt: task.attempt,
                fence,
                fields: Fields(&task.fields),
            };
            serde_json::to_vec(&envelope).or_reject("writing the task as JSON")
        }
    }
}

#[derive(serde::Serialize)]
struct Envelope<'t> {
    id: &'t str,
    queue: &'t str,
    attempt: u32,
    fence: u64,
    fields: Fields<'t>,
}

/// An object with each name once, in the order of their first values.
struct Fields<'t>(&'t [Field]);

impl Serialize for Fields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut places: HashMap<&str, usize> = HashMap::with_capacity(self.0.len());
        let mut names: Vec<(&str, Vec<Value<'_>>)> = Vec::with_capacity(self.0.len());
        for field in self.0 {
            let value = Value(&field.value);
            match places.entry(&field.name) {
                Entry::Occupied(place) => names[*place.get()].1.push(value),
                Entry::Vacant(place) => {
                    place.insert(names.len());
                    names.push((&field.name, vec![value]));
                }
            }
        }
        let mut map = serializer.serialize_map(Some(names.len()))?;
        for (name, values) in &names {
            match &values[..] {
                [value] => map.serialize_entry(name, value)?,
                values => map.serialize_entry(name, values)?,
            }
        }
        map.end()
    }
}

struct Value<'t>(&'t [u8]);

impl Serialize for Value<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match str::from_utf8(self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("base64", &STANDARD.encode(self.0))?;
                map.end()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_json_from_which_its_fields_can_be_had_again() {
        let fields: [(&str, &[u8]); 6] = [
            ("data", br#"{"a": 1}"#),
            ("tag", b"x"),
            ("raw", b"\xff\x00"),
            ("tag", b"\xfe"),
            ("empty", b""),
            ("tag", b"{\"base64\": \"eA==\"}\0"),
        ];
        let body = of(&Task::sample(fields), 7, &Body::Json).unwrap();
        let expected = concat!(
            r#"{"id":"1-0","queue":"test","attempt":1,"fence":7,"fields":{"data":"{\"a\": 1}","#,
            r#""tag":["x",{"base64":"/g=="},"{\"base64\": \"eA==\"}\u0000"],"#,
            r#""raw":{"base64":"/wA="},"empty":""}}"#
        );
        assert_eq!(String::from_utf8(body).unwrap(), expected);
        let none = of(&Task::sample::<&str>([]), 1, &Body::Json).unwrap();
        assert!(none.ends_with(br#""fields":{}}"#));
    }

    #[test]
    fn a_field_is_sent_as_it_is() {
        let task = Task::sample([("data", b"\xff{".as_slice()), ("data", b"2")]);
        assert_eq!(of(&task, 1, &Body::Field("data".into())).unwrap(), b"\xff{");
        let missing = of(&task, 1, &Body::Field("nothing".into()));
        let Err(Failure::Reject(why)) = missing else { panic!("{missing:?}") };
        assert_eq!(why, "field `nothing` is missing: it has data, data");
    }
}
