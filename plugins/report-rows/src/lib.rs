//! The common parts of the report pipeline's handlers: a report's id, its record, and its tables.
//!
//! In: bytes of sources. Out: [`Table`]s, and a CSV file of them. Nothing here makes requests.
//!
//! Not here: the tasks (`report-plan`, `report-query`, `report-assemble`).

pub mod csv;
pub mod join;
pub mod json;

use serde::{Deserialize, Serialize};
use tqhost_handler::{Failure, FieldError, Task, config, records};

/// The most characters of a report's id and of a table's name.
const MAX_NAME: usize = 100;

/// A table that a report needs, as the task names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    pub name: String,
    /// `http:`, `https:`, or `blob:` with the name of a blob of `report-query`.
    pub url: String,
    /// Without a format, the response's `content-type` decides, or the end of the blob's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<Format>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    Csv,
    Json,
}

/// The rows of one source. Each row has a cell for each column.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    pub name: String,
    pub columns: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl Format {
    /// Reads the rows of a response. The error says what is wrong, without quoting it.
    pub fn read(self, name: &str, text: &str) -> Result<Table, String> {
        let (columns, rows) = match self {
            Format::Csv => csv::read(text)?,
            Format::Json => json::read(text)?,
        };
        Ok(Table { name: name.to_owned(), columns, rows })
    }
}

/// The report's id, which is a part of a key.
pub fn report_id(task: &Task) -> Result<&str, FieldError> {
    let id = task.text("reportId")?;
    if is_name(id) {
        return Ok(id);
    }
    let why = format!("must have 1 to {MAX_NAME} letters, digits and characters of `._-`");
    Err(FieldError::invalid("reportId", why))
}

/// Whether a text can be the id of a report.
pub fn is_name(text: &str) -> bool {
    (1..=MAX_NAME).contains(&text.len())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

/// Sets fields of the report's record. Its key is the configuration's `prefix`, a colon, and the id.
pub fn note(report: &str, fields: &[(&str, String)]) -> Result<(), Failure> {
    let prefix = config::get("prefix")?.unwrap_or_else(|| "report:{report}".to_owned());
    Ok(records::put(&format!("{prefix}:{report}"), fields.iter().cloned())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_cannot_reach_another_key() {
        for (id, is_good) in [
            ("2026-07_a.b", true),
            ("", false),
            ("a:b", false),
            ("a b", false),
            ("{a}", false),
            ("月", false),
        ] {
            assert_eq!(report_id(&Task::sample([("reportId", id)])).is_ok(), is_good, "{id}");
        }
        assert!(!is_name(&"x".repeat(101)));
    }
}
