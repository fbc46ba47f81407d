//! Text and figures of pages: ages, times, data of users.
//!
//! Everything that users or handlers wrote goes through [`data`] or [`block`]: it is escaped, cut, and kept
//! apart from the direction of the text around it.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use maud::{Markup, html};
use serde_json::Value;

use crate::builds::{Builds, words_of};
use crate::config::units;
pub(super) use crate::config::units::size;

/// The most characters of a text in a line, and in a block.
const LINE: usize = 200;
const BLOCK: usize = 4096;
/// The bytes of a binary value that are shown.
const BINARY: usize = 64;

pub(super) const NONE: &str = "–";

/// Users' text in a line.
pub(super) fn data(text: &str) -> Markup {
    let (cut, is_cut) = cut(text, LINE);
    html! { bdi.data { (cut) @if is_cut { "…" } } }
}

/// Users' text that may not be there.
pub(super) fn data_or_none(text: Option<&str>) -> Markup {
    match text.filter(|text| !text.is_empty()) {
        Some(text) => data(text),
        None => html! { (NONE) },
    }
}

/// Users' text as a block of its own, with a note where it is cut.
pub(super) fn block(text: &str, name: &str) -> Markup {
    let (cut, is_cut) = cut(text, BLOCK);
    html! {
        // A block that scrolls can be reached with the keyboard.
        pre.data dir="auto" tabindex="0" role="region" aria-label=(name) { (cut) }
        @if is_cut { p.note { "The first " (BLOCK) " characters of " (text.len()) " bytes." } }
    }
}

/// A field's value or a result: text, JSON, or bytes.
pub(super) fn value(value: &Value, name: &str) -> Markup {
    if let Value::String(text) = value {
        return block(text, name);
    }
    let bytes = value.as_object().filter(|object| object.len() == 1).and_then(|object| object.get("base64"));
    match bytes.and_then(Value::as_str).and_then(|text| STANDARD.decode(text).ok()) {
        Some(bytes) => binary(&bytes),
        None => block(&serde_json::to_string_pretty(value).unwrap_or_default(), name),
    }
}

fn binary(bytes: &[u8]) -> Markup {
    let shown: Vec<String> = bytes.iter().take(BINARY).map(|byte| format!("{byte:02x}")).collect();
    html! {
        p.note { "Binary, " (bytes.len()) " bytes." }
        code.data { (shown.join(" ")) @if bytes.len() > BINARY { " …" } }
    }
}

/// The first characters, and whether there are more.
fn cut(text: &str, most: usize) -> (&str, bool) {
    match text.char_indices().nth(most) {
        Some((end, _)) => (&text[..end], true),
        None => (text, false),
    }
}

/// A time that has passed, in its two largest units.
pub(super) fn age(ms: u64) -> String {
    units::age(Duration::from_millis(ms))
}

pub(super) fn age_or_none(ms: Option<u64>) -> String {
    ms.map_or_else(|| NONE.to_owned(), age)
}

/// A moment, with how long ago it was.
pub(super) fn moment(ms: Option<u64>, now_ms: u64) -> Markup {
    let Some(ms) = ms.filter(|ms| *ms > 0) else { return html! { (NONE) } };
    let distance = age(now_ms.abs_diff(ms));
    html! {
        (clock(ms, now_ms)) " "
        span.note { @if ms > now_ms { "(in " (distance) ")" } @else { "(" (distance) " ago)" } }
    }
}

/// A moment as a time of day (UTC), with its date if it is far from now. Its tooltip has both.
pub(super) fn clock(ms: u64, now_ms: u64) -> Markup {
    let Some(time) = time_of(ms) else { return html! { (NONE) } };
    let is_far = now_ms.abs_diff(ms) > 20 * 3_600_000;
    let shown = time.strftime(if is_far { "%Y-%m-%d %H:%M" } else { "%H:%M:%S" }).to_string();
    let whole = time.strftime("%A, %Y-%m-%d %H:%M:%S UTC").to_string();
    html! { time datetime=(time.to_string()) title=(whole) { (shown) } }
}

/// A version with its plugin: its label, where hosts know it, and the first digits.
pub(super) fn version(text: Option<&str>, builds: &Builds) -> Markup {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return html! { (NONE) } };
    html! { span title=(text) { (data(&words_of(text, builds.label(text)))) } }
}

/// A count with separators between thousands.
pub(super) fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut shown = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

/// A count with its noun.
pub(super) fn plural(count: u64, one: &str) -> String {
    format!("{} {one}{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// A rate: many without a fraction, few with one.
pub(super) fn per_second(rate: f64) -> String {
    if rate >= 100.0 { grouped(rate.round() as u64) } else { format!("{rate:.1}") }
}

/// A moment for a filter, to the millisecond.
pub(super) fn timestamp(ms: u64) -> String {
    time_of(ms).map_or_else(String::new, |time| time.to_string())
}

/// None: it is later than the year 9999.
pub(super) fn time_of(ms: u64) -> Option<Timestamp> {
    Timestamp::from_millisecond(i64::try_from(ms).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_users_is_escaped_and_cut() {
        let shown = data("<script>&\"").into_string();
        assert_eq!(shown, "<bdi class=\"data\">&lt;script&gt;&amp;&quot;</bdi>");
        assert!(data(&"ä".repeat(300)).into_string().contains(&format!("{}…<", "ä".repeat(200))));
        let long = block(&"x".repeat(5000), "n\"<").into_string();
        assert!(
            long.contains("4096 characters of 5000 bytes") && !long.contains(&"x".repeat(4097)),
            "{long}"
        );
        assert!(long.contains("aria-label=\"n&quot;&lt;\""), "{long}");
        let bytes = value(&serde_json::json!({ "base64": "AP8=" }), "n").into_string();
        assert!(bytes.contains("Binary, 2 bytes") && bytes.contains("00 ff"), "{bytes}");
    }

    #[test]
    fn thousands_are_apart() {
        let table = [(0, "0"), (999, "999"), (49_058, "49,058"), (1_000_000, "1,000,000")];
        for (count, expected) in table {
            assert_eq!(grouped(count), expected);
        }
        assert_eq!(timestamp(1_764_435_300_999), "2025-11-29T16:55:00.999Z");
    }
}
