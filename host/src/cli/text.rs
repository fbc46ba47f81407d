//! Formats numbers, times and foreign text for people.
//!
//! In: durations, sizes, timestamps, text from tasks, handlers and other programs. Out: short strings without
//! control characters. Not here: tables and colours (`output`), fields and results (`value`).

pub(super) use crate::config::units::plural;
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
    let part = |chars: &mut dyn Iterator<Item = char>, most: usize| -> Vec<char> {
        let mut used = 0;
        chars
            .take_while(|c| {
                used += c.width().unwrap_or(0);
                used <= most
            })
            .collect()
    };
    let begin = part(&mut text.chars(), room.div_ceil(2));
    let end = part(&mut text.chars().rev(), room / 2);
    begin.into_iter().chain(['…']).chain(end.into_iter().rev()).collect()
}

/// Lines of at most `most` columns, as far as its words are that short.
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

/// `3m 12s`: the two largest units.
pub(super) fn age(duration: Duration) -> String {
    let (ms, s) = (duration.as_millis(), duration.as_secs());
    match s {
        0 if ms > 0 => format!("{ms}ms"),
        0..60 => format!("{s}s"),
        60..3600 => two(s / 60, "m", s % 60, "s"),
        3600..86400 => two(s / 3600, "h", s % 3600 / 60, "m"),
        _ => two(s / 86400, "d", s % 86400 / 3600, "h"),
    }
}

/// How long ago that was: `3m 12s ago`.
pub(super) fn ago(ms: u64, now_ms: u64) -> String {
    format!("{} ago", age(Duration::from_millis(now_ms.saturating_sub(ms))))
}

/// How long ago a task died. 0: another program wrote its dead letter, without a time.
pub(super) fn died(ms: u64, now_ms: u64) -> String {
    if ms == 0 { NONE.to_owned() } else { ago(ms, now_ms) }
}

/// A duration: like [`age`], but from 1 to 10 seconds with tenths.
pub(super) fn took(duration: Duration) -> String {
    let ms = duration.as_millis();
    if (1000..10_000).contains(&ms) { format!("{}.{}s", ms / 1000, ms % 1000 / 100) } else { age(duration) }
}

fn two(large: u64, large_unit: &str, small: u64, small_unit: &str) -> String {
    if small == 0 {
        format!("{large}{large_unit}")
    } else {
        format!("{large}{large_unit} {small}{small_unit}")
    }
}

/// `1.2 MiB`.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // A value that would be rounded to 1024.0 is shown as 1.0 of the next unit.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Local time and how long ago or ahead that is: `2026-03-01 12:00:00 (3m 12s ago)`.
pub(super) fn when(ms: u64, now_ms: u64, zone: &TimeZone) -> String {
    let away = Duration::from_millis(ms.abs_diff(now_ms));
    let relative = match away.as_secs() {
        0 => "now".to_owned(),
        _ if ms > now_ms => format!("in {}", age(away)),
        _ => format!("{} ago", age(away)),
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
    fn ages_have_two_units() {
        let table = [
            (0, "0s"),
            (350, "350ms"),
            (12_999, "12s"),
            (192_000, "3m 12s"),
            (3_600_000, "1h"),
            (90_000_000, "1d 1h"),
        ];
        for (ms, shown) in table {
            assert_eq!(age(Duration::from_millis(ms)), shown);
        }
        assert_eq!([350, 1350, 12_345].map(|ms| took(Duration::from_millis(ms))), ["350ms", "1.3s", "12s"]);
    }

    #[test]
    fn sizes_have_one_digit() {
        let table = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_258_291, "1.2 MiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (u64::MAX, "16777216.0 TiB"),
        ];
        for (bytes, shown) in table {
            assert_eq!(size(bytes), shown);
        }
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
