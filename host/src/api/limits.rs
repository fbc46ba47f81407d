//! Endpoints: the limits of a queue that hold while its hosts run. Set, clear.

use axum::Json;
use serde::Deserialize;
use utoipa::ToSchema;

use super::body::age;
use super::extract::{ApiAnswer, ApiCall, JsonBody};
use super::plugins::operator;
use crate::admin::audit::AuditNote;
use crate::admin::problem::ApiProblem;
use crate::operations::{self, LimitView};
use crate::queue::limits::QueueLimits;

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
    let lasting = age("for", lasting.as_deref())?;
    let queue = api.queue(&name).await?;
    let by = operator(caller);
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
    let view = operations::clear_limits(&api.queue(&name).await?, &operator(caller)).await;
    Ok(AuditNote::queue(&name).on(view.map(Json).map_err(ApiProblem::from)))
}
