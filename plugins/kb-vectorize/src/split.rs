//! Splits a document into chunks that overlap.
//!
//! In: Markdown or plain text, and sizes in characters. Out: [`Chunk`]s, which are ranges of the text. A
//! chunk begins and ends with a sentence wherever it can, and never contains two sections: a heading begins
//! a new chunk, and the chunk has the path of its headings.
//!
//! ```text
//! lines ─▶ sections ─▶ sentences ─▶ chunks of whole sentences, each beginning with the end of the last one
//! ```
//!
//! Together, the chunks contain every character of the text but the blanks at their ends.
//!
//! Not here: the ends of sentences (`sentences`).

use std::ops::Range;

use crate::sentences::sentences;

/// The most characters of one heading in a path.
const MAX_HEADING: usize = 200;

/// The sizes of chunks, in characters.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// The most characters of a chunk.
    pub chunk: usize,
    /// The most characters that a chunk repeats of the chunk before.
    pub overlap: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Its bytes in the text.
    pub range: Range<usize>,
    /// The headings above it, from the first level on, with ` > ` between them. Empty if there are none.
    pub heading: String,
}

pub fn split(text: &str, sizes: Sizes) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    for section in sections(text) {
        let ranges = pack(&sentences(text, section.range, sizes.chunk), sizes);
        chunks.extend(
            ranges
                .into_iter()
                .map(|range| trimmed(text, range))
                .filter(|range| !range.is_empty())
                .map(|range| Chunk { range, heading: section.heading.clone() }),
        );
    }
    chunks
}

#[derive(Debug)]
struct Section {
    range: Range<usize>,
    heading: String,
}

/// The sections of a text, from heading to heading. A heading without text below it belongs to the section
/// that follows.
fn sections(text: &str) -> Vec<Section> {
    let mut sections = Vec::new();
    let mut path: Vec<(usize, String)> = Vec::new();
    let (mut start, mut at) = (0, 0);
    let mut has_body = false;
    let mut fence: Option<&str> = None;
    for line in text.split_inclusive('\n') {
        let content = line.trim();
        let mark = ["```", "~~~"].into_iter().find(|mark| content.starts_with(mark));
        match (fence, mark) {
            (None, Some(_)) => fence = mark,
            (Some(open), Some(mark)) if open == mark => fence = None,
            _ => {}
        }
        if let Some((level, title)) = heading(line).filter(|_| fence.is_none()) {
            if has_body {
                sections.push(Section { range: start..at, heading: shown(&path) });
                start = at;
            }
            has_body = false;
            path.retain(|(above, _)| *above < level);
            path.push((level, model_server::line(title, MAX_HEADING)));
        } else {
            has_body |= !content.is_empty();
        }
        at += line.len();
    }
    if start < at {
        sections.push(Section { range: start..at, heading: shown(&path) });
    }
    sections
}

fn shown(path: &[(usize, String)]) -> String {
    path.iter()
        .map(|(_, title)| title.as_str())
        .filter(|title| !title.is_empty())
        .collect::<Vec<_>>()
        .join(" > ")
}

/// The level and the text of a Markdown heading (`## Text`).
fn heading(line: &str) -> Option<(usize, &str)> {
    let indent = line.len() - line.trim_start_matches(' ').len();
    let marks = line[indent..].len() - line[indent..].trim_start_matches('#').len();
    let rest = &line[indent + marks..];
    let is_heading = indent <= 3 && (1..=6).contains(&marks) && rest.starts_with([' ', '\t', '\r', '\n']);
    is_heading.then(|| (marks, rest.trim().trim_end_matches('#').trim_end()))
}

/// A part of a text that stays whole, with its number of characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub range: Range<usize>,
    pub characters: usize,
}

/// Packs pieces into ranges of at most the given size. Each range begins with the last pieces of the one
/// before, as many as the overlap allows.
fn pack(pieces: &[Piece], sizes: Sizes) -> Vec<Range<usize>> {
    let size = |pieces: &[Piece]| pieces.iter().map(|piece| piece.characters).sum::<usize>();
    let mut ranges = Vec::new();
    let (mut from, mut characters) = (0, 0);
    for (to, piece) in pieces.iter().enumerate() {
        if characters + piece.characters > sizes.chunk && from < to {
            ranges.push(pieces[from].range.start..pieces[to - 1].range.end);
            let most = sizes.overlap.min(sizes.chunk.saturating_sub(piece.characters));
            // The overlap never repeats the whole chunk before.
            let repeated = (from + 1..=to).find(|first| size(&pieces[*first..to]) <= most);
            from = repeated.unwrap_or(to);
            characters = size(&pieces[from..to]);
        }
        characters += piece.characters;
    }
    if let (Some(first), Some(last)) = (pieces.get(from), pieces.last()) {
        ranges.push(first.range.start..last.range.end);
    }
    ranges
}

fn trimmed(text: &str, range: Range<usize>) -> Range<usize> {
    let part = &text[range.clone()];
    let start = range.start + (part.len() - part.trim_start().len());
    start..start + part.trim().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(text: &str, chunk: usize, overlap: usize) -> Vec<(&str, String)> {
        let chunks = split(text, Sizes { chunk, overlap });
        chunks.into_iter().map(|chunk| (&text[chunk.range], chunk.heading)).collect()
    }

    fn texts(text: &str, chunk: usize, overlap: usize) -> Vec<&str> {
        chunks(text, chunk, overlap).into_iter().map(|(text, _)| text).collect()
    }

    #[test]
    fn sentences_stay_whole_and_the_last_one_is_repeated() {
        let text = "One two three. Four five six. Seven eight nine. Ten.";
        assert_eq!(
            texts(text, 33, 16),
            ["One two three. Four five six.", "Four five six. Seven eight nine.", "Ten."]
        );
        assert_eq!(texts(text, 33, 0), ["One two three. Four five six.", "Seven eight nine. Ten."]);
        assert_eq!(texts(text, 1000, 100), [text]);
    }

    #[test]
    fn chinese_sentences_need_no_spaces() {
        let text = "消费者组记录位置。消费者可以认领消息！他说：“好。”然后走了？是的。";
        assert_eq!(
            texts(text, 18, 9),
            ["消费者组记录位置。", "消费者可以认领消息！他说：“好。”", "他说：“好。”然后走了？是的。"]
        );
    }

    #[test]
    fn headings_are_the_context_of_their_chunks() {
        let text = "Preface.\n\n# Guide\n\n## Setup\nInstall it.\n\n### Linux\nUse apt.\n\n## Use ##\n\
            Run it.\n```\n# a comment\n```\n#hashtag\n# End";
        assert_eq!(
            chunks(text, 1000, 100),
            [
                ("Preface.", ""),
                ("# Guide\n\n## Setup\nInstall it.", "Guide > Setup"),
                ("### Linux\nUse apt.", "Guide > Setup > Linux"),
                ("## Use ##\nRun it.\n```\n# a comment\n```\n#hashtag", "Guide > Use"),
                ("# End", "End"),
            ]
            .map(|(text, heading)| (text, heading.to_owned()))
        );
    }

    #[test]
    fn nothing_is_lost_and_no_chunk_is_too_long() {
        let words = "Some words, and more words without an end ".repeat(40);
        let chinese = "没有标点的中文".repeat(60);
        let table = "| a | b |\n".repeat(50);
        let text = format!("# Title\n\n{words}\n\n{chinese}\n\n## Table\n{table}\n{}", "x".repeat(500));
        for (size, overlap) in [(100, 0), (100, 20), (120, 60), (350, 100)] {
            let chunks = split(&text, Sizes { chunk: size, overlap });
            let mut end = 0;
            for chunk in &chunks {
                let found = &text[chunk.range.clone()];
                assert!((1..=size).contains(&found.chars().count()), "{size}: {found}");
                assert!(chunk.range.end > end, "{size}: a chunk that repeats another: {found}");
                let between = text.get(end..chunk.range.start).unwrap_or_default();
                assert_eq!(between.trim(), "", "{size}: lost");
                let repeated = text.get(chunk.range.start..end).unwrap_or_default();
                assert!(repeated.chars().count() <= overlap, "{size}: {repeated}");
                end = chunk.range.end;
            }
            assert_eq!(text[end..].trim(), "");
        }
    }

    #[test]
    fn a_text_of_blanks_has_no_chunks() {
        assert_eq!(texts(" \n\t\r\n", 100, 10), [""; 0]);
        assert_eq!(texts("", 100, 10), [""; 0]);
    }
}
