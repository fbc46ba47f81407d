//! Checks the words of documents and comments, as far as a program can.
//!
//! In: the files of the repository. Out: blocks of code that a wrapped paragraph has swallowed, comments and
//! names of functions that begin with a free relative ("What is read.") where a sentence should stand, and
//! tests that look for a sentence.

use super::{Files, lines};

/// Words that begin a free relative. A question may begin with them, too; then it is told by its end.
const BEGINNINGS: [&str; 6] = ["Of ", "Who ", "Whom ", "Whose ", "What ", "Those "];

/// A fence begins its line, and each block ends.
pub fn fences(files: &Files) -> Vec<String> {
    let mut problems = Vec::new();
    for (path, text) in files.iter().filter(|(path, _)| path.ends_with(".md")) {
        let fenced = |line: &str| line.trim_start().starts_with("```");
        let inside = lines(path, text).filter(|(_, line)| line.contains("```") && !fenced(line));
        problems.extend(inside.map(|(at, _)| format!("{at}: a block of code begins or ends within a line")));
        if text.lines().filter(|line| fenced(line)).count() % 2 == 1 {
            problems.push(format!("{path}: a block of code has no end"));
        }
    }
    problems
}

pub fn comments(files: &Files) -> Vec<String> {
    let is_ours = |path: &str| path.starts_with("host/src/") || path.starts_with("tests/");
    let sources = files.iter().filter(|(path, _)| is_ours(path) && path != "tests/tidy.rs");
    let mut problems = Vec::new();
    for (path, text) in sources {
        let mark = match path.rsplit('.').next() {
            Some("rs") => "//",
            Some("lua") => "--",
            _ => continue,
        };
        for (at, line) in lines(path, text) {
            let name = line.trim_start().trim_start_matches("pub ").trim_start_matches("async ");
            if ["fn what_", "fn who_", "fn whoever_", "fn those_"].iter().any(|begin| name.starts_with(begin))
            {
                problems.push(format!("{at}: begin the name with a noun: {name}"));
            }
            let Some(comment) = line.trim_start().strip_prefix(mark) else { continue };
            let words = comment.trim_start_matches(['/', '!', ' ']);
            if BEGINNINGS.iter().any(|word| words.starts_with(word)) && !words.ends_with('?') {
                problems.push(format!("{at}: write a sentence: {words}"));
            }
        }
    }
    problems
}

/// Tests of what compilers, other programs, and the judges of these tests say.
const WORDS_OF_OTHERS: [&str; 6] = [
    "tests/tidy",
    "tests/world/packages",
    "tests/handlers/build_errors.rs",
    "tests/handlers/go.rs",
    "tests/handlers/languages.rs",
    "tests/proofs/chaos.rs",
];

/// The number of words from which a text is a sentence.
const SENTENCE: usize = 4;

/// Tests look for names, fields and codes. The words of a message stand in snapshots, which are accepted by
/// one command when the words change.
pub fn sentences(files: &Files) -> Vec<String> {
    let has_tests = |path: &str| path.starts_with("tests/") || path.starts_with("host/src/");
    let is_exempt = |path: &str| WORDS_OF_OTHERS.iter().any(|begin| path.starts_with(begin));
    let sources = files.iter().filter(|(path, _)| has_tests(path) && !is_exempt(path));
    let mut problems = Vec::new();
    for (path, text) in sources {
        // Production code looks for the words of others.
        let begin = match path.starts_with("tests/") || path.contains("tests") {
            true => 0,
            false => text.find("#[cfg(test)]").unwrap_or(text.len()),
        };
        for look in ["contains(\"", "starts_with(\"", "ends_with(\""] {
            for (at, _) in text[begin..].match_indices(look) {
                let at = begin + at;
                let wanted = text[at + look.len()..].split("\")").next().unwrap_or_default();
                let is_asserted =
                    text[..at].rsplit([';', '{']).next().is_some_and(|it| it.contains("assert"));
                if is_asserted && is_sentence(wanted) {
                    let line = text[..at].lines().count();
                    problems.push(format!("{path}:{line}: assert a field, a code or a snapshot: {wanted}"));
                }
            }
        }
    }
    problems
}

/// Whether plain words follow each other. A command between backticks, a key or a tag is none.
fn is_sentence(text: &str) -> bool {
    let is_word = |word: &str| {
        let word = word.trim_end_matches([',', '.', ':']);
        !word.is_empty() && word.chars().all(|one| one.is_alphabetic() || one == '\'')
    };
    text.split('`').step_by(2).any(|prose| {
        let are_words: Vec<bool> = prose.split(' ').map(is_word).collect();
        are_words.windows(SENTENCE).any(|some| some.iter().all(|is_word| *is_word))
    })
}
