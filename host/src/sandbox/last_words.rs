//! Finds the last words of a guest before it failed: the text for the task's error.
//!
//! In: the lines on stderr, and the log lines at level error. Out: one text of bounded length: the message
//! of a panic, or an exception with its places and its causes, or the last line.
//!
//! Not here: the log itself (`log`), the rest of the error (`failure`).

/// Largest size of the text, in bytes.
const MAX_TEXT: usize = 1024;
const TRACEBACK: &str = "Traceback (most recent call last):";
/// The message of a panic for an exception of Python. The exception itself was printed before.
const BY_EXCEPTION: &str = "Python function threw an unexpected exception";
/// Lines that runtimes print after the reason.
const NOISE: [&str; 2] = ["note: run with `RUST_BACKTRACE", "Redirecting call to abort() to mozalloc_abort"];

#[derive(Debug, Default)]
pub(super) struct LastWords {
    text: String,
    /// The text before the panic or the traceback that is being read.
    before: String,
    /// Whether the next line is the message of a Rust panic.
    in_panic: bool,
    /// The part of Go's last output that is being read.
    in_go: Option<OfGo>,
}

/// The parts of what Go prints when it ends: the message, then the stacks of its goroutines.
#[derive(Debug)]
enum OfGo {
    Message,
    /// A function, whose place is on the next line.
    Function(String),
    Places,
    /// Other goroutines, or more places than the text has room for.
    Rest,
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
        if let Some(part) = self.in_go.take() {
            self.in_go = Some(self.note_go(part, line));
        } else if line.starts_with("panic: ") || line.starts_with("fatal error: ") {
            self.before.clear();
            self.remember(line);
            self.in_go = Some(OfGo::Message);
        } else if self.in_panic {
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
        } else if line.starts_with(' ') && self.text.starts_with(TRACEBACK) {
            // The innermost place comes last, and says the most. Lines of the source say less than the error.
            if let Some(place) = python_place(line) {
                let outer = &self.text[TRACEBACK.len()..];
                let places = format!("{TRACEBACK} at {place}{outer}");
                self.remember(&places);
            }
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

    /// Notes a line of Go's last output. The first goroutine is the one that failed.
    fn note_go(&mut self, part: OfGo, line: &str) -> OfGo {
        match part {
            OfGo::Message if line.starts_with("goroutine ") => OfGo::Places,
            OfGo::Message if line.starts_with("[signal ") || line.starts_with("exit status") => OfGo::Message,
            OfGo::Message => {
                self.append(line.trim());
                OfGo::Message
            }
            OfGo::Places if line.starts_with("goroutine ") || line.starts_with("created by ") => OfGo::Rest,
            OfGo::Places => OfGo::Function(line.rsplit_once('(').map_or(line, |(name, _)| name).to_owned()),
            OfGo::Function(name) => {
                let place = line.trim().split(" +0x").next().unwrap_or_default();
                // Calls of the runtime and of the helpers of `tqhost new` say nothing about the handler.
                let is_known = name == "panic" || name.starts_with("runtime.") || name.contains("/tqhost.");
                if !is_known && place != "<autogenerated>:1" {
                    self.append(&format!("at {place} in {name}"));
                }
                OfGo::Places
            }
            OfGo::Rest => OfGo::Rest,
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

/// A place of a traceback, `File "/0/app.py", line 26, in b`, as `app.py:26 in b`.
fn python_place(line: &str) -> Option<String> {
    let (path, rest) = line.trim().strip_prefix("File \"")?.split_once("\", line ")?;
    let (number, function) = rest.split_once(", in ")?;
    Some(format!("{}:{number} in {function}", path.rsplit('/').next().unwrap_or(path)))
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
            Traceback (most recent call last):\n  File \"/0/app.py\", line 40, in handle\n    b()\n\
            \x20 File \"/0/app.py\", line 26, in b\nLookupError: boom\n\n\
            thread '<unnamed>' (1) panicked at runtime/src/lib.rs:1293:29:\n\
            Python function threw an unexpected exception\nnote: run with `RUST_BACKTRACE=1`";
        let whole = "LookupError: boom at app.py:26 in b at app.py:40 in handle \
            caused by ValueError: the cause at app.py:3 in a";
        assert_eq!(said(lines), whole);
    }

    #[test]
    fn an_error_of_javascript_has_its_stack() {
        let lines = "invalid tag (received `TypeError: boom`)\nStack:\n  handle@a.js:1:2\n\
            Redirecting call to abort() to mozalloc_abort";
        assert_eq!(said(lines), "invalid tag (received `TypeError: boom`) Stack: handle@a.js:1:2");
    }

    #[test]
    fn a_panic_of_go_has_the_places_of_its_goroutine() {
        let lines = "before\npanic: runtime error: index out of range [3] with length 0\n\n\
            goroutine 6 [running]:\nmain.(*shelf).take(...)\n\tword_count/handler.go:31\n\
            main.count(0x1420000, {0x1, 0x2})\n\tword_count/handler.go:20 +0x4\n\
            word_count/tqhost.attempt(0x14)\n\tword_count/tqhost/handle.go:61 +0x3\n\
            tqhost:handler/handler@0.1.0#handle()\n\t<autogenerated>:1 +0x1\n\
            created by main.start in goroutine 1\n\tword_count/handler.go:9 +0x3\n\n\
            goroutine 1 [chan receive]:\nmain.wait()\n\tword_count/handler.go:11 +0x2\n";
        let whole = "panic: runtime error: index out of range [3] with length 0 \
            at word_count/handler.go:31 in main.(*shelf).take at word_count/handler.go:20 in main.count";
        assert_eq!(said(lines), whole);
        let lines = "fatal error: all goroutines are asleep - deadlock!\n\ngoroutine 1 [select (no cases)]:\n\
            main.wait()\n\tword_count/handler.go:11 +0x2\n";
        let whole =
            "fatal error: all goroutines are asleep - deadlock! at word_count/handler.go:11 in main.wait";
        assert_eq!(said(lines), whole);
    }

    #[test]
    fn the_text_is_bounded() {
        let long = "é".repeat(MAX_TEXT);
        assert_eq!(said(&long).len(), MAX_TEXT);
        let place = format!("  File \"a.py\", line 1, in {long}");
        assert_eq!(said(&format!("Traceback (most recent call last):\n{place}\nError")).len(), MAX_TEXT - 29);
        assert_eq!(said(&format!("a\n{}", format!("  {long}\n").repeat(50))).len(), MAX_TEXT);
        let places = format!("main.f()\n\t{long}\n").repeat(50);
        assert_eq!(said(&format!("panic: a\ngoroutine 1 [running]:\n{places}")).len(), MAX_TEXT);
    }
}
