//! Walks the parsed TOML file and takes typed, bounded values out of it.
//!
//! In: the spanned value tree of the file. Out: values. For each wrong value there is a problem with its key
//! and line in the [`Context`], and the default in its place. So reading goes on to the end, and all problems
//! are reported at once; a configuration with problems is not used.
//!
//!     Table::value("lease") ─▶ the item, and the row of the key ─▶ Bounded::read ─▶ Option<Duration>
//!
//! A table that the file does not have is an empty one, so every key has its default. A key that a queue does
//! not set is looked up in `[defaults]`.
//!
//! Not here: which keys there are, their bounds and defaults (`keys`), numbers and durations (`bounded`),
//! values of more than one part (one file per element of the configuration), secrets (`source`).

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use toml::de::DeValue;

use super::bounded::{self, Bounded};
use super::edits::nearest;
use super::keys::{Key, Keys, REQUIRED, ROLES, Values};
use super::problem::{Problem, line_of};
use super::units::show_text;

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
    All,
    /// All but those that only a running host needs.
    ForCommands,
}

/// The value of a word of a row. A test checks that each word has one.
fn value_of_word<T: FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("{word:?} has no value"))
}

/// A table of the file whose keys have been checked.
pub(super) struct Table<'a> {
    /// None: the file has no such table, or something else in its place.
    item: Option<Item<'a>>,
    /// The table of `[defaults]` from which a queue's table takes the keys that it does not set.
    base: Option<Item<'a>>,
    keys: &'static Keys,
}

/// One value of the file, with its whole key and its position.
#[derive(Clone)]
pub(super) struct Item<'a> {
    cx: &'a Context<'a>,
    pub key: String,
    offset: usize,
    value: &'a DeValue<'a>,
    /// Whether a queue takes it from `[defaults]`. Its problems were reported when that table was read.
    is_inherited: bool,
}

impl<'a> Context<'a> {
    /// Reports a problem with a missing key, or with the file as a whole.
    pub(super) fn problem(&self, key: &str, text: impl Into<String>) {
        self.problems.borrow_mut().push(Problem { line: None, key: key.into(), text: text.into() });
    }
}

impl<'a> Table<'a> {
    /// The table of the whole file.
    pub(super) fn root(cx: &'a Context<'a>, file: &'a DeValue<'a>, keys: &'static Keys) -> Self {
        let item = Item { cx, key: String::new(), offset: 0, value: file, is_inherited: false };
        item.table(keys)
    }

    /// A table without entries: every key has its default.
    pub(super) fn absent(keys: &'static Keys) -> Self {
        Table { item: None, base: None, keys }
    }

    /// This table of a queue. A key that it does not set is looked up in `[defaults]`.
    pub(super) fn with_base(self, defaults: &Table<'a>) -> Self {
        let inherited = |item: &Item<'a>| Item { is_inherited: true, ..item.clone() };
        Table { base: defaults.item.as_ref().map(inherited), ..self }
    }

    /// Whether the file has this table.
    pub(super) fn is_there(&self) -> bool {
        self.item.is_some()
    }

    /// The item of a key, in this table or else in the one of `[defaults]`.
    pub(super) fn get(&self, name: &'static str) -> Option<Item<'a>> {
        self.own(name).or_else(|| self.base.as_ref()?.entry(name))
    }

    /// The item of a key in this table itself. A key that belongs elsewhere is not read.
    pub(super) fn own(&self, name: &'static str) -> Option<Item<'a>> {
        let key = self.keys.key(name);
        self.item.as_ref()?.entry(key.name).filter(|_| self.keys.instead_of(name).is_none())
    }

    /// The item of a key that the table must have.
    pub(super) fn required(&self, name: &'static str, way_out: &str) -> Option<Item<'a>> {
        assert_eq!(self.keys.key(name).default, REQUIRED, "{name}");
        self.own(name).or_else(|| self.item.as_ref()?.at(name).refuse(format!("is required: {way_out}")))
    }

    /// The value of a key, within the bounds of its row.
    pub(super) fn value<T: Bounded>(&self, name: &'static str) -> Option<T> {
        let item = self.get(name)?;
        T::read(item.value, self.keys.key(name)).map_err(|why| item.problem(why)).ok()
    }

    /// The value of a key. Where it is not set, the default of its row.
    pub(super) fn value_or_default<T: Bounded>(&self, name: &'static str) -> T {
        self.value(name).unwrap_or_else(|| {
            let text = self.keys.key(name).default;
            T::parse(text).unwrap_or_else(|| panic!("the default of {name}, {text:?}, has another type"))
        })
    }

    /// The value of one of the words of a key.
    pub(super) fn word<T: FromStr>(&self, name: &'static str) -> Option<T> {
        self.get(name)?.word(self.keys.key(name))
    }

    /// The value of one of the words of a key. Where it is not set, the default of its row.
    pub(super) fn word_or_default<T: FromStr>(&self, name: &'static str) -> T {
        self.word(name).unwrap_or_else(|| value_of_word(self.keys.text(name)))
    }

    /// A string that `parse` accepts. Where the key is not set, the default of its row.
    pub(super) fn text_or_default<T>(
        &self,
        name: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> T {
        let set = self.get(name).and_then(|item| item.parsed(&parse));
        set.unwrap_or_else(|| parse(self.keys.text(name)).expect("a default that can be read"))
    }

    pub(super) fn checked(
        &self,
        name: &'static str,
        check: impl Fn(&str) -> Result<(), String>,
    ) -> Option<String> {
        self.get(name)?.checked(check)
    }

    /// The table below a key.
    pub(super) fn table(&self, name: &'static str) -> Table<'a> {
        self.table_as(name, "a table")
    }

    /// The table below a key whose value may have another form, too. `wanted` are all its forms.
    pub(super) fn table_as(&self, name: &'static str, wanted: &str) -> Table<'a> {
        let Values::Table(keys, _) = self.keys.key(name).values else { panic!("{name} is no table") };
        let base = self.base.as_ref().and_then(|base| base.entry(name)).filter(|base| base.value.is_table());
        let table = self.own(name).map_or(Table::absent(keys), |item| item.table_as(keys, wanted));
        Table { base, ..table }
    }

    /// The entries of a list. Their number is within the bounds of the row.
    pub(super) fn list(&self, name: &'static str) -> Vec<Item<'a>> {
        let Some(item) = self.get(name) else { return Vec::new() };
        let entries = item.list().unwrap_or_default();
        if item.value.is_array() {
            self.check_count(name, &item, entries.len());
        }
        entries
    }

    /// The entries of a list, or one string in place of a list with one entry.
    pub(super) fn one_or_list(&self, name: &'static str, wanted: &str) -> Vec<Item<'a>> {
        match self.get(name) {
            Some(item) if item.value.is_array() => self.list(name),
            Some(item) if item.value.is_str() => vec![item],
            Some(item) => item.wrong_type(wanted).unwrap_or_default(),
            None => Vec::new(),
        }
    }

    /// The entries of a table whose keys are names that the user gives, in the order of the file.
    pub(super) fn named(&self, name: &'static str) -> Vec<(&'a str, Item<'a>)> {
        let Some(item) = self.get(name) else { return Vec::new() };
        let entries = item.named();
        if item.value.is_table() {
            self.check_count(name, &item, entries.len());
        }
        entries
    }

    /// The key in full, whether it is in the file or not.
    pub(super) fn key_of(&self, name: &str) -> String {
        join(self.item.as_ref().map_or("", |item| &item.key), name)
    }

    /// Reports a number of entries that the row of the key does not allow.
    fn check_count(&self, name: &str, item: &Item, count: usize) {
        let values = &self.keys.key(name).values;
        if !values.counts().contains(&count) {
            item.problem(format!("has {count} entries: write {}", values.counts_in_words()));
        }
    }

    fn check_keys(&self) {
        let entries = self.item.as_ref().map(Item::named).unwrap_or_default();
        for (name, item) in entries {
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
        if !self.is_inherited {
            let line = Some(line_of(self.cx.text, self.offset));
            self.cx.problems.borrow_mut().push(Problem { line, key: self.key.clone(), text: text.into() });
        }
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
        self.entry(name).unwrap_or_else(|| self.named_as(join(&self.key, name)))
    }

    /// The value of this key, if the item is a table that has it.
    fn entry(&self, name: &str) -> Option<Item<'a>> {
        let (key, value) = self.value.as_table()?.get_key_value(name)?;
        Some(self.child(join(&self.key, name), key.span().start, value.get_ref()))
    }

    /// A value inside this one.
    fn child(&self, key: String, offset: usize, value: &'a DeValue<'a>) -> Item<'a> {
        Item { cx: self.cx, key, offset, value, is_inherited: self.is_inherited }
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
    pub(super) fn note_secret(&self) {
        self.cx.secret_files.borrow_mut().insert(self.cx.path.to_owned());
    }

    /// Notes a file that holds a secret.
    pub(super) fn note_secret_file(&self, path: &Path) {
        self.cx.secret_files.borrow_mut().insert(path.to_owned());
    }

    pub(super) fn value(&self) -> &'a DeValue<'a> {
        self.value
    }

    /// Whether the value is a table that sets this key.
    pub(super) fn has(&self, name: &str) -> bool {
        self.entry(name).is_some()
    }

    /// Whether the value is this string.
    pub(super) fn is(&self, word: &str) -> bool {
        self.value.as_str() == Some(word)
    }

    pub(super) fn string(&self) -> Option<&'a str> {
        self.value.as_str().or_else(|| self.wrong_type("a string"))
    }

    /// The value of a string. An error of `parse` continues a sentence that begins with the text.
    pub(super) fn parsed<T>(&self, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let text = self.string()?;
        parse(text).map_err(|why| self.problem(format!("{} {why}", show_text(text)))).ok()
    }

    /// A string that passes `check`, whose error continues a sentence that begins with the text.
    pub(super) fn checked(&self, check: impl Fn(&str) -> Result<(), String>) -> Option<String> {
        self.parsed(|text| check(text).map(|()| text.to_owned()))
    }

    /// The value of one of the words in the row of this key. A wrong role is not shown: roles stand beside
    /// tokens, so the text may be a token in the wrong place.
    pub(super) fn word<T: FromStr>(&self, key: &Key) -> Option<T> {
        let Values::Words(words) = key.values else { panic!("{} has no words", key.name) };
        let text = self.string()?;
        if words.contains(&text) {
            return Some(value_of_word(text));
        }
        let (last, others) = words.split_last()?;
        let others: Vec<String> = others.iter().map(|word| format!("{word:?}")).collect();
        let shown = if words == ROLES { String::new() } else { show_text(text) + " " };
        self.refuse(format!("{shown}is not a known word: write {} or {last:?}", others.join(", ")))
    }

    pub(super) fn path(&self) -> Option<PathBuf> {
        let text = self.string()?;
        if text.is_empty() || text.contains('\0') {
            return self.refuse("is not a path");
        }
        Some(self.cx.folder.join(text))
    }

    /// The table whose keys are these.
    pub(super) fn table(&self, keys: &'static Keys) -> Table<'a> {
        self.table_as(keys, "a table")
    }

    /// The table whose keys are these. If the item is something else, the message says what is `wanted`.
    pub(super) fn table_as(&self, keys: &'static Keys, wanted: &str) -> Table<'a> {
        if !self.value.is_table() {
            return self.wrong_type(wanted).unwrap_or(Table::absent(keys));
        }
        let table = Table { item: Some(self.clone()), base: None, keys };
        table.check_keys();
        table
    }

    /// The entries of a table whose keys are names that the user gives, in the order of the file.
    pub(super) fn named(&self) -> Vec<(&'a str, Item<'a>)> {
        let Some(table) = self.value.as_table() else {
            return self.wrong_type("a table").unwrap_or_default();
        };
        let mut items = Vec::new();
        for (name, value) in table.iter() {
            let text: &'a str = name.get_ref();
            items.push((text, self.child(join(&self.key, text), name.span().start, value.get_ref())));
        }
        items.sort_by_key(|(_, item)| item.offset);
        items
    }

    pub(super) fn list(&self) -> Option<Vec<Item<'a>>> {
        let array = self.value.as_array().or_else(|| self.wrong_type("a list"))?;
        let item = |(index, value): (usize, &'a toml::Spanned<DeValue<'a>>)| {
            self.child(format!("{}[{index}]", self.key), value.span().start, value.get_ref())
        };
        Some(array.iter().enumerate().map(item).collect())
    }

    /// Reports a value of the wrong type. It is not shown: it may be a secret in the wrong place.
    pub(super) fn wrong_type<T>(&self, wanted: &str) -> Option<T> {
        self.refuse(bounded::wrong_type(self.value, wanted))
    }
}

fn join(parent: &str, name: &str) -> String {
    let bare = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    let name = if bare { name.to_owned() } else { show_text(name) };
    if parent.is_empty() { name } else { format!("{parent}.{name}") }
}

#[cfg(test)]
mod tests {
    use super::super::keys::{ADMIN, LIST, SCHEDULE, TOKEN};
    use super::super::model::{AccessRole, HistogramForm};
    use super::super::rules::{Items, Missed};
    use super::*;

    #[test]
    fn keys_that_need_quotes_get_them() {
        assert_eq!(join("queues", "a-b_1"), "queues.a-b_1");
        assert_eq!(join("queues", "a.b"), "queues.\"a.b\"");
        assert_eq!(join("", ""), "\"\"");
    }

    #[test]
    fn every_word_has_a_value() {
        fn all<T: FromStr>(keys: &Keys, name: &str) {
            let Values::Words(words) = keys.key(name).values else { panic!("{name} has no words") };
            words.iter().for_each(|word| drop(value_of_word::<T>(word)));
        }
        all::<Missed>(&SCHEDULE, "missed");
        all::<Items>(&LIST, "items");
        all::<HistogramForm>(&ADMIN, "histograms");
        all::<AccessRole>(&ADMIN, "trusted_user_role");
        all::<AccessRole>(&TOKEN, "role");
    }
}
