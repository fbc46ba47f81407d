//! Walks the parsed TOML file and takes typed, bounded values out of it.
//!
//! In: the spanned value tree of the file. Out: values. For each wrong value there is no value, but a problem
//! with its key and line in the [`Context`]. So reading goes on to the end, and all problems are reported at
//! once.
//!
//!     Table::value("lease") ─▶ the row's bounds ─▶ Item::duration(bounds) ─▶ Option<Duration>
//!
//! Not here: which keys there are, their bounds and defaults (`keys`), values of more than one part (one file
//! per element of the configuration), secrets (`source`).

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use toml::de::{DeArray, DeTable, DeValue};

use super::edits::edits;
use super::keys::{Keys, Values};
use super::problem::{Problem, line_of};
use super::units::{parse_duration, parse_size, show_duration, show_size, show_text};

/// The input that all readers need, and the list of their problems.
pub(super) struct Context<'a> {
    /// The whole file, for line numbers.
    pub text: &'a str,
    pub path: &'a Path,
    /// The file's folder, which relative paths are based on.
    pub folder: &'a Path,
    pub env: &'a dyn Fn(&str) -> Option<String>,
    pub secrets: Secrets,
    pub problems: RefCell<Vec<Problem>>,
    pub warnings: RefCell<Vec<String>>,
    /// The files of secrets, as far as they were read. The file itself is among them if it holds one.
    pub secret_files: RefCell<BTreeSet<PathBuf>>,
}

/// The secrets that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Secrets {
    OfAll,
    /// All but those that only a running host needs.
    OfCommands,
}

/// A value that the row of its key describes in full. The type of the field in `model` chooses the values of
/// the row: u32 is an integer, u64 a size.
pub(super) trait Plain: Sized {
    /// Reads the item. If it is something else, or out of bounds, that is a problem of the item.
    fn take(item: &Item, values: &Values) -> Option<Self>;
    /// Reads a bound or a default of a row. None: it is words.
    fn parse(text: &str) -> Option<Self>;
}

/// Implements [`Plain`] for types with one kind of values.
macro_rules! plain {
    ($($type:ty: $kind:ident($($bound:ident),*),
        $item:ident => $take:expr, $text:ident => $parse:expr;)*) => {$(
        impl Plain for $type {
            fn take($item: &Item, values: &Values) -> Option<$type> {
                let Values::$kind($($bound),*) = values else { panic!("{} has other values", $item.key) };
                $take
            }

            fn parse($text: &str) -> Option<$type> {
                $parse
            }
        }
    )*};
}

plain! {
    u32: Integer(least, most), item => item.integer(*least..=*most), text => text.parse().ok();
    f64: Number(least, most), item => item.number(*least..=*most), text => text.parse().ok();
    bool: Boolean(), item => item.boolean(), text => text.parse().ok();
    Duration: Duration(least, most),
        item => item.duration(bound(least)..=bound(most)), text => parse_duration(text).ok();
    u64: Size(least, most),
        item => item.size(bound(least)..=bound(most)), text => parse_size(text).ok();
}

fn bound<T: Plain>(text: &str) -> T {
    T::parse(text).unwrap_or_else(|| panic!("{text:?} is no bound"))
}

impl Keys {
    /// The value of a key that is not set.
    ///
    /// # Panics
    /// If the default of the key is no such value.
    pub(super) fn default<T: Plain>(&self, name: &str) -> T {
        let text = self.key(name).default;
        T::parse(text)
            .unwrap_or_else(|| panic!("the default of {name} is {text:?}, which is not a value of its type"))
    }

    /// The word that holds if the key is not set.
    ///
    /// # Panics
    /// If the type does not know it.
    pub(super) fn word<T: FromStr>(&self, name: &str) -> T {
        meant(self.text(name))
    }
}

/// The value of a word. A test checks that each word has one.
fn meant<T: FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("{word:?} has no value"))
}

/// A table whose keys have been checked.
pub(super) struct Table<'a> {
    cx: &'a Context<'a>,
    key: String,
    entries: &'a DeTable<'a>,
    keys: &'static Keys,
}

/// One value of the file, with its whole key and its position.
#[derive(Clone)]
pub(super) struct Item<'a> {
    cx: &'a Context<'a>,
    pub key: String,
    offset: usize,
    value: &'a DeValue<'a>,
}

impl<'a> Context<'a> {
    /// Reports a problem with a missing key, or with the file as a whole.
    pub(super) fn problem(&self, key: &str, text: impl Into<String>) {
        self.problems.borrow_mut().push(Problem { line: None, key: key.into(), text: text.into() });
    }
}

impl<'a> Table<'a> {
    /// The table of the whole file.
    pub(super) fn root(cx: &'a Context<'a>, entries: &'a DeTable<'a>, keys: &'static Keys) -> Self {
        let table = Table { cx, key: String::new(), entries, keys };
        table.check_keys();
        table
    }

    pub(super) fn get(&self, name: &'static str) -> Option<Item<'a>> {
        self.keys.key(name);
        entry(self.cx, &self.key, self.entries, name)
    }

    /// The value of a key that the table sets, within the bounds of its row.
    pub(super) fn value<T: Plain>(&self, name: &'static str) -> Option<T> {
        T::take(&self.get(name)?, &self.keys.key(name).values)
    }

    /// The value of a key; where the table sets none, the default of its row.
    pub(super) fn value_or_default<T: Plain>(&self, name: &'static str) -> T {
        self.value_or(name, None)
    }

    /// The value of a key; where the table sets none, `base`, or else the default of its row.
    pub(super) fn value_or<T: Plain>(&self, name: &'static str, base: Option<T>) -> T {
        self.value(name).or(base).unwrap_or_else(|| self.keys.default(name))
    }

    /// The value of one of the words of a key.
    pub(super) fn word<T: FromStr>(&self, name: &'static str) -> Option<T> {
        let Values::Words(words) = self.keys.key(name).values else { panic!("{name} has no words") };
        let is_word = |text: &str| words.iter().find(|word| **word == text);
        let (last, others) = words.split_last()?;
        let others: Vec<String> = others.iter().map(|word| format!("{word:?}")).collect();
        let why = || format!("is not what {name} can be: write {} or {last:?}", others.join(", "));
        let text = self.get(name)?.checked(|text| is_word(text).map(drop).ok_or_else(why))?;
        is_word(&text).map(|word| meant(word))
    }

    pub(super) fn checked(
        &self,
        name: &'static str,
        check: impl Fn(&str) -> Result<(), String>,
    ) -> Option<String> {
        self.get(name)?.checked(check)
    }

    /// The key in full, whether it is in the file or not.
    pub(super) fn key_of(&self, name: &str) -> String {
        join(&self.key, name)
    }

    pub(super) fn context(&self) -> &'a Context<'a> {
        self.cx
    }

    fn check_keys(&self) {
        for (name, item) in entries_in_order(self.cx, &self.key, self.entries) {
            if let Some(why) = self.keys.instead_of(name) {
                item.problem(why);
            } else if self.keys.here().any(|key| key == name) {
                continue;
            } else if let Some(meant) = nearest(name, self.keys.here()) {
                item.problem(format!("unknown key: did you mean `{meant}`?"));
            } else {
                let here = self.keys.here().collect::<Vec<_>>().join(", ");
                item.problem(format!("unknown key: the keys here are {here}"));
            }
        }
    }
}

impl<'a> Item<'a> {
    pub(super) fn problem(&self, text: impl Into<String>) {
        let line = Some(line_of(self.cx.text, self.offset));
        self.cx.problems.borrow_mut().push(Problem { line, key: self.key.clone(), text: text.into() });
    }

    /// Reports the problem of a value that is not used.
    pub(super) fn refuse<T>(&self, text: impl Into<String>) -> Option<T> {
        self.problem(text);
        None
    }

    /// This position in the file, under another key: the one that a problem is about.
    pub(super) fn named_as(&self, key: String) -> Item<'a> {
        Item { key, ..self.clone() }
    }

    /// The value of this key of a table; or, where it is not set, this position under that key.
    pub(super) fn at(&self, name: &str) -> Item<'a> {
        let set = self.value.as_table().and_then(|entries| entry(self.cx, &self.key, entries, name));
        set.unwrap_or_else(|| self.named_as(join(&self.key, name)))
    }

    /// Reports something odd that does not keep the host from running.
    pub(super) fn warn(&self, text: &str) {
        let line = line_of(self.cx.text, self.offset);
        self.cx.warnings.borrow_mut().push(format!("line {line}: {}: {text}", self.key));
    }

    pub(super) fn context(&self) -> &'a Context<'a> {
        self.cx
    }

    /// Notes that the configuration file itself holds a secret.
    pub(super) fn is_secret(&self) {
        self.cx.secret_files.borrow_mut().insert(self.cx.path.to_owned());
    }

    /// Notes a file that holds a secret.
    pub(super) fn names_secret(&self, path: &Path) {
        self.cx.secret_files.borrow_mut().insert(path.to_owned());
    }

    pub(super) fn value(&self) -> &'a DeValue<'a> {
        self.value
    }

    pub(super) fn string(&self) -> Option<&'a str> {
        self.value.as_str().or_else(|| self.wrong_type("a string"))
    }

    /// A string that passes `check`.
    pub(super) fn checked(&self, check: impl Fn(&str) -> Result<(), String>) -> Option<String> {
        let text = self.string()?;
        check(text)
            .map_err(|why| self.problem(format!("{} {why}", show_text(text))))
            .ok()
            .map(|()| text.to_owned())
    }

    pub(super) fn path(&self) -> Option<PathBuf> {
        let text = self.string()?;
        if text.is_empty() || text.contains('\0') {
            return self.refuse("is not a path");
        }
        Some(self.cx.folder.join(text))
    }

    pub(super) fn integer(&self, bounds: RangeInclusive<u32>) -> Option<u32> {
        let Some(integer) = self.value.as_integer() else { return self.wrong_type("a whole number") };
        let number = i64::from_str_radix(integer.as_str(), integer.radix()).unwrap_or(i64::MAX);
        let inside = u32::try_from(number).ok().filter(|number| bounds.contains(number));
        inside.or_else(|| self.out_of_bounds(integer, bounds.start(), bounds.end()))
    }

    pub(super) fn boolean(&self) -> Option<bool> {
        self.value.as_bool().or_else(|| self.wrong_type("true or false"))
    }

    pub(super) fn number(&self, bounds: RangeInclusive<f64>) -> Option<f64> {
        let text = match self.value {
            DeValue::Float(float) => float.as_str(),
            DeValue::Integer(integer) if integer.radix() == 10 => integer.as_str(),
            _ => return self.wrong_type("a number"),
        };
        let inside = text.parse::<f64>().ok().filter(|number| bounds.contains(number));
        inside.or_else(|| self.out_of_bounds(text, bounds.start(), bounds.end()))
    }

    pub(super) fn duration(&self, bounds: RangeInclusive<Duration>) -> Option<Duration> {
        let parsed = match self.value {
            DeValue::String(text) => parse_duration(text),
            DeValue::Integer(number) => parse_duration(&number.to_string()),
            DeValue::Float(number) => parse_duration(&format!("{number}s")),
            _ => return self.wrong_type("a duration like \"30s\""),
        };
        let duration = parsed.map_err(|why| self.problem(why)).ok()?;
        if bounds.contains(&duration) {
            return Some(duration);
        }
        let [shown, least, most] =
            [duration, *bounds.start(), *bounds.end()].map(|d| format!("\"{}\"", show_duration(d)));
        self.out_of_bounds(shown, least, most)
    }

    /// Bytes: a string with a unit, or a plain whole number.
    pub(super) fn size(&self, bounds: RangeInclusive<u64>) -> Option<u64> {
        let parsed = match self.value {
            DeValue::String(text) => parse_size(text),
            DeValue::Integer(number) if number.as_str().starts_with('-') => parse_size(&number.to_string()),
            DeValue::Integer(number) => {
                Ok(u64::from_str_radix(number.as_str(), number.radix()).unwrap_or(u64::MAX))
            }
            _ => return self.wrong_type("a size like \"64MiB\""),
        };
        let size = parsed.map_err(|why| self.problem(why)).ok()?;
        if bounds.contains(&size) {
            return Some(size);
        }
        let [shown, least, most] =
            [size, *bounds.start(), *bounds.end()].map(|bytes| format!("\"{}\"", show_size(bytes)));
        self.out_of_bounds(shown, least, most)
    }

    pub(super) fn table(&self, keys: &'static Keys) -> Option<Table<'a>> {
        let entries = self.entries()?;
        let table = Table { cx: self.cx, key: self.key.clone(), entries, keys };
        table.check_keys();
        Some(table)
    }

    /// The entries of a table whose keys are names that the user gives, in the order of the file.
    pub(super) fn named(&self) -> Vec<(&'a str, Item<'a>)> {
        self.entries().map(|entries| entries_in_order(self.cx, &self.key, entries)).unwrap_or_default()
    }

    pub(super) fn list(&self) -> Option<Vec<Item<'a>>> {
        let array: &DeArray<'a> = self.value.as_array().or_else(|| self.wrong_type("a list"))?;
        let item = |(index, value): (usize, &'a toml::Spanned<DeValue<'a>>)| Item {
            cx: self.cx,
            key: format!("{}[{index}]", self.key),
            offset: value.span().start,
            value: value.get_ref(),
        };
        Some(array.iter().enumerate().map(item).collect())
    }

    fn entries(&self) -> Option<&'a DeTable<'a>> {
        self.value.as_table().or_else(|| self.wrong_type("a table"))
    }

    /// The value itself is not shown: it may be a secret in the wrong place.
    pub(super) fn wrong_type<T>(&self, wanted: &str) -> Option<T> {
        let article = if self.value.type_str().starts_with(['a', 'i']) { "an" } else { "a" };
        self.refuse(format!("is {article} {}, but must be {wanted}", self.value.type_str()))
    }

    fn out_of_bounds<T>(&self, shown: impl Display, least: impl Display, most: impl Display) -> Option<T> {
        self.refuse(format!("{shown} is out of bounds: write {least} to {most}"))
    }
}

fn entry<'a>(cx: &'a Context<'a>, parent: &str, entries: &'a DeTable<'a>, name: &str) -> Option<Item<'a>> {
    let (key, value) = entries.get_key_value(name)?;
    Some(Item { cx, key: join(parent, name), offset: key.span().start, value: value.get_ref() })
}

fn entries_in_order<'a>(
    cx: &'a Context<'a>,
    parent: &str,
    entries: &'a DeTable<'a>,
) -> Vec<(&'a str, Item<'a>)> {
    let mut items: Vec<_> = entries
        .iter()
        .map(|(name, value)| {
            let name_text: &'a str = name.get_ref();
            let item =
                Item { cx, key: join(parent, name_text), offset: name.span().start, value: value.get_ref() };
            (name_text, item)
        })
        .collect();
    items.sort_by_key(|(_, item)| item.offset);
    items
}

fn join(parent: &str, name: &str) -> String {
    let bare = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    let name = if bare { name.to_owned() } else { show_text(name) };
    if parent.is_empty() { name } else { format!("{parent}.{name}") }
}

/// The known key that `name` was probably meant to be.
fn nearest(name: &str, known: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let allowed = (name.len() / 3).clamp(1, 3);
    if name.len() > 64 {
        return None;
    }
    known.map(|key| (edits(name, key), key)).filter(|(edits, _)| *edits <= allowed).min().map(|(_, key)| key)
}

#[cfg(test)]
mod tests {
    use super::super::keys::{ADMIN, ALL, Key, LIST, SCHEDULE, TOKEN};
    use super::super::model::{AccessRole, HistogramForm, Items, Missed};
    use super::*;

    #[test]
    fn the_nearest_key_is_found() {
        let known = ["max_retries", "lease", "timeout", "max_crashes"];
        let table = [
            ("max-retries", Some("max_retries")),
            ("maxRetries", Some("max_retries")),
            ("leese", Some("lease")),
            ("retries", None),
            ("timeuot", Some("timeout")),
            ("colour", None),
        ];
        for (name, meant) in table {
            assert_eq!(nearest(name, known.into_iter()), meant, "{name}");
        }
    }

    #[test]
    fn keys_that_need_quotes_get_them() {
        assert_eq!(join("queues", "a-b_1"), "queues.a-b_1");
        assert_eq!(join("queues", "a.b"), "queues.\"a.b\"");
        assert_eq!(join("", ""), "\"\"");
    }

    #[test]
    fn defaults_are_within_their_bounds() {
        fn is_within<T: Plain + PartialOrd>(key: &Key, least: T, most: T) -> bool {
            T::parse(key.default).is_none_or(|value| least <= value && value <= most)
        }
        for key in ALL.iter().flat_map(|keys| keys.known) {
            let is_good = match key.values {
                Values::Integer(least, most) => is_within(key, least, most),
                Values::Number(least, most) => is_within(key, least, most),
                Values::Duration(least, most) => {
                    let [least, most] = [least, most].map(|text| Duration::parse(text).expect(text));
                    is_within(key, least, most)
                }
                Values::Size(least, most) => {
                    let [least, most] = [least, most].map(|text| u64::parse(text).expect(text));
                    is_within(key, least, most)
                }
                Values::Boolean() => bool::parse(key.default).is_some(),
                Values::Words(words) => key.default == "required" || words.contains(&key.default),
                Values::Table(..) | Values::Named(..) | Values::Text(_) | Values::Other(_) => true,
            };
            assert!(is_good, "{}: {}", key.name, key.default);
        }
    }

    #[test]
    fn every_word_has_a_value() {
        fn all<T: FromStr>(keys: &Keys, name: &str) {
            let Values::Words(words) = keys.key(name).values else { panic!("{name} has no words") };
            words.iter().for_each(|word| drop(meant::<T>(word)));
        }
        all::<Missed>(&SCHEDULE, "missed");
        all::<Items>(&LIST, "items");
        all::<HistogramForm>(&ADMIN, "histograms");
        all::<AccessRole>(&ADMIN, "trusted_user_role");
        all::<AccessRole>(&TOKEN, "role");
    }
}
