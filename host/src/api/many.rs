//! Endpoints: cancel, drain, requeue and purge of many tasks. Tasks that are named are done at once. All
//! tasks that match are a job, and the request waits for its end.
//!
//! Not here: what a body may say (`body`), jobs for which nobody waits (`jobs`), the work (`operations`).

use std::time::Duration;

use axum::Json;

use super::body::ManyBody;
use super::extract::{ApiAnswer, ApiCall, JsonBody};
use super::state::Api;
use crate::admin::audit::AuditNote;
use crate::admin::problem::ApiProblem;
use crate::config::rules::Rate;
use crate::config::units::parse_rate;
use crate::operations::jobs::{self, Deed, JobOrder};
use crate::operations::{AwaitedJob, ManyDone, OperationError, OperationResult, act_on_named};
use crate::queue::Queue;

/// For how long one request requeues tasks that are named, at a rate.
const IDS_TIME: Duration = Duration::from_secs(10);

/// Cancels many tasks: those with these ids, or all that match
///
/// All that match are a job, for whose end one request waits 10 seconds; with `next` as its cursor the next
/// request waits on. Each answer has what was done since the one before.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/tasks/cancel",
    params(("queue" = String, Path, description = "the queue's name in the configuration")),
    request_body = ManyBody, responses((status = 200, body = ManyDone))
)]
pub(super) async fn cancel_tasks(call: ApiCall<String>, JsonBody(body): JsonBody<ManyBody>) -> ApiAnswer {
    change(&call, Deed::Cancel, &body).await
}

/// Cancels all tasks that wait: queued, delayed and held. Running tasks go on
///
/// The body has `"all": true`, and filters if you like; it waits as `tasks/cancel` does. A task that a host
/// takes meanwhile is skipped.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/drain",
    params(("queue" = String, Path, description = "the queue's name in the configuration")),
    request_body = ManyBody, responses((status = 200, body = ManyDone))
)]
pub(super) async fn drain_queue(call: ApiCall<String>, JsonBody(body): JsonBody<ManyBody>) -> ApiAnswer {
    change(&call, Deed::Drain, &body).await
}

/// Brings dead letters back into the queue, as tasks on their first attempt
///
/// It waits for all that match as `tasks/cancel` does. Tasks that die meanwhile are left out. At a slow rate
/// `wait_ms` says when more will be done.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/dead/requeue",
    params(("queue" = String, Path, description = "the queue's name in the configuration")),
    request_body = ManyBody, responses((status = 200, body = ManyDone))
)]
pub(super) async fn requeue_dead(call: ApiCall<String>, JsonBody(body): JsonBody<ManyBody>) -> ApiAnswer {
    change(&call, Deed::Requeue, &body).await
}

/// Deletes dead letters
///
/// A purge of all that match keeps them for a day, for an undo, unless `keep` is false. A purge of ids keeps
/// nothing.
/// It waits for all that match as `tasks/cancel` does.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/dead/purge",
    params(("queue" = String, Path, description = "the queue's name in the configuration")),
    request_body = ManyBody, responses((status = 200, body = ManyDone))
)]
pub(super) async fn purge_dead(call: ApiCall<String>, JsonBody(body): JsonBody<ManyBody>) -> ApiAnswer {
    change(&call, Deed::Purge, &body).await
}

async fn change(call: &ApiCall<String>, deed: Deed, body: &ManyBody) -> ApiAnswer {
    let ApiCall { api, path: name, caller } = call;
    let (ids, order) = (body.chosen(deed)?, body.order(deed, caller, api.mask())?);
    let queue = api.queue(name).await?;
    let note = AuditNote { dry_run: body.dry_run, ..AuditNote::queue(name) };
    let (note, done) = match ids {
        Some(ids) => (AuditNote { ids: ids.to_vec(), ..note }, of_ids(api, &queue, &order, ids, body).await),
        None => (note.with_filter(body), of_all(api, &queue, order, body).await),
    };
    Ok(match done {
        Ok(done) => note.with_counts(done.succeeded, done.skipped).on(Json(done)),
        Err(error) => note.on(ApiProblem::from(error)),
    })
}

async fn of_ids(
    api: &Api,
    queue: &Queue,
    order: &JobOrder,
    ids: &[String],
    body: &ManyBody,
) -> OperationResult<ManyDone> {
    let rate = order.rate.as_deref().and_then(|rate| parse_rate(rate).ok());
    let takes = |rate: Rate| rate.per.mul_f64((ids.len() - 1) as f64 / f64::from(rate.count));
    if rate.is_some_and(|rate| takes(rate) > IDS_TIME) {
        let why = "rate: these ids take more than 10 s: send fewer at once, or all: true with filters";
        return Err(OperationError::Invalid(why.into()));
    }
    let work = (order.deed, rate);
    act_on_named(&api.queues(), queue, ids, work, body.dry_run, body.cursor.as_deref()).await
}

/// Begins a job and waits for it, waits for one that a request before began, or only counts.
async fn of_all(api: &Api, queue: &Queue, order: JobOrder, body: &ManyBody) -> OperationResult<ManyDone> {
    let (cursor, deed, who) = (body.cursor.as_deref(), order.deed, order.who.clone());
    if body.dry_run {
        return Ok(jobs::count(queue, &order, cursor).await?.into());
    }
    let job = match cursor {
        Some(cursor) => AwaitedJob::read(cursor)?,
        None => AwaitedJob::new(jobs::start(&queue.link, queue, order).await?.id),
    };
    api.parts().jobs.ring();
    job.wait(&queue.link, (queue, deed), &who).await
}
