//! Endpoints: jobs, which are work on all tasks of a queue that match. Start, list, show, pause, stop.

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use serde::Serialize;
use utoipa::ToSchema;

use super::body::{ManyBody, invalid};
use super::extract::{JsonBody, PathOf};
use super::guard::{check_resume, role_of};
use super::plugins::operator;
use super::state::Api;
use crate::admin::audit::AuditNote;
use crate::admin::base_path::at;
use crate::admin::problem::ApiProblem;
use crate::admin::roles;
use crate::admin::tokens::Caller;
use crate::operations::jobs::{self, BulkJob, JobCount, JobState};

/// The jobs under way, and the last ones that are over.
#[derive(Serialize, ToSchema)]
pub(super) struct JobList {
    /// The newest first.
    jobs: Vec<BulkJob>,
}

/// Begins work on all tasks that match: cancel, drain, requeue or purge
///
/// Hosts carry it out, one at a time, in steps; `GET /v1/jobs/{id}` tells how far it is. Tasks that come
/// after the job began are left alone. With `dry_run`, one request counts for 10 seconds at most; `next` is
/// the cursor of the rest, and `begin` lets the job that follows be on exactly the tasks that were counted.
#[utoipa::path(
    post,
    path = "/v1/queues/{queue}/jobs",
    params(("queue" = String, Path, description = "the queue's name in the configuration")),
    request_body = ManyBody,
    responses(
        (status = 202, description = "the job has begun", body = BulkJob),
        (status = 200, description = "how many tasks match", body = JobCount),
    )
)]
pub(super) async fn start_job(
    State(api): State<Api>,
    PathOf(name): PathOf<String>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<ManyBody>,
) -> Result<Response, ApiProblem> {
    let deed = body.deed.ok_or_else(|| invalid("do: say cancel, drain, requeue or purge"))?;
    if body.ids.is_some() {
        return Err(invalid("ids: a job is on all that match: name tasks where the path says what is done"));
    }
    roles::check(&caller, role_of(deed), "this job")?;
    let order = body.order(deed, &caller, api.mask())?;
    if body.cursor.is_some() && (body.begin.is_none() || !body.dry_run) {
        return Err(invalid("cursor: it goes with dry_run and with begin, as the count before gave them"));
    }
    let queue = api.queue(&name).await?;
    let note = AuditNote { dry_run: body.dry_run, ..AuditNote::queue(&name).with_filter(&body) };
    if body.dry_run {
        let counted = jobs::count(&queue, &order, body.cursor.as_deref()).await;
        return Ok(note.on(counted.map(Json).map_err(ApiProblem::from)));
    }
    let started = jobs::start(&queue.link, &queue, order).await;
    Ok(match started {
        Ok(job) => {
            api.parts().jobs.ring();
            let location = at(&format!("/v1/jobs/{}", job.id));
            note.on((StatusCode::ACCEPTED, [(LOCATION, location)], Json(job.shown())))
        }
        Err(error) => note.on(ApiProblem::from(error).into_response()),
    })
}

/// The jobs under way, and the last ones that are over
#[utoipa::path(get, path = "/v1/jobs", responses((status = 200, body = JobList)))]
pub(super) async fn list_jobs(State(api): State<Api>) -> Result<Json<JobList>, ApiProblem> {
    let all = jobs::list(api.link().await?).await?;
    Ok(Json(JobList { jobs: all.into_iter().map(BulkJob::shown).collect() }))
}

/// One job
#[utoipa::path(
    get,
    path = "/v1/jobs/{id}",
    params(("id" = String, Path, description = "the job's id")),
    responses((status = 200, body = BulkJob))
)]
pub(super) async fn get_job(
    State(api): State<Api>,
    PathOf(id): PathOf<String>,
) -> Result<Json<BulkJob>, ApiProblem> {
    Ok(Json(jobs::find(api.link().await?, &id).await?.shown()))
}

/// Stops a job: what it has done stays, and it does no more
#[utoipa::path(
    delete,
    path = "/v1/jobs/{id}",
    params(("id" = String, Path, description = "the job's id")),
    responses((status = 200, body = BulkJob))
)]
pub(super) async fn stop_job(
    State(api): State<Api>,
    PathOf(id): PathOf<String>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, ApiProblem> {
    change(&api, &id, caller, JobState::Stopped).await
}

/// Pauses a job
#[utoipa::path(
    post,
    path = "/v1/jobs/{id}/pause",
    params(("id" = String, Path, description = "the job's id")),
    responses((status = 200, body = BulkJob))
)]
pub(super) async fn pause_job(
    State(api): State<Api>,
    PathOf(id): PathOf<String>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, ApiProblem> {
    change(&api, &id, caller, JobState::Paused).await
}

/// Lets a paused job go on
#[utoipa::path(
    post,
    path = "/v1/jobs/{id}/resume",
    params(("id" = String, Path, description = "the job's id")),
    responses((status = 200, body = BulkJob))
)]
pub(super) async fn resume_job(
    State(api): State<Api>,
    PathOf(id): PathOf<String>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, ApiProblem> {
    check_resume(api.link().await?, &caller, &id).await?;
    change(&api, &id, caller, JobState::Running).await
}

async fn change(api: &Api, id: &str, caller: Caller, state: JobState) -> Result<Response, ApiProblem> {
    let changed = jobs::change(api.link().await?, id, state, &operator(caller)).await;
    Ok(match changed {
        Ok(job) => {
            api.parts().jobs.ring();
            let note = AuditNote::queue(&job.queue).with_counts(job.done, job.skipped);
            note.on(Json(job.shown()))
        }
        Err(error) => AuditNote::default().on(ApiProblem::from(error).into_response()),
    })
}
