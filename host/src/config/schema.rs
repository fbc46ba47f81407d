//! The JSON schema of the configuration, for editors: which keys there are, their bounds, and what they mean.
//!
//! In: the tables of keys. Out: a schema. It refuses less than `tqhost check`: only that looks at the text of
//! a value, and at keys that need or exclude each other.

use serde_json::{Map, Value, json};

use super::keys::{Key, Keys, REQUIRED, TOP, Values};

/// The schema of the whole file.
pub(crate) fn schema() -> Value {
    let mut schema = table(&TOP);
    schema["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    schema["title"] = "tqhost.toml".into();
    schema
}

/// A table with these keys. Another form than a table passes, because many keys have several forms.
fn table(keys: &Keys) -> Value {
    let properties: Map<String, Value> =
        keys.here().map(|name| (name.to_owned(), value(keys.key(name)))).collect();
    let required: Vec<&str> = keys.here().filter(|name| keys.key(name).default == REQUIRED).collect();
    json!({ "properties": properties, "additionalProperties": false, "required": required })
}

fn value(key: &Key) -> Value {
    let mut schema = match key.values {
        Values::Integer(least, most) => json!({ "type": "integer", "minimum": least, "maximum": most }),
        Values::Number(least, most) => json!({ "type": "number", "minimum": least, "maximum": most }),
        Values::Duration(..) => json!({ "type": "string" }),
        Values::Size(..) => json!({ "type": ["string", "integer"] }),
        Values::Boolean() => json!({ "type": "boolean" }),
        Values::Words(words) => json!({ "enum": words }),
        Values::Table(keys, _) => table(keys),
        Values::Named(keys, ..) => json!({ "type": "object", "additionalProperties": table(keys) }),
        Values::Text(_) => json!({ "type": "string" }),
        Values::Many(..) | Values::Other(_) => json!({}),
    };
    let bounds = match key.values {
        Values::Duration(least, most) | Values::Size(least, most) => format!(" ({least} to {most})"),
        _ => key.values.words().map(|words| format!(" ({words})")).unwrap_or_default(),
    };
    let default = match key.default {
        "" | REQUIRED => String::new(),
        // These words lead to another part of the page, which an editor does not show.
        default if default.contains("see ") => String::new(),
        default => format!(". Default: {default}"),
    };
    schema["description"] = without_links(&format!("{}{bounds}{default}", key.meaning)).into();
    schema
}

/// A text without the addresses of its links, which lead nowhere in an editor.
fn without_links(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        let start = before.rfind('[').unwrap_or_default();
        // A name in code may have brackets of its own, as in `[redis]`.
        let start =
            if before[..start].ends_with('`') { before[..start].rfind('[').unwrap_or(start) } else { start };
        shown += &before[..start];
        shown += before[start..].strip_prefix('[').unwrap_or(&before[start..]);
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_editor_finds_the_keys_of_a_queue() {
        let schema = schema();
        let queue = &schema["properties"]["queues"]["additionalProperties"]["properties"];
        assert_eq!(
            queue["lease"],
            json!({
                "type": "string",
                "description": "how long a task may stay without a heartbeat before another host takes it \
                                (1s to 1d). Default: 30s",
            })
        );
        let retries = json!({
            "type": "integer", "minimum": 0, "maximum": 1000,
            "description": "attempts after the first one. Default: 3",
        });
        assert_eq!(queue["max_retries"], retries);
        assert_eq!(queue["list"]["properties"]["items"]["enum"][0], "bytes");
        assert!(queue.get("delays").is_none());
        let defaults = &schema["properties"]["defaults"]["properties"];
        assert!(defaults.get("stream").is_none() && defaults.get("lease").is_some());
    }

    #[test]
    fn descriptions_have_no_links() {
        let told = |text| without_links(text);
        assert_eq!(told("see [`[redis]`](#redis) and [this](x.md#y)."), "see `[redis]` and this.");
        assert_eq!(told("`redis://host[:port]`, a list"), "`redis://host[:port]`, a list");
        let text = schema().to_string();
        assert!(!text.contains("](") && !text.contains(".md#"), "{text}");
    }
}
