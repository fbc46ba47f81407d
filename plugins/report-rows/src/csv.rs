//! Reads and writes CSV by RFC 4180.
//!
//! In: text with a header. Out: columns and rows, and back. A line may end with LF or CRLF. Lines without any
//! character are skipped.
//!
//! Not here: other separators than the comma.

use std::collections::BTreeSet;

use crate::Table;

/// The columns and the rows of a text, or the number of the line that is wrong, with the reason.
pub fn read(text: &str) -> Result<(Vec<String>, Vec<Vec<String>>), String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut records = Records { rest: text, line: 1 };
    let Some(columns) = records.next()? else { return Err("it has no header".to_owned()) };
    if columns.iter().collect::<BTreeSet<_>>().len() < columns.len() {
        return Err("two columns have the same name".to_owned());
    }
    let mut rows = Vec::new();
    loop {
        let line = records.line;
        let Some(mut row) = records.next()? else { return Ok((columns, rows)) };
        if row.len() > columns.len() {
            return Err(format!("line {line} has {} cells for {} columns", row.len(), columns.len()));
        }
        row.resize(columns.len(), String::new());
        rows.push(row);
    }
}

/// The rest of a text.
struct Records<'a> {
    rest: &'a str,
    /// The number of the line that comes next.
    line: usize,
}

impl Records<'_> {
    fn next(&mut self) -> Result<Option<Vec<String>>, String> {
        while let Some(rest) = self.rest.strip_prefix("\r\n").or(self.rest.strip_prefix('\n')) {
            self.rest = rest;
            self.line += 1;
        }
        if self.rest.is_empty() {
            return Ok(None);
        }
        let mut cells = Vec::new();
        loop {
            cells.push(self.cell()?);
            if let Some(rest) = self.rest.strip_prefix(',') {
                self.rest = rest;
                continue;
            }
            let ends = self.rest.strip_prefix("\r\n").or(self.rest.strip_prefix('\n'));
            self.rest = match ends {
                Some(rest) => rest,
                None if self.rest.is_empty() => "",
                None => return Err(format!("line {} has text behind a quoted cell", self.line)),
            };
            self.line += 1;
            return Ok(Some(cells));
        }
    }

    fn cell(&mut self) -> Result<String, String> {
        let Some(mut rest) = self.rest.strip_prefix('"') else {
            let end = self.rest.find([',', '\n']).unwrap_or(self.rest.len());
            let (cell, rest) = self.rest.split_at(end);
            let is_line_end = !rest.starts_with(',');
            let cell = if is_line_end { cell.strip_suffix('\r').unwrap_or(cell) } else { cell };
            self.rest = rest;
            return Ok(cell.to_owned());
        };
        let first = self.line;
        let mut cell = String::new();
        loop {
            let Some((before, after)) = rest.split_once('"') else {
                return Err(format!("the quoted cell that begins in line {first} has no end"));
            };
            cell.push_str(before);
            self.line += before.matches('\n').count();
            match after.strip_prefix('"') {
                Some(after) => {
                    cell.push('"');
                    rest = after;
                }
                None => {
                    self.rest = after;
                    return Ok(cell);
                }
            }
        }
    }
}

/// A header, and a line for each row.
pub fn write(table: &Table) -> String {
    let mut text = String::new();
    for row in std::iter::once(&table.columns).chain(&table.rows) {
        for (n, cell) in row.iter().enumerate() {
            if n > 0 {
                text.push(',');
            }
            push(&mut text, cell);
        }
        text.push_str("\r\n");
    }
    text
}

fn push(text: &mut String, cell: &str) {
    // A spreadsheet would run a text that begins with such a character as a formula.
    let is_formula = cell.starts_with(['=', '+', '-', '@', '\t', '\r']) && cell.parse::<f64>().is_err();
    let guard = if is_formula { "'" } else { "" };
    if cell.contains([',', '"', '\r', '\n']) {
        text.push_str(&format!("\"{guard}{}\"", cell.replace('"', "\"\"")));
    } else {
        text.push_str(guard);
        text.push_str(cell);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_and_ends_of_lines_are_understood() {
        let text = "\u{feff}id,name\r\n1,\"Ada \"\"A\"\", née\"\r\n\r\n2,\"two\nlines\"\n3\n,\n";
        let (columns, rows) = read(text).unwrap();
        assert_eq!(columns, ["id", "name"]);
        assert_eq!(rows, [["1", "Ada \"A\", née"], ["2", "two\nlines"], ["3", ""], ["", ""]]);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, why) in [
            ("", "no header"),
            ("a,a\n", "the same name"),
            ("a,b\n\"1\n2\",3\n4,5,6\n", "line 4 has 3 cells for 2 columns"),
            ("a\n\n\"1", "begins in line 3"),
            ("a\n\"1\"2\n", "line 2 has text behind"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }

    #[test]
    fn what_is_written_is_read_again_and_no_formula_is_left() {
        let cells = ["a,b", "\"", "\n", "", "-1.5", "名"];
        let table = Table {
            name: "t".into(),
            columns: vec!["x".into(), "y".into()],
            rows: cells.chunks(2).map(|row| row.iter().map(|cell| cell.to_string()).collect()).collect(),
        };
        assert_eq!(read(&write(&table)).unwrap(), (table.columns, table.rows));
        let formula = Table { columns: vec!["=1+1".into(), "-x,".into()], ..Table::default() };
        assert_eq!(write(&formula), "'=1+1,\"'-x,\"\r\n");
    }
}
