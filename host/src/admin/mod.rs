//! The admin server.
//!
//!     GET /livez    200 "ok" as long as the runtime answers
//!     GET /readyz   200 or 503, with the report of `health` as JSON. Where tokens are set, a client without
//!                   one is not shown the queues
//!     GET /metrics  a scrape of the metrics as OpenMetrics text. Where tokens are set, 401 without one
//!     /v1/…         the HTTP API, once the host has made it; 503 before
//!     /, /queues/…  the dashboard, once the host has made it; 503 before
//!     else          404
//!
//! All of this is also below `base_path`, for a proxy that shows the host below a path.
//!
//! In: a bound listener, the [`AdminState`], a token that stops the server. Out: answers over HTTP; errors
//! are `application/problem+json`. Without tokens, everything but `/livez` answers only requests to a
//! loopback name (`request`): a page of another site can give a name of its own this host's address, and
//! would read it then.
//!
//! Not here: what is in a scrape (`metrics`), the API (`api`), the loops that beat (`worker`), limits on
//! connections (`listener`).

pub(crate) mod audit;
pub(crate) mod base_path;
pub(crate) mod health;
mod listener;
pub(crate) mod problem;
mod pulse;
mod refused;
pub(crate) mod request;
pub(crate) mod roles;
pub(crate) mod tokens;

use std::future::IntoFuture;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::HttpBody as _;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router, middleware};
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower_service::Service;

pub(crate) use health::Health;
use listener::ClientPlace;
pub(crate) use listener::bind;
use problem::{ApiProblem, ProblemCode};
pub(crate) use pulse::{FetchPulse, FetchState};
pub(crate) use refused::RefusedTokens;
use request::{REQUEST_ID, is_change, known_host, request_id};
use tokens::{Caller, Tokens};

/// How long the answers that have begun may take after `stop`.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(5);

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The state that the endpoints show.
#[derive(Clone)]
pub(crate) struct AdminState {
    /// Empty until the host has made the parts that count something. To encode it must not block.
    pub metrics: Arc<OnceLock<Registry>>,
    pub health: Health,
    /// The bearer tokens. Each of them opens `/metrics`.
    pub tokens: Tokens,
    pub refused: RefusedTokens,
    /// The address of the listener.
    pub listen: SocketAddr,
    /// The HTTP API. Empty until the host has made the parts that it acts on.
    pub api: Arc<OnceLock<Router>>,
    /// The dashboard. Empty for as long as the API is.
    pub pages: Arc<OnceLock<Router>>,
}

/// Answers until `stop`. After that it takes no new connections, and waits up to 5 seconds for the answers
/// that have begun.
pub(crate) async fn serve(listener: TcpListener, state: AdminState, stop: CancellationToken) {
    serve_limited(listener::Limited::new(listener), state, stop).await;
}

async fn serve_limited(listener: listener::Limited, state: AdminState, stop: CancellationToken) {
    let service = below_base(routes(state)).into_make_service_with_connect_info::<ClientPlace>();
    let server = axum::serve(listener, service).with_graceful_shutdown(stop.clone().cancelled_owned());
    tokio::select! {
        _ = server.into_future() => {}
        () = async { stop.cancelled().await; tokio::time::sleep(SHUTDOWN_WAIT).await } => {
            tracing::debug!("admin connections were still open at the end");
        }
    }
}

fn routes(state: AdminState) -> Router {
    Router::new()
        .route("/livez", get(async || "ok"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(scrape))
        .fallback(others)
        .method_not_allowed_fallback(no_such_method)
        .layer(middleware::from_fn_with_state(state.clone(), front))
        .with_state(state)
}

/// Answers below the base path, too. A path without it comes from a probe, or through a proxy that removes
/// it.
fn below_base(routes: Router) -> Router {
    Router::new().fallback(move |mut request: Request| {
        base_path::strip(base_path::get(), request.uri_mut());
        // A router is always ready, and has no error.
        routes.clone().call(request)
    })
}

/// The user that a trusted proxy names, or why the name is refused. The dashboard finds this in a request.
#[derive(Debug, Clone)]
pub(crate) struct ProxiedUser(pub Result<Option<Caller>, ApiProblem>);

/// Does what every request needs: keeps its connection while it is answered, notes a wrong token, and sets
/// the headers of the answer.
async fn front(
    State(state): State<AdminState>,
    ConnectInfo(place): ConnectInfo<ClientPlace>,
    mut request: Request,
    next: Next,
) -> Response {
    let answering = place.answers(!request.body().is_end_stream());
    let user = state.tokens.proxied(place.peer(), request.headers());
    request.extensions_mut().insert(ProxiedUser(user));
    let is_login = request.method() == Method::POST && request.uri().path() == "/login";
    let headers = request.headers();
    let has_wrong_token = headers.contains_key(AUTHORIZATION) && state.tokens.caller(headers).is_none();
    let mut response = next.run(request).await;
    let is_refused = response.extensions().get() == Some(&ProblemCode::Unauthorized);
    if is_refused && (has_wrong_token || is_login) {
        state.refused.note(place.peer()).await;
    }
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response.map(|body| answering.with(body))
}

/// Refuses a request without the token that it needs, or with a `Host` that is none of this machine.
fn admit(state: &AdminState, headers: &HeaderMap) -> Result<(), ApiProblem> {
    known_host(&state.tokens, headers, state.listen)?;
    if state.tokens.caller(headers).is_some() {
        return Ok(());
    }
    let detail = "this endpoint asks for a token of [admin]: Authorization: Bearer …";
    Err(ApiProblem::new(ProblemCode::Unauthorized, detail))
}

async fn readyz(State(state): State<AdminState>, headers: HeaderMap) -> Response {
    let report = state.health.report();
    let status = if report.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    match admit(&state, &headers) {
        Ok(()) => (status, Json(report)).into_response(),
        // A probe has no token, and needs no names of queues and no addresses.
        Err(problem) if problem.code == ProblemCode::Unauthorized && !headers.contains_key(AUTHORIZATION) => {
            (status, Json(json!({ "ready": report.ready }))).into_response()
        }
        Err(problem) => problem.into_response(),
    }
}

async fn scrape(State(state): State<AdminState>, headers: HeaderMap) -> Result<Response, ApiProblem> {
    admit(&state, &headers)?;
    let mut body = String::new();
    let written = match state.metrics.get() {
        Some(metrics) => text::encode(&mut body, metrics),
        None => text::encode_eof(&mut body),
    };
    if written.is_err() {
        // A scraper refuses a text without the closing `# EOF`.
        tracing::error!("the metrics could not be written as text");
    }
    Ok(([(CONTENT_TYPE, OPENMETRICS)], body).into_response())
}

/// The first parts of the paths of the dashboard.
const PAGES: [&str; 13] = [
    "",
    "queues",
    "jobs",
    "changes",
    "search",
    "plugins",
    "login",
    "logout",
    "dashboard.css",
    "dashboard.js",
    "hosts",
    "incidents",
    "favicon.svg",
];

/// Whether a path belongs to the dashboard.
pub(crate) fn is_page(path: &str) -> bool {
    let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    PAGES.contains(&first)
}

/// Sends all other requests to the API or to the dashboard.
async fn others(State(state): State<AdminState>, request: Request) -> Response {
    let path = request.uri().path();
    let router = match path {
        _ if path.starts_with("/v1/") => &state.api,
        _ if is_page(path) => &state.pages,
        _ => return nothing_here(),
    };
    match router.get() {
        // A router is always ready, and has no error.
        Some(router) => router.clone().call(request).await.into_response(),
        None => starting(&state, &request),
    }
}

fn nothing_here() -> Response {
    let at = base_path::at;
    let base = match base_path::get() {
        "" => "base_path of [admin] is not set: set it where a proxy shows the host below a path".to_owned(),
        base => format!("base_path of [admin] is {base}"),
    };
    let detail = format!(
        "there are GET {}, GET {}, GET {}, the API below {}, and the dashboard at {}; {base}",
        at("/livez"),
        at("/readyz"),
        at("/metrics"),
        at("/v1/"),
        at("/")
    );
    ApiProblem::new(ProblemCode::NotFound, detail).into_response()
}

/// The answer for the API and the dashboard until the host has made them. As theirs, it has the id of the
/// request, and a change has a line in the audit.
fn starting(state: &AdminState, request: &Request) -> Response {
    let detail = "the host is starting, or Redis is away: see /readyz";
    let mut response = ApiProblem::new(ProblemCode::Starting, detail).into_response();
    let (method, id) = (request.method(), request_id(request.headers()));
    if is_change(method) {
        let who = state.tokens.caller(request.headers()).unwrap_or_else(Caller::nobody).name;
        audit::write(&who, method, request.uri().path(), &id, &response);
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID.clone(), id);
    }
    response
}

async fn no_such_method() -> ApiProblem {
    ApiProblem::new(ProblemCode::MethodNotAllowed, "this path is only read: send a GET request")
}

#[cfg(test)]
mod tests;
