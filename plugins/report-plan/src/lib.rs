//! Starts a report: a task for each of its tables, and one that joins them.
//!
//! In: a task with the fields `reportId`, `tables` (a JSON list of `{"name", "url", "format"}`), and
//! optionally `key`, the column by which the tables are joined. Out: a flow, and the report's record with
//! the status `GENERATING`.
//!
//! ```text
//! report-plan ─┬▶ report-query (orders)  ─┐
//!              ├▶ report-query (refunds) ─┼▶ report-assemble, once all have completed
//!              └▶ report-query (users)   ─┘
//! ```
//!
//! Not here: requests to the sources (`report-query`), and the file (`report-assemble`).

use std::collections::BTreeSet;

use report_rows::{Source, is_name, note, report_id};
use serde::Serialize;
use tqhost_handler::outbox::{self, NewTask};
use tqhost_handler::{Failure, FieldError, Json, Task, config, handler};

/// The most tables of a report.
const MAX_TABLES: usize = 200;

/// The result.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    pub report_id: String,
    pub tables: usize,
    /// The id of the task that joins the tables. Its result has the URL of the file.
    pub assemble: String,
}

pub fn plan(task: Task) -> Result<Json<Plan>, Failure> {
    let report = report_id(&task)?;
    let tables: Vec<Source> = task.json("tables")?;
    check(&tables)?;
    let key = task.text_opt("key")?.unwrap_or_default();
    let (query, assemble) = (queue("report_query")?, queue("report_assemble")?);
    let children = tables.iter().map(|table| {
        let table = serde_json::to_string(table).unwrap_or_default();
        NewTask::new(&query).field("reportId", report).field("table", table)
    });
    let then = NewTask::new(&assemble).field("reportId", report).field("key", key);
    let assemble = outbox::fan_out(children, then)?;
    let fields = [
        ("status", "GENERATING".to_owned()),
        ("tables", tables.len().to_string()),
        ("assemble", assemble.clone()),
        ("error", String::new()),
    ];
    note(report, &fields)?;
    Ok(Json(Plan { report_id: report.to_owned(), tables: tables.len(), assemble }))
}

/// The name of a queue, which the configuration may change.
fn queue(setting: &str) -> Result<String, Failure> {
    Ok(config::get(setting)?.unwrap_or_else(|| setting.replace('_', "-")))
}

fn check(tables: &[Source]) -> Result<(), FieldError> {
    let wrong = |why: String| Err(FieldError::invalid("tables", why));
    if !(1..=MAX_TABLES).contains(&tables.len()) {
        return wrong(format!("names {} tables, a report has 1 to {MAX_TABLES}", tables.len()));
    }
    if let Some(table) = tables.iter().find(|table| !is_name(&table.name)) {
        return wrong(format!(
            "has the name `{}`: write letters, digits and `._-`",
            table.name.escape_debug()
        ));
    }
    let mut names = BTreeSet::new();
    match tables.iter().find(|table| !names.insert(&table.name)) {
        Some(table) => wrong(format!("names the table `{}` twice", table.name)),
        None => Ok(()),
    }
}

handler!(plan);

#[cfg(test)]
mod tests {
    use tqhost_handler::{records, run};

    use super::*;

    #[test]
    fn each_table_is_a_task_and_one_follows_all() {
        let tables = r#"[{"name": "orders", "url": "http://h/o"},
            {"name": "users", "url": "http://h/u", "format": "csv"}]"#;
        let fields = [("reportId", "7"), ("tables", tables), ("key", "id")];
        let Json(plan) = plan(Task::sample(fields)).unwrap();
        let sent = outbox::sent();
        let queues: Vec<&str> = sent.iter().map(|sent| sent.task.queue.as_str()).collect();
        assert_eq!(queues, ["report-query", "report-query", "report-assemble"]);
        assert_eq!(sent[1].task.text("table"), Ok(r#"{"name":"users","url":"http://h/u","format":"csv"}"#));
        assert_eq!((sent[2].task.text("key"), sent[2].task.text("reportId")), (Ok("id"), Ok("7")));
        assert_eq!((sent[2].after.len(), &sent[2].id), (2, &plan.assemble));
        assert_eq!(records::all()["report:{report}:7"]["status"], b"GENERATING");
    }

    #[test]
    fn a_report_that_cannot_be_made_is_rejected_and_starts_nothing() {
        for (id, tables, why) in [
            ("a:b", "[]", "`reportId`"),
            ("7", "[]", "names 0 tables"),
            ("7", r#"[{"name": "a"}]"#, "`tables` is not the JSON expected"),
            ("7", r#"[{"name": "a b", "url": "u"}]"#, "has the name `a b`"),
            ("7", r#"[{"name": "a", "url": "u"}, {"name": "a", "url": "v"}]"#, "twice"),
            ("7", r#"[{"name": "a", "url": "u", "format": "xls"}]"#, "`tables`"),
        ] {
            match run(Task::sample([("reportId", id), ("tables", tables)]), plan) {
                Err(Failure::Reject(found)) => assert!(found.contains(why), "{found}"),
                other => panic!("{tables}: {other:?}"),
            }
        }
        assert!(outbox::sent().is_empty() && records::all().is_empty());
    }
}
