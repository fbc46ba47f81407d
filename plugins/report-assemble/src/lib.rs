//! Joins the tables of a report to a CSV file, and writes the report's status.
//!
//! In: a task that follows the flow of `report-plan`, with the fields `reportId` and `key`, and the tables as
//! the results of its children. Out: the file as the blob `REPORT/TASK.csv`, and in the report's record its
//! URL with the status `COMPLETED`.
//!
//! The blob is written before the task completes, and an attempt that fails leaves it. The record commits
//! with the task, so whoever reads the URL finds a whole file.
//!
//! The same handler also takes tasks of `on_end`, which have the field `end.status`. So a report whose table
//! stays away, or whose task is cancelled, has the status `FAILED` with the reason.

use report_rows::{Table, csv, join, note, report_id};
use serde::Serialize;
use tqhost_handler::{Failure, Json, Task, blobs, flow, handler, log};

/// The result.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Assembled {
    pub report_id: String,
    pub rows: usize,
    pub bytes: usize,
    pub url: String,
}

pub fn assemble(task: Task) -> Result<Option<Json<Assembled>>, Failure> {
    if task.has("end.status") {
        ended(&task).map(|()| None)
    } else {
        join_tables(&task).map(|assembled| Some(Json(assembled)))
    }
}

fn join_tables(task: &Task) -> Result<Assembled, Failure> {
    let report = report_id(task)?;
    let tables = flow::results().iter().map(|child| child.json()).collect::<Result<Vec<Table>, _>>()?;
    if tables.is_empty() {
        return Err(Failure::reject("the task follows no flow: enqueue the report for `report-plan`"));
    }
    let table = match task.text_opt("key")?.filter(|key| !key.is_empty()) {
        Some(key) => join::by_key(&tables, key).map_err(Failure::reject)?,
        None => join::stacked(&tables),
    };
    let file = csv::write(&table);
    let url = blobs::put(&format!("{report}/{}.csv", task.id), "text/csv; charset=utf-8", &file)?;
    let assembled =
        Assembled { report_id: report.to_owned(), rows: table.rows.len(), bytes: file.len(), url };
    let fields = [
        ("status", "COMPLETED".to_owned()),
        ("rows", assembled.rows.to_string()),
        ("bytes", assembled.bytes.to_string()),
        ("url", assembled.url.clone()),
        ("error", String::new()),
    ];
    note(report, &fields)?;
    log::info(format_args!("report {report}: {} rows of {} tables", table.rows.len(), tables.len()));
    Ok(assembled)
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
    use tqhost_handler::{BlobError, run, testing};

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
        let task = Task::sample([("reportId", "7"), ("key", "id")]);
        let name = format!("7/{}.csv", task.id);
        let Json(assembled) = assemble(task).unwrap().expect("a file");
        assert_eq!((assembled.rows, assembled.bytes), (1, 23));
        let file = || blobs::all()[&name].clone();
        assert_eq!(file().data, b"id,sum,name\r\n1,10,Ada\r\n");
        assert_eq!(file().content_type, "text/csv; charset=utf-8");
        let seen = record();
        let text = |name: &str| String::from_utf8(seen[name].clone()).unwrap();
        assert_eq!(
            (text("status"), text("rows"), text("bytes"), text("url")),
            ("COMPLETED".into(), "1".into(), "23".into(), assembled.url)
        );
        assemble(Task::sample([("reportId", "7"), ("key", "")])).unwrap();
        assert_eq!(file().data, b"table,id,sum,name\r\norders,1,10,\r\nusers,1,,Ada\r\n");
    }

    #[test]
    fn a_store_that_is_away_is_asked_again_and_leaves_no_status() {
        child("orders", "id,sum\n1,10\n");
        testing::refuse_blob(BlobError::Unavailable("away".into()));
        let work = || run(Task::sample([("reportId", "7"), ("key", "id")]), assemble);
        assert!(matches!(work(), Err(Failure::Retry(_))));
        assert!(records::all().is_empty());
        assert!(work().is_ok());
    }

    #[test]
    fn tables_that_cannot_be_joined_are_rejected_and_leave_no_status() {
        let join = || run(Task::sample([("reportId", "7"), ("key", "id")]), assemble);
        assert!(matches!(join(), Err(Failure::Reject(why)) if why.contains("follows no flow")));
        child("orders", "number\n1\n");
        assert!(matches!(join(), Err(Failure::Reject(why)) if why.contains("`orders` has no column `id`")));
        assert!(records::all().is_empty() && blobs::all().is_empty());
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
