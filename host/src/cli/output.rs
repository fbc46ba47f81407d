//! Output to the terminal: stdout, colours, sheets.
//!
//! In: finished text. Out: lines on stdout, in colour where stdout is a terminal and `NO_COLOR` is not set.
//! Not here: tables (`table`), formats of numbers and escapes of foreign text (`text`), errors (`exit`).

use std::env;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;

use clap::builder::styling::{AnsiColor, Style};
use serde::Serialize;
use unicode_width::UnicodeWidthStr as _;

/// The columns of a terminal that does not tell how many it has.
const USUAL_WIDTH: usize = 80;

/// Stdout. When its reader has ended (`| head`), nothing more is printed, and the command goes on.
#[derive(Debug)]
pub(super) struct Out {
    pub json: bool,
    /// Whether the command changes nothing, which its JSON says.
    pub dry_run: bool,
    pub paint: Paint,
    closed: bool,
    error: Option<io::Error>,
}

/// The JSON of a command that changed nothing.
#[derive(Serialize)]
struct OnlyLooked<'v, V> {
    #[serde(flatten)]
    value: &'v V,
    dry_run: bool,
}

impl Out {
    pub(super) fn new(json: bool) -> Out {
        let wanted = |name: &str| env::var_os(name).is_none_or(|value| value.is_empty());
        let dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
        let is_terminal = !json && io::stdout().is_terminal();
        let colour = is_terminal && wanted("NO_COLOR") && !dumb;
        let width = width_of(is_terminal, terminal_size(io::stdout()));
        Out { json, dry_run: false, paint: Paint { colour, width }, closed: false, error: None }
    }

    /// Prints text and a newline.
    pub(super) fn line(&mut self, text: impl AsRef<str>) {
        self.text(&format!("{}\n", text.as_ref()));
    }

    /// Prints text as it is.
    pub(super) fn text(&mut self, text: &str) {
        if self.closed {
            return;
        }
        let mut stdout = io::stdout().lock();
        let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
        if let Err(error) = written {
            self.closed = true;
            self.error = Some(error).filter(|error| error.kind() != ErrorKind::BrokenPipe);
        }
    }

    /// Prints a value as JSON on one line, so that a reader can take the output line by line.
    pub(super) fn json(&mut self, value: &impl Serialize) {
        let text = match self.dry_run {
            true => serde_json::to_string(&OnlyLooked { value, dry_run: true }),
            false => serde_json::to_string(value),
        };
        match text {
            Ok(text) => self.line(text),
            Err(error) => self.error = Some(error.into()),
        }
    }

    /// Prints a value: as JSON, or as text for people.
    pub(super) fn show(&mut self, value: &impl Serialize, text: impl FnOnce(Paint) -> String) {
        match self.json {
            true => self.json(value),
            false => self.line(text(self.paint)),
        }
    }

    /// Whether stdout cannot be written to any more.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns the error of stdout, if there was one. A closed pipe is no error.
    pub(super) fn finish(self) -> Result<(), io::Error> {
        self.error.map_or(Ok(()), Err)
    }
}

/// Prints a line on stderr that is no error.
pub(super) fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// The columns and rows of the terminal behind this stream. None: it is no terminal, or does not tell.
pub(super) fn terminal_size(stream: impl AsFd) -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    let size = (usize::from(size.ws_col), usize::from(size.ws_row));
    Some(size).filter(|(columns, rows)| *columns > 0 && *rows > 0)
}

/// The columns into which tables are fitted.
fn width_of(is_terminal: bool, size: Option<(usize, usize)>) -> Option<usize> {
    is_terminal.then(|| size.map_or(USUAL_WIDTH, |(columns, _)| columns))
}

/// How text is shown: in colours or not, and how wide.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Paint {
    pub colour: bool,
    /// The columns of the terminal, into which tables are fitted. None: there is no terminal.
    pub width: Option<usize>,
}

/// The meaning of a colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Good,
    Active,
    Warning,
    Bad,
    Faint,
    Title,
}

impl Paint {
    pub(super) fn tone(self, tone: Tone, text: &str) -> String {
        let style = match tone {
            Tone::Plain => return text.to_owned(),
            Tone::Good => AnsiColor::Green.on_default(),
            Tone::Active => AnsiColor::Cyan.on_default(),
            Tone::Warning => AnsiColor::Yellow.on_default(),
            Tone::Bad => AnsiColor::Red.on_default().bold(),
            Tone::Faint => Style::new().dimmed(),
            Tone::Title => Style::new().bold(),
        };
        if self.colour { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}

/// Lines of `label  value`, with the values below each other. All lines of a value begin in the same column.
pub(super) fn sheet(paint: Paint, lines: &[(impl AsRef<str>, String)]) -> String {
    let lines: Vec<(&str, &str)> =
        lines.iter().map(|(label, value)| (label.as_ref(), value.as_str())).collect();
    let widest = lines.iter().map(|(label, _)| label.width()).max().unwrap_or(0);
    let show = |(label, value): &(&str, &str)| {
        let padding = " ".repeat(widest - label.width());
        let indented = value.replace('\n', &format!("\n{}", " ".repeat(widest + 2)));
        format!("{}{padding}  {indented}", paint.tone(Tone::Faint, label))
    };
    lines.iter().map(show).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Paint = Paint { colour: false, width: None };

    #[test]
    fn a_terminal_that_does_not_tell_its_width_has_80_columns() {
        assert_eq!(width_of(true, Some((120, 50))), Some(120));
        assert_eq!(width_of(true, None), Some(80));
        assert_eq!(width_of(false, None), None, "a pipe takes whole tables");
    }

    #[test]
    fn a_sheet_indents_what_has_several_lines() {
        insta::assert_snapshot!(sheet(PLAIN, &[("id", "1".into()), ("result", "{\n  1\n}".into())]), @r"
        id      1
        result  {
                  1
                }
        ");
    }
}
