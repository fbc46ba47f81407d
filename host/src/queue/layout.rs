//! The names of the keys and arguments of a call, in their order. The Lua file says them in comments, at its
//! head and above each table that it reads from a call:
//!
//! ```text
//! -- KEYS  stream, delayed; each task: status, marker (the stream: it has none)
//! -- ARGV  group, count, outcomes[], fields... (names and values)
//! ```
//!
//! Text in parentheses is a note. A name with `...` stands for any number of words, and a name with `[]` for
//! a list that begins with its length. The names behind `each` repeat. All names become variables of the
//! script, so that no script has numbers of keys or arguments. The code that builds a call names each word,
//! too, and debug builds check the names.
//!
//! Not here: the calls, and the text of the scripts (`script`).

/// The keys and arguments of a call, or of a part of one.
#[derive(Debug)]
pub(super) struct Layout(Vec<LayoutItem>);

#[derive(Debug)]
struct LayoutItem {
    /// `KEYS` or `ARGV`, and its number there.
    list: &'static str,
    number: usize,
    name: String,
    kind: WordKind,
}

#[derive(Debug, PartialEq, Eq)]
enum WordKind {
    /// One word.
    One,
    /// `name[]`: the length of a list, and its words.
    List,
    /// `name...`: any number of words.
    Many,
    /// One of the words that repeat for each of these.
    Each(String),
}

impl Layout {
    /// Reads the names from a comment.
    pub(super) fn of(comment: &str) -> Layout {
        Layout(["KEYS", "ARGV"].into_iter().flat_map(|list| items(comment, list)).collect())
    }

    fn in_list(&self, list: &str) -> impl Iterator<Item = &LayoutItem> {
        self.0.iter().filter(move |item| item.list == list)
    }

    #[cfg(test)]
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|item| item.name.as_str())
    }

    /// The names with which each call begins.
    pub(super) fn first_names(&self, list: &str) -> impl Iterator<Item = &str> {
        self.in_list(list).take_while(|item| item.kind == WordKind::One).map(|item| item.name.as_str())
    }

    /// Whether a call with words of these names, in this order, has this layout.
    pub(super) fn fits(&self, list: &str, names: &[&str]) -> bool {
        let mut names = names.iter().copied().peekable();
        let mut each = Vec::new();
        for LayoutItem { name, kind, .. } in self.in_list(list) {
            match kind {
                WordKind::One | WordKind::List if names.next() != Some(name) => return false,
                WordKind::One | WordKind::List => {}
                WordKind::Many => while names.next_if_eq(&name.as_str()).is_some() {},
                WordKind::Each(_) => each.push(name.as_str()),
            }
        }
        let rest: Vec<&str> = names.collect();
        rest.chunks(each.len().max(1)).all(|names| names == each)
    }

    /// Returns the line of Lua that declares a variable for each single name. The names of `shared` are
    /// declared elsewhere.
    pub(super) fn declared(&self, shared: Option<&Layout>) -> String {
        let is_shared = |name: &str| shared.is_some_and(|shared| shared.place(name).is_some());
        let own = self.0.iter().filter(|item| item.kind == WordKind::One && !is_shared(&item.name));
        let names: Vec<&str> = own.map(|item| item.name.as_str()).collect();
        if names.is_empty() { String::new() } else { format!("local {}\n", names.join(", ")) }
    }

    /// Returns the lines of Lua that set the variables of a call. A `shared` name that the call does not have
    /// becomes nil.
    pub(super) fn set(&self, shared: &Layout) -> String {
        let place = |item: &LayoutItem| (item.name.clone(), self.place(&item.name).unwrap_or("nil".into()));
        let own =
            self.0.iter().filter(|item| item.kind == WordKind::One && shared.place(&item.name).is_none());
        let (names, places): (Vec<_>, Vec<_>) = shared.0.iter().chain(own).map(place).unzip();
        let mut set = format!("{} = {}\n", names.join(", "), places.join(", "));
        for (list, end) in [("KEYS", "key"), ("ARGV", "at")] {
            if let Some(LayoutItem { name, number, .. }) =
                self.in_list(list).find(|item| item.kind == WordKind::Many)
            {
                set += &format!("local {name}_{end} = {number}\n");
            }
        }
        set + &self.each()
    }

    /// The expression in Lua for the word with a single name, such as `KEYS[1]`.
    fn place(&self, name: &str) -> Option<String> {
        let item = self.0.iter().find(|item| item.name == name && item.kind == WordKind::One)?;
        Some(format!("{}[{}]", item.list, item.number))
    }

    /// Returns a function in Lua that calls another function for each item that repeats. Meanwhile the words
    /// of the item are variables. Empty if nothing repeats.
    fn each(&self) -> String {
        let (mut what, mut count, mut all, mut set) = ("", String::new(), Vec::new(), String::new());
        for list in ["KEYS", "ARGV"] {
            let mut names = Vec::new();
            for item in self.in_list(list) {
                let WordKind::Each(each) = &item.kind else { continue };
                names.push(item.name.as_str());
                what = each;
            }
            let (before, size) = (self.in_list(list).count() - names.len(), names.len());
            if size > 0 {
                let places: Vec<String> = (1..=size).map(|n| format!("{list}[from + {n}]")).collect();
                set += &format!("local from = {size} * (i - 1) + {before}\n");
                set += &format!("{} = {}\n", names.join(", "), places.join(", "));
                count = format!("(#{list} - {before}) / {size}");
                all.extend(names);
            }
        }
        let visit = format!("for i = 1, {count} do\n{set}visit(i)\nend\nend\n");
        let declare = format!("local {}\nlocal function each_{what}(visit)\n", all.join(", "));
        if all.is_empty() { String::new() } else { declare + &visit }
    }

    /// Returns the field `read` of a table in Lua: a function that reads the words of the table from a call,
    /// up to the first name with `...`.
    fn reader(&self) -> String {
        let mut fields = String::new();
        for (list, next) in [("KEYS", "next_key"), ("ARGV", "next_value")] {
            for item in self.in_list(list).take_while(|item| item.kind != WordKind::Many) {
                let next = if item.kind == WordKind::List { "next_list" } else { next };
                fields += &format!("{} = {next}(), ", item.name);
            }
        }
        format!("read = function() return {{ {fields}}} end,")
    }
}

/// The comment at the beginning of a file.
pub(super) fn head(source: &str) -> String {
    source.lines().take_while(|line| line.starts_with("--")).flat_map(|line| [line, "\n"]).collect()
}

/// Finds the tables of a file whose comment has a layout, and adds to each the function that reads it from a
/// call. Returns the new text, and the layout of each table with its name.
pub(super) fn with_readers(source: &str) -> (String, Vec<(String, Layout)>) {
    let (mut text, mut tables, mut comment) = (String::new(), Vec::new(), String::new());
    for line in source.lines() {
        let table = line.split_once(" = {").map(|(name, rest)| (name, rest, Layout::of(&comment)));
        match table.filter(|(.., layout)| !layout.0.is_empty()) {
            Some((name, rest, layout)) => {
                text += &format!("{name} = {{ {}{rest}\n", layout.reader());
                tables.push((name.trim_start_matches("local ").to_owned(), layout));
            }
            None => text.extend([line, "\n"]),
        }
        if line.starts_with("--") { comment.extend([line, "\n"]) } else { comment.clear() }
    }
    (text, tables)
}

/// Reads the names of one list, `KEYS` or `ARGV`, from a comment.
fn items(comment: &str, list: &'static str) -> Vec<LayoutItem> {
    let mark = format!("-- {list} ");
    let mut lines = comment.lines().skip_while(|line| !line.starts_with(&mark));
    let first = lines.next().map(|line| &line[mark.len()..]);
    let more = lines.map_while(|line| line.strip_prefix("--    "));
    let mut text = first.into_iter().chain(more).collect::<Vec<_>>().join(" ");
    let mut depth = 0;
    text.retain(|letter| {
        depth += u32::from(letter == '(');
        let is_name = depth == 0;
        depth -= u32::from(letter == ')');
        is_name
    });
    let mut items = Vec::new();
    for part in text.split(';') {
        let each = part.trim().strip_prefix("each ").and_then(|each| each.split_once(':'));
        let names = each.map_or(part, |(_, names)| names).split(',').map(str::trim);
        for name in names.filter(|name| !name.is_empty()) {
            let kind = match each {
                Some((what, _)) => WordKind::Each(what.to_owned()),
                None if name.ends_with("...") => WordKind::Many,
                None if name.ends_with("[]") => WordKind::List,
                None => WordKind::One,
            };
            let name = name.trim_end_matches(['.', '[', ']']).to_owned();
            items.push(LayoutItem { list, number: items.len() + 1, name, kind });
        }
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_names_the_words_of_a_call_in_its_order() {
        let keys = "-- KEYS  stream, dead (of it (or: none)); each task: status\n";
        let layout = Layout::of(&format!("{keys}-- ARGV  group,\n--       list[], rest...\n-- Returns"));
        assert!(layout.fits("KEYS", &["stream", "dead"]));
        assert!(layout.fits("KEYS", &["stream", "dead", "status", "status"]));
        assert!(!layout.fits("KEYS", &["dead", "stream"]));
        assert!(layout.fits("ARGV", &["group", "list", "rest", "rest"]));
        assert!(!layout.fits("ARGV", &["group"]));
        assert!(!layout.fits("ARGV", &["group", "list", "rest", "more"]));
        let shared = Layout::of("-- KEYS  stream, parked");
        assert_eq!(layout.declared(Some(&shared)), "local dead, group\n");
        let set = "stream, parked, dead, group = KEYS[1], nil, KEYS[2], ARGV[1]\nlocal rest_at = 3\n\
                   local status\nlocal function each_task(visit)\nfor i = 1, (#KEYS - 2) / 1 do\n\
                   local from = 1 * (i - 1) + 2\nstatus = KEYS[from + 1]\nvisit(i)\nend\nend\n";
        assert_eq!(layout.set(&shared), set);
    }

    #[test]
    fn a_table_gets_a_function_that_reads_it() {
        let source =
            "-- KEYS  key\n-- ARGV  delay (ms), fields[], more...\nlocal one = {}\n\nlocal two = {}\n";
        let (text, tables) = with_readers(source);
        assert_eq!(tables.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["one"]);
        let read = "return { key = next_key(), delay = next_value(), fields = next_list(), } end";
        assert!(
            text.contains(&format!("local one = {{ read = function() {read},}}\n\nlocal two = {{}}\n")),
            "{text}"
        );
    }
}
