//! The dashboard: pages for people, at the admin address.
//!
//!     request ─▶ guard: session, origin, form token ─▶ page ─▶ operations ─▶ queue ─▶ Redis
//!
//! In: the parts of the HTTP API, whose functions, connection and limits it shares. Out: a router that gives
//! HTML. Every page reads and acts without JavaScript; the script only puts in place what has changed, from a
//! stream of the same page (`live`).
//!
//!     GET  /                                overview, with incidents
//!     GET  /hosts                           hosts that run, and those that ended without a word
//!     GET  /queues/{q}                      a queue: figures, tasks by state, hosts
//!     GET  /queues/{q}/drain                how many tasks a drain is for
//!     GET  /queues/{q}/tasks/{id}           a task
//!     GET  /queues/{q}/chosen               rows that somebody has chosen
//!     GET  /queues/{q}/dead                 dead letters, in groups and as a list
//!     GET  /queues/{q}/dead/confirm         how many a requeue, purge or export is for
//!     GET  /queues/{q}/dead/export          JSON lines
//!     GET  /jobs                            work on all tasks that match
//!     GET  /jobs/{id}                       how far a job is
//!     GET  /jobs/{id}/file                  JSON lines of what it keeps
//!     GET  /plugins                         states, versions and failures of all plugins
//!     GET  /plugins/{p}                     a plugin: its versions, hosts, grants and changes
//!     GET  /plugins/{p}/rollback, …/lift    which version stops, and which one starts
//!     GET  /login  POST /login, /logout     a session for a token
//!     POST …                                the changes: see `router`
//!
//! Not here: what is shown and done (`operations`), the API for programs (`api`).

mod act;
mod changes;
mod chart;
mod chosen;
mod confirm;
mod dead;
mod enqueue;
mod flow;
mod guard;
mod hosts;
mod incidents;
mod jobs;
mod layout;
mod limits;
mod list;
mod live;
mod login;
mod orders;
mod overview;
mod plugin;
mod plugins;
mod problem;
mod queue;
mod queue_history;
mod search;
mod session;
mod state;
mod strays;
mod table;
mod task;
mod text;
mod timeline;
mod values;

use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Router, middleware};

use crate::admin::problem::{ApiProblem, ProblemCode};
use crate::operations::jobs::Deed::{Cancel, Drain, Export, Purge, Requeue};
use crate::operations::jobs::JobState;
use problem::PageProblem;
pub(crate) use state::Dashboard;

/// Answers the paths of [`crate::admin::is_page`].
pub(crate) fn router(dashboard: Dashboard) -> Router {
    Router::new()
        .route("/", get(overview::show))
        .route("/hosts", get(hosts::show))
        .route("/incidents/{id}/acknowledge", post(incidents::acknowledge))
        .route("/plugins", get(plugins::show))
        .route("/plugins/{plugin}", get(plugin::show))
        .route("/plugins/{plugin}/reload", post(orders::reload))
        .route("/plugins/{plugin}/rollback", get(orders::confirm_rollback).post(orders::roll_back))
        .route("/plugins/{plugin}/lift", get(orders::confirm_lift).post(orders::lift_quarantine))
        .route("/queues/{queue}", get(queue::show))
        .route("/queues/{queue}/pause", post(queue::pause))
        .route("/queues/{queue}/resume", post(queue::resume))
        .route("/queues/{queue}/limits", post(limits::limit))
        .route("/queues/{queue}/limits/clear", post(limits::clear))
        .route("/queues/{queue}/drain", get(|call, q| act::ask(call, q, Drain)))
        .route("/queues/{queue}/drain", post(|call, q| act::start(call, q, Drain)))
        .route("/queues/{queue}/tasks", post(enqueue::enqueue))
        .route("/queues/{queue}/tasks/{id}", get(task::show))
        .route("/queues/{queue}/tasks/{id}/cancel", post(task::cancel))
        .route("/queues/{queue}/tasks/{id}/retry", post(task::retry))
        .route("/queues/{queue}/tasks/{id}/requeue", post(task::requeue))
        .route("/queues/{queue}/chosen", get(chosen::confirm))
        .route("/queues/{queue}/chosen/cancel", post(|call, q| chosen::act(call, q, Cancel)))
        .route("/queues/{queue}/chosen/requeue", post(|call, q| chosen::act(call, q, Requeue)))
        .route("/queues/{queue}/chosen/purge", post(|call, q| chosen::act(call, q, Purge)))
        .route("/queues/{queue}/dead", get(dead::show))
        .route("/queues/{queue}/dead/confirm", get(act::confirm))
        .route("/queues/{queue}/dead/export", get(dead::export))
        .route("/queues/{queue}/dead/export", post(|call, q| act::start(call, q, Export)))
        .route("/queues/{queue}/dead/requeue", post(|call, q| act::start(call, q, Requeue)))
        .route("/queues/{queue}/dead/purge", post(|call, q| act::start(call, q, Purge)))
        .route("/changes", get(changes::show))
        .route("/search", get(search::show))
        .route("/jobs", get(jobs::list))
        .route("/jobs/{id}", get(jobs::show))
        .route("/jobs/{id}/pause", post(|call, id| jobs::change(call, id, JobState::Paused)))
        .route("/jobs/{id}/resume", post(|call, id| jobs::change(call, id, JobState::Running)))
        .route("/jobs/{id}/file", get(jobs::file))
        .route("/jobs/{id}/undo", post(jobs::undo))
        .route("/jobs/{id}/stop", post(|call, id| jobs::change(call, id, JobState::Stopped)))
        .route("/login", get(login::show).post(login::login))
        .route("/logout", post(login::logout))
        .route("/dashboard.css", get(async || asset("text/css", include_str!("dashboard.css"))))
        .route("/dashboard.js", get(async || asset("text/javascript", include_str!("dashboard.js"))))
        .route("/favicon.svg", get(async || asset("image/svg+xml", include_str!("favicon.svg"))))
        .fallback(no_such_page)
        .method_not_allowed_fallback(no_such_method)
        .layer(middleware::from_fn_with_state(dashboard.clone(), guard::guard))
        .with_state(dashboard)
}

fn asset(kind: &'static str, text: &'static str) -> impl IntoResponse {
    ([(CONTENT_TYPE, format!("{kind}; charset=utf-8")), (CACHE_CONTROL, "no-cache".to_owned())], text)
}

async fn no_such_page() -> PageProblem {
    ApiProblem::new(ProblemCode::NotFound, "there is no such page").into()
}

async fn no_such_method() -> PageProblem {
    ApiProblem::new(ProblemCode::MethodNotAllowed, "this page does not take this method").into()
}
