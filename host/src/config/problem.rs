//! The problems of a configuration file: all of them, in one message.
//!
//! In: problems, as the reader finds them. Out: [`ConfigErrors`], which prints the file and then a line per
//! problem, in the order of the file. No problem ever holds the text of a secret.

use std::fmt;
use std::path::{Path, PathBuf};

/// Every problem of one configuration file; never empty.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfigErrors {
    path: PathBuf,
    problems: Vec<Problem>,
}

/// One problem: its place, its key, and the way out.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// From 1; `None` when the problem is that something is missing.
    pub line: Option<usize>,
    /// The whole key, like `queues.resume-analyze.lease`; empty when the file itself is the problem.
    pub key: String,
    pub text: String,
}

impl ConfigErrors {
    pub(super) fn new(path: &Path, mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| problem.line.unwrap_or(usize::MAX));
        ConfigErrors { path: path.to_owned(), problems }
    }

    /// The file as a whole cannot be used.
    pub(super) fn of_file(path: &Path, text: String) -> Self {
        ConfigErrors::new(path, vec![Problem { line: None, key: String::new(), text }])
    }

    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl std::error::Error for ConfigErrors {}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.problems.len();
        write!(f, "{}: {count} {}", self.path.display(), if count == 1 { "problem" } else { "problems" })?;
        self.problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.text)
    }
}

/// The line of a byte offset, from 1.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count()
}

/// The column of a byte offset, from 1, in characters.
pub(super) fn column_of(text: &str, offset: usize) -> usize {
    let before = text.get(..offset).unwrap_or(text);
    1 + before.rsplit('\n').next().unwrap_or_default().chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_print_in_the_order_of_the_file() {
        let problem = |line, key: &str, text: &str| Problem { line, key: key.into(), text: text.into() };
        let errors = ConfigErrors::new(
            Path::new("/etc/tqhost.toml"),
            vec![
                problem(None, "queues", "none"),
                problem(Some(7), "b", "wrong"),
                problem(Some(2), "a", "odd"),
            ],
        );
        assert_eq!(
            errors.to_string(),
            "/etc/tqhost.toml: 3 problems\n  line 2: a: odd\n  line 7: b: wrong\n  queues: none"
        );
        assert_eq!(ConfigErrors::of_file(Path::new("x"), "gone".into()).to_string(), "x: 1 problem\n  gone");
    }

    #[test]
    fn lines_and_columns_count_from_one() {
        let text = "ab\näc\n";
        assert_eq!((line_of(text, 0), column_of(text, 0)), (1, 1));
        assert_eq!((line_of(text, 5), column_of(text, 5)), (2, 2));
        assert_eq!((line_of(text, 99), column_of(text, 99)), (3, 1));
    }
}
