//! Finds the last words of a guest before it failed: the text for the task's error.
//!
//! In: the lines on stderr, and the log lines at level error. Out: one text of bounded length: the message
//! of a panic, or an exception with its places and its causes, or the last line.
//!
//! Not here: the log itself (`log`), the rest of the error (`failure`).

/// Largest size of the text, in bytes.
const MAX_TEXT: usize = 1024;
const TRACEBACK: &str = "Traceback (most recent call last):";
/// The last line of a panic that only says that there was an exception. The exception was printed before.
const BY_EXCEPTION: &str = "Python function threw an unexpected exception";
/// Lines that runtimes print after the reason.
const NOISE: [&str; 2] = ["note: run with `RUST_BACKTRACE", "Redirecting call to abort() to mozalloc_abort"];

#[derive(Debug, Default)]
pub(super) struct LastWords {
    text: String,
    /// The lines before the panic, or before the traceback, that is being read.
    before: String,
    in_panic: bool,
}

impl LastWords {
    pub(super) fn text(&self) -> Option<&str> {
        Some(self.text.as_str()).filter(|text| !text.is_empty())
    }

    /// Notes a log line at level error.
    pub(super) fn note_error(&mut self, text: &str) {
        self.before.clear();
        self.remember(text);
    }

    /// Notes a line on stderr. A Rust panic prints its place and then its message. A traceback of Python
    /// prints the places first, and its causes before that.
    pub(super) fn note_stderr(&mut self, line: &str) {
        if NOISE.iter().any(|noise| line.starts_with(noise)) || line.trim().is_empty() {
            return;
        }
        if self.in_panic {
            self.in_panic = false;
            if line == BY_EXCEPTION && !self.before.is_empty() {
                self.text = std::mem::take(&mut self.before);
            } else {
                self.append(line);
            }
        } else if line.contains("panicked at ") {
            self.before = std::mem::take(&mut self.text);
            self.remember(line);
            self.in_panic = true;
        } else if self.text.contains("panicked at ") {
            // A backtrace follows a panic.
        } else if line == TRACEBACK {
            self.before = std::mem::take(&mut self.text);
            self.remember(line);
        } else if line.starts_with(' ') && !self.text.is_empty() || line == "Stack:" {
            self.append(line.trim());
        } else if let Some(places) = self.text.strip_prefix(TRACEBACK) {
            let mut whole = format!("{line}{places}");
            if let Some(cause) = self.before.strip_suffix(IS_CAUSE) {
                whole = format!("{whole} caused by {cause}");
            }
            self.before.clear();
            self.remember(&whole);
        } else if line.starts_with("The above exception was the direct cause of")
            || line.starts_with("During handling of the above exception")
        {
            self.text.push_str(IS_CAUSE);
        } else {
            self.remember(line);
        }
    }

    fn append(&mut self, line: &str) {
        let joined = format!("{} {line}", self.text);
        self.remember(&joined);
    }

    fn remember(&mut self, text: &str) {
        text[..text.floor_char_boundary(MAX_TEXT)].clone_into(&mut self.text);
    }
}

/// Marks a text as the cause of the traceback that follows.
const IS_CAUSE: &str = " \u{2193}";

#[cfg(test)]
mod tests {
    use super::*;

    fn said(lines: &str) -> String {
        let mut words = LastWords::default();
        lines.lines().for_each(|line| words.note_stderr(line));
        words.text().unwrap_or_default().to_owned()
    }

    #[test]
    fn a_panic_is_its_place_and_its_message() {
        let lines =
            "before\nthread 'main' panicked at src/lib.rs:5:9:\nboom\nnote: run with `RUST_BACKTRACE=1`";
        assert_eq!(said(lines), "thread 'main' panicked at src/lib.rs:5:9: boom");
        assert_eq!(said(&format!("{lines}\nstack backtrace:\n   0: f")), said(lines));
    }

    #[test]
    fn an_exception_of_python_has_its_places_and_causes() {
        let lines = "ValueError: earlier\nTraceback (most recent call last):\n\
            \x20 File \"/0/app.py\", line 3, in a\nValueError: the cause\n\n\
            The above exception was the direct cause of the following exception:\n\n\
            Traceback (most recent call last):\n  File \"/0/app.py\", line 26, in b\nLookupError: boom\n\n\
            thread '<unnamed>' (1) panicked at runtime/src/lib.rs:1293:29:\n\
            Python function threw an unexpected exception\nnote: run with `RUST_BACKTRACE=1`";
        let whole = "LookupError: boom File \"/0/app.py\", line 26, in b \
            caused by ValueError: the cause File \"/0/app.py\", line 3, in a";
        assert_eq!(said(lines), whole);
    }

    #[test]
    fn an_error_of_javascript_has_its_stack() {
        let lines = "invalid tag (received `TypeError: boom`)\nStack:\n  handle@a.js:1:2\n\
            Redirecting call to abort() to mozalloc_abort";
        assert_eq!(said(lines), "invalid tag (received `TypeError: boom`) Stack: handle@a.js:1:2");
    }

    #[test]
    fn the_text_is_bounded() {
        let long = "é".repeat(MAX_TEXT);
        assert_eq!(said(&long).len(), MAX_TEXT);
        assert_eq!(said(&format!("Traceback (most recent call last):\n  {long}\n{long}")).len(), MAX_TEXT);
        assert_eq!(said(&format!("a\n{}", format!("  {long}\n").repeat(50))).len(), MAX_TEXT);
    }
}
