//! Shows something again and again until Ctrl-C or SIGTERM: `queues --watch`.
//!
//! In: a text now and then. Out: on a terminal the text in the place of the one before; elsewhere one text
//! below the other. Not here: what is shown.

use std::io;
use std::time::Duration;

use super::exit::CommandResult;
use super::output::{Out, terminal_size};
use crate::shutdown::Signals;

/// The time from one look to the next.
const PAUSE: Duration = Duration::from_secs(2);

/// Shows one text after the other.
pub(super) struct WatchScreen {
    signals: Signals,
    is_first: bool,
}

impl WatchScreen {
    pub(super) fn begin() -> CommandResult<WatchScreen> {
        Ok(WatchScreen { signals: Signals::listen()?, is_first: true })
    }

    /// Shows the text for people.
    pub(super) fn show(&mut self, text: &str, out: &mut Out) {
        match terminal_size(io::stdout()) {
            Some((_, rows)) => out.text(&redrawn(text, rows, self.is_first)),
            None if self.is_first => out.line(text),
            None => out.line(format!("\n{text}")),
        }
        self.is_first = false;
    }

    /// Waits until the next look. False: there is none, as Ctrl-C was pressed or stdout is closed.
    pub(super) async fn waited(&mut self, out: &Out) -> bool {
        if out.is_closed() {
            return false;
        }
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => true,
            _ = self.signals.next() => false,
        }
    }
}

/// The text in the place of the one before, and no more lines than the terminal has.
fn redrawn(text: &str, rows: usize, is_first: bool) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let room = rows.saturating_sub(2).max(1);
    let mut shown: Vec<String> = lines.iter().take(room).map(|line| format!("{line}\u{1b}[K")).collect();
    if lines.len() > room {
        shown.push(format!("… {} more lines\u{1b}[K", lines.len() - room));
    }
    // The first text clears the screen, so that it begins at its top.
    let begin = if is_first { "\u{1b}[2J\u{1b}[H" } else { "\u{1b}[H" };
    format!("{begin}{}\n\u{1b}[J", shown.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_takes_the_place_of_the_one_before() {
        assert_eq!(redrawn("a\nb", 10, true), "\u{1b}[2J\u{1b}[Ha\u{1b}[K\nb\u{1b}[K\n\u{1b}[J");
        assert_eq!(
            redrawn("a\nb\nc", 4, false),
            "\u{1b}[Ha\u{1b}[K\nb\u{1b}[K\n… 1 more lines\u{1b}[K\n\u{1b}[J"
        );
    }
}
