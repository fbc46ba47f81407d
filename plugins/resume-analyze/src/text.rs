//! The resume's text in a normal form.
//!
//! In: the task's content. Out: a [`Text`] with the content's lines, in which full-width and unusual
//! characters have their plain form, and with the language and the number of words. If the rules cannot read
//! the content, an [`Unreadable`].
//!
//! The lines keep their numbers, so that a result can be compared with the content.

use std::fmt;

use serde::Serialize;

/// The least text that can be judged: about ten words, or twenty-five Chinese characters.
const LEAST_WEIGHT: usize = 50;

/// Many times the longest resume. A larger content is not a resume, and would only take time.
const MOST_BYTES: usize = 256 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    En,
    Zh,
}

impl Language {
    pub fn say(self, en: &str, zh: &str) -> String {
        self.pick(en, zh).to_string()
    }

    pub fn pick<'a>(self, en: &'a str, zh: &'a str) -> &'a str {
        match self {
            Language::En => en,
            Language::Zh => zh,
        }
    }
}

#[derive(Debug)]
pub struct Text {
    pub lines: Vec<String>,
    pub language: Language,
    /// Nearly all letters are capitals, as in text from some PDFs. Then capitals do not show which words are
    /// names.
    pub all_caps: bool,
    /// Words, with each Chinese character counted as half a word.
    pub words: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    Empty,
    File(&'static str),
    Binary,
    TooShort,
    TooLong,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unreadable::Empty => f.write_str("is empty"),
            Unreadable::File(kind) => write!(f, "is a {kind} file; send the text that is in it"),
            Unreadable::Binary => f.write_str("is not readable text"),
            Unreadable::TooShort => f.write_str("has too little text to be a resume"),
            Unreadable::TooLong => write!(f, "is longer than {} KiB", MOST_BYTES / 1024),
        }
    }
}

impl Text {
    pub fn read(content: &str) -> Result<Text, Unreadable> {
        if content.trim().is_empty() {
            return Err(Unreadable::Empty);
        }
        for (start, kind) in [("%PDF-", "PDF"), ("PK\u{3}\u{4}", "Word or zip"), ("{\\rtf", "RTF")] {
            if content.trim_start().starts_with(start) {
                return Err(Unreadable::File(kind));
            }
        }
        if content.len() > MOST_BYTES {
            return Err(Unreadable::TooLong);
        }
        let chars = content.chars().count();
        let broken = content
            .chars()
            .filter(|&c| c == '\u{fffd}' || (c.is_control() && !matches!(c, '\n' | '\r' | '\t' | '\u{c}')))
            .count();
        if broken * 50 > chars {
            return Err(Unreadable::Binary);
        }
        // A form feed ends a page of a PDF. It becomes a blank, so that the lines keep their numbers.
        let lines: Vec<String> =
            content.lines().map(|line| line.chars().filter_map(plain).collect()).collect();
        let letters: usize = lines
            .iter()
            .flat_map(|line| line.chars())
            .filter(|c| c.is_alphabetic())
            .map(|c| 1 + usize::from(is_cjk(c)))
            .sum();
        if letters < LEAST_WEIGHT {
            return Err(Unreadable::TooShort);
        }
        let cjk = lines.iter().flat_map(|line| line.chars()).filter(|&c| is_cjk(c)).count();
        let latin_words = lines
            .iter()
            .flat_map(|line| line.split(|c: char| !c.is_alphabetic() || is_cjk(c)))
            .filter(|word| !word.is_empty())
            .count();
        let upper = lines.iter().flat_map(|line| line.chars()).filter(|c| c.is_ascii_uppercase()).count();
        let lower = lines.iter().flat_map(|line| line.chars()).filter(|c| c.is_ascii_lowercase()).count();
        Ok(Text {
            // A Chinese word has about two characters.
            language: if cjk / 2 > latin_words { Language::Zh } else { Language::En },
            all_caps: upper > 4 * lower && cjk / 2 <= latin_words,
            words: latin_words + cjk / 2,
            lines,
        })
    }

    /// The lines that are not blank, with their numbers from 1.
    pub fn filled(&self) -> impl Iterator<Item = (usize, &str)> {
        self.lines
            .iter()
            .enumerate()
            .map(|(at, line)| (at + 1, line.trim()))
            .filter(|(_, line)| !line.is_empty())
    }
}

/// Chinese characters, which Japanese and Korean also use.
pub fn is_cjk(c: char) -> bool {
    matches!(c, '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{f900}'..='\u{faff}')
}

/// Full-width forms, dashes and blanks as ASCII, and `None` for invisible characters.
fn plain(c: char) -> Option<char> {
    match c {
        '\u{200b}'..='\u{200f}' | '\u{feff}' | '\u{ad}' => None,
        '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{3000}' | '\u{c}' => Some(' '),
        '\u{2010}'..='\u{2015}' | '\u{2212}' => Some('-'),
        '\u{2018}' | '\u{2019}' => Some('\''),
        '\u{ff01}'..='\u{ff5e}' => char::from_u32(c as u32 - 0xfee0),
        '、' => Some(','),
        c if c.is_control() && c != '\t' => None,
        c => Some(c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_refused() {
        let table = [
            (" \n\t ", Unreadable::Empty),
            ("%PDF-1.7 and much more text that would be long enough for anything", Unreadable::File("PDF")),
            (
                "abc\u{0}\u{1}\u{2}\u{3} def and so on and so forth, which is long enough to be a text",
                Unreadable::Binary,
            ),
            ("Jane Doe, engineer", Unreadable::TooShort),
            ("张伟，工程师", Unreadable::TooShort),
        ];
        for (content, why) in table {
            assert_eq!(Text::read(content).unwrap_err(), why, "{content:?}");
        }
        assert_eq!(Text::read(&"word ".repeat(60_000)).unwrap_err(), Unreadable::TooLong);
    }

    #[test]
    fn characters_become_plain_and_lines_stay() {
        let text =
            Text::read("姓名：张伟（后端）\u{feff}\n\n２０１９年７月—至今　后端开发工程师，负责订单系统的设计与开发工作，持续优化性能\n")
                .unwrap();
        assert_eq!(text.lines[0], "姓名:张伟(后端)");
        assert!(text.lines[2].starts_with("2019年7月-至今 后端"));
        assert_eq!(text.language, Language::Zh);
        assert!(!text.all_caps);
    }
}
