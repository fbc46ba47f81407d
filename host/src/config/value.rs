//! `id` of a queue, and the parts of other keys that name a value of a task.
//!
//! In: `{ field = "data", json = "/eventId" }`. Out: a [`ValueAt`]. Not here: the value itself, which
//! `queue::value` reads.

use super::names::check_key;
use super::place::{Pointer, ValueAt};
use super::reader::{Item, Keys};
use crate::field::HOST_FIELDS;

pub(super) const ID_KEYS: Keys = Keys { known: &["field", "json"], elsewhere: &[] };

/// Reads `id`.
pub(super) fn read(item: &Item) -> Option<ValueAt> {
    let table = item.table(&ID_KEYS)?;
    let pointer = table.get("json").map(|json| read_pointer(&json));
    let Some(field) = table.get("field") else {
        item.problem("names no field: write id = { field = \"resumeId\" }");
        return None;
    };
    let field = read_field(&field)?;
    Some(ValueAt { field, pointer: pointer.map_or(Some(None), |pointer| pointer.map(Some))? })
}

/// The name of a field that producers write.
pub(super) fn read_field(item: &Item) -> Option<String> {
    item.checked(|name| {
        check_key(name)?;
        if name.starts_with(HOST_FIELDS) {
            return Err(format!(
                "is a field of tqhost: names with {HOST_FIELDS} hold no value of a producer"
            ));
        }
        Ok(())
    })
}

pub(super) fn read_pointer(item: &Item) -> Option<Pointer> {
    let text = item.checked(|text| Pointer::parse(text).map(drop))?;
    Pointer::parse(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{parse, problem};
    use super::*;

    #[test]
    fn a_queue_names_the_place_of_its_ids() {
        let id = |text: &str| parse(&format!("[queues.a]\nid = {text}")).expect(text).queues.remove(0).id;
        let at = |field: &str, pointer: Option<&str>| {
            let pointer = pointer.map(|text| Pointer::parse(text).expect(text));
            Some(ValueAt { field: field.into(), pointer })
        };
        assert_eq!(id("{ field = \"resumeId\" }"), at("resumeId", None));
        assert_eq!(id("{ field = \"data\", json = \"/resume/id\" }"), at("data", Some("/resume/id")));
        let defaults = parse("[defaults]\nid = { field = \"x\" }\n[queues.a]").expect("valid");
        assert_eq!(defaults.queues[0].id, at("x", None));
    }

    #[test]
    fn bad_ids() {
        let table = [
            ("\"resumeId\"", "queues.a.id: is a string, but must be a table"),
            ("{}", "queues.a.id: names no field: write id = { field"),
            ("{ json = \"/a\" }", "queues.a.id: names no field"),
            ("{ field = \"\" }", "queues.a.id.field: \"\" is empty: write a name"),
            ("{ field = \"tq-id\" }", "queues.a.id.field: \"tq-id\" is a field of tqhost"),
            (
                "{ field = \"data\", json = \"a\" }",
                "queues.a.id.json: \"a\" is not a JSON pointer: write \"/a\"",
            ),
            ("{ field = \"data\", json = [\"/a\"] }", "queues.a.id.json: is an array, but must be a string"),
            ("{ field = \"data\", pointer = \"/a\" }", "queues.a.id.pointer: unknown key"),
        ];
        for (text, why) in table {
            let problem = problem(&format!("[queues.a]\nid = {text}"));
            assert!(problem.contains(why) && problem.contains("1 problem\n"), "{text}: {problem}");
        }
    }
}
