//! Reads dead letters that another program wrote, and makes tqhost's own of them.
//!
//! In: the fields of one, and what each of them is: told by the operator, or known by its name. Out: the
//! fields of a dead letter that `tqhost dead` shows and requeues. It is pure.
//!
//! Not here: finding and replacing them (`adopt_dead`).

use serde_json::Value;

use crate::queue::codec::{self, RawFields, raw};
use crate::queue::dead::FOREIGN;

/// The meanings that a field may have, besides a field of the task.
const KNOWN: [&str; 5] = ["tq-id", "tq-error", "tq-failed-at", "tq-attempts", "tq-consumer"];
/// The object in this field has the task's fields.
const OBJECT: &str = "*";
/// Errors are cut at this many characters, like tqhost's own.
const MAX_ERROR_CHARS: usize = 500;

/// Names that other programs use, without capitals, underscores and dashes.
const NAMES: [(&str, &[&str]); 6] = [
    ("tq-id", &["originalid", "messageid", "originalmessageid", "originalentryid", "entryid"]),
    ("tq-error", &["failreason", "error", "errormessage", "lasterror", "exception", "reason"]),
    ("tq-failed-at", &["failedat", "failtime", "deadat", "diedat"]),
    ("tq-attempts", &["deliverycount", "deliveries", "attempts", "retrycount"]),
    ("tq-consumer", &["consumer", "consumername"]),
    (OBJECT, &["originaldata", "originalpayload", "originalmessage"]),
];

/// Reads `NEW=OLD`.
pub(crate) fn parse_pair(text: &str) -> Result<(String, String), String> {
    let (new, old) = text.split_once('=').ok_or("write NEW=OLD, like tq-error=fail_reason")?;
    if new.is_empty() || old.is_empty() {
        return Err("neither name may be empty: write NEW=OLD, like tq-error=fail_reason".to_owned());
    }
    if new.starts_with("tq-") && !KNOWN.contains(&new) {
        return Err(format!("{new} is no field of a dead letter that can be given: {}", KNOWN.join(", ")));
    }
    Ok((new.to_owned(), old.to_owned()))
}

/// The meaning of a field: told by the operator (`told` has pairs of meaning and name), or known by its name.
/// A field that the queue's tasks have is the task's own, whatever its name.
pub(super) fn meaning<'m>(
    name: &str,
    told: &'m [(String, String)],
    task_fields: &[String],
) -> Option<&'m str> {
    let told = told.iter().find(|(_, old)| old == name).map(|(new, _)| new.as_str());
    told.or_else(|| guess(name).filter(|_| !task_fields.iter().any(|known| known == name)))
}

/// The meaning of a field that other programs call so.
fn guess(name: &str) -> Option<&'static str> {
    let plain: String =
        name.chars().filter(|c| !matches!(c, '_' | '-')).flat_map(char::to_lowercase).collect();
    NAMES.iter().find(|(_, names)| names.contains(&plain.as_str())).map(|(new, _)| *new)
}

/// The fields of a foreign dead letter as tqhost writes them. `entry` is its id, and `told` says what its
/// fields are where their names do not. An object without the told or known form stays the field `data`.
pub(super) fn convert(
    queue: &str,
    entry: &str,
    fields: &RawFields,
    told: &[(String, String)],
    task_fields: &[String],
) -> RawFields {
    let mut own = RawFields::new();
    let [mut id, mut error, mut failed_at, mut attempts, mut consumer] = [const { None::<String> }; 5];
    for (name, value) in fields {
        let as_text = || String::from_utf8_lossy(value).into_owned();
        let name = String::from_utf8_lossy(name);
        match meaning(&name, told, task_fields).unwrap_or(&name) {
            "tq-id" => id = Some(as_text()).filter(|id| !id.is_empty() && id.len() <= codec::MAX_ID_BYTES),
            "tq-error" => error = Some(as_text().chars().take(MAX_ERROR_CHARS).collect()),
            "tq-failed-at" => failed_at = time_ms(&as_text()).map(|ms| ms.to_string()),
            "tq-attempts" => attempts = as_text().trim().parse::<u32>().ok().map(|count| count.to_string()),
            "tq-consumer" => consumer = Some(as_text()),
            OBJECT => {
                let is_told = told.iter().any(|(_, old)| *old == name);
                own.extend(members(value, is_told, task_fields));
            }
            // Other names of tqhost's own have no meaning here.
            kept if kept.starts_with("tq-") => {}
            kept => own.push((kept.as_bytes().to_vec(), value.clone())),
        }
    }
    let enqueued_at = id.as_deref().filter(|id| codec::is_entry_id(id)).map_or(0, codec::entry_time_ms);
    let id = id.unwrap_or_else(|| format!("{FOREIGN}-{entry}"));
    let failed_at = failed_at.unwrap_or_else(|| codec::entry_time_ms(entry).to_string());
    own.extend([raw("tq-id", &id), raw("tq-queue", queue), raw("tq-reason", FOREIGN)]);
    own.push(raw("tq-error", &error.unwrap_or_default()));
    own.push(raw("tq-attempts", &attempts.unwrap_or_else(|| "0".to_owned())));
    own.extend([raw("tq-enqueued-at", &enqueued_at), raw("tq-failed-at", &failed_at)]);
    own.push(raw("tq-consumer", &consumer.unwrap_or_default()));
    own.push(raw("tq-plugin", ""));
    own
}

/// The fields that a task had, from what its dead letter keeps of it as one value. An object gives them if it
/// was told to be one, or if it has the fields that the queue's tasks have. Everything else is `data`.
fn members(value: &[u8], is_told: bool, task_fields: &[String]) -> RawFields {
    let data = || vec![(b"data".to_vec(), value.to_vec())];
    let Ok(Value::Object(object)) = serde_json::from_slice(value) else { return data() };
    let has_all = || !task_fields.is_empty() && task_fields.iter().all(|name| object.contains_key(name));
    if object.is_empty() || !is_told && !has_all() {
        return data();
    }
    let text = |value: Value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    object.into_iter().map(|(name, value)| raw(&name, &text(value))).collect()
}

/// A time in milliseconds, from a number of seconds, ms, µs or ns since the Unix epoch, or from text.
fn time_ms(text: &str) -> Option<u64> {
    let text = text.trim();
    if let Ok(number) = text.parse::<u64>() {
        return Some(match number {
            0..100_000_000_000 => number * 1000,
            100_000_000_000..100_000_000_000_000 => number,
            100_000_000_000_000..100_000_000_000_000_000 => number / 1000,
            _ => number / 1_000_000,
        });
    }
    let ms = text.parse::<jiff::Timestamp>().ok()?.as_millisecond();
    u64::try_from(ms).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::testing::table;

    fn fields(pairs: &[(&str, &str)]) -> RawFields {
        pairs.iter().map(|(name, value)| raw(name, *value)).collect()
    }

    fn converted(pairs: &[(&str, &str)], told: &[&str], task_fields: &[&str]) -> Vec<(String, String)> {
        let told: Vec<_> = told.iter().map(|pair| parse_pair(pair).expect(pair)).collect();
        let names: Vec<String> = task_fields.iter().map(|name| (*name).to_owned()).collect();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        let all = convert("q", "1700000000005-0", &fields(pairs), &told, &names);
        all.into_iter().map(|(name, value)| (text(name), text(value))).collect()
    }

    fn value<'a>(all: &'a [(String, String)], name: &str) -> Option<&'a str> {
        all.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    #[test]
    fn an_object_with_the_tasks_fields_becomes_them() {
        let object = r#"{"resumeId":7,"content":"é"}"#;
        let all = converted(&[("original_data", object)], &[], &["resumeId", "content"]);
        assert_eq!((value(&all, "resumeId"), value(&all, "content")), (Some("7"), Some("é")));
        let all = converted(&[("body", object)], &["*=body"], &[]);
        assert_eq!((value(&all, "resumeId"), value(&all, "body")), (Some("7"), None));
        let all = converted(&[("retryCount", "3"), ("error", "x")], &[], &["retryCount"]);
        assert_eq!((value(&all, "retryCount"), value(&all, "tq-error")), (Some("3"), Some("x")));
        let all = converted(&[("payload", object)], &["data=payload"], &[]);
        assert_eq!(value(&all, "data"), Some(object));
    }

    #[test]
    fn an_unknown_entry_stays_a_field() {
        let all = converted(&[("data", "{"), ("why", "x"), ("tq-odd", "1")], &[], &[]);
        assert_eq!(
            (value(&all, "data"), value(&all, "why"), value(&all, "tq-odd")),
            (Some("{"), Some("x"), None)
        );
        assert_eq!(value(&all, "tq-id"), Some("foreign-1700000000005-0"));
        assert_eq!(value(&all, "tq-failed-at"), Some("1700000000005"));
    }

    #[test]
    fn times_of_every_unit() {
        let table = ["1700000000", "1700000000000", "1700000000000000", "1700000000000000000"];
        assert!(table.iter().all(|text| time_ms(text) == Some(1_700_000_000_000)));
        assert_eq!(
            (time_ms("yesterday"), time_ms("2023-11-14T23:13:20+01:00")),
            (None, Some(1_700_000_000_000))
        );
    }

    #[test]
    fn a_pair_that_is_none_is_refused() {
        let told = table(&["a", "=a", "tq-queue=a"], |text| parse_pair(text).expect_err(text));
        insta::assert_snapshot!(told, @"
        a
            write NEW=OLD, like tq-error=fail_reason
        =a
            neither name may be empty: write NEW=OLD, like tq-error=fail_reason
        tq-queue=a
            tq-queue is no field of a dead letter that can be given: tq-id, tq-error, tq-failed-at, \
            tq-attempts, tq-consumer
        ");
    }
}
