//! Endpoints: queues and their history, pause and resume.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::body::{HistoryQuery, invalid};
use super::extract::{ApiAnswer, ApiCall, OptionalBody, QueryOf};
use super::plugins::operator;
use super::state::Api;
use crate::admin::audit::AuditNote;
use crate::admin::problem::ApiProblem;
use crate::clock::now_ms;
use crate::config::units::parse_duration;
use crate::operations::history::{HistoryView, history, in_range};
use crate::operations::{self, OperationResult, Pausing, QueueView, known_builds, pause, resume};
use crate::queue::{Queue, hosts};

/// All queues of the configuration.
#[derive(Serialize, ToSchema)]
pub(super) struct QueueList {
    queues: Vec<QueueView>,
    /// The queues that cannot be counted.
    failed: Vec<UncountedQueue>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct UncountedQueue {
    queue: String,
    error: String,
}

/// A queue that was paused or resumed.
#[derive(Serialize, ToSchema)]
pub(super) struct PausedView {
    queue: String,
    paused: bool,
    /// False: it was so before.
    changed: bool,
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

/// All queues, with how many tasks are in each place
#[utoipa::path(get, path = "/v1/queues", responses((status = 200, body = QueueList)))]
pub(super) async fn list_queues(State(api): State<Api>) -> Result<Json<QueueList>, ApiProblem> {
    let link = api.link().await?;
    let hosts = hosts::list_known(link).await?;
    let (queues, failed) = operations::counted(&api.queues(), link, &hosts, now_ms()).await?;
    let failed = failed.into_iter().map(|(queue, error)| UncountedQueue { queue, error }).collect();
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
    let time = body.time.as_deref().map(parse_duration).transpose();
    let time = time.map_err(|why| invalid(format!("for: {why}")))?;
    let order = Pausing { who: operator(caller), why: body.why, time };
    set_paused(&api, name, true, async |queue| pause(queue, &order).await).await
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
    let who = operator(caller);
    set_paused(&api, name, false, async |queue| resume(queue, &who, &body.why).await).await
}

async fn set_paused(
    api: &Api,
    name: String,
    paused: bool,
    act: impl AsyncFnOnce(&Queue) -> OperationResult<bool>,
) -> ApiAnswer {
    let queue = api.queue(&name).await?;
    let changed = act(&queue).await?;
    Ok(AuditNote::queue(&name).on(Json(PausedView { queue: name, paused, changed })))
}
