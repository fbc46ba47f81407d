//! Endpoints: tasks. List, enqueue, show, cancel one, let one run now. Not here: cancel many, drain (`many`).

use std::time::Duration;

use axum::Json;
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::body::{CountsQuery, TasksQuery, checked_limit, duration, parse_state};
use super::extract::{ApiAnswer, ApiCall, JsonBody, QueryOf};
use crate::admin::audit::AuditNote;
use crate::admin::base_path::at;
use crate::admin::problem::{ApiProblem, ProblemCode, invalid};
use crate::operations::{
    self, Cancelled, JsonMembers, ListRequest, Retried, TaskGroups, TaskList, TaskView, fields_of_json,
};
use crate::queue::Enqueued;
use crate::telemetry::TRACEPARENT;

/// The header with a task's idempotency key.
const KEY_HEADER: &str = "idempotency-key";

/// A new task.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({ "fields": { "order": "7", "scan": { "base64": "aGk=" } }, "delay": "10s" })))]
pub(super) struct NewTaskBody {
    /// The task's fields. A string becomes its text, `{"base64": …}` the bytes; any other value becomes its
    /// JSON text.
    #[schema(value_type = std::collections::HashMap<String, serde_json::Value>)]
    fields: JsonMembers,
    /// Start it only after this time, like `10s` or `1h30m`.
    #[schema(pattern = "^([0-9]+(d|h|m|s|ms))+$")]
    delay: Option<String>,
    /// The idempotency key; the header `Idempotency-Key` says the same.
    key: Option<String>,
}

/// A task that is in the queue.
#[derive(Serialize, ToSchema)]
pub(super) struct EnqueuedView {
    id: String,
    /// Whether another task with this key was there before; `id` is that of the other one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    duplicate: bool,
}

/// Tasks of one state, with filters
///
/// A list looks at 5,000 tasks at most, and says how many it looked at. `next` is the cursor of the rest,
/// also where nothing matched so far. With `fields` an answer ends after 8 MiB of fields, with at least one
/// task.
#[utoipa::path(
    get, path = "/v1/queues/{queue}/tasks",
    params(("queue" = String, Path, description = "the queue's name in the configuration"), TasksQuery),
    responses((status = 200, body = TaskList))
)]
pub(super) async fn list_tasks(
    ApiCall { api, path: name, .. }: ApiCall<String>,
    QueryOf(query): QueryOf<TasksQuery>,
) -> Result<Json<TaskList>, ApiProblem> {
    let request = ListRequest {
        state: parse_state(&query.state)?,
        filter: query.filter(api.mask())?,
        limit: checked_limit(query.limit)?,
        with_fields: query.fields,
        cursor: query.cursor,
    };
    Ok(Json(operations::list(&api.queue(&name).await?, &request).await?.masked(api.mask())))
}

/// Tasks of one state, counted by the value of a field
///
/// One answer looks at 5,000 tasks, and says how many it looked at. `next` is the cursor of the rest, whose
/// groups have counts of their own.
#[utoipa::path(
    get, path = "/v1/queues/{queue}/groups",
    params(("queue" = String, Path, description = "the queue's name in the configuration"), CountsQuery),
    responses((status = 200, body = TaskGroups))
)]
pub(super) async fn group_tasks(
    ApiCall { api, path: name, .. }: ApiCall<String>,
    QueryOf(query): QueryOf<CountsQuery>,
) -> Result<Json<TaskGroups>, ApiProblem> {
    let (state, limit) = (parse_state(&query.state)?, checked_limit(query.limit)?);
    let (by, filter) = (query.by(api.mask())?, query.filter(api.mask())?);
    let queue = api.queue(&name).await?;
    let cursor = query.cursor.as_deref();
    Ok(Json(operations::task_groups(&queue, state, &filter, by, cursor, limit).await?))
}

/// Enqueues a task
///
/// A repeated request with the same key gives the id of the first task. A request without a key that got no
/// answer may have enqueued its task.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/tasks",
    params(
        ("queue" = String, Path, description = "the queue's name in the configuration"),
        ("Idempotency-Key" = Option<String>, Header, description = "the task's idempotency key"),
        ("traceparent" = Option<String>, Header, description = "the caller's W3C trace context"),
    ),
    request_body = NewTaskBody,
    responses(
        (status = 202, description = "the task is in the queue", body = EnqueuedView),
        (status = 200, description = "a task with this key is or was there", body = EnqueuedView),
        (
            status = 429,
            description = "the queue has as many tasks as max_backlog allows",
            body = crate::admin::problem::ProblemBody,
            content_type = "application/problem+json"
        ),
    )
)]
pub(super) async fn enqueue_task(
    ApiCall { api, path: name, .. }: ApiCall<String>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<NewTaskBody>,
) -> ApiAnswer {
    let key = key(&headers, body.key)?;
    let delay = duration("delay", body.delay.as_deref())?.unwrap_or(Duration::ZERO);
    let task = operations::new_task(fields_of_json(&body.fields.0)?, delay, key)?;
    let incoming = headers.get(TRACEPARENT).and_then(|value| value.to_str().ok());
    let trace = api.parts().traces.enqueueing(task.traceparent().or(incoming));
    let task = task.with_traceparent(trace.traceparent.clone());
    let queue = api.queue(&name).await?;
    operations::check_delay(&queue.rules, delay)?;
    let note = |id: &str| AuditNote::task(&name, id);
    match operations::enqueue(&queue, &task).await? {
        Enqueued::Accepted => {
            let id = task.id().to_owned();
            trace.accepted(&name, &id);
            let part = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
            let location = at(&format!("/v1/queues/{}/tasks/{}", part(&name), part(&id)));
            let note = note(&id);
            let view = Json(EnqueuedView { id, duplicate: false });
            Ok(note.on((StatusCode::ACCEPTED, [(LOCATION, location)], view)))
        }
        Enqueued::Duplicate(first) => {
            let note = note(&first);
            Ok(note.on(Json(EnqueuedView { id: first, duplicate: true })))
        }
        Enqueued::Full => {
            let problem = ApiProblem::new(ProblemCode::QueueFull, operations::full(&queue.rules));
            Ok(AuditNote::queue(&name).on(problem.into_response()))
        }
    }
}

/// The key of the header and of the body, which must not differ.
fn key(headers: &HeaderMap, of_body: Option<String>) -> Result<Option<String>, ApiProblem> {
    let mut of_headers = headers.get_all(KEY_HEADER).iter();
    let Some(of_header) = of_headers.next() else { return Ok(of_body) };
    if of_headers.next().is_some() {
        return Err(invalid("Idempotency-Key: it is there more than once"));
    }
    let of_header = std::str::from_utf8(of_header.as_bytes())
        .map_err(|_| invalid("Idempotency-Key: it is not UTF-8"))?
        .to_owned();
    match of_body {
        Some(key) if key != of_header => Err(invalid("Idempotency-Key and key of the body differ")),
        _ => Ok(Some(of_header)),
    }
}

/// One task, with its relatives and the last attempts that failed
#[utoipa::path(
    get, path = "/v1/queues/{queue}/tasks/{id}",
    params(
        ("queue" = String, Path, description = "the queue's name in the configuration"),
        ("id" = String, Path, description = "the task's id, or the name that the queue's `id` gives to it"),
    ),
    responses((status = 200, body = TaskView))
)]
pub(super) async fn get_task(
    ApiCall { api, path: (name, id), .. }: ApiCall<(String, String)>,
) -> Result<Json<TaskView>, ApiProblem> {
    let queue = api.queue(&name).await?;
    Ok(Json(operations::task_view(&api.queues(), &queue, &id).await?.masked(api.mask())))
}

/// Cancels a task: queued, delayed or running (its handler is stopped within seconds)
#[utoipa::path(
    delete, path = "/v1/queues/{queue}/tasks/{id}",
    params(
        ("queue" = String, Path, description = "the queue's name in the configuration"),
        ("id" = String, Path, description = "the task's id, or the name that the queue's `id` gives to it"),
    ),
    responses((status = 200, body = Cancelled))
)]
pub(super) async fn cancel_task(
    ApiCall { api, path: (name, id), .. }: ApiCall<(String, String)>,
) -> ApiAnswer {
    let note = AuditNote::task(&name, &id);
    let queue = api.queue(&name).await?;
    let cancelled = operations::cancel(&api.queues(), &queue, &id, false).await;
    Ok(note.on(cancelled.map(Json).map_err(ApiProblem::from)))
}

/// Lets a delayed task run now: a retry, or one that was enqueued for later
///
/// Its attempts stay as they are. A task that is not delayed stays as it is, so the request may be repeated.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/tasks/{id}/retry",
    params(
        ("queue" = String, Path, description = "the queue's name in the configuration"),
        ("id" = String, Path, description = "the task's id, or the name that the queue's `id` gives to it"),
    ),
    responses((status = 200, body = Retried))
)]
pub(super) async fn retry_task(
    ApiCall { api, path: (name, id), .. }: ApiCall<(String, String)>,
) -> ApiAnswer {
    let note = AuditNote::task(&name, &id);
    let queue = api.queue(&name).await?;
    let retried = operations::retry(&queue, &id, false).await;
    Ok(note.on(retried.map(Json).map_err(ApiProblem::from)))
}
