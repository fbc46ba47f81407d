//! The download of the dead letters that match, as JSON lines, the newest first.
//!
//! It is read in pages while the client takes them, so it needs little memory however many there are. Its
//! last line counts them, and has the cursor of the rest. If Redis fails on the way, the connection is cut,
//! and the last line is missing. `tqhost dead import` takes the file.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};

use super::problem::PageProblem;
use super::state::Dashboard;
use super::values::Values;
use crate::operations;

pub(super) async fn export(
    State(dashboard): State<Dashboard>,
    Path(name): Path<String>,
    values: Values,
) -> Result<Response, PageProblem> {
    dashboard.api.gives_whole_letters()?;
    let filter = values.filter(dashboard.api.mask())?;
    let queue = dashboard.api.queue(&name).await?;
    // A download may take long, so it counts as a stream.
    let permit = dashboard.api.stream_place()?;
    let lines = operations::export(queue, filter, values.get("cursor"), permit)?;
    let headers = [
        (CONTENT_TYPE, "application/jsonl; charset=utf-8".to_owned()),
        (CONTENT_DISPOSITION, format!("attachment; filename=\"{}\"", operations::file_name(&name))),
    ];
    Ok((headers, Body::from_stream(lines)).into_response())
}
