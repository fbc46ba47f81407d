//! Lists of tasks and of dead letters: gathered part by part, with the fields of each task below its row.
//!
//! In: a call that returns a part of a list; a table, and the fields of the task of each row. Out: as much of
//! the list as the user asked for; the table, with a line for each field, cut to the terminal. Not here: what
//! `[admin] mask` hides of the fields (`mask`), the columns of the tables (`tasks`, `dead`).

use clap::Args;
use serde_json::Value;

use super::exit::CommandResult;
use super::output::{Paint, Tone};
use super::progress::CommandProgress;
use super::readers::at_least_one;
use super::text;
use crate::operations::{DeadView, FieldView, ListedTask, OperationResult};

/// A list with fields ends behind the task with which its fields reach this number of bytes.
const MOST_BYTES: usize = 8 << 20;
const INDENT: &str = "  ";

/// The part of a list that is shown.
#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// Show the fields of each task, too, without the values that [admin] mask hides
    #[arg(long, conflicts_with = "by")]
    pub fields: bool,
    /// List no more than this; with --by: no more groups
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = at_least_one::<usize>)]
    pub limit: usize,
    /// Go on where a list ended that had this as `next`
    #[arg(long, value_name = "NEXT")]
    pub cursor: Option<String>,
}

/// A task in a list.
pub(super) trait ListItem {
    /// The fields that are shown; none if they were not asked for.
    fn fields(&self) -> &[FieldView];
}

impl ListItem for ListedTask {
    fn fields(&self) -> &[FieldView] {
        self.fields.as_deref().unwrap_or_default()
    }
}

impl ListItem for DeadView {
    fn fields(&self) -> &[FieldView] {
        self.fields.as_deref().unwrap_or_default()
    }
}

/// A part of a list.
pub(super) struct ListPart<T> {
    pub items: Vec<T>,
    /// How many tasks were looked at.
    pub examined: usize,
    /// The cursor with which the list goes on. None: it is at its end.
    pub next: Option<String>,
}

impl<T: ListItem> ListPart<T> {
    fn field_bytes(&self) -> usize {
        self.items.iter().map(|item| bytes(item.fields())).sum()
    }

    /// Whether Ctrl-C did not cut the list: it is at its end, or has as much as was asked for.
    pub(super) fn is_whole(&self, args: &ListArgs) -> bool {
        self.next.is_none() || self.items.len() >= args.limit || self.field_bytes() >= MOST_BYTES
    }

    /// How much was found. `noun` is the word for one of the tasks.
    pub(super) fn told(&self, noun: &str) -> String {
        format!("{} found, {} looked at", text::plural(self.items.len() as u64, noun), self.examined)
    }
}

/// Gathers as many tasks as were asked for, unless their fields are too large together. `part` takes a cursor
/// and a limit; one call of it looks at a bounded number of tasks, so several may be needed.
pub(super) async fn gather<T: ListItem>(
    args: &ListArgs,
    progress: &mut CommandProgress,
    part: impl AsyncFn(Option<String>, usize) -> OperationResult<ListPart<T>>,
) -> CommandResult<ListPart<T>> {
    let first = Box::pin(part(args.cursor.clone(), args.limit));
    let mut list = progress.needed("nothing was found", first).await?;
    let mut bytes = list.field_bytes();
    while list.items.len() < args.limit
        && bytes < MOST_BYTES
        && !progress.is_interrupted()
        && list.next.is_some()
    {
        let more = Box::pin(part(list.next.clone(), args.limit - list.items.len()));
        let Some(more) = progress.step(more).await else { break };
        let more = more?;
        bytes += more.field_bytes();
        list.items.extend(more.items);
        list.examined += more.examined;
        list.next = more.next;
        progress.tell(|| format!("{} found, {} looked at", list.items.len(), list.examined));
    }
    Ok(list)
}

/// The beginning of a sentence about the way to the rest of a list. A list that ended before its `limit`, as
/// its fields are large, ends there with every limit.
pub(super) fn shows_more(shown: usize, limit: usize) -> &'static str {
    if shown < limit { "" } else { "--limit shows more, and " }
}

/// How many bytes the fields have, as they are shown.
fn bytes(fields: &[FieldView]) -> usize {
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
    // The last lines name the columns that were left out.
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

/// A text without quotes, and any other value as JSON.
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
