//! Fetches one table of a report from its source.
//!
//! In: a task with the fields `reportId` and `table` (`{"name", "url", "format"}`), which `report-plan` has
//! enqueued. Out: the [`Table`] as JSON, for `report-assemble`.
//!
//! The url of a source can also be `blob:NAME`: then the table is a blob of this plugin, which another
//! program has put into the object store.
//!
//! A source that is not ready (404, 425 or 503, or no such blob) defers the task for a minute, which uses up
//! no attempt. The queue's `max_deferrals` says how often. After that, the task becomes a dead letter, and
//! the report fails.
//!
//! Not here: other sources than HTTP and blobs.

use std::time::Duration;

use report_rows::{Format, Source, Table, report_id};
use tqhost_handler::http::{Error, Request, Response};
use tqhost_handler::{BlobError, Failure, Json, Task, blobs, config, context, handler, log};

/// The default of `defer_seconds`.
const DEFER_SECONDS: u64 = 60;
/// The most bytes of a response. Its rows must fit into the result, so `max_output` is the limit most often.
const MAX_RESPONSE: usize = 16 * 1024 * 1024;

pub fn query(task: Task) -> Result<Json<Table>, Failure> {
    let wait = match config::get("defer_seconds")?.map(|text| text.parse()) {
        None => DEFER_SECONDS,
        Some(Ok(seconds)) => seconds,
        Some(Err(_)) => {
            return Err(Failure::retry("the plugin's configuration: `defer_seconds` must be a whole number"));
        }
    };
    query_with(&task, Duration::from_secs(wait), Request::send).map(Json)
}

/// Runs one task. `send` makes the request, and `wait` is the time until a source that is not ready is asked
/// again.
pub fn query_with(
    task: &Task,
    wait: Duration,
    send: impl FnOnce(&Request) -> Result<Response, Error>,
) -> Result<Table, Failure> {
    let report = report_id(task)?;
    let source: Source = task.json("table")?;
    let table = match source.url.strip_prefix("blob:") {
        Some(blob) => read_blob(&source, blob, wait)?,
        None => ask(task, &source, report, wait, send)?,
    };
    log::info(format_args!("table `{}` of report {report}: {} rows", table.name, table.rows.len()));
    Ok(table)
}

/// Reads a table from the object store.
fn read_blob(source: &Source, blob: &str, wait: Duration) -> Result<Table, Failure> {
    let name = &source.name;
    let data = match blobs::get(blob) {
        Err(BlobError::NotFound(_)) => {
            let why = format_args!("the source of the table `{name}` is not ready (no blob `{blob}`)");
            return Err(Failure::defer(why, wait));
        }
        found => found?,
    };
    let format = source.format.or_else(|| match blob.rsplit_once('.')?.1 {
        "csv" => Some(Format::Csv),
        "json" => Some(Format::Json),
        _ => None,
    });
    let why = "the name of its blob ends with neither .csv nor .json: name its `format` in the task";
    read(name, &data, format.ok_or(why))
}

/// Reads a table from its server.
fn ask(
    task: &Task,
    source: &Source,
    report: &str,
    wait: Duration,
    send: impl FnOnce(&Request) -> Result<Response, Error>,
) -> Result<Table, Failure> {
    let name = &source.name;
    let request = Request::get(&source.url)
        .header("accept", "text/csv, application/json")
        .header("x-report-id", report)
        .max_response(MAX_RESPONSE);
    let response = send(&request)?;
    let says = |what: &str| format!("the source of the table `{name}` {what} ({})", response.status);
    match response.status {
        200 => {}
        404 | 425 | 503 => return Err(Failure::defer(says("is not ready"), wait)),
        408 | 429 | 500.. => {
            let failure = match response.is_unavailable() {
                true => Failure::unavailable(says("asks for fewer requests")),
                false => Failure::retry(says("failed")),
            };
            let remaining = u64::try_from(context::remaining().as_millis()).unwrap_or(u64::MAX);
            let after = response.retry_after(task.deadline_ms.saturating_sub(remaining));
            return Err(after.into_iter().fold(failure, Failure::after));
        }
        // The operator can correct what the source grants, and then requeue the task.
        401 | 403 => return Err(Failure::retry(says("refuses the request"))),
        _ => return Err(Failure::reject(says("does not take the request"))),
    }
    let format = source.format.or_else(|| format_of(&response));
    let why = "its content-type is neither text/csv nor application/json: name its `format` in the task";
    read(name, &response.body, format.ok_or(why))
}

fn read(name: &str, data: &[u8], format: Result<Format, &str>) -> Result<Table, Failure> {
    let wrong = |why: &str| Failure::reject(format_args!("the table `{name}`: {why}"));
    let text = str::from_utf8(data).map_err(|_| wrong("it is not UTF-8 text"))?;
    format.map_err(wrong)?.read(name, text).map_err(|why| wrong(&why))
}

fn format_of(response: &Response) -> Option<Format> {
    let media = response.header("content-type")?.split(';').next()?.trim().to_ascii_lowercase();
    match media.as_str() {
        "text/csv" => Some(Format::Csv),
        "application/json" => Some(Format::Json),
        _ => None,
    }
}

handler!(query);

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = r#"{"name": "orders", "url": "http://h/orders"}"#;

    fn answered(table: &str, status: u16, headers: &[(&str, &str)], body: &str) -> Result<Table, Failure> {
        let task = Task::sample([("reportId", "7"), ("table", table)]);
        query_with(&task, Duration::from_secs(60), |request| {
            assert_eq!(request.url, "http://h/orders");
            let headers = headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
            Ok(Response { status, headers, body: body.into() })
        })
    }

    #[test]
    fn a_table_is_read_by_its_format() {
        let csv = answered(TABLE, 200, &[("content-type", "text/csv; charset=utf-8")], "id\n1\n").unwrap();
        assert_eq!((csv.name.as_str(), csv.rows), ("orders", vec![vec!["1".to_owned()]]));
        let json = answered(TABLE, 200, &[("Content-Type", "application/json")], r#"[{"id": 1}]"#).unwrap();
        assert_eq!(json.rows, [["1"]]);
        let named = r#"{"name": "orders", "url": "http://h/orders", "format": "csv"}"#;
        assert_eq!(answered(named, 200, &[], "id\n2\n").unwrap().rows, [["2"]]);
    }

    #[test]
    fn a_source_that_is_not_ready_defers_and_others_fail() {
        for status in [404, 425, 503] {
            let Err(Failure::Defer(deferral)) = answered(TABLE, status, &[], "") else { panic!("{status}") };
            assert_eq!(deferral.after_ms, 60_000);
            assert!(deferral.message.contains(&status.to_string()), "{}", deferral.message);
        }
        for status in [401, 403, 408, 429, 500, 502] {
            let Err(failure) = answered(TABLE, status, &[], "") else { panic!("{status}") };
            assert!(matches!(failure, Failure::Retry(_)), "{status}");
            assert_eq!(failure.is_unavailable(), status == 429, "{status}");
        }
        let Err(Failure::Retry(retry)) = answered(TABLE, 429, &[("retry-after", "9")], "") else { panic!() };
        assert_eq!(retry.after_ms, Some(9000));
        for status in [204, 302, 400, 410] {
            assert!(matches!(answered(TABLE, status, &[], ""), Err(Failure::Reject(_))), "{status}");
        }
    }

    #[test]
    fn a_table_can_be_a_blob() {
        let read = |table: &str| {
            let task = Task::sample([("reportId", "7"), ("table", table)]);
            query_with(&task, Duration::from_secs(60), |_| panic!("no request"))
        };
        let orders = r#"{"name": "orders", "url": "blob:7/orders.csv"}"#;
        let Err(Failure::Defer(deferral)) = read(orders) else { panic!("not ready") };
        assert_eq!(deferral.after_ms, 60_000);
        blobs::insert("7/orders.csv", "id\n1\n");
        blobs::insert("7/users.json", r#"[{"id": 2}]"#);
        blobs::insert("7/plain", "id\n3\n");
        assert_eq!(read(orders).unwrap().rows, [["1"]]);
        assert_eq!(read(r#"{"name": "users", "url": "blob:7/users.json"}"#).unwrap().rows, [["2"]]);
        let plain = r#"{"name": "plain", "url": "blob:7/plain", "format": "csv"}"#;
        assert_eq!(read(plain).unwrap().rows, [["3"]]);
        for (url, why) in [("blob:7/plain", "name its `format`"), ("blob:../x", "not the name of a blob")] {
            let table = format!(r#"{{"name": "t", "url": "{url}"}}"#);
            assert!(matches!(read(&table), Err(Failure::Reject(found)) if found.contains(why)), "{url}");
        }
    }

    #[test]
    fn rows_that_cannot_be_read_are_rejected() {
        for (headers, body, why) in [
            (&[][..], "id\n1\n", "name its `format`"),
            (&[("content-type", "text/csv")], "a\n1,2\n", "line 2"),
            (&[("content-type", "application/json")], "{}", "list of objects"),
        ] {
            match answered(TABLE, 200, headers, body) {
                Err(Failure::Reject(found)) => {
                    assert!(found.contains("`orders`") && found.contains(why), "{found}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
