//! `id` of a queue, and the parts of other keys that name a value of a task.
//!
//! In: `{ field = "data", json = "/eventId" }`. Out: a [`ValueAt`]. Not here: the value itself, which
//! `queue::value` reads.

use super::keys;
use super::names::check_key;
use super::place::{FieldPlace, Pointer, ValueAt};
use super::reader::{Item, Table};
use crate::field::HOST_FIELDS;

/// Reads `id` of a queue.
pub(super) fn read_id(queue: &Table) -> Option<ValueAt> {
    // The parts of one place belong together, so a queue inherits all of them or none.
    let table = queue.get("id")?.table(&keys::ID);
    let pointer = table.get("json").and_then(|json| read_pointer(&json));
    let field = read_field(&table.required("field", "write id = { field = \"resumeId\" }")?)?;
    Some(ValueAt { field, pointer })
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
    item.parsed(Pointer::parse)
}

/// Reads `show` of a queue: the fields that lists of tasks show.
pub(super) fn read_shown(queue: &Table) -> Vec<FieldPlace> {
    let parse = |name: &str| {
        check_key(name)?;
        FieldPlace::parse(name).map_err(|why| format!("cannot be shown: {why}"))
    };
    queue.list("show").iter().filter_map(|item| item.parsed(parse)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{parse, refusals};
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
    fn a_queue_names_the_columns_of_its_lists() {
        let show =
            |text: &str| parse(&format!("[queues.a]\nshow = {text}")).expect(text).queues.remove(0).show;
        let names: Vec<String> =
            show("[\"tenant\", \"data/user/id\"]").into_iter().map(|it| it.name).collect();
        assert_eq!((names, show("[]")), (vec!["tenant".to_owned(), "data/user/id".to_owned()], vec![]));
        let texts = [
            "\"tenant\"",
            "[1]",
            "[\"a\", \"\"]",
            "[\"tq-id\"]",
            "[\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\"]",
        ];
        insta::assert_snapshot!(refusals("[queues.a]\nshow = {}", &texts));
    }

    #[test]
    fn bad_ids() {
        let texts = [
            "\"resumeId\"",
            "{}",
            "{ json = \"/a\" }",
            "{ field = \"\" }",
            "{ field = \"tq-id\" }",
            "{ field = \"data\", json = \"a\" }",
            "{ field = \"data\", json = [\"/a\"] }",
            "{ field = \"data\", pointer = \"/a\" }",
        ];
        insta::assert_snapshot!(refusals("[queues.a]\nid = {}", &texts));
    }
}
