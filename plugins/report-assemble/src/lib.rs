//! Joins the tables of a report to a CSV file, and writes the report's status.
//!
//! In: a task that follows the flow of `report-plan`, with the fields `reportId` and `key`, and the tables as
//! the results of its children. Out: the file as the result, and the status `COMPLETED` in the report's
//! record.
//!
//! The same handler also takes tasks of `on_end`, which have the field `end.status`. So a report whose table
//! stays away, or whose task is cancelled, has the status `FAILED` with the reason.
//!
//! Not here: the object store. The host does not offer `blobs` yet; [`keep`] is the place for it.

use report_rows::{Table, csv, join, note, report_id};
use tqhost_handler::{Failure, Task, flow, handler, log};

pub fn assemble(task: Task) -> Result<Option<Vec<u8>>, Failure> {
    if task.has("end.status") { ended(&task).map(|()| None) } else { join_tables(&task).map(Some) }
}

fn join_tables(task: &Task) -> Result<Vec<u8>, Failure> {
    let report = report_id(task)?;
    let tables = flow::results().iter().map(|child| child.json()).collect::<Result<Vec<Table>, _>>()?;
    if tables.is_empty() {
        return Err(Failure::reject("the task follows no flow: enqueue the report for `report-plan`"));
    }
    let table = match task.text_opt("key")?.filter(|key| !key.is_empty()) {
        Some(key) => join::by_key(&tables, key).map_err(Failure::reject)?,
        None => join::stacked(&tables),
    };
    let file = csv::write(&table).into_bytes();
    let fields = [
        ("status", "COMPLETED".to_owned()),
        ("rows", table.rows.len().to_string()),
        ("bytes", file.len().to_string()),
        ("url", keep(task, &file)?),
        ("error", String::new()),
    ];
    note(report, &fields)?;
    log::info(format_args!("report {report}: {} rows of {} tables", table.rows.len(), tables.len()));
    Ok(file)
}

/// Keeps the file in the object store, and returns its url. Without an object store, the url is empty, and
/// the file is the task's result, which the host keeps for the queue's `retention`.
fn keep(_task: &Task, _file: &[u8]) -> Result<String, Failure> {
    Ok(String::new())
}

/// Writes the status of a report whose last task has ended in another way than by its file.
fn ended(task: &Task) -> Result<(), Failure> {
    if task.text("end.status")? == "COMPLETED" {
        return Ok(());
    }
    let status = if task.text("end.status")? == "CANCELLED" { "CANCELLED" } else { "FAILED" };
    let text = |name: &str| Ok::<_, Failure>(task.text_opt(name)?.unwrap_or_default().to_owned());
    let error = [text("end.reason")?, text("end.error")?].join(": ");
    note(report_id(task)?, &[("status", status.to_owned()), ("error", error)])
}

handler!(assemble);

#[cfg(test)]
mod tests {
    use tqhost_handler::records::{self, Record};
    use tqhost_handler::{run, testing};

    use super::*;

    fn record() -> Record {
        records::all()["report:{report}:7"].clone()
    }

    fn child(name: &str, csv: &str) {
        let (columns, rows) = csv::read(csv).unwrap();
        let cells = |cells: &[String]| format!("[\"{}\"]", cells.join("\",\""));
        let rows = rows.iter().map(|row| cells(row)).collect::<Vec<_>>().join(",");
        let columns = cells(&columns);
        let table = format!("{{\"name\":\"{name}\",\"columns\":{columns},\"rows\":[{rows}]}}");
        flow::insert("report-query", Some(table.as_bytes()));
    }

    #[test]
    fn tables_become_a_file_and_the_status_of_the_report() {
        child("orders", "id,sum\n1,10\n");
        child("users", "id,name\n1,Ada\n");
        let file = assemble(Task::sample([("reportId", "7"), ("key", "id")])).unwrap();
        assert_eq!(file.as_deref(), Some(&b"id,sum,name\r\n1,10,Ada\r\n"[..]));
        let seen = record();
        let text = |name: &str| String::from_utf8(seen[name].clone()).unwrap();
        assert_eq!(
            (text("status"), text("rows"), text("bytes")),
            ("COMPLETED".into(), "1".into(), "23".into())
        );
        let file = assemble(Task::sample([("reportId", "7"), ("key", "")])).unwrap();
        assert_eq!(file.as_deref(), Some(&b"table,id,sum,name\r\norders,1,10,\r\nusers,1,,Ada\r\n"[..]));
    }

    #[test]
    fn tables_that_cannot_be_joined_are_rejected_and_leave_no_status() {
        let join = || run(Task::sample([("reportId", "7"), ("key", "id")]), assemble);
        assert!(matches!(join(), Err(Failure::Reject(why)) if why.contains("follows no flow")));
        child("orders", "number\n1\n");
        assert!(matches!(join(), Err(Failure::Reject(why)) if why.contains("`orders` has no column `id`")));
        assert!(records::all().is_empty());
    }

    #[test]
    fn an_end_without_a_file_is_the_status_of_the_report() {
        for (end, status) in [("FAILED", "FAILED"), ("CANCELLED", "CANCELLED")] {
            testing::reset();
            let fields =
                [("reportId", "7"), ("end.status", end), ("end.reason", "flow-failed"), ("end.error", "x")];
            assert_eq!(assemble(Task::sample(fields)).unwrap(), None);
            assert_eq!(record()["status"], status.as_bytes());
            assert_eq!(record()["error"], b"flow-failed: x");
        }
        testing::reset();
        assemble(Task::sample([("reportId", "7"), ("end.status", "COMPLETED")])).unwrap();
        assert!(records::all().is_empty(), "the file's own step has written the status");
    }
}
