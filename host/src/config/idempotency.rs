//! `idempotency`: which tasks of a queue count as one task.
//!
//! In: its table, `{ field, fields, json, window, release_on }`. Out: an [`Idempotency`].

use super::place::ValueAt;
use super::reader::Table;
use super::rules::Idempotency;
use super::{keys, value};

/// The word of `release_on` for a key that is free at once.
const FAILURE: &str = "failure";

impl Default for Idempotency {
    fn default() -> Idempotency {
        read(&Table::absent(&keys::IDEMPOTENCY))
    }
}

pub(super) fn read(table: &Table) -> Idempotency {
    Idempotency {
        key: read_key(table),
        window: table.value_or_default("window"),
        releases_on_failure: table.word_or_default::<String>("release_on") == FAILURE,
    }
}

/// The places of the key. Those of a queue replace those of `[defaults]`.
fn read_key(table: &Table) -> Vec<ValueAt> {
    let has_own = ["field", "fields", "json"].iter().any(|name| table.own(name).is_some());
    let get = |name| if has_own { table.own(name) } else { table.get(name) };
    let (field, fields, json) = (get("field"), get("fields"), get("json"));
    match (&field, &fields, &json) {
        (None, None, Some(json)) => {
            json.problem(
                "needs the field that holds the JSON: write { field = \"data\", json = \"/eventId\" }",
            );
        }
        (Some(_), Some(fields), _) => fields.problem("does not go with field: keep one of them"),
        (None, Some(_), Some(json)) => {
            json.problem("does not go with fields: write field, and a list of pointers");
        }
        _ => {}
    }
    // All of them are read, so that each of their problems is reported.
    let field = field.as_ref().and_then(value::read_field);
    let fields = fields.map(|_| table.list("fields")).unwrap_or_default();
    let fields: Vec<String> = fields.iter().filter_map(value::read_field).collect();
    let wanted = "a string like \"/eventId\", or a list of them";
    let pointers = json.map(|_| table.one_or_list("json", wanted)).unwrap_or_default();
    let pointers: Vec<_> = pointers.iter().filter_map(value::read_pointer).collect();
    let Some(field) = field else {
        return fields.into_iter().map(|field| ValueAt { field, pointer: None }).collect();
    };
    if pointers.is_empty() {
        return vec![ValueAt { field, pointer: None }];
    }
    pointers.into_iter().map(|pointer| ValueAt { field: field.clone(), pointer: Some(pointer) }).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::place::Pointer;
    use super::super::testing::{parse, refusals};
    use super::*;

    fn idempotency(text: &str) -> Idempotency {
        let text = format!("[queues.a]\nidempotency = {text}");
        parse(&text).expect(&text).queues.remove(0).idempotency
    }

    #[test]
    fn a_key_has_one_value_or_several() {
        let places = |text: &str| {
            let show = |ValueAt { field, pointer }: ValueAt| match pointer {
                Some(Pointer(tokens)) => format!("{field} {tokens:?}"),
                None => field,
            };
            idempotency(text).key.into_iter().map(show).collect::<Vec<_>>()
        };
        assert_eq!(places("{ window = \"1h\" }"), Vec::<String>::new());
        assert_eq!(places("{ field = \"a\" }"), ["a"]);
        assert_eq!(places("{ fields = [\"a\", \"b\"] }"), ["a", "b"]);
        assert_eq!(places("{ field = \"data\", json = \"/e/id\" }"), ["data [\"e\", \"id\"]"]);
        assert_eq!(places("{ field = \"data\", json = [\"/t\", \"/e\"] }"), ["data [\"t\"]", "data [\"e\"]"]);
    }

    #[test]
    fn a_queue_goes_on_from_the_defaults() {
        let text = "[defaults]\nidempotency = { field = \"a\", window = \"1h\", release_on = \"failure\" }\n\
                    [queues.a]\nidempotency = { fields = [\"b\", \"c\"] }\n\
                    [queues.b]\nidempotency = { release_on = \"window\" }";
        let queues = parse(text).expect("valid").queues;
        let [a, b] = [&queues[0].idempotency, &queues[1].idempotency];
        assert_eq!((a.key.len(), a.window, a.releases_on_failure), (2, Duration::from_secs(3600), true));
        assert_eq!((b.key.len(), b.releases_on_failure), (1, false));
    }

    #[test]
    fn bad_idempotency() {
        let texts = [
            "{ json = \"/a\" }",
            "{ field = \"a\", fields = [\"b\"] }",
            "{ fields = [\"a\"], json = \"/b\" }",
            "{ fields = [] }",
            "{ fields = \"a\" }",
            "{ fields = [\"a\", \"tq-key\"] }",
            "{ field = \"a\", json = 5 }",
            "{ field = \"a\", json = [\"/a\", \"b\"] }",
            "{ release_on = \"failed\" }",
            "{ field = \"a\", fields = [\"b\"], json = \"x\" }",
        ];
        insta::assert_snapshot!(refusals("[queues.a]\nidempotency = {}", &texts));
    }
}
