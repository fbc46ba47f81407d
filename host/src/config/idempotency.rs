//! `idempotency`: which tasks of a queue count as one task.
//!
//! In: `{ field, fields, json, window, release_on }`. Out: an [`Idempotency`].

use super::model::Idempotency;
use super::place::{Pointer, ValueAt};
use super::reader::{Item, Table};
use super::{keys, value};

/// The word of `release_on` for a key that is free at once.
const FAILURE: &str = "failure";
/// The most values that make one key.
const MAX_VALUES: usize = 16;

impl Default for Idempotency {
    fn default() -> Idempotency {
        Idempotency {
            key: Vec::new(),
            window: keys::IDEMPOTENCY.default("window"),
            releases_on_failure: keys::IDEMPOTENCY.text("release_on") == FAILURE,
        }
    }
}

/// Reports its problems, and keeps the values that are right. A place of the key replaces the place that
/// `base` has.
pub(super) fn read(item: &Item, base: Idempotency) -> Idempotency {
    let Some(table) = item.table(&keys::IDEMPOTENCY) else { return base };
    let release_on = table.word("release_on").map(|word: String| word == FAILURE);
    Idempotency {
        key: read_key(&table).unwrap_or(base.key),
        window: table.value_or("window", Some(base.window)),
        releases_on_failure: release_on.unwrap_or(base.releases_on_failure),
    }
}

/// None: the table does not say where the key is, or says it in a wrong way.
fn read_key(table: &Table) -> Option<Vec<ValueAt>> {
    let (field, fields, json) = (table.get("field"), table.get("fields"), table.get("json"));
    // All of them are read, so that each of their problems is told.
    let name = field.as_ref().map(value::read_field);
    let names = fields.as_ref().map(|fields| read_list(fields, value::read_field));
    let pointers = json.as_ref().map(read_pointers);
    let clash = match (&field, &fields, &json) {
        (None, None, Some(json)) => Some((
            json,
            "needs the field that holds the JSON: write { field = \"data\", json = \"/eventId\" }",
        )),
        (Some(_), Some(fields), _) => Some((fields, "does not go with field: keep one of them")),
        (None, Some(_), Some(json)) => {
            Some((json, "does not go with fields: write field, and a list of pointers"))
        }
        _ => None,
    };
    if let Some((item, why)) = clash {
        return item.refuse(why);
    }
    let whole = |field| ValueAt { field, pointer: None };
    let (field, pointers) = match (names, name, pointers) {
        (Some(names), ..) => return Some(names?.into_iter().map(whole).collect()),
        (None, Some(name), None) => return Some(vec![whole(name?)]),
        (None, Some(name), Some(pointers)) => (name?, pointers?),
        (None, None, _) => return None,
    };
    let at = |pointer| ValueAt { field: field.clone(), pointer: Some(pointer) };
    Some(pointers.into_iter().map(at).collect())
}

/// One pointer, or a list of them.
fn read_pointers(item: &Item) -> Option<Vec<Pointer>> {
    if item.value().is_array() {
        return read_list(item, value::read_pointer);
    }
    if !item.value().is_str() {
        return item.wrong_type("a string like \"/eventId\", or a list of them");
    }
    Some(vec![value::read_pointer(item)?])
}

fn read_list<T>(item: &Item, read: impl Fn(&Item) -> Option<T>) -> Option<Vec<T>> {
    let entries = item.list()?;
    if entries.is_empty() || entries.len() > MAX_VALUES {
        return item.refuse(format!("has {} values: write 1 to {MAX_VALUES}", entries.len()));
    }
    // All entries are read, so that each of their problems is told.
    let read: Vec<Option<T>> = entries.iter().map(read).collect();
    read.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::testing::{all_wrong, parse, problem};
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
        let table = [
            ("{ json = \"/a\" }", "queues.a.idempotency.json: needs the field that holds the JSON"),
            ("{ field = \"a\", fields = [\"b\"] }", "queues.a.idempotency.fields: does not go with field"),
            ("{ fields = [\"a\"], json = \"/b\" }", "queues.a.idempotency.json: does not go with fields"),
            ("{ fields = [] }", "queues.a.idempotency.fields: has 0 values: write 1 to 16"),
            ("{ fields = \"a\" }", "queues.a.idempotency.fields: is a string, but must be a list"),
            (
                "{ fields = [\"a\", \"tq-key\"] }",
                "queues.a.idempotency.fields[1]: \"tq-key\" is a field of tqhost",
            ),
            (
                "{ field = \"a\", json = 5 }",
                "queues.a.idempotency.json: is an integer, but must be a string like",
            ),
            (
                "{ field = \"a\", json = [\"/a\", \"b\"] }",
                "queues.a.idempotency.json[1]: \"b\" is not a JSON pointer",
            ),
            (
                "{ release_on = \"failed\" }",
                "queues.a.idempotency.release_on: \"failed\" is not what release_on",
            ),
            ("{ window = \"0s\" }", "queues.a.idempotency.window: \"0s\" is out of bounds"),
        ];
        all_wrong("[queues.a]\nidempotency = {}", "1 problem\n", &table);
        let both = problem("[queues.a]\nidempotency = { field = \"a\", fields = [\"b\"], json = \"x\" }");
        for why in ["fields: does not go with field", "json: \"x\" is not a JSON pointer", "2 problems\n"] {
            assert!(both.contains(why), "{both}");
        }
    }
}
