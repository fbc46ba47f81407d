//! Reads the items that Celery and Sidekiq put into a list.
//!
//! In: an item. Out: when its task is due and until when it may begin; or why the item cannot be read. The
//! item is not changed: handlers get it whole, and it can go back to its list.
//!
//! Not here: moving items (`list`; `scripts/move.lua` reads their ids), jobs of Sidekiq that are due later
//! (`scripts/due.lua`).

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::config::Items;
use crate::field::without_bom;

/// The times in an item, in milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ItemTimes {
    /// No attempt begins before this time.
    pub due_ms: Option<u64>,
    /// No attempt begins after this time.
    pub expires_ms: Option<u64>,
}

/// Why an item is not of its form.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ItemFault {
    /// Names the position of the fault, and shows no part of the item.
    #[error("the field data is not JSON: {0}")]
    NotJson(String),
    #[error("the field data is no {what}: {why}")]
    NotAnItem { what: &'static str, why: String },
    #[error("headers.{0} is not a time in ISO 8601")]
    BadTime(&'static str),
}

/// A message of Celery, in the second version of its protocol.
#[derive(Deserialize)]
struct Message<'i> {
    #[serde(borrow)]
    headers: Headers<'i>,
    #[serde(borrow, rename = "body")]
    _body: Cow<'i, str>,
}

#[derive(Deserialize)]
struct Headers<'i> {
    #[serde(borrow, rename = "task")]
    _task: Cow<'i, str>,
    #[serde(borrow, rename = "id")]
    _id: Cow<'i, str>,
    #[serde(borrow, default)]
    eta: Option<Cow<'i, str>>,
    #[serde(borrow, default)]
    expires: Option<Cow<'i, str>>,
}

/// A job of Sidekiq.
#[derive(Deserialize)]
struct Job<'i> {
    #[serde(borrow, rename = "class")]
    _class: Cow<'i, str>,
    #[serde(rename = "args")]
    _args: Vec<IgnoredAny>,
    #[serde(borrow, rename = "jid")]
    _id: Cow<'i, str>,
}

/// Reads an item of a list whose items have this form. UTF-8 needs a check of its own: serde does not check
/// strings that it ignores.
pub(super) fn read(form: Items, item: &[u8]) -> Result<ItemTimes, ItemFault> {
    let utf8 = |at| ItemFault::NotJson(format!("not UTF-8 at byte {at}"));
    let text = || std::str::from_utf8(without_bom(item)).map_err(|error| utf8(error.valid_up_to()));
    match form {
        Items::Bytes => Ok(ItemTimes::default()),
        Items::Json => parse::<IgnoredAny>(text()?, "JSON").map(|_| ItemTimes::default()),
        Items::Celery => {
            let message: Message = parse(text()?, "message of Celery")?;
            let Headers { eta, expires, .. } = message.headers;
            Ok(ItemTimes { due_ms: time("eta", eta)?, expires_ms: time("expires", expires)? })
        }
        Items::Sidekiq => parse::<Job>(text()?, "job of Sidekiq").map(|_| ItemTimes::default()),
    }
}

/// Reads a text of JSON in one pass. `what` names its form.
fn parse<'i, T: Deserialize<'i>>(text: &'i str, what: &'static str) -> Result<T, ItemFault> {
    serde_json::from_str(text).map_err(|error| {
        if !error.is_data() {
            return ItemFault::NotJson(error.to_string());
        }
        // Behind the place at which the text has another form, it may not even be JSON.
        if let Err(error) = serde_json::from_str::<IgnoredAny>(text) {
            return ItemFault::NotJson(error.to_string());
        }
        // The message about a wrong type shows the value, which may be a secret.
        let why = match error.to_string() {
            why if why.starts_with("missing field") => why,
            _ => format!("a wrong type at line {} column {}", error.line(), error.column()),
        };
        ItemFault::NotAnItem { what, why }
    })
}

/// Reads a time in ISO 8601; without an offset it is in UTC.
fn time(name: &'static str, text: Option<Cow<str>>) -> Result<Option<u64>, ItemFault> {
    let Some(text) = text else { return Ok(None) };
    let with_offset = text.parse::<jiff::Timestamp>().ok();
    let in_utc = || {
        let time = text.parse::<jiff::civil::DateTime>().ok()?;
        Some(time.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp())
    };
    let time = with_offset.or_else(in_utc).ok_or(ItemFault::BadTime(name))?;
    // A time before the epoch counts as the epoch: it is over in any case.
    Ok(Some(time.as_millisecond().try_into().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(headers: &str) -> String {
        format!("{{\"body\": \"W10=\", \"headers\": {{\"id\": \"1\", \"task\": \"t\"{headers}}}}}")
    }

    fn celery(headers: &str) -> Result<ItemTimes, String> {
        read(Items::Celery, message(headers).as_bytes()).map_err(|why| why.to_string())
    }

    #[test]
    fn times_of_celery() {
        let times = |due_ms, expires_ms| Ok(ItemTimes { due_ms, expires_ms });
        let table = [
            ("", times(None, None)),
            (", \"eta\": null, \"expires\": null", times(None, None)),
            (", \"eta\": \"2026-11-30T11:47:14.551145+00:00\"", times(Some(1_796_039_234_551), None)),
            (", \"eta\": \"2026-11-30T13:47:14+02:00\"", times(Some(1_796_039_234_000), None)),
            (", \"eta\": \"2026-11-30T11:47:14\"", times(Some(1_796_039_234_000), None)),
            (", \"expires\": \"1970-01-01T00:00:01Z\"", times(None, Some(1000))),
            (", \"expires\": \"1960-01-01T00:00:00Z\"", times(None, Some(0))),
            (", \"eta\": \"soon\"", Err("headers.eta is not a time in ISO 8601".to_owned())),
        ];
        for (headers, expected) in table {
            assert_eq!(celery(headers), expected, "{headers}");
        }
    }

    #[test]
    fn items_that_cannot_be_read_are_told_without_their_content() {
        let table = [
            (Items::Celery, "{", "the field data is not JSON: EOF"),
            (Items::Celery, "[]", "the field data is no message of Celery: a wrong type at line 1 column"),
            (Items::Celery, "{\"body\": \"\"}", "no message of Celery: missing field `headers`"),
            (Items::Celery, "{\"headers\": {\"id\": \"1\"}}", "missing field `task`"),
            (Items::Celery, "{\"headers\": {\"id\": \"hunter2\", \"task\": 5}}", "a wrong type at line 1"),
            (Items::Sidekiq, "{\"class\": \"A\", \"args\": []}", "no job of Sidekiq: missing field `jid`"),
            (Items::Sidekiq, "{\"class\": \"A\", \"args\": \"hunter2\"}", "a wrong type at line 1"),
        ];
        for (form, item, expected) in table {
            let why = read(form, item.as_bytes()).expect_err(item).to_string();
            assert!(why.contains(expected) && !why.contains("hunter2"), "{why}");
        }
        let job = "{\"class\": \"A\", \"args\": [1, {}], \"jid\": \"1\", \"retry\": true}";
        assert_eq!(read(Items::Sidekiq, job.as_bytes()).expect("a job"), ItemTimes::default());
    }
}
