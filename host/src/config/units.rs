//! Durations and sizes as people write them: `"1m30s"`, `"64MiB"`.
//!
//! In: the text of a value. Out: the value, or a sentence that says what is wrong and how to write it.
//! The `show_…` functions write a value in the form that the `parse_…` functions read; `age` and `size` are
//! for people who only look.
//!
//! Not here: which key a value belongs to and its bounds (`reader`).

use std::time::Duration;

use super::rules::Rate;
use crate::clock::ms;

/// The most tasks per unit of time.
const MAX_RATE: u32 = 1_000_000;

/// The units and their milliseconds, largest first: the parts of a duration come in this order.
const TIMES: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];
const SIZES: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];
/// A longer wrong value is cut to this length.
const SHOWN_CHARS: usize = 60;

/// Reads `"30s"`, `"250ms"`, `"1h"`, `"1m30s"`. The units are d, h, m, s and ms, whole numbers only.
// This is not humantime, whose errors do not say what to write instead.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let shown = show_text(text);
    if text.is_empty() {
        return Err(r#"is empty: write a duration like "30s""#.into());
    }
    if text.starts_with('-') {
        return Err(format!("{shown} is negative: write a duration like \"30s\""));
    }
    let (mut rest, mut total_ms, mut next_unit) = (text, 0u64, 0);
    while !rest.is_empty() {
        let (digits, after) = split_where(rest, |c| !c.is_ascii_digit());
        let (unit, after) = split_where(after, |c| !c.is_alphabetic());
        if !digits.is_empty() && unit.is_empty() && after.is_empty() {
            return Err(format!("{shown} has no unit: write \"{text}s\""));
        }
        if after.starts_with('.') || after.starts_with(',') {
            return Err(format!("{shown} has a fraction: write it in a smaller unit, like \"1500ms\""));
        }
        let Some(index) = TIMES.iter().position(|(name, _)| *name == unit).filter(|_| !digits.is_empty())
        else {
            return Err(format!(
                "{shown} is not a duration: write whole numbers with the units d, h, m, s or ms, \
                 like \"30s\" or \"1m30s\""
            ));
        };
        if index < next_unit {
            return Err(format!(
                "{shown} is not a duration: each unit comes once, the largest first, like \"1m30s\""
            ));
        }
        let part = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(TIMES[index].1));
        total_ms =
            part.and_then(|ms| total_ms.checked_add(ms)).ok_or_else(|| format!("{shown} is too long"))?;
        (rest, next_unit) = (after, index + 1);
    }
    Ok(Duration::from_millis(total_ms))
}

/// Reads `"64MiB"`. The units are B, KiB, MiB and GiB, whole numbers only.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let shown = show_text(text);
    if text.starts_with('-') {
        return Err(format!("{shown} is negative: write a size like \"64MiB\""));
    }
    let (digits, unit) = split_where(text, |c| !c.is_ascii_digit());
    if !digits.is_empty() && unit.is_empty() {
        return Err(format!("{shown} has no unit: write \"{text}MiB\" or \"{text}B\""));
    }
    let Some((_, bytes)) = SIZES.iter().find(|(name, _)| *name == unit).filter(|_| !digits.is_empty()) else {
        return Err(format!(
            "{shown} is not a size: write a whole number with the unit B, KiB, MiB or GiB, like \"64MiB\""
        ));
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(*bytes))
        .ok_or_else(|| format!("{shown} is too big"))
}

/// Reads `100/s`, `30/m` or `1000/h`.
pub(crate) fn parse_rate(text: &str) -> Result<Rate, String> {
    let shown = show_text(text);
    let wrong = || {
        format!(
            "{shown} is not a rate: write a whole number from 1 to {MAX_RATE} and s, m or h, like \"100/s\""
        )
    };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number(text) {
        return Err(format!("{shown} has no unit: write \"{text}/s\""));
    }
    let (count, unit) = text.split_once('/').ok_or_else(wrong)?;
    let per = match unit {
        "s" => Duration::from_secs(1),
        "m" => Duration::from_secs(60),
        "h" => Duration::from_secs(3600),
        _ => return Err(wrong()),
    };
    let count = Some(count).filter(|count| is_number(count)).and_then(|count| count.parse().ok());
    let count = count.filter(|count| (1..=MAX_RATE).contains(count)).ok_or_else(wrong)?;
    Ok(Rate { count, per })
}

/// Writes a rate, as in `100/s`.
pub(crate) fn show_rate(Rate { count, per }: Rate) -> String {
    let unit = match per.as_secs() {
        ..60 => "s",
        60..3600 => "m",
        _ => "h",
    };
    format!("{count}/{unit}")
}

/// `1 task`, `2 tasks`.
pub(crate) fn plural(count: u64, one: &str) -> String {
    format!("{count} {one}{}", if count == 1 { "" } else { "s" })
}

/// Writes a duration, as in `1m30s`. Fractions of a millisecond are left out.
pub(crate) fn show_duration(duration: Duration) -> String {
    words(ms(duration), "")
}

/// A duration in its two largest units, as in `3m 12s`.
pub(crate) fn age(duration: Duration) -> String {
    let ms = ms(duration);
    let unit = match ms {
        0..1_000 => 1,
        1_000..3_600_000 => 1_000,
        3_600_000..86_400_000 => 60_000,
        _ => 3_600_000,
    };
    words(ms / unit * unit, " ")
}

fn words(mut ms: u64, between: &str) -> String {
    let mut parts = Vec::new();
    for (unit, size) in TIMES {
        if ms >= size {
            parts.push(format!("{}{unit}", ms / size));
            ms %= size;
        }
    }
    if parts.is_empty() { "0s".into() } else { parts.join(between) }
}

/// Writes a size in the largest unit that needs no fraction.
pub(crate) fn show_size(bytes: u64) -> String {
    let (unit, size) =
        SIZES.into_iter().find(|(_, size)| bytes >= *size && bytes.is_multiple_of(*size)).unwrap_or(("B", 1));
    format!("{}{unit}", bytes / size)
}

/// A size with one digit, as in `1.2 MiB`.
pub(crate) fn size(bytes: u64) -> String {
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

/// Writes a value of the file in quotes, escaped, and cut if it is long.
pub(super) fn show_text(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

fn split_where(text: &str, ends: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(ends).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::table;
    use super::*;

    #[test]
    fn rates() {
        let rate = |count, seconds| Ok(Rate { count, per: Duration::from_secs(seconds) });
        assert_eq!(
            [parse_rate("100/s"), parse_rate("1/m"), parse_rate("1000000/h")],
            [rate(100, 1), rate(1, 60), rate(1_000_000, 3600)]
        );
        assert_eq!(
            ["100/s", "1/m", "7/h"].map(|text| parse_rate(text).map(show_rate)),
            ["100/s", "1/m", "7/h"].map(|text| Ok(text.to_owned()))
        );
        for bad in ["", "100", "0/s", "+1/s", "1.5/s", "1000001/s", "10/d", "/s", "10/"] {
            let why = parse_rate(bad).expect_err(bad);
            assert!(why.contains(&format!("{bad:?} ")) && why.contains("\"100/s\""), "{why}");
        }
    }

    #[test]
    fn good_durations() {
        let table = [
            ("0s", 0),
            ("250ms", 250),
            ("30s", 30_000),
            ("1h", 3_600_000),
            ("24h", 86_400_000),
            ("1m30s", 90_000),
            ("1d2h3m4s5ms", 93_784_005),
        ];
        for (text, ms) in table {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn bad_durations() {
        let texts = [
            "",
            "5",
            "1m30",
            "-5s",
            "1.5s",
            "s",
            "5 s",
            "5sec",
            "5S",
            "30s1m",
            "1s1s",
            "99999999999999999999s",
            "9999999999999999d",
            "٣s",
        ];
        insta::assert_snapshot!(table(&texts, |text| parse_duration(text).expect_err(text)));
    }

    #[test]
    fn good_sizes() {
        for (text, bytes) in [("1B", 1), ("512KiB", 512 << 10), ("64MiB", 64 << 20), ("4GiB", 4 << 30)] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
            assert_eq!(show_size(bytes), text);
        }
    }

    #[test]
    fn bad_sizes() {
        let texts = ["", "64", "-1MiB", "64MB", "1.5MiB", "99999999999GiB"];
        insta::assert_snapshot!(table(&texts, |text| parse_size(text).expect_err(text)));
    }

    #[test]
    fn a_long_wrong_value_is_cut() {
        assert!(parse_duration(&"x".repeat(10_000)).expect_err("no unit").len() < 300);
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

    proptest! {
        #[test]
        fn durations_round_trip(ms in 0..u64::MAX) {
            let duration = Duration::from_millis(ms);
            prop_assert_eq!(parse_duration(&show_duration(duration)), Ok(duration));
        }

        #[test]
        fn sizes_round_trip(bytes in any::<u64>(), shift in 0u32..40) {
            let bytes = bytes >> shift << shift;
            prop_assert_eq!(parse_size(&show_size(bytes)), Ok(bytes));
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".{0,40}") {
            let _ = (parse_duration(&text), parse_size(&text));
        }
    }
}
