//! The fields of tasks below their rows in a list.
//!
//! In: a table, and the fields of the task of each row. Out: the table, with a line for each field, cut to
//! the terminal. Not here: what `[admin] mask` hides of them (`mask`), the fields of one task (`dead`).

use serde_json::Value;

use super::output::{Paint, Tone};
use super::text;
use crate::operations::FieldView;

/// A list with fields ends behind the task with which its fields reach this number of bytes.
pub(super) const MOST_BYTES: usize = 8 << 20;
const INDENT: &str = "  ";

/// How many bytes the fields have, as they are shown.
pub(super) fn bytes(fields: &[FieldView]) -> usize {
    let size = |value: &Value| value.as_str().map_or_else(|| value.to_string().len(), str::len);
    fields.iter().map(|field| size(&field.name) + size(&field.value)).sum()
}

/// The table with the fields of each row's task below the row.
pub(super) fn below_rows<'f>(
    table: &str,
    fields: impl Iterator<Item = &'f [FieldView]>,
    paint: Paint,
) -> String {
    let mut lines = table.lines();
    let mut shown: Vec<String> = lines.next().map(str::to_owned).into_iter().collect();
    for fields in fields {
        shown.extend(lines.next().map(str::to_owned));
        shown.extend(fields.iter().map(|field| line(field, paint)));
    }
    // A table that leaves out columns names them at its end.
    shown.extend(lines.map(str::to_owned));
    shown.join("\n")
}

fn line(field: &FieldView, paint: Paint) -> String {
    let line = format!("{INDENT}{}={}", words(&field.name), words(&field.value));
    let line = match paint.width {
        Some(width) => text::cut(&line, width),
        None => line,
    };
    paint.tone(Tone::Faint, &line)
}

/// A text as it is, and other bytes as JSON has them.
fn words(value: &Value) -> String {
    match value {
        Value::String(text) => text::escape(text),
        other => text::escape(&other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use unicode_width::UnicodeWidthStr as _;

    use super::*;

    fn field(name: &str, value: Value) -> FieldView {
        FieldView { name: name.into(), value }
    }

    #[test]
    fn each_row_is_followed_by_its_fields() {
        let first = [
            field("order", json!("7")),
            field("scan", json!({ "base64": "/w==" })),
            field("n", json!("a\nb")),
        ];
        let fields = [&first[..], &[]];
        let table = "ID  STATUS\n1   PENDING\n2   PENDING\nNot shown: HOST.";
        let shown = below_rows(table, fields.into_iter(), Paint::default());
        let expected = "ID  STATUS\n1   PENDING\n  order=7\n  scan={\"base64\":\"/w==\"}\n  n=a\\nb\n\
                        2   PENDING\nNot shown: HOST.";
        assert_eq!(shown, expected);
        assert_eq!(bytes(&first), "order7scan{\"base64\":\"/w==\"}na\nb".len());
    }

    #[test]
    fn a_long_field_is_cut_to_the_terminal() {
        let fields = [field("text", json!("日本語 and more ".repeat(50)))];
        let shown = below_rows("ID\n1", [&fields[..]].into_iter(), Paint { colour: false, width: Some(40) });
        let last = shown.lines().last().unwrap_or_default();
        assert!(last.starts_with("  text=日本語") && last.ends_with('…') && last.width() <= 40, "{last}");
    }
}
