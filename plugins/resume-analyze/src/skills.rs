//! Skills that the resume mentions, from a built-in list.
//!
//! In: the text and its sections. Out: [`Skill`]s with the number of their mentions, sorted by category and
//! then by mentions, most first.
//!
//! Most names count everywhere, if they are whole words (`Java` is not in `JavaScript`). The rules are
//! stricter for a name that is also an everyday word. [`How::Proper`] counts only if it is written as in the
//! list (`Rust`, not `rust`). [`How::Listed`] must also be part of a list or be under a heading of skills
//! (`C`, `R` and `Go`, but not in "Vitamin C" or "Go home").
//!
//! The list itself is in [`crate::skill_list`].

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Serialize;

use crate::sections::{Kind, Sections};
use crate::skill_list::SKILLS;
pub use crate::skill_list::{Category, How};
use crate::text::{Text, is_cjk};

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Skill {
    pub name: Cow<'static, str>,
    pub category: Category,
    pub mentions: usize,
}

pub fn find(text: &Text, sections: &Sections) -> Vec<Skill> {
    // The key has the name, because one skill may have several rows of different strictness.
    let mut mentions: BTreeMap<(Category, &'static str), usize> = BTreeMap::new();
    for (number, line) in text.filled() {
        let lower = line.to_ascii_lowercase();
        let in_skills = sections.of_line(number) == Some(Kind::Skills);
        for (name, category, how, aliases) in SKILLS {
            let count: usize =
                aliases.iter().map(|alias| count(line, &lower, alias, *how, in_skills, text.all_caps)).sum();
            if count > 0 {
                *mentions.entry((*category, name)).or_default() += count;
            }
        }
    }
    let mut found: Vec<Skill> = mentions
        .into_iter()
        .map(|((category, name), mentions)| Skill { name: name.into(), category, mentions })
        .collect();
    found.sort_by(|a, b| {
        a.category.cmp(&b.category).then(b.mentions.cmp(&a.mentions)).then(a.name.cmp(&b.name))
    });
    found
}

/// How often the text has this name as a whole word, in upper or lower case.
pub fn mentions(text: &Text, name: &str) -> usize {
    text.filled()
        .map(|(_, line)| count(line, &line.to_ascii_lowercase(), name, How::Anywhere, false, text.all_caps))
        .sum()
}

fn count(line: &str, lower: &str, alias: &str, how: How, in_skills: bool, all_caps: bool) -> usize {
    if alias.chars().any(is_cjk) {
        return line.matches(alias).count();
    }
    // `lower` has the same length as `line`, because only ASCII letters are changed.
    let needle = alias.to_ascii_lowercase();
    lower
        .match_indices(&needle)
        .filter(|(start, _)| {
            let (before, after) = (&line[..*start], &line[start + needle.len()..]);
            let as_written = || {
                line[*start..].starts_with(alias)
                    || (all_caps && line[*start..].starts_with(&alias.to_ascii_uppercase()))
            };
            is_word(before, after)
                && match how {
                    How::Anywhere => true,
                    How::Proper => as_written(),
                    How::Listed => {
                        as_written() && (in_list(before, after) || (in_skills && is_loose(before, after)))
                    }
                }
        })
        .count()
}

fn is_word(before: &str, after: &str) -> bool {
    let joins = |c: char| c.is_alphanumeric() && !is_cjk(c);
    let mut following = after.chars();
    let ends = match following.next() {
        // "C++", "C#" and "Node.js" are other words than "C" and "Node".
        Some('+' | '#') => false,
        Some('.') => !following.next().is_some_and(joins),
        Some(c) => !joins(c),
        None => true,
    };
    let starts = match before.chars().next_back() {
        // ".NET" is not "NET", and "a.go" is not "Go".
        Some('.' | '@' | '_') => false,
        Some(c) => !joins(c),
        None => true,
    };
    starts && ends
}

/// Whether the name has a separator or the line's end on each side, and at least one separator: `C, C++`,
/// `/R`, `语言:Go`.
fn in_list(before: &str, after: &str) -> bool {
    let separates = |c: Option<char>| c.map(|c| ",;/|()[]:•·".contains(c));
    let (left, right) = (
        separates(before.trim_end().chars().next_back()),
        separates(after.trim_start_matches(' ').trim_end_matches('.').chars().next()),
    );
    left.unwrap_or(true) && right.unwrap_or(true) && (left == Some(true) || right == Some(true))
}

/// Whether the name has a blank, a separator, Chinese text or the line's end on each side. Under a heading of
/// skills this is enough.
fn is_loose(before: &str, after: &str) -> bool {
    let loose =
        |c: Option<char>| c.is_none_or(|c| c.is_whitespace() || is_cjk(c) || ",;/|()[]:•·".contains(c));
    loose(before.chars().next_back()) && loose(after.chars().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(content: &str) -> Vec<Cow<'static, str>> {
        let filler = "\nThis line makes the whole thing long enough for anything to look at it in earnest.";
        let text = Text::read(&format!("{content}{filler}")).unwrap();
        let mut names: Vec<_> =
            find(&text, &Sections::find(&text)).into_iter().map(|skill| skill.name).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn names_are_words_of_their_own() {
        assert_eq!(names("JavaScript, not the other one"), ["JavaScript"]);
        assert_eq!(names("C++ / C# / C"), ["C", "C#", "C++"]);
        assert_eq!(names("built with Node.js and react.js"), ["Node.js", "React"]);
        assert_eq!(names("me@rust.example, Rusty, PostgreSQL"), ["PostgreSQL"]);
    }

    #[test]
    fn everyday_words_are_no_skills() {
        assert_eq!(
            names(
                "Vitamin C, and go home; react to the swift spring, express it. R you there? \
                 I excel in rust removal"
            ),
            [""; 0]
        );
        assert_eq!(names("Go to the shop. C is a letter, R another."), [""; 0]);
        assert_eq!(names("Languages: Rust, Go, R"), ["Go", "R", "Rust"]);
        assert_eq!(names("SKILLS\nGo C Python"), ["C", "Go", "Python"]);
    }

    #[test]
    fn chinese_mentions_count() {
        assert_eq!(
            names("精通Java和MySQL，熟悉微服务架构与消息队列，了解机器学习；语言：Go、C"),
            ["C", "Go", "Java", "Machine Learning", "Message Queues", "Microservices", "MySQL"]
        );
    }
}
