//! Endpoints: jobs, which are work on all tasks of a queue that match. Start, list, show, pause, stop, undo.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::body::ManyBody;
use super::dead::download;
use super::extract::{ApiAnswer, ApiCall, JsonBody};
use super::guard::{check_resume, role_of};
use super::state::Api;
use crate::admin::audit::AuditNote;
use crate::admin::base_path::at;
use crate::admin::problem::{ApiProblem, invalid};
use crate::admin::roles;
use crate::operations::jobs::{self, BulkJob, JobCount, JobState};
use crate::operations::{self, OperationResult};
use crate::queue::TaskFilter;

/// The jobs under way, and the last ones that are over.
#[derive(Serialize, ToSchema)]
pub(super) struct JobList {
    /// The newest first.
    jobs: Vec<BulkJob>,
}

/// Begins work on all tasks that match: cancel, drain, requeue, purge or export
///
/// Hosts carry it out, one at a time, in steps; `GET /v1/jobs/{id}` tells how far it is. Tasks that come
/// after the job began are left alone. With `dry_run`, one request counts for 10 seconds at most; `next` is
/// the cursor of the rest, and `begin` lets the job that follows be on exactly the tasks that were counted.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/jobs",
    params(("queue" = String, Path, description = "the queue's name in the configuration")),
    request_body = ManyBody,
    responses(
        (status = 202, description = "the job has begun", body = BulkJob),
        (status = 200, description = "how many tasks match", body = JobCount),
    )
)]
pub(super) async fn start_job(
    ApiCall { api, path: name, caller }: ApiCall<String>,
    JsonBody(body): JsonBody<ManyBody>,
) -> ApiAnswer {
    let deed = body.deed.ok_or_else(|| invalid("do: say cancel, drain, requeue, purge or export"))?;
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
    Ok(begun(&api, note, jobs::start(&queue.link, &queue, order).await))
}

fn begun(api: &Api, note: AuditNote, started: OperationResult<BulkJob>) -> Response {
    match started {
        Ok(job) => {
            api.parts().jobs.ring();
            let location = at(&format!("/v1/jobs/{}", job.id));
            note.on((StatusCode::ACCEPTED, [(LOCATION, location)], Json(job.shown())))
        }
        Err(error) => note.on(ApiProblem::from(error).into_response()),
    }
}

/// The jobs under way, and the last ones that are over
#[utoipa::path(get, path = "/v1/jobs", responses((status = 200, body = JobList)))]
pub(super) async fn list_jobs(State(api): State<Api>) -> Result<Json<JobList>, ApiProblem> {
    let all = jobs::list(api.link().await?).await?;
    Ok(Json(JobList { jobs: all.into_iter().map(BulkJob::shown).collect() }))
}

/// One job
#[utoipa::path(
    get, path = "/v1/jobs/{id}", params(("id" = String, Path, description = "the job's id")),
    responses((status = 200, body = BulkJob))
)]
pub(super) async fn get_job(
    ApiCall { api, path: id, .. }: ApiCall<String>,
) -> Result<Json<BulkJob>, ApiProblem> {
    Ok(Json(operations::with_kept(&api.queues(), api.link().await?, &id).await?.shown()))
}

/// Stops a job: what it has done stays, and it does no more
#[utoipa::path(
    delete, path = "/v1/jobs/{id}", params(("id" = String, Path, description = "the job's id")),
    responses((status = 200, body = BulkJob))
)]
pub(super) async fn stop_job(call: ApiCall<String>) -> ApiAnswer {
    change(call, JobState::Stopped).await
}

/// Pauses a job
#[utoipa::path(
    post, path = "/v1/jobs/{id}/pause", params(("id" = String, Path, description = "the job's id")),
    responses((status = 200, body = BulkJob))
)]
pub(super) async fn pause_job(call: ApiCall<String>) -> ApiAnswer {
    change(call, JobState::Paused).await
}

/// Lets a paused job go on
#[utoipa::path(
    post, path = "/v1/jobs/{id}/resume", params(("id" = String, Path, description = "the job's id")),
    responses((status = 200, body = BulkJob))
)]
pub(super) async fn resume_job(call: ApiCall<String>) -> ApiAnswer {
    check_resume(call.api.link().await?, &call.caller, &call.path).await?;
    change(call, JobState::Running).await
}

/// Brings back what a job has taken away, which it keeps for 24 hours
///
/// The tasks of a drain wait in their queue again, and the dead letters of a purge are there again. The
/// answer is the job that does it; if one is under way already, it is that one.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/undo", params(("id" = String, Path, description = "the job's id")),
    responses((status = 202, description = "the job that brings them back", body = BulkJob))
)]
pub(super) async fn undo_job(ApiCall { api, path: id, caller }: ApiCall<String>) -> ApiAnswer {
    let undone = operations::undo(&api.queues(), api.link().await?, &id, &caller.name, "").await;
    let note = undone.as_ref().map_or_else(|_| AuditNote::default(), |job| AuditNote::queue(&job.queue));
    Ok(begun(&api, note, undone))
}

/// The tasks that a job keeps, or has exported, as JSON lines, for `tqhost dead import`
///
/// Its last line is `{"tq-export": {"letters", "examined", "next"}}`, with how many there are in it. A file
/// without it is not whole. Where fields are hidden it says `"masked": true`, and cannot be imported.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/file", params(("id" = String, Path, description = "the job's id")),
    responses((
        status = 200,
        description = "a task on each line",
        body = String,
        content_type = "application/jsonl"
    ))
)]
pub(super) async fn job_file(ApiCall { api, path: id, .. }: ApiCall<String>) -> ApiAnswer {
    file(&api, &id).await
}

pub(crate) async fn file(api: &Api, id: &str) -> ApiAnswer {
    let job = jobs::find(api.link().await?, id).await?;
    let (kept, letters) = operations::kept_of(&api.queue(&job.queue).await?, &job).await?;
    let filter = TaskFilter { mask: api.mask().clone(), ..TaskFilter::default() };
    let lines = operations::export(kept, filter, None, Some(letters), api.stream_place()?)?;
    Ok(download(lines, &format!("{}-job-{id}", job.queue)))
}

async fn change(call: ApiCall<String>, state: JobState) -> ApiAnswer {
    let ApiCall { api, path: id, caller } = call;
    let changed = jobs::change(api.link().await?, &id, state, &caller.name).await;
    Ok(match changed {
        Ok(job) => {
            api.parts().jobs.ring();
            let note = AuditNote::queue(&job.queue).with_counts(job.done, job.skipped);
            note.on(Json(job.shown()))
        }
        Err(error) => AuditNote::default().on(ApiProblem::from(error).into_response()),
    })
}
