//! Reads numbers, durations, sizes and booleans within the bounds of their rows.
//!
//! In: a value of the file, and the row of its key. Out: the value, or a sentence that says what is wrong and
//! what to write. It shows the value only where it has the right type: another one may be a secret in the
//! wrong place. Not here: the key and the line of a problem (`reader`).

use std::fmt::Display;
use std::time::Duration;

use toml::de::DeValue;

use super::keys::{Key, Values};
use super::units::{parse_duration, parse_size, show_duration, show_size};

/// A value that the row of its key describes in full. The type of the field in `model` chooses the kind of
/// row: u32 is an integer, u64 a size.
pub(super) trait Bounded: Sized {
    /// # Panics
    /// If the row is for another type.
    fn read(value: &DeValue, row: &Key) -> Result<Self, String>;
    /// Reads the default of a row. None: the default is words for people.
    fn parse(text: &str) -> Option<Self>;
}

impl Bounded for u32 {
    fn read(value: &DeValue, row: &Key) -> Result<u32, String> {
        let Values::Integer(least, most) = row.values else { panic!("{} is no integer", row.name) };
        let integer = value.as_integer().ok_or_else(|| wrong_type(value, "a whole number"))?;
        let number = i64::from_str_radix(integer.as_str(), integer.radix()).unwrap_or(i64::MAX);
        let inside = u32::try_from(number).ok().filter(|number| (least..=most).contains(number));
        inside.ok_or_else(|| out_of_bounds(integer, least, most))
    }

    fn parse(text: &str) -> Option<u32> {
        text.parse().ok()
    }
}

impl Bounded for f64 {
    fn read(value: &DeValue, row: &Key) -> Result<f64, String> {
        let Values::Number(least, most) = row.values else { panic!("{} is no number", row.name) };
        let text = match value {
            DeValue::Float(float) => float.as_str(),
            DeValue::Integer(integer) if integer.radix() == 10 => integer.as_str(),
            _ => return Err(wrong_type(value, "a number")),
        };
        let inside = text.parse::<f64>().ok().filter(|number| (least..=most).contains(number));
        inside.ok_or_else(|| out_of_bounds(text, least, most))
    }

    fn parse(text: &str) -> Option<f64> {
        text.parse().ok()
    }
}

impl Bounded for bool {
    fn read(value: &DeValue, _: &Key) -> Result<bool, String> {
        value.as_bool().ok_or_else(|| wrong_type(value, "true or false"))
    }

    fn parse(text: &str) -> Option<bool> {
        text.parse().ok()
    }
}

impl Bounded for Duration {
    fn read(value: &DeValue, row: &Key) -> Result<Duration, String> {
        let Values::Duration(least, most) = row.values else { panic!("{} is no duration", row.name) };
        read_duration(value, least, most)
    }

    fn parse(text: &str) -> Option<Duration> {
        parse_duration(text).ok()
    }
}

/// Reads a duration whose bounds are written as in the file.
pub(super) fn read_duration(value: &DeValue, least: &str, most: &str) -> Result<Duration, String> {
    let duration = match value {
        DeValue::String(text) => parse_duration(text)?,
        DeValue::Integer(number) => parse_duration(&number.to_string())?,
        DeValue::Float(number) => parse_duration(&format!("{number}s"))?,
        _ => return Err(wrong_type(value, "a duration like \"30s\"")),
    };
    if (parse_duration(least)?..=parse_duration(most)?).contains(&duration) {
        return Ok(duration);
    }
    Err(out_of_bounds(quoted(&show_duration(duration)), quoted(least), quoted(most)))
}

/// Bytes: a string with a unit, or a plain whole number.
impl Bounded for u64 {
    fn read(value: &DeValue, row: &Key) -> Result<u64, String> {
        let Values::Size(least, most) = row.values else { panic!("{} is no size", row.name) };
        let size = match value {
            DeValue::String(text) => parse_size(text)?,
            DeValue::Integer(number) if number.as_str().starts_with('-') => parse_size(&number.to_string())?,
            DeValue::Integer(number) => {
                u64::from_str_radix(number.as_str(), number.radix()).unwrap_or(u64::MAX)
            }
            _ => return Err(wrong_type(value, "a size like \"64MiB\"")),
        };
        if (parse_size(least)?..=parse_size(most)?).contains(&size) {
            return Ok(size);
        }
        Err(out_of_bounds(quoted(&show_size(size)), quoted(least), quoted(most)))
    }

    fn parse(text: &str) -> Option<u64> {
        parse_size(text).ok()
    }
}

pub(super) fn wrong_type(value: &DeValue, wanted: &str) -> String {
    let article = if value.type_str().starts_with(['a', 'i']) { "an" } else { "a" };
    format!("is {article} {}, but must be {wanted}", value.type_str())
}

fn out_of_bounds(shown: impl Display, least: impl Display, most: impl Display) -> String {
    format!("{shown} is out of bounds: write {least} to {most}")
}

fn quoted(text: &str) -> String {
    format!("\"{text}\"")
}

#[cfg(test)]
mod tests {
    use super::super::keys::{ALL, REQUIRED};
    use super::*;

    #[test]
    fn defaults_are_within_their_bounds() {
        fn is_within<T: Bounded + PartialOrd>(key: &Key, least: T, most: T) -> bool {
            T::parse(key.default).is_none_or(|value| least <= value && value <= most)
        }
        for key in ALL.iter().flat_map(|keys| keys.known) {
            let is_good = match key.values {
                Values::Integer(least, most) => is_within(key, least, most),
                Values::Number(least, most) => is_within(key, least, most),
                Values::Duration(least, most) => {
                    let [least, most] = [least, most].map(|text| parse_duration(text).expect(text));
                    is_within(key, least, most)
                }
                Values::Size(least, most) => {
                    let [least, most] = [least, most].map(|text| parse_size(text).expect(text));
                    is_within(key, least, most)
                }
                Values::Boolean() => bool::parse(key.default).is_some(),
                Values::Words(words) => key.default == REQUIRED || words.contains(&key.default),
                _ => true,
            };
            assert!(is_good, "{}: {}", key.name, key.default);
        }
    }
}
