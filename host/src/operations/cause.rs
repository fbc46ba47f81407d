//! The part of an error that errors with the same cause share.
//!
//! In: an error. Out: its first line with [`ANY`] in place of what differs from task to task: quoted texts,
//! UUIDs, hexadecimal digits, ids and long numbers. A short number stays, as it may be the cause: the status
//! of an HTTP response, an SQLSTATE, an errno. Not here: groups of dead letters (`groups`), which also put
//! the short numbers aside where they turn out to be no causes.

use crate::queue::filter::ANY;

/// The most characters of a cause, and of an error that are looked at.
const MAX_CHARS: usize = 100;
const MAX_LOOK: usize = 1000;
/// The longest number or word with digits that may be a cause: an SQLSTATE has five.
const CODE: usize = 5;
/// A longer word is an id.
const MAX_WORD: usize = 32;
const UUID: usize = 36;
/// The words behind which a code follows.
const BEFORE_CODES: [&str; 7] = ["status", "code", "http", "answered", "errno", "error", "sqlstate"];

/// The cause, in which short numbers stay.
pub(super) fn cause(error: &str) -> String {
    let line = error.split('\n').next().unwrap_or_default();
    let end = line.char_indices().nth(MAX_LOOK).map_or(line.len(), |(end, _)| end);
    let has_more = end < error.len();
    let masked = masked(line[..end].trim_end());
    match masked.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => closed(&masked[..end]),
        None if has_more => closed(&masked),
        None => masked,
    }
}

/// The cause without its short numbers, except those behind a word that says that a code follows.
pub(super) fn without_numbers(cause: &str) -> String {
    let (mut text, mut before) = (String::with_capacity(cause.len()), "");
    for (word, is_word) in words(cause) {
        let is_code = BEFORE_CODES.iter().any(|name| name.eq_ignore_ascii_case(before));
        let is_number = is_word && !is_code && word.bytes().any(|byte| byte.is_ascii_digit());
        push(&mut text, if is_number { ANY } else { word });
        if is_word {
            before = word;
        }
    }
    text
}

/// The text, with [`ANY`] for the rest of the error.
fn closed(text: &str) -> String {
    let mut text = text.to_owned();
    push(&mut text, ANY);
    text
}

/// Adds a part. Two masks beside each other become one.
fn push(text: &mut String, part: &str) {
    if part != ANY || !text.ends_with(ANY) {
        text.push_str(part);
    }
}

fn masked(line: &str) -> String {
    let (mut text, mut at) = (String::with_capacity(line.len()), 0);
    while at < line.len() {
        let rest = &line[at..];
        if let Some(quoted) = quoted(&line[..at], rest) {
            let quote = &rest[..1];
            text.extend([quote, ANY, quote]);
            at += quoted;
            continue;
        }
        if is_uuid(rest) {
            push(&mut text, ANY);
            at += UUID;
            continue;
        }
        let Some((word, is_word)) = words(rest).next() else { break };
        // A quote may begin behind each other character.
        let word = if is_word { word } else { &word[..word.chars().next().map_or(1, char::len_utf8)] };
        push(&mut text, if is_word && is_id(word) { ANY } else { word });
        at += word.len();
    }
    text
}

/// The runs of ASCII letters and digits, and what is between them.
fn words(text: &str) -> impl Iterator<Item = (&str, bool)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let is_word = rest.chars().next()?.is_ascii_alphanumeric();
        let end = rest.find(|c: char| c.is_ascii_alphanumeric() != is_word).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        rest = after;
        Some((word, is_word))
    })
}

/// How long the quoted text is with which `rest` begins. In JSON, quotes stand around everything.
fn quoted(before: &str, rest: &str) -> Option<usize> {
    let quote = rest.chars().next().filter(|first| matches!(first, '"' | '\'' | '`'))?;
    let opens = before.chars().next_back().is_none_or(|last| !last.is_alphanumeric());
    if !opens || before.contains(['{', '[']) {
        return None;
    }
    let ends = rest[1..].match_indices(quote).map(|(at, _)| at + 2);
    // An apostrophe inside of a word ends nothing.
    ends.into_iter().find(|end| !rest[*end..].starts_with(char::is_alphanumeric))
}

fn is_uuid(text: &str) -> bool {
    let is_dash = |at: usize| matches!(at, 8 | 13 | 18 | 23);
    let mut bytes = text.bytes();
    let begins = (0..UUID).all(|at| {
        bytes.next().is_some_and(|byte| if is_dash(at) { byte == b'-' } else { byte.is_ascii_hexdigit() })
    });
    begins && !bytes.next().is_some_and(|byte| byte.is_ascii_alphanumeric())
}

/// Whether a word is one that differs from task to task. `sha256` and `utf16le` are none.
fn is_id(word: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit();
    if word.len() <= CODE || !word.bytes().any(is_digit) {
        return word.len() > MAX_WORD;
    }
    let switches = word.as_bytes().windows(2).filter(|pair| is_digit(pair[0]) != is_digit(pair[1])).count();
    let longest = word.split(|c: char| !c.is_ascii_digit()).map(str::len).max().unwrap_or_default();
    word.len() > MAX_WORD
        || word.bytes().all(|byte| byte.is_ascii_hexdigit())
        || longest > CODE
        || switches > 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_stay_and_what_differs_from_task_to_task_is_masked() {
        let table = [
            ("retry: upstream answered 503", "retry: upstream answered 503"),
            ("retry: upstream answered 429", "retry: upstream answered 429"),
            ("SQLSTATE 42P01: no table", "SQLSTATE 42P01: no table"),
            ("ORA-00942, errno 111", "ORA-00942, errno 111"),
            ("order 1234567 is unknown", "order … is unknown"),
            ("id 0190b8e4-61a9-7000-8505-001122334455 is gone", "id … is gone"),
            ("at 0x7f3a12b4, commit a1b2c3d4", "at …, commit …"),
            ("no user 'bob' in \"acme labs\"", "no user '…' in \"…\""),
            ("it doesn't exist, and can't", "it doesn't exist, and can't"),
            ("job k3j9x2q of cus_9s6XKzkNRiz8i3", "job … of cus_…"),
            ("sha256 of utf16le, E1100", "sha256 of utf16le, E1100"),
            ("json: {\"detail\":\"rate limited\"}", "json: {\"detail\":\"rate limited\"}"),
            ("trap\nat line", "trap…"),
            ("grün 'ß' 1234567", "grün '…' …"),
            ("", ""),
        ];
        for (error, expected) in table {
            assert_eq!(cause(error), expected);
        }
        assert_eq!(cause(&"ä".repeat(200)), "ä".repeat(MAX_CHARS) + ANY);
        assert_eq!(without_numbers("page 7 of 12: status 42P01"), "page … of …: status 42P01");
        assert_eq!(without_numbers("row 1: upstream answered 503"), "row …: upstream answered 503");
    }

    #[test]
    fn a_cause_is_found_again_in_its_error() {
        let filter = |error: &str| crate::queue::filter::occurs(&cause(error), error);
        for error in ["no user 'bob' in \"acme\"", "order 1234567", "trap\nat line", "", "it's 'x'"] {
            assert!(filter(error), "{error}");
        }
    }
}
