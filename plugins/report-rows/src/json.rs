//! Reads rows from JSON.
//!
//! In: a list of objects, or an object whose `rows` or `data` is one. Out: columns, in the order in which
//! they first appear, and rows. A number is taken as it is written, null is empty, and a nested value is
//! JSON.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::value::RawValue;

/// The values of one row, in their order.
struct Object(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Object, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Object;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut values = Vec::new();
                while let Some(value) = map.next_entry()? {
                    values.push(value);
                }
                Ok(Object(values))
            }
        }
        from.deserialize_map(Visitor)
    }
}

#[derive(Deserialize)]
struct Wrapped {
    #[serde(alias = "data")]
    rows: Vec<Object>,
}

pub fn read(text: &str) -> Result<(Vec<String>, Vec<Vec<String>>), String> {
    // The text of serde_json's error is left out, because it may quote the rows.
    let wrong = |_| "it is not a list of objects, nor an object whose `rows` or `data` is one".to_owned();
    let objects: Vec<Object> = if text.trim_start().starts_with('[') {
        serde_json::from_str(text).map_err(wrong)?
    } else {
        serde_json::from_str::<Wrapped>(text).map_err(wrong)?.rows
    };
    let mut columns: Vec<String> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut rows = Vec::new();
    for Object(values) in objects {
        let mut row = vec![String::new(); columns.len()];
        for (name, value) in values {
            let place = *places.entry(name).or_insert_with_key(|name| {
                columns.push(name.clone());
                columns.len() - 1
            });
            row.resize(columns.len(), String::new());
            row[place] = cell(value.get());
        }
        rows.push(row);
    }
    rows.iter_mut().for_each(|row| row.resize(columns.len(), String::new()));
    Ok((columns, rows))
}

fn cell(json: &str) -> String {
    match json {
        "null" => String::new(),
        _ => serde_json::from_str::<String>(json).unwrap_or_else(|_| json.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_become_rows_with_all_columns() {
        let rows = r#"[{"id": 1.50, "name": "née\n"}, {"id": null, "more": [1, "a"], "ok": true}]"#;
        for text in
            [rows.to_owned(), format!("{{\"rows\": {rows}}}"), format!("{{\"n\": 2, \"data\": {rows}}}")]
        {
            let (columns, found) = read(&text).unwrap();
            assert_eq!(columns, ["id", "name", "more", "ok"]);
            assert_eq!(found, [["1.50", "née\n", "", ""], ["", "", "[1, \"a\"]", "true"]]);
        }
        assert_eq!(read("[]").unwrap(), (Vec::new(), Vec::new()));
    }

    #[test]
    fn what_is_no_list_of_objects_is_wrong() {
        for text in ["", "{", "[1]", "{\"rows\": 1}", "{}", "\"text\""] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
