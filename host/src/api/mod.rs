//! The HTTP API below `/v1`: what `operations` offers, with JSON, for programs and the dashboard.
//!
//!     request ─▶ guard: who, from where, how many ─▶ endpoint ─▶ operations ─▶ queue ─▶ Redis
//!                  └ request id, audit, time limit        └ ApiProblem
//!
//! In: an [`Api`], which knows the queues of the configuration as it is now. Out: a router, and the OpenAPI
//! document, which is made from the same endpoints. The API has a connection to Redis of its own, so a long
//! answer never stands in front of a heartbeat.
//!
//! Not here: connections and health (`admin`), what is shown and done (`operations`), the rules of access
//! (`guard`). docs/api.md describes the API for its users.

mod body;
mod changes;
pub(crate) mod dead;
mod events;
mod extract;
pub(crate) mod guard;
mod incidents;
pub(crate) mod jobs;
mod many;
mod plugins;
mod problems;
mod queues;
mod state;
mod tasks;

use std::sync::Arc;

use axum::extract::DefaultBodyLimit;
use axum::routing::get;
use axum::{Json, Router, middleware};
use utoipa::OpenApi;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::admin::base_path::at;
use crate::admin::problem::{ApiProblem, ProblemBody, ProblemCode};
pub(crate) use body::reasons;
use state::MAX_BODY;
pub(crate) use state::{Api, ApiLimits, ApiParts};

#[derive(OpenApi)]
#[openapi(
    info(title = "tqhost", description = "Task queues: what they hold, and what can be done with it."),
    components(schemas(ProblemBody)),
    security(("token" = [])),
    servers((url = "/", description = "the address of [admin]"))
)]
struct Document;

/// Answers everything below `/v1/`.
pub(crate) fn router(api: Api) -> Router {
    let (router, mut document) = OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(queues::list_queues))
        .routes(routes!(queues::get_queue))
        .routes(routes!(queues::queue_history))
        .routes(routes!(queues::pause_queue))
        .routes(routes!(queues::resume_queue))
        .routes(routes!(queues::set_limits, queues::clear_limits))
        .routes(routes!(tasks::list_tasks, tasks::enqueue_task))
        .routes(routes!(tasks::group_tasks))
        .routes(routes!(tasks::get_task, tasks::cancel_task))
        .routes(routes!(tasks::retry_task))
        .routes(routes!(many::cancel_tasks))
        .routes(routes!(many::drain_queue))
        .routes(routes!(dead::list_dead))
        .routes(routes!(dead::group_dead))
        .routes(routes!(dead::export_dead))
        .routes(routes!(many::requeue_dead))
        .routes(routes!(many::purge_dead))
        .routes(routes!(changes::list_changes))
        .routes(routes!(jobs::start_job))
        .routes(routes!(jobs::list_jobs))
        .routes(routes!(jobs::get_job, jobs::stop_job))
        .routes(routes!(jobs::pause_job))
        .routes(routes!(jobs::resume_job))
        .routes(routes!(jobs::undo_job))
        .routes(routes!(jobs::job_file))
        .routes(routes!(incidents::list_incidents))
        .routes(routes!(incidents::acknowledge_incident))
        .routes(routes!(incidents::list_hosts))
        .routes(routes!(plugins::list_plugins))
        .routes(routes!(plugins::reload_plugin))
        .routes(routes!(plugins::roll_back_plugin))
        .routes(routes!(plugins::lift_plugin))
        .routes(routes!(events::task_events))
        .routes(routes!(events::queue_events))
        .routes(routes!(events::host_events))
        .split_for_parts();
    let scheme = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
    if let Some(components) = &mut document.components {
        components.security_schemes.insert("token".to_owned(), scheme.into());
    }
    if !api.0.tokens.are_set() {
        document.security = None;
    }
    for server in document.servers.iter_mut().flatten() {
        server.url = at("/");
    }
    problems::document(&mut document);
    let document = Arc::new(document);
    router
        .route("/v1/openapi.json", get(async move || Json(Arc::clone(&document).as_ref().clone())))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(api.clone(), guard::guard))
        .with_state(api)
}

async fn no_such_path() -> ApiProblem {
    ApiProblem::new(ProblemCode::NotFound, "there is no such path: /v1/openapi.json has all of them")
}

async fn no_such_method() -> ApiProblem {
    let detail = "this path does not take this method: /v1/openapi.json has those that it takes";
    ApiProblem::new(ProblemCode::MethodNotAllowed, detail)
}
