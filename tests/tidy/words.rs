//! Checks the words of documents and comments, as far as a program can.
//!
//! In: the files of the repository. Out: blocks of code that a wrapped paragraph has swallowed, and comments
//! and names of functions that begin with a free relative ("What is read.") where a sentence should stand.

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
