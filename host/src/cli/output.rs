//! Output to the terminal: stdout, colours, tables.
//!
//! In: finished text, or rows of cells. Out: lines on stdout, in colour where stdout is a terminal and
//! `NO_COLOR` is not set. Not here: formats of numbers and escapes of foreign text (`text`), errors (`exit`).

use std::env;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;

use clap::builder::styling::{AnsiColor, Style};
use serde::Serialize;
use unicode_width::UnicodeWidthStr as _;

use super::text;

/// The smallest width of the last column of a table, and that of a task's id, which other columns keep.
const SMALLEST: usize = 10;
const ID_WIDTH: usize = 36;

/// Stdout. When its reader is gone (`| head`), the output ends and the command goes on.
#[derive(Debug)]
pub(super) struct Out {
    pub json: bool,
    pub paint: Paint,
    closed: bool,
    error: Option<io::Error>,
}

impl Out {
    pub(super) fn new(json: bool) -> Out {
        let wanted = |name: &str| env::var_os(name).is_none_or(|value| value.is_empty());
        let dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
        let colour = !json && io::stdout().is_terminal() && wanted("NO_COLOR") && !dumb;
        let width = terminal_size(io::stdout()).map(|(columns, _)| columns).filter(|_| !json);
        Out { json, paint: Paint { colour, width }, closed: false, error: None }
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
        match serde_json::to_string(value) {
            Ok(text) => self.line(text),
            Err(error) => self.error = Some(error.into()),
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

/// Prints a line that is no error on stderr.
pub(super) fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// How many columns and rows the terminal behind this stream has; none: it is no terminal.
pub(super) fn terminal_size(stream: impl AsFd) -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    let size = (usize::from(size.ws_col), usize::from(size.ws_row));
    Some(size).filter(|(columns, rows)| *columns > 0 && *rows > 0)
}

/// Says how text is shown: in colours, and fitted into a terminal.
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

/// One cell of a table.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    pub text: String,
    tone: Tone,
}

impl Cell {
    pub(super) fn tone(text: impl Into<String>, tone: Tone) -> Cell {
        Cell { text: text.into(), tone }
    }
}

impl<T: ToString> From<T> for Cell {
    fn from(value: T) -> Cell {
        Cell::tone(value.to_string(), Tone::Plain)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

/// Rows below titles, with aligned columns.
#[derive(Debug)]
pub(super) struct TextTable {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<Cell>>,
}

impl TextTable {
    pub(super) fn new(columns: &[(&'static str, Align)]) -> TextTable {
        TextTable { columns: columns.to_vec(), rows: Vec::new() }
    }

    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Makes columns of text smaller until a row has room: first the last one, then the widest ones, as far
    /// as an id is not cut. Figures keep their width.
    fn fit(&self, widths: &mut [usize], most: usize) {
        let is_text = |column: usize| self.columns[column].1 == Align::Left;
        let excess =
            |widths: &[usize]| (widths.iter().sum::<usize>() + 2 * (widths.len() - 1)).saturating_sub(most);
        if let Some(last) = (0..widths.len()).rev().find(|column| is_text(*column)) {
            let room = widths[last].saturating_sub(SMALLEST);
            widths[last] -= room.min(excess(widths));
        }
        while excess(widths) > 0 {
            let widest = (0..widths.len()).filter(|column| is_text(*column)).max_by_key(|at| widths[*at]);
            match widest {
                Some(column) if widths[column] > ID_WIDTH => widths[column] -= 1,
                _ => break,
            }
        }
    }

    /// The whole table, without a newline at the end.
    pub(super) fn render(&self, paint: Paint) -> String {
        let titles: Vec<Cell> =
            self.columns.iter().map(|(title, _)| Cell::tone(*title, Tone::Title)).collect();
        let lines: Vec<&Vec<Cell>> = std::iter::once(&titles).chain(self.rows.iter()).collect();
        let widest = |column| {
            lines
                .iter()
                .filter_map(|cells: &&Vec<Cell>| cells.get(column))
                .map(|cell: &Cell| cell.text.width())
                .max()
                .unwrap_or(0)
        };
        let mut widths: Vec<usize> = (0..self.columns.len()).map(widest).collect();
        if let Some(most) = paint.width {
            self.fit(&mut widths, most);
        }
        let line = |cells: &Vec<Cell>| {
            let mut out = String::new();
            for (column, ((_, align), cell)) in self.columns.iter().zip(cells).enumerate() {
                let shown = text::cut(&cell.text, widths[column]);
                let padding = " ".repeat(widths[column].saturating_sub(shown.width()));
                let text = paint.tone(cell.tone, &shown);
                let gap = if column == 0 { "" } else { "  " };
                match align {
                    Align::Left => out += &format!("{gap}{text}{padding}"),
                    Align::Right => out += &format!("{gap}{padding}{text}"),
                }
            }
            out.trim_end().to_owned()
        };
        lines.into_iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

/// Lines of `label  value`, with the values below each other. Further lines of a value are indented like its
/// first.
pub(super) fn sheet(paint: Paint, lines: &[(&str, String)]) -> String {
    let widest = lines.iter().map(|(label, _)| label.width()).max().unwrap_or(0);
    let show = |(label, value): &(&str, String)| {
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

    fn table() -> TextTable {
        let mut table =
            TextTable::new(&[("QUEUE", Align::Left), ("DEAD", Align::Right), ("STATE", Align::Left)]);
        table.row(["日本".into(), 7.into(), Cell::tone("ready", Tone::Good)]);
        table.row(["resume-analyze".into(), 12_345.into(), "".into()]);
        table.row(["नमस्ते".into(), 1.into(), "".into()]);
        table
    }

    #[test]
    fn columns_are_aligned() {
        insta::assert_snapshot!(table().render(PLAIN), @r"
        QUEUE            DEAD  STATE
        日本                7  ready
        resume-analyze  12345
        नमस्ते                1
        ");
    }

    #[test]
    fn a_table_fits_the_terminal() {
        let mut table =
            TextTable::new(&[("ID", Align::Left), ("COUNT", Align::Right), ("ERROR", Align::Left)]);
        let id = "0190b8e4-61a9-76b6-8505-cad2c3ca81d9";
        table.row([id.into(), 7.into(), "a long error, which says much".into()]);
        table.row([format!("a-very-long-name-{id}").into(), 8.into(), "日本語の長いエラー".into()]);
        let fitted = |width| table.render(Paint { colour: false, width: Some(width) });
        for width in [70, 80, 100] {
            let widest = fitted(width).lines().map(|line| line.width()).max();
            assert!(widest.is_some_and(|widest| widest <= width), "{width}: {}", fitted(width));
        }
        assert_eq!(fitted(200), table.render(PLAIN), "nothing is cut where there is room");
        insta::assert_snapshot!(fitted(70), @r"
        ID                                                   COUNT  ERROR
        0190b8e4-61a9-76b6-8505-cad2c3ca81d9                     7  a long er…
        a-very-long-name-0190b8e4-61a9-76b6-8505-cad2c3ca8…      8  日本語の…
        ");
        assert!(fitted(20).contains(id), "an id is never cut: {}", fitted(20));
    }

    #[test]
    fn colours_take_no_room() {
        let coloured = table().render(Paint { colour: true, width: None });
        assert!(
            coloured.contains("    \u{1b}[1mDEAD\u{1b}[0m")
                && coloured.contains("  \u{1b}[32mready\u{1b}[0m"),
            "{coloured:?}"
        );
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
