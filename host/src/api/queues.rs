//! Endpoints: queues, their history, and orders for one: pause, resume, limit.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::body::{HistoryQuery, duration};
use super::extract::{ApiAnswer, ApiCall, JsonBody, OptionalBody, QueryOf};
use super::state::Api;
use crate::admin::audit::AuditNote;
use crate::admin::problem::ApiProblem;
use crate::clock::now_ms;
use crate::operations::history::{HistoryView, history};
use crate::operations::{self, LimitView, PausedView, QueueView, UncountedQueue, known_builds};
use crate::queue::hosts;
use crate::queue::limits::QueueLimits;
use crate::queue::minutes::in_range;

/// All queues of the configuration.
#[derive(Serialize, ToSchema)]
pub(super) struct QueueList {
    queues: Vec<QueueView>,
    /// The queues that cannot be counted.
    failed: Vec<UncountedQueue>,
}

/// The reason of a pause, and its time.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(examples(json!({ "why": "the database moves", "for": "30m" })))]
pub(super) struct PauseBody {
    /// The reason, which everybody is shown: at most 200 characters.
    #[schema(max_length = 200)]
    why: String,
    /// The pause ends by itself after this time. A pause that stands gets the new time and reason.
    #[serde(rename = "for")]
    time: Option<String>,
}

/// The reason of a resume.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(examples(json!({})))]
pub(super) struct ResumeBody {
    /// The reason, for the log of changes: at most 200 characters.
    #[schema(max_length = 200)]
    why: String,
}

/// An order to limit a queue, with at least one of `rate`, `concurrency` and `per_key`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({ "rate": "5/s", "for": "1h", "why": "the model answers 429" })))]
pub(super) struct LimitBody {
    /// The most tasks that start in all hosts together, like `5/s`.
    #[schema(pattern = "^[0-9]+/(s|m|h)$")]
    rate: Option<String>,
    /// The most attempts at once in each host.
    #[schema(minimum = 1)]
    concurrency: Option<u32>,
    /// The most tasks of one key at once, in all hosts together. For queues with `serial`.
    #[schema(minimum = 1)]
    per_key: Option<u32>,
    /// How long the limits hold, like `1h`. Without it: until they are cleared.
    #[serde(rename = "for")]
    #[schema(pattern = "^([0-9]+(d|h|m|s|ms))+$")]
    lasting: Option<String>,
    /// The reason, which everybody is shown who looks at the queue: 1 to 200 characters.
    #[schema(min_length = 1, max_length = 200)]
    why: String,
}

/// All queues, with how many tasks are in each place
#[utoipa::path(get, path = "/v1/queues", responses((status = 200, body = QueueList)))]
pub(super) async fn list_queues(State(api): State<Api>) -> Result<Json<QueueList>, ApiProblem> {
    let link = api.link().await?;
    let hosts = hosts::list_known(link).await?;
    let (queues, failed) = operations::counted(&api.queues(), link, &hosts, now_ms()).await?;
    Ok(Json(QueueList { queues, failed }))
}

/// One queue, with its hosts and consumers
#[utoipa::path(
    get, path = "/v1/queues/{queue}",
    params(("queue" = String, Path, description = "the queue's name in the configuration")),
    responses((status = 200, body = QueueView))
)]
pub(super) async fn get_queue(
    ApiCall { api, path: name, .. }: ApiCall<String>,
) -> Result<Json<QueueView>, ApiProblem> {
    let queue = api.queue(&name).await?;
    let hosts = hosts::list_known(&queue.link).await?;
    let census = queue.census().await?;
    Ok(Json(QueueView::new(&queue.rules, &census, &hosts, now_ms())))
}

/// The last minutes, day or week of a queue: what became of its tasks, in all hosts together
#[utoipa::path(
    get, path = "/v1/queues/{queue}/history",
    params(("queue" = String, Path, description = "the queue's name in the configuration"), HistoryQuery),
    responses((status = 200, body = HistoryView))
)]
pub(super) async fn queue_history(
    ApiCall { api, path: name, .. }: ApiCall<String>,
    QueryOf(query): QueryOf<HistoryQuery>,
) -> Result<Json<HistoryView>, ApiProblem> {
    let (range, minutes) = (query.range()?, query.minutes()?);
    let queue = api.queue(&name).await?;
    let history = match range {
        Some(range) => in_range(&queue, range).await?,
        None => history(&queue, minutes).await?,
    };
    let builds = known_builds(&hosts::list_known(&queue.link).await?);
    Ok(Json(HistoryView::of(&name, &history, &builds)))
}

/// Lets all hosts stop claiming tasks of a queue; what runs goes on
#[utoipa::path(
    post, path = "/v1/queues/{queue}/pause",
    params(("queue" = String, Path, description = "the queue's name in the configuration")),
    request_body(content = Option<PauseBody>), responses((status = 200, body = PausedView))
)]
pub(super) async fn pause_queue(
    ApiCall { api, path: name, caller }: ApiCall<String>,
    OptionalBody(body): OptionalBody<PauseBody>,
) -> ApiAnswer {
    let time = duration("for", body.time.as_deref())?;
    let paused = operations::pause(&api.queue(&name).await?, &caller.name, &body.why, time).await?;
    Ok(AuditNote::queue(&name).on(Json(paused)))
}

/// Lets all hosts claim tasks of a paused or held queue again
#[utoipa::path(
    post, path = "/v1/queues/{queue}/resume",
    params(("queue" = String, Path, description = "the queue's name in the configuration")),
    request_body(content = Option<ResumeBody>), responses((status = 200, body = PausedView))
)]
pub(super) async fn resume_queue(
    ApiCall { api, path: name, caller }: ApiCall<String>,
    OptionalBody(body): OptionalBody<ResumeBody>,
) -> ApiAnswer {
    let resumed = operations::resume(&api.queue(&name).await?, &caller.name, &body.why).await?;
    Ok(AuditNote::queue(&name).on(Json(resumed)))
}

/// Limits a queue in all hosts, in place of the limits before
///
/// Limits only lower what the configuration allows. Hosts obey within about two seconds, and what runs goes
/// on. At the end of their time the configuration alone holds again.
#[utoipa::path(
    put, path = "/v1/queues/{queue}/limits",
    params(("queue" = String, Path, description = "the queue's name in the configuration")),
    request_body = LimitBody, responses((status = 200, body = LimitView))
)]
pub(super) async fn set_limits(
    ApiCall { api, path: name, caller }: ApiCall<String>,
    JsonBody(body): JsonBody<LimitBody>,
) -> ApiAnswer {
    let LimitBody { rate, concurrency, per_key, lasting, why } = body;
    let lasting = duration("for", lasting.as_deref())?;
    let queue = api.queue(&name).await?;
    let by = caller.name.to_string();
    let limits = QueueLimits { rate, concurrency, per_key, by, why, ..QueueLimits::default() };
    let view = operations::limit(&queue, limits, lasting).await;
    Ok(AuditNote::queue(&name).on(view.map(Json).map_err(ApiProblem::from)))
}

/// Clears the limits of a queue: the configuration alone holds again
#[utoipa::path(
    delete, path = "/v1/queues/{queue}/limits",
    params(("queue" = String, Path, description = "the queue's name in the configuration")),
    responses((status = 200, body = LimitView))
)]
pub(super) async fn clear_limits(ApiCall { api, path: name, caller }: ApiCall<String>) -> ApiAnswer {
    let view = operations::clear_limits(&api.queue(&name).await?, &caller.name).await;
    Ok(AuditNote::queue(&name).on(view.map(Json).map_err(ApiProblem::from)))
}
