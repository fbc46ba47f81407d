//! Endpoints: dead letters. List, groups, download. Not here: requeue and purge (`many`).

use std::io;

use axum::Json;
use axum::body::Body;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;

use super::body::{DeadQuery, ExportQuery, GroupsQuery, checked_limit};
use super::extract::{ApiAnswer, ApiCall, QueryOf};
use crate::admin::problem::ApiProblem;
use crate::operations::{self, DeadList, GroupKind, TaskGroups, dead_list, task_groups};
use crate::queue::listing::ListedState;

/// Dead letters, the newest first, with filters
///
/// A list looks at 5,000 dead letters at most, and says how many it looked at. `next` is the cursor of the
/// rest, also where nothing matched so far. With `fields` an answer ends after 8 MiB of fields, with at least
/// one dead letter.
#[utoipa::path(
    get, path = "/v1/queues/{queue}/dead",
    params(("queue" = String, Path, description = "the queue's name in the configuration"), DeadQuery),
    responses((status = 200, body = DeadList))
)]
pub(super) async fn list_dead(
    ApiCall { api, path: name, .. }: ApiCall<String>,
    QueryOf(query): QueryOf<DeadQuery>,
) -> Result<Json<DeadList>, ApiProblem> {
    let (filter, limit) = (query.filter(api.mask())?, checked_limit(query.limit)?);
    let queue = api.queue(&name).await?;
    let list = dead_list(&queue, &filter, query.cursor.as_deref(), limit, query.fields).await?;
    Ok(Json(list.masked(api.mask())))
}

/// Dead letters in groups, with their counts
///
/// One answer looks at 5,000 dead letters, the newest first, and says how many it looked at. `next` is the
/// cursor of the older ones, whose groups have counts of their own.
#[utoipa::path(
    get, path = "/v1/queues/{queue}/dead/groups",
    params(("queue" = String, Path, description = "the queue's name in the configuration"), GroupsQuery),
    responses((status = 200, body = TaskGroups))
)]
pub(super) async fn group_dead(
    ApiCall { api, path: name, .. }: ApiCall<String>,
    QueryOf(query): QueryOf<GroupsQuery>,
) -> Result<Json<TaskGroups>, ApiProblem> {
    let (by, filter, limit) = (query.by()?, query.filter(api.mask())?, checked_limit(query.limit)?);
    let queue = api.queue(&name).await?;
    let (kind, cursor) = (GroupKind::Property(by), query.cursor.as_deref());
    Ok(Json(task_groups(&queue, ListedState::Dead, &filter, kind, cursor, limit).await?))
}

/// The dead letters that match as JSON lines, for `tqhost dead import`, the newest first
///
/// One download looks at 100,000 dead letters. Its last line is `{"tq-export": {"letters", "examined",
/// "next"}}`: how many there are in it, and the cursor of the rest. A download without it is not whole. Where
/// fields are hidden it says `"masked": true`, and cannot be imported.
#[utoipa::path(
    get, path = "/v1/queues/{queue}/dead/export",
    params(("queue" = String, Path, description = "the queue's name in the configuration"), ExportQuery),
    responses((
        status = 200,
        description = "a dead letter on each line",
        body = String,
        content_type = "application/jsonl"
    ))
)]
pub(super) async fn export_dead(
    ApiCall { api, path: name, .. }: ApiCall<String>,
    QueryOf(query): QueryOf<ExportQuery>,
) -> ApiAnswer {
    let filter = query.filter(api.mask())?;
    let queue = api.queue(&name).await?;
    // A download may take long, so it counts as a stream.
    let lines = operations::export(queue, filter, query.cursor.as_deref(), None, api.stream_place()?)?;
    Ok(download(lines, &format!("{name}-dead")))
}

/// The response with the lines of a download, which are read while the client takes them. If Redis fails on
/// the way, the connection is cut, and the last line is missing.
pub(crate) fn download(
    lines: impl Stream<Item = Result<String, io::Error>> + Send + 'static,
    name: &str,
) -> Response {
    let headers = [
        (CONTENT_TYPE, "application/jsonl; charset=utf-8".to_owned()),
        (CONTENT_DISPOSITION, format!("attachment; filename=\"{}\"", operations::file_name(name))),
    ];
    (headers, Body::from_stream(lines)).into_response()
}
