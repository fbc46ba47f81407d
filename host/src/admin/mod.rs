//! The admin server.
//!
//!     GET /livez    200 "ok" as long as the runtime answers
//!     GET /readyz   200 or 503, with the report of `health` as JSON
//!     GET /metrics  a scrape of the metrics as OpenMetrics text; 401 without the bearer token, if one is set
//!     else          404
//!
//! Errors are `application/problem+json`. In: a bound listener, the [`AdminState`], a token that stops the
//! server. Out: answers over HTTP.
//!
//! Not here: what is in a scrape (`metrics`), the loops that beat (`worker`), limits on connections
//! (`listener`).

pub(crate) mod health;
mod listener;

use std::future::IntoFuture;
use std::hint::black_box;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::extract::State;
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use serde::Serialize;
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::config::Secret;
pub(crate) use health::{FetchPulse, FetchState, Health};
pub(crate) use listener::bind;

/// How long the answers that have begun may take after `stop`.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(5);

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The state that the endpoints show.
#[derive(Clone)]
pub(crate) struct AdminState {
    /// Empty until the host has made the parts that have figures. A scrape of it must not block.
    pub metrics: Arc<OnceLock<Registry>>,
    pub health: Health,
    /// The bearer token that `/metrics` asks for.
    pub token: Option<Secret>,
}

/// Answers until `stop`. After that it takes no new connections, and waits up to 5 seconds for the answers
/// that have begun.
pub(crate) async fn serve(listener: TcpListener, state: AdminState, stop: CancellationToken) {
    serve_limited(listener::Limited::new(listener), state, stop).await;
}

async fn serve_limited(listener: listener::Limited, state: AdminState, stop: CancellationToken) {
    let server = axum::serve(listener, routes(state)).with_graceful_shutdown(stop.clone().cancelled_owned());
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
        .fallback(not_found)
        .method_not_allowed_fallback(not_found)
        .with_state(state)
}

async fn readyz(State(state): State<AdminState>) -> Response {
    let report = state.health.report();
    let status = if report.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, [(CACHE_CONTROL, "no-store")], Json(report)).into_response()
}

async fn scrape(State(state): State<AdminState>, headers: HeaderMap) -> Response {
    if let Some(token) = &state.token
        && !bearer(&headers).is_some_and(|given| same(given, token.expose().as_bytes()))
    {
        let detail = "this endpoint asks for the token of [admin]: Authorization: Bearer …";
        return ([(WWW_AUTHENTICATE, "Bearer")], problem(StatusCode::UNAUTHORIZED, detail)).into_response();
    }
    let mut body = String::new();
    let written = match state.metrics.get() {
        Some(metrics) => text::encode(&mut body, metrics),
        None => text::encode_eof(&mut body),
    };
    if written.is_err() {
        // A scraper refuses a text without the closing `# EOF`.
        tracing::error!("the metrics could not be written as text");
    }
    ([(CONTENT_TYPE, OPENMETRICS), (CACHE_CONTROL, "no-store")], body).into_response()
}

async fn not_found() -> Response {
    problem(StatusCode::NOT_FOUND, "there are GET /livez, GET /readyz and GET /metrics")
}

/// An error as RFC 9457 describes it.
fn problem(status: StatusCode, detail: &'static str) -> Response {
    #[derive(Serialize)]
    struct ProblemBody {
        r#type: &'static str,
        title: &'static str,
        status: u16,
        detail: &'static str,
    }
    let title = status.canonical_reason().unwrap_or("Error");
    let body = ProblemBody { r#type: "about:blank", title, status: status.as_u16(), detail };
    // This status and this type replace those of `Json`.
    (status, [(CONTENT_TYPE, "application/problem+json")], Json(body)).into_response()
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
}

/// Compares in constant time: it compares all bytes of the two digests, so the time does not tell where the
/// tokens differ.
fn same(given: &[u8], expected: &[u8]) -> bool {
    let (given, expected) = (Sha256::digest(given), Sha256::digest(expected));
    let differing = given.iter().zip(expected).fold(0, |all, (a, b)| black_box(all | (a ^ b)));
    differing == 0
}

#[cfg(test)]
mod tests;
