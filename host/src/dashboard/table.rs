//! Tables: their cells, and the order of their rows.
//!
//! In: cells, each with what it shows and what its column is sorted by. Out: a table that scrolls by itself
//! where the screen is narrow. Where all rows are at hand, links in the headings sort them, as in
//! `?sort=queued&order=desc`; the stream of the page keeps that order.
//!
//! Not here: lists of tasks, which come from Redis in their order, and are never read as a whole.

use std::cmp::Ordering;

use maud::{Markup, Render, html};

use super::text::{data, data_or_none, grouped, moment};
use super::values::{self, Values};

/// The column of boxes has no name.
pub(super) const BOXES: &str = "";

/// A cell of a table. The cells of its first row name the columns.
pub(super) struct PageCell<'c> {
    column: &'c str,
    /// Figures stand below each other.
    is_figure: bool,
    shown: Markup,
    key: CellKey,
}

/// The place of a cell in the order of its column.
#[derive(Debug, PartialEq, PartialOrd)]
pub(super) enum CellKey {
    Text(String),
    Number(f64),
    /// It has no value, and is behind the others in both directions.
    None,
}

impl From<f64> for CellKey {
    fn from(number: f64) -> CellKey {
        CellKey::Number(number)
    }
}

impl From<u64> for CellKey {
    fn from(count: u64) -> CellKey {
        CellKey::Number(count as f64)
    }
}

impl From<&str> for CellKey {
    fn from(text: &str) -> CellKey {
        if text.is_empty() { CellKey::None } else { CellKey::Text(text.to_lowercase()) }
    }
}

impl<K: Into<CellKey>> From<Option<K>> for CellKey {
    fn from(key: Option<K>) -> CellKey {
        key.map_or(CellKey::None, Into::into)
    }
}

/// A cell by which nothing is sorted.
pub(super) fn cell(column: &str, shown: Markup) -> PageCell<'_> {
    PageCell { column, is_figure: false, shown, key: CellKey::None }
}

/// A cell with a figure in words.
pub(super) fn figure(column: &str, shown: impl Render) -> PageCell<'_> {
    PageCell { is_figure: true, ..cell(column, shown.render()) }
}

/// A cell with a count.
pub(super) fn count(column: &str, count: u64) -> PageCell<'_> {
    figure(column, grouped(count)).by(count)
}

/// A cell with users' text, which may be empty.
pub(super) fn text<'c>(column: &'c str, text: &str) -> PageCell<'c> {
    cell(column, data_or_none(Some(text))).by(text)
}

/// A cell with users' text that may not be there.
pub(super) fn text_or_none<'c>(column: &'c str, text: Option<&str>) -> PageCell<'c> {
    self::text(column, text.unwrap_or_default())
}

/// A cell with a name that leads somewhere.
pub(super) fn link<'c>(column: &'c str, to: &str, name: &str) -> PageCell<'c> {
    cell(column, html! { a href=(to) { (data(name)) } }).by(name)
}

/// A cell with a moment.
pub(super) fn time(column: &str, ms: Option<u64>, now_ms: u64) -> PageCell<'_> {
    cell(column, moment(ms, now_ms)).by(ms)
}

impl PageCell<'_> {
    /// The cell, sorted by this.
    pub(super) fn by(self, key: impl Into<CellKey>) -> Self {
        PageCell { key: key.into(), ..self }
    }
}

/// A table in the order of its rows, which have the same columns; nothing if there are none.
pub(super) fn table<'c>(caption: &str, rows: impl IntoIterator<Item = Vec<PageCell<'c>>>) -> Markup {
    let rows: Vec<Vec<PageCell>> = rows.into_iter().collect();
    let heads = rows.first().into_iter().flatten().map(|cell| heading(cell, None));
    frame(caption, heads, &rows)
}

/// A table in the order that the visitor has chosen, if there is one. `path` is that of the page.
pub(super) fn sorted<'c>(
    caption: &str,
    rows: impl IntoIterator<Item = Vec<PageCell<'c>>>,
    values: &Values,
    path: &str,
) -> Markup {
    let mut rows: Vec<Vec<PageCell>> = rows.into_iter().collect();
    let first: &[PageCell] = rows.first().map_or(&[], Vec::as_slice);
    let chosen = first.iter().position(|cell| values.get("sort") == Some(&cell.name()));
    let is_falling = values.get("order") == Some("desc");
    if let Some(at) = chosen {
        rows.sort_by(|a, b| compare(&a[at].key, &b[at].key, is_falling));
    }
    let head = |(at, cell): (usize, &PageCell)| {
        let mut keys = rows.iter().map(|row| &row[at].key).filter(|key| **key != CellKey::None);
        let sorts = keys.next().map(|key| {
            let falls_now = (chosen == Some(at)).then_some(is_falling);
            // A click turns the order. The first click on a column of numbers puts the largest first.
            let falls = falls_now.map_or(matches!(key, CellKey::Number(_)), |now| !now);
            let name = cell.name();
            let order = [("sort", name.as_str()), ("order", if falls { "desc" } else { "asc" })];
            let pairs = [values.without(&["sort", "order", "done"]), order.to_vec()].concat();
            SortLink { to: format!("{}#sorted", values::link(path, &pairs)), falls_now }
        });
        heading(cell, sorts)
    };
    let heads: Vec<Markup> = rows.first().into_iter().flatten().enumerate().map(head).collect();
    html! { div id="sorted" { (frame(caption, heads, &rows)) } }
}

impl PageCell<'_> {
    /// The name of its column in an address: the first word.
    fn name(&self) -> String {
        self.column.split(' ').next().unwrap_or_default().to_lowercase()
    }

    fn class(&self) -> Option<&'static str> {
        if self.is_figure { Some("number") } else { (self.column == BOXES).then_some("box") }
    }
}

fn compare(a: &CellKey, b: &CellKey, is_falling: bool) -> Ordering {
    let is_none = |key: &CellKey| *key == CellKey::None;
    let order = a.partial_cmp(b).unwrap_or(Ordering::Equal);
    is_none(a).cmp(&is_none(b)).then(if is_falling { order.reverse() } else { order })
}

/// The link in a heading, which sorts by its column.
struct SortLink {
    to: String,
    /// Whether the column falls now. None: the table is not sorted by it.
    falls_now: Option<bool>,
}

fn heading(cell: &PageCell, sort: Option<SortLink>) -> Markup {
    let falls = sort.as_ref().and_then(|sort| sort.falls_now);
    let sorted = falls.map(|falls| if falls { "descending" } else { "ascending" });
    html! {
        th class=[cell.class()] scope="col" aria-sort=[sorted] {
            @match sort {
                Some(SortLink { to, .. }) => a href=(to) { (cell.column) },
                None if cell.column == BOXES => span.unseen { "Choose" },
                None => (cell.column),
            }
        }
    }
}

fn frame(caption: &str, heads: impl IntoIterator<Item = Markup>, rows: &[Vec<PageCell>]) -> Markup {
    html! {
        div.scroll role="region" aria-label=(caption) tabindex="0" {
            table {
                caption.unseen { (caption) }
                thead { tr { @for head in heads { (head) } } }
                tbody { @for row in rows { tr { (cells(row)) } } }
            }
        }
    }
}

/// The cells of a row. Its first one names it, behind a box if there is one.
fn cells(row: &[PageCell]) -> Markup {
    let named = row.iter().position(|cell| cell.column != BOXES);
    html! {
        @for (at, cell) in row.iter().enumerate() {
            @if Some(at) == named {
                th scope="row" { (cell.shown) }
            } @else {
                td class=[cell.class()] { (cell.shown) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(query: &str) -> (String, String) {
        let rows = [("b", Some(9)), ("a", None), ("C", Some(10)), ("d", Some(9))];
        let rows = rows.map(|(name, many)| {
            let many = figure("Many of them", many.unwrap_or(0)).by(many.map(f64::from));
            vec![text("Name", name), many]
        });
        let shown = sorted("x", rows, &Values::read(query.as_bytes()), "/p").into_string();
        let names = shown.split("<th scope=\"row\"><bdi class=\"data\">").skip(1);
        (names.map(|rest| &rest[..1]).collect(), shown)
    }

    #[test]
    fn a_chosen_column_sorts_and_its_heading_turns_the_order() {
        let table = [
            ("", "baCd"),
            ("sort=name&order=asc", "abCd"),
            ("sort=name&order=desc", "dCba"),
            // Equal ones stay in their order, and those without a value are the last.
            ("sort=many&order=desc", "Cbda"),
            ("sort=many&order=asc", "bdCa"),
            ("sort=nothing&order=<b>", "baCd"),
        ];
        for (query, expected) in table {
            assert_eq!(order(query).0, expected, "{query}");
        }
        let (_, shown) = order("sort=many&order=desc&queue=q&done=paused");
        for part in [
            "<th class=\"number\" scope=\"col\" aria-sort=\"descending\">\
             <a href=\"/p?queue=q&amp;sort=many&amp;order=asc#sorted\">Many of them</a>",
            "<th scope=\"col\"><a href=\"/p?queue=q&amp;sort=name&amp;order=asc#sorted\">Name</a>",
        ] {
            assert!(shown.contains(part), "{part} in {shown}");
        }
        assert!(order("").1.contains("sort=many&amp;order=desc"), "the largest are the first at first");
    }
}
