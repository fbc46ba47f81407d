//! Keeps the last lines of one attempt, which people see who look at a failed attempt later.
//!
//! In: lines that are clean and free of secrets. Out: one text of at most [`MAX_LAST_LINES`] bytes. An
//! attempt that logs nothing needs no memory here, and a flood needs about three times that bound.
//!
//! Not here: the log itself (`log`), the notes of attempts (`queue::attempts`).

use tracing::Level;

/// Largest size of the text, in bytes. The first line may be cut at its beginning.
pub(super) const MAX_LAST_LINES: usize = 4 * 1024;

#[derive(Debug, Default)]
pub(super) struct LastLines(String);

impl LastLines {
    /// Adds a line; a message of wasi:logging has a level.
    pub(super) fn add(&mut self, level: Option<Level>, line: &str) {
        let lines = &mut self.0;
        if lines.len() + line.len() > 2 * MAX_LAST_LINES {
            lines.drain(..start_of_last(lines, MAX_LAST_LINES));
        }
        if !lines.is_empty() {
            lines.push('\n');
        }
        if let Some(level) = level {
            lines.push_str(level.as_str());
            lines.push(' ');
        }
        lines.push_str(&line[start_of_last(line, MAX_LAST_LINES)..]);
    }

    pub(super) fn text(self) -> String {
        let LastLines(mut lines) = self;
        lines.drain(..start_of_last(&lines, MAX_LAST_LINES));
        lines
    }
}

/// Where the last `most` bytes of a text begin, on a character boundary.
fn start_of_last(text: &str, most: usize) -> usize {
    text.ceil_char_boundary(text.len().saturating_sub(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept() {
        let mut lines = LastLines::default();
        lines.add(None, "one");
        lines.add(Some(Level::WARN), "two");
        assert_eq!(lines.text(), "one\nWARN two");
        assert_eq!(LastLines::default().text(), "");
    }

    #[test]
    fn a_flood_needs_little_memory_and_is_cut_between_characters() {
        let mut lines = LastLines::default();
        for number in 0..10_000 {
            lines.add(None, &format!("ä{number}{}", "ü".repeat(number % 3000)));
            assert!(lines.0.len() <= 3 * MAX_LAST_LINES + 1, "{}", lines.0.len());
        }
        lines.add(None, "the end");
        let text = lines.text();
        let bounds = MAX_LAST_LINES - 3..=MAX_LAST_LINES;
        assert!(text.ends_with("\nthe end") && bounds.contains(&text.len()), "{}", text.len());
    }

    #[test]
    fn a_long_line_leaves_its_end() {
        let mut lines = LastLines::default();
        lines.add(Some(Level::ERROR), &format!("a{}z", "b".repeat(9000)));
        let text = lines.text();
        assert!(text.ends_with("bz") && text.len() == MAX_LAST_LINES, "{}", text.len());
    }
}
