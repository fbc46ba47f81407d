//! Formats times and foreign text for people.
//!
//! In: durations, timestamps, text from tasks, handlers and other programs. Out: short strings without
//! control characters. Not here: ages and sizes (`config::units`), tables and colours (`output`), fields and
//! results (`value`).

pub(super) use crate::config::units::{age, plural, size};
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Shown where a value is unknown.
pub(super) const NONE: &str = "–";

/// Escapes foreign text for one line: control characters, and marks that change the direction of text.
pub(super) fn escape(text: &str) -> String {
    escaped(text, |_| false)
}

/// Escapes foreign text that may have several lines: newlines and tabs stay.
pub(super) fn escape_block(text: &str) -> String {
    escaped(text, |c| c == '\n' || c == '\t')
}

fn escaped(text: &str, kept: impl Fn(char) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if kept(c) || !(c.is_control() || is_direction(c)) {
            out.push(c);
        } else {
            out.extend(c.escape_default());
        }
    }
    out
}

/// Marks that change the direction of the text after them, and separators that some terminals break lines at.
fn is_direction(c: char) -> bool {
    matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
}

/// Cuts the text to `max` columns of a terminal, the ellipsis included.
pub(super) fn cut(text: &str, max: usize) -> String {
    if text.width() <= max {
        return text.to_owned();
    }
    let mut used = 1;
    let kept = text.chars().take_while(|c| {
        used += c.width().unwrap_or(0);
        used <= max
    });
    kept.chain(['…']).collect()
}

/// Cuts the text to `max` columns of a terminal in its middle, so that its beginning and its end are seen.
pub(super) fn cut_middle(text: &str, max: usize) -> String {
    if text.width() <= max {
        return text.to_owned();
    }
    let room = max.saturating_sub(1);
    // The first characters that fit into this number of columns.
    let part = |chars: &mut dyn Iterator<Item = char>, most: usize| -> Vec<char> {
        let mut used = 0;
        let fits = |c: &char| {
            used += c.width().unwrap_or(0);
            used <= most
        };
        chars.take_while(fits).collect()
    };
    let begin = part(&mut text.chars(), room.div_ceil(2));
    let end = part(&mut text.chars().rev(), room / 2);
    begin.into_iter().chain(['…']).chain(end.into_iter().rev()).collect()
}

/// Breaks the text between words into lines of at most `most` columns. A word that is longer has its own
/// line.
pub(super) fn wrapped(text: &str, most: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.width() + 1 + word.width() <= most => *line += &format!(" {word}"),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A number of milliseconds like [`age`]: `3m 12s`.
pub(super) fn age_ms(ms: u64) -> String {
    age(Duration::from_millis(ms))
}

/// How long ago the time `ms` was: `3m 12s ago`.
pub(super) fn ago(ms: u64, now_ms: u64) -> String {
    format!("{} ago", age_ms(now_ms.saturating_sub(ms)))
}

/// How long ago a task died. 0: its dead letter has no time, as another program wrote it.
pub(super) fn died(ms: u64, now_ms: u64) -> String {
    if ms == 0 { NONE.to_owned() } else { ago(ms, now_ms) }
}

/// A duration like [`age`], but with tenths from 1 to 10 seconds.
pub(super) fn took(duration: Duration) -> String {
    let ms = duration.as_millis();
    if (1000..10_000).contains(&ms) { format!("{}.{}s", ms / 1000, ms % 1000 / 100) } else { age(duration) }
}

/// Local time and how long ago or ahead that is: `2026-03-01 12:00:00 (3m 12s ago)`.
pub(super) fn when(ms: u64, now_ms: u64, zone: &TimeZone) -> String {
    let away_ms = ms.abs_diff(now_ms);
    let relative = match away_ms {
        ..1000 => "now".to_owned(),
        _ if ms > now_ms => format!("in {}", age_ms(away_ms)),
        _ => format!("{} ago", age_ms(away_ms)),
    };
    format!("{} ({relative})", local(ms, zone, "%Y-%m-%d %H:%M:%S"))
}

/// Local time in a format of strftime; the bare number where it is out of range.
pub(super) fn local(ms: u64, zone: &TimeZone, format: &str) -> String {
    let time = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    time.map_or_else(|| ms.to_string(), |time| time.to_zoned(zone.clone()).strftime(format).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_cannot_command_the_terminal() {
        assert_eq!(escape("a\u{1b}[31mred\r\nb\tü✓"), "a\\u{1b}[31mred\\r\\nb\\tü✓");
        assert_eq!(escape("\u{9b}2J\u{202e}gpj"), "\\u{9b}2J\\u{202e}gpj");
        assert_eq!(escape_block("a\n\tb\u{7}"), "a\n\tb\\u{7}");
    }

    #[test]
    fn a_duration_of_seconds_has_tenths() {
        assert_eq!([350, 1350, 12_345].map(|ms| took(Duration::from_millis(ms))), ["350ms", "1.3s", "12s"]);
    }

    #[test]
    fn text_is_cut_by_its_width() {
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("日本語の", 6), "日本…");
        assert_eq!(cut("e\u{301}bcdef", 3), "e\u{301}b…");
    }

    #[test]
    fn times_are_local_and_relative() {
        let zone = TimeZone::UTC;
        assert_eq!(when(1_700_000_000_000, 1_700_000_192_000, &zone), "2023-11-14 22:13:20 (3m 12s ago)");
        assert_eq!(when(1_700_000_010_000, 1_700_000_000_000, &zone), "2023-11-14 22:13:30 (in 10s)");
        assert_eq!(when(u64::MAX, 0, &zone).split(' ').next(), Some("18446744073709551615"));
    }
}
