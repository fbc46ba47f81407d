//! Tables on the terminal, which are never wider than it.
//!
//! In: columns, rows of cells, the width of the terminal. Out: aligned lines. If a table does not fit, texts
//! are cut first, then names, then ids. Then columns are left out, in the order that the table has for that,
//! and a last line names them. Without a terminal nothing is cut. Not here: colours (`output`), formats of
//! numbers and foreign text (`text`).

use unicode_width::UnicodeWidthStr as _;

use super::output::{Paint, Tone};
use super::text;

/// The gap between two columns.
const GAP: &str = "  ";
/// Texts are cut to the first of these widths before names are cut, and to the second one after that.
const TEXT_FIRST: usize = 24;
const TEXT_LEAST: usize = 10;
/// Names are cut to this width.
const NAME_LEAST: usize = 20;
/// Ids are whole at first. If leaving out columns does not help, they are cut to the length of tqhost's own
/// ids.
const ID_WHOLE: usize = usize::MAX;
const ID_LEAST: usize = 36;

/// The content of a column, which says how it is aligned and cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    /// The end is cut.
    Text,
    /// The middle is cut, as the ends of names differ, too.
    Name,
    /// Cut like a name, but after all names.
    Id,
    /// One of a few short words, or a time, which is not cut.
    Fixed,
    /// A number, which is aligned at the right and not cut.
    Figure,
}

#[derive(Debug)]
struct Column {
    title: String,
    content: Content,
}

/// One cell of a table. Its text is escaped.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    pub text: String,
    tone: Tone,
}

impl Cell {
    pub(super) fn tone(text: impl AsRef<str>, tone: Tone) -> Cell {
        Cell { text: text::escape(text.as_ref()), tone }
    }

    /// The value, or a dash if it is missing or empty.
    pub(super) fn known(value: Option<impl ToString>) -> Cell {
        let text = value.map(|value| value.to_string()).filter(|text| !text.is_empty());
        text.unwrap_or_else(|| text::NONE.to_owned()).into()
    }
}

impl<T: ToString> From<T> for Cell {
    fn from(value: T) -> Cell {
        Cell::tone(value.to_string(), Tone::Plain)
    }
}

/// Rows below titles, with aligned columns.
#[derive(Debug)]
pub(super) struct TextTable {
    columns: Vec<Column>,
    /// The titles of the columns that may be left out, the first one first.
    spare: &'static [&'static str],
    rows: Vec<Vec<Cell>>,
}

impl TextTable {
    /// `spare` has the titles of columns that may be left out, the first one first. The table need not have
    /// all of them. The columns follow by [`Self::texts`] and the like.
    pub(super) fn with_spare(spare: &'static [&'static str]) -> TextTable {
        TextTable { columns: Vec::new(), spare, rows: Vec::new() }
    }

    pub(super) fn texts(self, titles: impl IntoIterator<Item = impl Into<String>>) -> TextTable {
        self.with(Content::Text, titles)
    }

    pub(super) fn names(self, titles: impl IntoIterator<Item = impl Into<String>>) -> TextTable {
        self.with(Content::Name, titles)
    }

    pub(super) fn id(self, title: &str) -> TextTable {
        self.with(Content::Id, [title])
    }

    pub(super) fn fixed(self, titles: impl IntoIterator<Item = impl Into<String>>) -> TextTable {
        self.with(Content::Fixed, titles)
    }

    pub(super) fn figures(self, titles: impl IntoIterator<Item = impl Into<String>>) -> TextTable {
        self.with(Content::Figure, titles)
    }

    fn with(mut self, content: Content, titles: impl IntoIterator<Item = impl Into<String>>) -> TextTable {
        self.columns.extend(titles.into_iter().map(|title| Column { title: title.into(), content }));
        self
    }

    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        let cells: Vec<Cell> = cells.into_iter().collect();
        debug_assert_eq!(cells.len(), self.columns.len(), "a row has a cell for each column");
        self.rows.push(cells);
    }

    /// The width of each column, and the columns that are left out, so that the table has no more than `most`
    /// columns of the terminal.
    fn fit(&self, full: &[usize], most: usize) -> (Vec<usize>, Vec<usize>) {
        let at = |title: &&str| self.columns.iter().position(|column| column.title == *title);
        let spare: Vec<usize> = self.spare.iter().filter_map(at).collect();
        // The column that is left out first is cut first; of the others, the last one.
        let others = (0..full.len()).rev().filter(|column| !spare.contains(column));
        let order: Vec<usize> = spare.iter().copied().chain(others).collect();
        let tries = [ID_WHOLE, ID_LEAST].into_iter().flat_map(|id| (0..=spare.len()).map(move |n| (id, n)));
        for (id_least, count) in tries {
            let widths = self.cut(full, &order[count..], most, id_least);
            if excess(&widths, &order[count..], most) == 0 {
                return (widths, spare[..count].to_vec());
            }
        }
        // All spare columns are left out. Now the widest column is made narrower, again and again.
        let kept = &order[spare.len()..];
        let mut widths = self.cut(full, kept, most, ID_LEAST);
        while excess(&widths, kept, most) > 0
            && let Some(&widest) = kept.iter().max_by_key(|at| widths[**at])
            && widths[widest] > 1
        {
            widths[widest] -= 1;
        }
        (widths, spare)
    }

    /// The widths of the columns that are `shown`. They are cut in this order, each as far as it may be,
    /// until the table fits.
    fn cut(&self, full: &[usize], shown: &[usize], most: usize, id_least: usize) -> Vec<usize> {
        let mut widths = full.to_vec();
        for (content, least) in [
            (Content::Text, TEXT_FIRST),
            (Content::Name, NAME_LEAST),
            (Content::Text, TEXT_LEAST),
            (Content::Id, id_least),
        ] {
            for &column in shown.iter().filter(|at| self.columns[**at].content == content) {
                let least = least.max(self.columns[column].title.width());
                let more = widths[column].saturating_sub(least);
                widths[column] -= more.min(excess(&widths, shown, most));
            }
        }
        widths
    }

    /// The whole table, without a newline at the end.
    pub(super) fn render(&self, paint: Paint) -> String {
        let titles: Vec<Cell> =
            self.columns.iter().map(|column| Cell::tone(&column.title, Tone::Title)).collect();
        let lines: Vec<&Vec<Cell>> = std::iter::once(&titles).chain(self.rows.iter()).collect();
        let widest = |column| {
            let cells = lines.iter().filter_map(|cells: &&Vec<Cell>| cells.get(column));
            cells.map(|cell: &Cell| cell.text.width()).max().unwrap_or(0)
        };
        let full: Vec<usize> = (0..self.columns.len()).map(widest).collect();
        let (widths, left_out) = match paint.width {
            Some(most) => self.fit(&full, most),
            None => (full, Vec::new()),
        };
        let line = |cells: &Vec<Cell>| {
            let mut out = String::new();
            for (at, (column, cell)) in self.columns.iter().zip(cells).enumerate() {
                if left_out.contains(&at) {
                    continue;
                }
                let shown = match column.content {
                    Content::Name | Content::Id => text::cut_middle(&cell.text, widths[at]),
                    _ => text::cut(&cell.text, widths[at]),
                };
                let padding = " ".repeat(widths[at].saturating_sub(shown.width()));
                let text = paint.tone(cell.tone, &shown);
                let gap = if out.is_empty() { "" } else { GAP };
                match column.content {
                    Content::Figure => out += &format!("{gap}{padding}{text}"),
                    _ => out += &format!("{gap}{text}{padding}"),
                }
            }
            out.trim_end().to_owned()
        };
        let mut lines: Vec<String> = lines.into_iter().map(line).collect();
        if let Some(most) = paint.width.filter(|_| !left_out.is_empty()) {
            let titles: Vec<&str> = left_out.iter().map(|at| self.columns[*at].title.as_str()).collect();
            let note = format!("Not shown: {}. A wider terminal or --json has them.", titles.join(", "));
            lines.extend(text::wrapped(&note, most).iter().map(|line| paint.tone(Tone::Faint, line)));
        }
        lines.join("\n")
    }
}

/// By how much these columns are wider than the terminal.
fn excess(widths: &[usize], shown: &[usize], most: usize) -> usize {
    let whole: usize = shown.iter().map(|at| widths[*at] + GAP.len()).sum();
    whole.saturating_sub(GAP.len() + most)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLAIN: Paint = Paint { colour: false, width: None };

    fn table() -> TextTable {
        let mut table = TextTable::with_spare(&[]).names(["QUEUE"]).figures(["DEAD"]).texts(["STATE"]);
        table.row(["日本".into(), 7.into(), Cell::tone("ready", Tone::Good)]);
        table.row(["resume-analyze".into(), 12_345.into(), "a\u{1b}[2J\n".into()]);
        table.row(["नमस्ते".into(), 1.into(), Cell::known(None::<u64>)]);
        table
    }

    #[test]
    fn columns_are_aligned_and_foreign_text_commands_nothing() {
        insta::assert_snapshot!(table().render(PLAIN), @r"
        QUEUE            DEAD  STATE
        日本                7  ready
        resume-analyze  12345  a\u{1b}[2J\n
        नमस्ते                1  –
        ");
        let coloured = table().render(Paint { colour: true, width: None });
        let parts = ["    \u{1b}[1mDEAD\u{1b}[0m", "  \u{1b}[32mready\u{1b}[0m"];
        assert!(parts.iter().all(|part| coloured.contains(part)), "colours take no room: {coloured:?}");
    }

    #[test]
    fn columns_without_room_are_cut_or_left_out_in_an_order() {
        let spare = &["COUNT", "VERSION", "NONE"];
        let mut table =
            TextTable::with_spare(spare).id("ID").figures(["COUNT"]).names(["VERSION"]).texts(["ERROR"]);
        let id = "0190b8e4-61a9-76b6-8505-cad2c3ca81d9";
        let version = "resume-analyze-of-our-customers@3f1c0aa2b7d4";
        table.row([id.into(), 7.into(), version.into(), "a long error, which says much".into()]);
        let long = format!("a-very-long-name-{id}");
        table.row([long.into(), u64::MAX.into(), version.into(), "日本語の長いエラー".into()]);
        let fitted = |width| table.render(Paint { colour: false, width: Some(width) });
        for width in 48..200 {
            assert!(fitted(width).contains(id), "{width}: {}", fitted(width));
        }
        assert_eq!(fitted(200), table.render(PLAIN), "nothing is cut where there is room");
        insta::assert_snapshot!(fitted(100), @r"
        ID                                                     VERSION               ERROR
        0190b8e4-61a9-76b6-8505-cad2c3ca81d9                   resume-ana…c0aa2b7d4  a long error, which sa…
        a-very-long-name-0190b8e4-61a9-76b6-8505-cad2c3ca81d9  resume-ana…c0aa2b7d4  日本語の長いエラー
        Not shown: COUNT. A wider terminal or --json has them.
        ");
        insta::assert_snapshot!(fitted(50), @r"
        ID                                      ERROR
        0190b8e4-61a9-76b6-8505-cad2c3ca81d9    a long er…
        a-very-long-name-01…-8505-cad2c3ca81d9  日本語の…
        Not shown: COUNT, VERSION. A wider terminal or
        --json has them.
        ");
    }

    proptest! {
        /// The tables of all commands are among these: at most six columns that have to stay, and others.
        #[test]
        fn any_table_fits_any_terminal(
            kept in prop::collection::vec((0..5_usize, "[a-zé日本 ]{0,12}"), 1..=6),
            spare in 0..4_usize,
            cells in prop::collection::vec("[a-zé日本語 \u{1b}\n-]{0,90}", 1..30),
            width in 20..160_usize,
        ) {
            const SPARE: [&str; 4] = ["COUNT", "VERSION", "NONE", "HOSTS"];
            const CONTENTS: [Content; 5] =
                [Content::Text, Content::Name, Content::Id, Content::Fixed, Content::Figure];
            let mut table = TextTable::with_spare(&SPARE).figures(SPARE.iter().take(spare).copied());
            for (content, title) in kept {
                table = table.with(CONTENTS[content], [title]);
            }
            let columns = table.columns.len();
            cells.chunks_exact(columns).for_each(|row| table.row(row.iter().map(Cell::from)));
            let fitted = table.render(Paint { colour: false, width: Some(width) });
            let widest = fitted.lines().map(|line| line.width()).max().unwrap_or(0);
            prop_assert!(widest <= width, "{} columns in {}:\n{}", widest, width, fitted);
            let whole = table.render(PLAIN);
            prop_assert_eq!(whole.split('\n').count(), 1 + cells.len() / columns, "a pipe takes everything");
        }
    }
}
