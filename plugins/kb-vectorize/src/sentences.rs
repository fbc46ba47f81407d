//! Finds the sentences of a text in English, Chinese, Japanese, or a mixture.
//!
//! In: a part of a text. Out: [`Piece`]s, which follow one another without a gap. A piece is a sentence with
//! the blanks behind it. A sentence that is longer than a chunk becomes several pieces, which end at a
//! comma, a blank, or anywhere.
//!
//! A full stop ends a sentence if blanks follow it, and the next word does not begin in lower case, and the
//! word before it is no abbreviation. The full-width marks 。！？； need no blanks. An empty line, and a line
//! that begins a list item, a table row or a fence, end a sentence, too.
//!
//! Not here: languages that write other marks, and how pieces become chunks (`split`).

use std::ops::Range;

use crate::split::Piece;

const FULL_WIDTH_ENDS: &str = "。！？；｡";
const CLOSERS: &str = "\"')]}”’」』）】》〉";
/// Words before a full stop that does not end a sentence. A single letter is one, too.
const ABBREVIATIONS: [&str; 19] = [
    "mr", "mrs", "ms", "dr", "prof", "st", "vs", "etc", "fig", "vol", "pp", "cf", "al", "eq", "sec", "inc",
    "ltd", "approx", "ca",
];

pub fn sentences(text: &str, range: Range<usize>, most: usize) -> Vec<Piece> {
    let part = &text[range.clone()];
    let mut pieces = Vec::new();
    let chars: Vec<(usize, char)> = part.char_indices().collect();
    let offset = |at: usize| range.start + chars.get(at).map_or(part.len(), |(offset, _)| *offset);
    let mut from = 0;
    while from < chars.len() {
        let end = sentence_end(&chars, from);
        while from < end {
            let to = if end - from > most { break_before(&chars, from, from + most) } else { end };
            pieces.push(Piece { range: offset(from)..offset(to), characters: to - from });
            from = to;
        }
    }
    pieces
}

/// The place behind the sentence that begins at `from`, and behind its blanks.
fn sentence_end(chars: &[(usize, char)], from: usize) -> usize {
    let char_at = |at: usize| chars.get(at).map(|(_, c)| *c);
    let skip = |mut at: usize, is: &dyn Fn(char) -> bool| {
        while char_at(at).is_some_and(is) {
            at += 1;
        }
        at
    };
    let mut at = from;
    while let Some(c) = char_at(at) {
        at += 1;
        if FULL_WIDTH_ENDS.contains(c) {
            let after = skip(at, &|c| FULL_WIDTH_ENDS.contains(c) || CLOSERS.contains(c));
            return skip(after, &char::is_whitespace);
        }
        if matches!(c, '.' | '!' | '?' | '…') {
            let after = skip(at, &|c| matches!(c, '.' | '!' | '?' | '…') || CLOSERS.contains(c));
            let next = skip(after, &char::is_whitespace);
            let is_inside = next == after && next < chars.len()
                || c == '.' && after == at && is_abbreviation(&chars[from..at - 1])
                || char_at(next).is_some_and(char::is_lowercase);
            if !is_inside {
                return next;
            }
            at = after;
        }
        if c == '\n' {
            let next = skip(at, &|c| matches!(c, ' ' | '\t' | '\r'));
            let begins_block = match char_at(next) {
                None | Some('\n' | '|' | '>' | '`' | '~') => true,
                Some('-' | '*' | '+') => char_at(next + 1) == Some(' '),
                Some(digit) if digit.is_ascii_digit() => {
                    let behind = skip(next, &|c| c.is_ascii_digit());
                    matches!(char_at(behind), Some('.' | ')')) && char_at(behind + 1) == Some(' ')
                }
                Some(_) => false,
            };
            if begins_block {
                return skip(at, &char::is_whitespace);
            }
        }
    }
    chars.len()
}

/// Whether a text ends with a word that is written with a full stop.
fn is_abbreviation(before: &[(usize, char)]) -> bool {
    let word: String =
        before.iter().rev().map(|(_, c)| *c).take_while(|c| c.is_alphabetic()).take(8).collect();
    let mut letters = word.chars();
    match (letters.next(), letters.next()) {
        (Some(only), None) => only.is_ascii_uppercase(),
        _ => {
            let word: String = word.chars().rev().flat_map(char::to_lowercase).collect();
            ABBREVIATIONS.contains(&word.as_str())
        }
    }
}

/// The best place to end a piece that may reach up to `to`: behind a line, a clause or a blank in its second
/// half, or `to` itself.
fn break_before(chars: &[(usize, char)], from: usize, to: usize) -> usize {
    let half = from + (to - from).div_ceil(2);
    let last = |is: fn(char) -> bool| (half..to).rev().find(|at| is(chars[*at].1)).map(|at| at + 1);
    last(|c| c == '\n')
        .or_else(|| last(|c| "，、：,;:".contains(c)))
        .or_else(|| last(char::is_whitespace))
        .unwrap_or(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, most: usize) -> Vec<&str> {
        let pieces = sentences(text, 0..text.len(), most);
        assert_eq!(pieces.iter().map(|piece| &text[piece.range.clone()]).collect::<String>(), text);
        pieces.into_iter().map(|piece| text[piece.range].trim()).collect()
    }

    #[test]
    fn full_stops_within_sentences_do_not_end_them() {
        let text =
            "Dr. Smith paid 3.50 to J. Doe, e.g. for v1.2. Was it much? \"No!\" She left... and came back.";
        assert_eq!(
            found(text, 1000),
            [
                "Dr. Smith paid 3.50 to J. Doe, e.g. for v1.2.",
                "Was it much?",
                "\"No!\"",
                "She left... and came back."
            ]
        );
    }

    #[test]
    fn both_kinds_of_marks_work_in_one_text() {
        assert_eq!(
            found("Redis 很快。It is fast！真的吗？！是的；对。「好。」End", 1000),
            ["Redis 很快。", "It is fast！", "真的吗？！", "是的；", "对。", "「好。」", "End"]
        );
    }

    #[test]
    fn lists_tables_and_empty_lines_are_ends() {
        let text = "a line\nthat goes on\n\nnext\n- one\n- two\n1. three\n| a | b |\nlast";
        assert_eq!(
            found(text, 1000),
            ["a line\nthat goes on", "next", "- one", "- two", "1. three", "| a | b |\nlast"]
        );
    }

    #[test]
    fn a_long_sentence_ends_at_a_comma_or_a_blank_or_anywhere() {
        assert_eq!(found("aaaa bbbb, cccc dddd", 16), ["aaaa bbbb,", "cccc dddd"]);
        assert_eq!(found("aaaa bbbb cccc", 10), ["aaaa bbbb", "cccc"]);
        assert_eq!(found("甲乙丙丁，戊己庚辛", 6), ["甲乙丙丁，", "戊己庚辛"]);
        assert_eq!(found("abcdefgh", 3), ["abc", "def", "gh"]);
    }
}
