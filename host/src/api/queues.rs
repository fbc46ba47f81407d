//! Endpoints: queues and their history, pause and resume.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::body::HistoryQuery;
use super::extract::{PathOf, QueryOf};
use super::state::Api;
use crate::admin::audit::AuditNote;
use crate::admin::problem::ApiProblem;
use crate::clock::now_ms;
use crate::operations::history::{HistoryView, history};
use crate::operations::{self, QueueView};
use crate::queue::hosts;

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
    get,
    path = "/v1/queues/{queue}",
    params(("queue" = String, Path, description = "the queue's name in the configuration")),
    responses((status = 200, body = QueueView))
)]
pub(super) async fn get_queue(
    State(api): State<Api>,
    PathOf(name): PathOf<String>,
) -> Result<Json<QueueView>, ApiProblem> {
    let queue = api.queue(&name).await?;
    let hosts = hosts::list_known(&queue.link).await?;
    let census = queue.census().await?;
    Ok(Json(QueueView::new(&queue.rules, &census, &hosts, now_ms())))
}

/// The last minutes of a queue: what became of its tasks, in all hosts together
#[utoipa::path(
    get,
    path = "/v1/queues/{queue}/history",
    params(("queue" = String, Path, description = "the queue's name in the configuration"), HistoryQuery),
    responses((status = 200, body = HistoryView))
)]
pub(super) async fn queue_history(
    State(api): State<Api>,
    PathOf(name): PathOf<String>,
    QueryOf(query): QueryOf<HistoryQuery>,
) -> Result<Json<HistoryView>, ApiProblem> {
    let minutes = query.minutes()?;
    let queue = api.queue(&name).await?;
    Ok(Json(HistoryView::of(&name, &history(&queue, minutes).await?)))
}

/// Lets all hosts stop claiming tasks of a queue; what runs goes on
#[utoipa::path(
    post,
    path = "/v1/queues/{queue}/pause",
    params(("queue" = String, Path, description = "the queue's name in the configuration")),
    responses((status = 200, body = PausedView))
)]
pub(super) async fn pause_queue(
    State(api): State<Api>,
    PathOf(name): PathOf<String>,
) -> Result<Response, ApiProblem> {
    set_paused(&api, name, true).await
}

/// Lets all hosts claim tasks of a paused or held queue again
#[utoipa::path(
    post,
    path = "/v1/queues/{queue}/resume",
    params(("queue" = String, Path, description = "the queue's name in the configuration")),
    responses((status = 200, body = PausedView))
)]
pub(super) async fn resume_queue(
    State(api): State<Api>,
    PathOf(name): PathOf<String>,
) -> Result<Response, ApiProblem> {
    set_paused(&api, name, false).await
}

async fn set_paused(api: &Api, name: String, paused: bool) -> Result<Response, ApiProblem> {
    let queue = api.queue(&name).await?;
    let changed = if paused { queue.pause().await } else { queue.resume().await }?;
    Ok(AuditNote::queue(&name).on(Json(PausedView { queue: name, paused, changed })))
}
