//! Stands in front of every endpoint: who may ask, from where, how many at once and for how long.
//!
//! In: a request. Out: the answer of the endpoint, with its `x-request-id`; or a problem. A change goes on
//! when its client has gone, so it is always carried out as a whole, and audited.
//!
//! **Foreign pages.** A browser sends requests for any page that its user looks at. There is no CORS, so no
//! page reads an answer. To change something, a request with an `Origin` must have that of the listener
//! itself (the `Host` that it was sent to). A listener without a token also refuses requests to any `Host`
//! but a loopback name, reads included: a page whose name leads to 127.0.0.1 would have its own origin.
//!
//! Not here: comparing tokens (`admin::tokens`), which role a request needs (`admin::roles`), names and
//! origins (`admin::request`), the line of the audit (`admin::audit`).

use std::time::Duration;

use axum::extract::{MatchedPath, Request, State};
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::problems::naming;
use super::state::Api;
use crate::admin::problem::{ApiProblem, ProblemCode};
use crate::admin::request::{REQUEST_ID, is_change, known_host, own_origin, request_id};
use crate::admin::tokens::Caller;
use crate::admin::{audit, roles};
use crate::config::AccessRole;
use crate::operations::jobs::{self, Deed};
use crate::queue::Link;

/// How long an answer may take. A step of an operation ends by itself after 10 seconds.
const TIME: Duration = Duration::from_secs(25);

pub(super) async fn guard(State(api): State<Api>, request: Request, next: Next) -> Response {
    let request_id = request_id(request.headers());
    let mut response = if is_change(request.method()) {
        let changed = to_its_end(change(api, request, next, request_id.clone())).await;
        changed.unwrap_or_else(IntoResponse::into_response)
    } else {
        match admit(&api, &request) {
            Ok(caller) => limited(&api, &caller, request, next).await,
            Err((_, problem)) => problem.into_response(),
        }
    };
    if let Ok(id) = HeaderValue::from_str(&request_id) {
        response.headers_mut().insert(REQUEST_ID.clone(), id);
    }
    response
}

async fn change(api: Api, request: Request, next: Next, request_id: String) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let (who, response) = match admit(&api, &request) {
        Ok(caller) => {
            let response = limited(&api, &caller, request, next).await;
            (caller, response)
        }
        Err((who, problem)) => (who, problem.into_response()),
    };
    audit::write(&who.name, &method, &path, &request_id, &response);
    response
}

/// Answers, unless too many others are being answered, or it takes too long.
async fn limited(api: &Api, caller: &Caller, mut request: Request, next: Next) -> Response {
    let _permit = match api.place() {
        Ok(permit) => permit,
        Err(problem) => return problem.into_response(),
    };
    let path = request.uri().path().to_owned();
    // Orders, jobs and changes are noted with their caller.
    request.extensions_mut().insert(caller.clone());
    in_time(&path, next.run(request)).await.unwrap_or_else(IntoResponse::into_response)
}

/// Carries out a change, whether its client waits for the end or not.
pub(crate) async fn to_its_end(
    change: impl Future<Output = Response> + Send + 'static,
) -> Result<Response, ApiProblem> {
    let failed = |error| ApiProblem::new(ProblemCode::Internal, format!("the request failed: {error}"));
    tokio::spawn(change).await.map_err(failed)
}

/// Answers the request for this path, unless it takes too long. Its problems name the queue of the path.
pub(crate) async fn in_time(
    path: &str,
    answer: impl Future<Output = Response>,
) -> Result<Response, ApiProblem> {
    tokio::time::timeout(TIME, naming(path, answer)).await.map_err(|_| {
        let detail = format!("there was no answer within {} s; what it did so far stays", TIME.as_secs());
        ApiProblem::new(ProblemCode::TimedOut, detail)
    })
}

/// Returns the caller if the request is allowed. The error is the caller that was refused, and the reason.
fn admit(api: &Api, request: &Request) -> Result<Caller, (Caller, ApiProblem)> {
    let (tokens, method, headers) = (&api.0.tokens, request.method(), request.headers());
    known_host(tokens, headers, api.0.listen).map_err(|problem| (Caller::nobody(), problem))?;
    let Some(caller) = tokens.caller(headers) else {
        let detail = "this API asks for a token of [admin]: Authorization: Bearer …";
        return Err((Caller::nobody(), ApiProblem::new(ProblemCode::Unauthorized, detail)));
    };
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let what = format!("{method} {}", route.unwrap_or_default());
    let checked = roles::check(&caller, roles::needed(method, route), &what);
    let checked = if is_change(method) { checked.and_then(|()| own_origin(headers)) } else { checked };
    match checked {
        Ok(()) => Ok(caller),
        Err(problem) => Err((caller, problem)),
    }
}

/// The role that a job needs to begin or to go on: what deletes for good is for admins.
pub(crate) fn role_of(deed: Deed) -> AccessRole {
    match deed {
        Deed::Cancel | Deed::Drain | Deed::Requeue | Deed::Export | Deed::Import => AccessRole::Operate,
        Deed::Purge => AccessRole::Admin,
    }
}

/// Refuses to let a job go on that the caller may not begin.
pub(crate) async fn check_resume(link: &Link, caller: &Caller, id: &str) -> Result<(), ApiProblem> {
    let job = jobs::find(link, id).await?;
    roles::check(caller, role_of(job.deed), "this job")
}
